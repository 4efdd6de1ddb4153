"""Random small problems and random valid plans for them, for every test of memory mapping.

Numbers are small on purpose: ties, windows that just fit and steps that take no time are where rules differ.
"""

from __future__ import annotations

import random
from typing import Any

import msgspec
from hypothesis import strategies as st

from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import (
    AliasRule,
    Evictions,
    InFlight,
    Loop,
    Piece,
    Prefetches,
    Problem,
    Stalls,
    Step,
    Table,
    Tensor,
    Use,
)
from stowplan.models.memory_mapping.verify import Reason, verify


def random_problem(
    rng: random.Random,
    *,
    steps: int | None = None,
    tensors: int | None = None,
    loops: int | None = None,
    in_place: bool = True,
    tables: bool = True,
    stalls: Stalls | None = None,
    alias_rule: AliasRule | None = None,
    max_preloads: int | None = None,
    channels: int | None = None,
    evictions: Evictions = "whole_steps",
    prefetches: Prefetches = "whole",
) -> Problem:
    """A valid problem; what is None is drawn.

    Parameters
    ----------
    steps, tensors
        How many: 1 to 10, and 1 to 6.
    loops
        At most how many (0 to 2), nested or disjoint.
    in_place
        Whether a step may read and write the same tensor.
    tables
        Whether a step's latency may be a table.
    """
    horizon = rng.randint(1, 10) if steps is None else steps
    count = rng.randint(1, 6) if tensors is None else tensors
    ranges = _random_loops(rng, horizon, rng.choice([0, 0, 1, 2]) if loops is None else loops)
    is_input = [rng.random() < 0.4 for _ in range(count)]
    uses = _random_uses(rng, horizon, is_input, in_place)
    written = {use.tensor for step in uses for use in step if use.is_output}
    alignment = rng.choice([1, 1, 1, 2, 4])
    # Sizes and times of one problem are of one order, so that memory is scarce and windows are tight.
    largest = rng.choice([3, 6])
    slowest_copy = rng.choice([3, 8, 20])
    return Problem(
        name=f"random {horizon}x{count}",
        target="none",
        cost_model="random",
        capacity=rng.choice([largest, 2 * largest, 3 * largest]),
        steps=tuple(
            Step(
                name=f"s{index}",
                opcode="random",
                weight=_product(loop.trip_count for loop in ranges if loop.start <= index < loop.end),
                uses=step,
                **_random_latency(rng, len(step), tables),
            )
            for index, step in enumerate(uses)
        ),
        tensors=tuple(
            Tensor(
                name=f"t{index}",
                size=rng.randint(1, largest),
                copy_in_ps=rng.randint(0, slowest_copy),
                copy_out_ps=rng.randint(0, slowest_copy),
                is_input=is_input[index],
                is_output=(is_input[index] or index in written) and rng.random() < 0.3,
                members=(f"t{index}.a", f"t{index}.b") if rng.random() < 0.4 else (),
            )
            for index in range(count)
        ),
        loops=ranges,
        alignment=alignment,
        channels=rng.choice([1, 1, 1, 2, 3]) if channels is None else channels,
        max_preloads=rng.choice([0, 1, 2]) if max_preloads is None else max_preloads,
        stalls=rng.choice(["forbidden", "allowed"]) if stalls is None else stalls,
        alias_rule=rng.choice(["in_place", "in_place", "uniform"]) if alias_rule is None else alias_rule,
        evictions=evictions,
        prefetches=prefetches,
    )


def _product(numbers: Any) -> int:
    result = 1
    for number in numbers:
        result *= number
    return result


def _random_loops(rng: random.Random, horizon: int, most: int) -> tuple[Loop, ...]:
    loops: list[Loop] = []
    for _ in range(most):
        start = rng.randrange(horizon)
        loop = Loop(start, rng.randint(start + 1, horizon), rng.randint(1, 3))
        crosses = any(
            one.start < two.start < one.end < two.end for other in loops for one, two in ((loop, other), (other, loop))
        )
        if not crosses:
            loops.append(loop)
    return tuple(loops)


def _random_uses(rng: random.Random, horizon: int, is_input: list[bool], in_place: bool) -> list[tuple[Use, ...]]:
    """Uses of every step: nothing is read before it is written; some tensors are rewritten whole, some updated in place."""
    defined = list(is_input)
    width = rng.choice([1, 2, 3])
    program = []
    for _ in range(horizon):
        uses = []
        for tensor in rng.sample(range(len(defined)), min(len(defined), rng.randint(0 if rng.random() < 0.2 else 1, width))):
            roles = [True]
            if defined[tensor]:
                roles = rng.choice([[False], [False], [False], [True], [False, True] if in_place else [False]])
            rng.shuffle(roles)
            uses += [Use(tensor, is_output, rng.randint(0, 9)) for is_output in roles]
        for use in uses:
            defined[use.tensor] |= use.is_output
        if rng.random() < 0.3:
            rng.shuffle(uses)
        program.append(tuple(uses))
    return program


def _random_latency(rng: random.Random, uses: int, tables: bool) -> dict[str, Any]:
    if rng.random() < 0.1:
        return {"pieces": (Piece(0, (0,) * uses, (0,) * uses),)}
    if tables and rng.random() < 0.3:
        listed = tuple(rng.sample(range(uses), min(uses, rng.randint(0, 3))))
        return {"table": Table(listed, tuple(rng.randint(0, 12) for _ in range(1 << len(listed))))}
    pieces = []
    for _ in range(rng.choice([1, 1, 2, 3])):
        slow = tuple(rng.randint(0, 12) for _ in range(uses))
        # Mostly fast memory is faster; now and then it is not, and now and then a term is even negative.
        fast = tuple(rng.randint(-1, term + 3) if rng.random() < 0.2 else rng.randint(0, term // 3) for term in slow)
        pieces.append(Piece(rng.choice([0, rng.randint(0, 10)]) - sum(min(term, 0) for term in fast), slow, fast))
    return {"pieces": tuple(pieces)}


def with_harmful_tables(problem: Problem, rng: random.Random) -> Problem:
    """The same problem, each step with a table over its uses in which fast memory helps here and hurts there."""
    steps = []
    for step in problem.steps:
        listed = tuple(rng.sample(range(len(step.uses)), min(len(step.uses), rng.choice([2, 4, 5]))))
        slow = rng.randint(3, 15)
        entries = [slow, *(max(0, slow + rng.randint(-6, 6)) for _ in range(1, 1 << len(listed)))]
        if rng.random() < 0.6:
            # All fast is worse than all slow, while something between is better than both.
            entries[-1] = slow + rng.randint(0, 9)
        table = Table(listed, tuple(entries[: 1 << len(listed)]))
        steps.append(msgspec.structs.replace(step, pieces=(), table=table))
    return msgspec.structs.replace(problem, steps=tuple(steps))


def with_in_flight(problem: Problem, rng: random.Random) -> Problem:
    """The same problem, in which asynchronous operations hold some tensors from one of their steps to a later one."""
    held = []
    for tensor in range(len(problem.tensors)):
        steps = [index for index, step in enumerate(problem.steps) if any(use.tensor == tensor for use in step.uses)]
        for _ in range(rng.choice([0, 1, 1, 2])):
            if len(steps) > 1:
                start, end = sorted(rng.sample(steps, 2))
                held.append(InFlight(tensor, start, end + 1))
    return msgspec.structs.replace(problem, in_flight=tuple(dict.fromkeys(held)))


def random_plan(problem: Problem, rng: random.Random, *, attempts: int = 40) -> Plan:
    """A valid plan with its right objective: the all-slow plan, and every proposal that keeps it valid.

    A proposal is a residency with its source, fast uses and copies out. Verification decides, because it is tested by itself
    against an executor in ``reference.py``.
    """
    plan = Plan(problem=problem.digest, objective=0)
    uses = [(step, number, use) for number, (step, use) in enumerate(_uses(problem))]
    used = sorted({use.tensor for _, _, use in uses})
    for _ in range(attempts if used else 0):
        tensor = rng.choice(used)
        proposal = _with_residency(problem, plan, tensor, [item for item in uses if item[2].tensor == tensor], rng)
        if proposal is not None and {item.code for item in verify(problem, proposal).violations} <= {Reason.WRONG_OBJECTIVE}:
            plan = proposal
    return with_objective(problem, plan)


def with_objective(problem: Problem, plan: Plan) -> Plan:
    """The same plan, claiming the objective that it has."""
    found = verify(problem, plan).objective
    assert found is not None
    return msgspec.structs.replace(plan, objective=found)


def _uses(problem: Problem) -> list[tuple[int, Use]]:
    return [(index, use) for index, step in enumerate(problem.steps) for use in step.uses]


def _with_residency(
    problem: Problem, plan: Plan, tensor: int, uses: list[tuple[int, int, Use]], rng: random.Random
) -> Plan | None:
    """``plan`` with one more residency of ``tensor``; often valid, not always."""
    info, horizon = problem.tensors[tensor], problem.horizon
    steps = [step for step, _, _ in uses]
    inner = not info.is_input and not info.is_output
    around = [loop for loop in problem.loops if inner and loop.start <= min(steps) and max(steps) < loop.end]
    low, high = max((loop.start for loop in around), default=0), min((loop.end for loop in around), default=horizon)
    # Where the tensor's residencies and copies may start and end: not inside a loop that it enters or leaves.
    marks = [
        boundary
        for boundary in range(low, high + 1)
        if not any(loop.start < boundary < loop.end for loop in problem.loops if loop not in around)
    ]
    definitions = [step for step, _, use in uses if use.is_output and steps.count(step) == 1 and step in marks]
    start = rng.choice(definitions) if definitions and rng.random() < 0.6 else rng.choice(marks)
    later = [boundary for boundary in marks if boundary > start]
    if not later:
        return None
    whole = problem.alias_rule == "uniform" and len(info.members) > 1
    end = max(later) if whole or rng.random() < 0.3 else rng.choice(later)
    if whole and rng.random() < 0.7:
        start = 0 if info.is_input else min(steps)
    preloaded = start == 0 and info.is_input and problem.max_preloads > 0 and rng.random() < 0.6
    copies: list[Copy] = []
    ready = start
    if not preloaded and start not in definitions:
        windows = [boundary for boundary in marks if start <= boundary <= end]
        ready = rng.choice(windows[:3])
        copies.append(Copy(tensor, "in", start, ready))
        if problem.prefetches == "sliced" and info.size > 1 and rng.random() < 0.7:
            borders = [0, *sorted(rng.sample(range(1, info.size), min(info.size - 1, rng.choice([1, 1, 2])))), info.size]
            within = [boundary for boundary in windows if boundary <= ready]
            starts = [start, *(rng.choice(within) for _ in borders[2:])]
            rng.shuffle(starts)
            copies = [
                Copy(tensor, "in", since, rng.choice([b for b in within if b >= since]), (low, high))
                for since, low, high in zip(starts, borders, borders[1:], strict=False)
            ]
    inside = [(step, number, use) for step, number, use in uses if start <= step < end]
    written = {step for step, _, use in inside if use.is_output}
    fast = [number for step, number, use in inside if step in written or (step >= ready and (whole or rng.random() < 0.85))]
    starts = [boundary for boundary in marks if max([start, *(step + 1 for step in written)]) <= boundary <= end]
    if starts and rng.random() < (0.8 if written else 0.1):
        queued = rng.choice(starts)
        copies.append(Copy(tensor, "out", queued, rng.choice([boundary for boundary in marks if queued <= boundary <= end])))
    places = range(0, max(1, problem.capacity - info.size + 1), problem.alignment)
    residencies = [*plan.residencies]
    residencies.insert(rng.randint(0, len(residencies)), Residency(tensor, start, end, rng.choice(places), preloaded))
    queue = [*plan.copies]
    for copy in copies:
        queue.insert(rng.randint(0, len(queue)), copy)
    queue.sort(key=lambda copy: copy.start)
    return msgspec.structs.replace(
        plan,
        residencies=tuple(residencies),
        copies=tuple(queue),
        fast_uses=tuple(sorted({*plan.fast_uses, *fast})),
    )


def problems(**options: Any) -> st.SearchStrategy[Problem]:
    """Random problems for hypothesis; ``options`` are those of :func:`random_problem`."""
    return st.integers(0, 2**32 - 1).map(lambda seed: random_problem(random.Random(seed), **options))


def planned_problems(**options: Any) -> st.SearchStrategy[tuple[Problem, Plan]]:
    """Random problems, each with a random valid plan."""

    def draw(seed: int) -> tuple[Problem, Plan]:
        rng = random.Random(seed)
        problem = random_problem(rng, **options)
        return problem, random_plan(problem, rng)

    return st.integers(0, 2**32 - 1).map(draw)
