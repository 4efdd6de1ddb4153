"""Brute force is what exact models are held against, so it is held against something that argues even less."""

from __future__ import annotations

import random
from collections.abc import Iterator
from itertools import chain, combinations, groupby, pairwise, permutations, product

import msgspec
import pytest

from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Evictions, Problem, Stalls
from stowplan.models.memory_mapping.verify import Reason, verify
from tests.models.memory_mapping.brute_force import best_plan, optimum
from tests.models.memory_mapping.cases import random_plan, random_problem, with_objective
from tests.models.memory_mapping.mutations import mutants

Part = tuple[tuple[Residency, ...], tuple[Copy, ...], tuple[int, ...]]
"""Residencies, copies and fast uses of one tensor."""


def subsets(items: list[int] | list[Copy], most: int) -> Iterator[tuple]:  # type: ignore[type-arg]
    return chain.from_iterable(combinations(items, size) for size in range(min(most, len(items)) + 1))


def parts(problem: Problem, tensor: int) -> Iterator[Part]:
    """All that one tensor can do, but for its offsets, with at most as many copies out of a residency as it has writes."""
    horizon = problem.horizon
    uses = [(index, use.tensor) for index, step in enumerate(problem.steps) for use in step.uses]
    intervals = [(start, end) for start in range(horizon) for end in range(start + 1, horizon + 1)]
    for spans in chain.from_iterable(combinations(intervals, size) for size in range(horizon + 1)):
        if any(one[1] > two[0] for one, two in pairwise(spans)):
            continue
        resident = {step for start, end in spans for step in range(start, end)}
        numbers = [number for number, (step, other) in enumerate(uses) if other == tensor and step in resident]
        options = [list(stays(problem, tensor, start, end)) for start, end in spans]
        for chosen in product(*options):
            residencies = tuple(residency for residency, _ in chosen)
            copies = tuple(sorted((copy for _, own in chosen for copy in own), key=lambda copy: copy.start))
            for fast in subsets(numbers, len(numbers)):
                plan = Plan(problem=problem.digest, objective=0, residencies=residencies, copies=copies, fast_uses=fast)
                if breaks_only(problem, plan, Reason.STALLED_COPY):
                    yield residencies, copies, fast


def stays(problem: Problem, tensor: int, start: int, end: int) -> Iterator[tuple[Residency, tuple[Copy, ...]]]:
    least = 1 if problem.stalls == "forbidden" else 0
    loads: list[tuple[Copy, ...]] = [()]
    loads += [(Copy(tensor, "in", start, until),) for until in range(start + least, end + 1)]
    if problem.prefetches == "sliced":
        for border, since in product(range(1, problem.tensors[tensor].size), range(start, end)):
            low, high = (0, border), (border, problem.tensors[tensor].size)
            for first, second, until in product((low, high), (low, high), range(since + least, end + 1)):
                if first != second:
                    loads.append((Copy(tensor, "in", start, until, first), Copy(tensor, "in", since, until, second)))
    until_end = end + (problem.evictions == "between_steps")
    stores = [Copy(tensor, "out", since, until) for since in range(start, until_end) for until in range(since + least, end + 1)]
    writes = sum(use.tensor == tensor and use.is_output for step in problem.steps[start:end] for use in step.uses)
    may_preload = start == 0 and problem.tensors[tensor].is_input and problem.max_preloads > 0
    is_written = any(use.tensor == tensor and use.is_output for use in problem.steps[start].uses)
    for load, out in product(loads, list(subsets(stores, writes))):
        if load or is_written:
            yield Residency(tensor, start, end, 0), (*load, *out)
        if may_preload and not load:
            yield Residency(tensor, start, end, 0, preloaded=True), out


def placements(problem: Problem, residencies: tuple[Residency, ...]) -> Iterator[tuple[Residency, ...]]:
    """The residencies at all offsets."""
    places = [
        range(0, problem.capacity - problem.tensors[residency.tensor].size + 1, problem.alignment) for residency in residencies
    ]
    for offsets in product(*places):
        yield tuple(
            msgspec.structs.replace(residency, offset=offset) for residency, offset in zip(residencies, offsets, strict=True)
        )


def orders(copies: list[Copy]) -> Iterator[tuple[Copy, ...]]:
    """All orders in which copies may be queued."""
    groups = [list(group) for _, group in groupby(sorted(copies, key=lambda copy: copy.start), key=lambda copy: copy.start)]
    for ordered in product(*(list(permutations(group)) for group in groups)):
        yield tuple(chain.from_iterable(ordered))


def running_ps(problem: Problem, fast: set[int]) -> int:
    total = number = 0
    for step in problem.steps:
        total += step.weight * step.latency_ps([number + place in fast for place in range(len(step.uses))])
        number += len(step.uses)
    return total


def better_plan(problem: Problem, objective_ps: int) -> Plan | None:
    """A valid plan with a lower objective, if there is one, by trying everything."""
    options = [list(parts(problem, tensor)) for tensor in range(len(problem.tensors))]
    # Many ways to serve the same uses: whether these uses can be worth it is asked once.
    served = [{fast for _, _, fast in option} for option in options]
    for fast_uses in product(*served):
        fast = set(chain.from_iterable(fast_uses))
        if running_ps(problem, fast) >= objective_ps:
            continue
        ways = [[part for part in option if part[2] == own] for option, own in zip(options, fast_uses, strict=True)]
        for chosen in product(*ways):
            residencies = tuple(residency for part in chosen for residency in part[0])
            for queue in orders([copy for _, copies, _ in chosen for copy in copies]):
                plan = Plan(
                    problem=problem.digest,
                    objective=0,
                    residencies=residencies,
                    copies=queue,
                    fast_uses=tuple(sorted(fast)),
                )
                found = verify(problem, plan)
                assert found.objective is not None
                if found.objective >= objective_ps or not breaks_only(problem, plan, Reason.OVERLAP):
                    continue
                for placed in placements(problem, residencies):
                    if breaks_only(problem, msgspec.structs.replace(plan, residencies=placed)):
                        return msgspec.structs.replace(plan, residencies=placed)
    return None


def breaks_only(problem: Problem, plan: Plan, *codes: Reason) -> bool:
    """Whether a plan is valid but for these codes and the objective it claims."""
    return {violation.code for violation in verify(problem, plan).violations} <= {Reason.WRONG_OBJECTIVE, *codes}


@pytest.mark.parametrize("stalls", ["forbidden", "allowed"])
def test_no_plan_at_all_is_better(stalls: Stalls) -> None:
    rng = random.Random(f"exhaustive {stalls}")
    drawn = (random_problem(rng, steps=3, tensors=2, stalls=stalls) for _ in range(15))
    worthwhile = 0
    # Trying everything takes seconds where there are more uses.
    for problem in (problem for problem in drawn if problem.use_count <= 5):
        found = optimum(problem)
        assert better_plan(problem, found) is None
        worthwhile += found < problem.all_slow_ps
    assert worthwhile > 3


def test_no_plan_at_all_is_better_with_evictions_between_steps() -> None:
    rng = random.Random("exhaustive between steps")
    drawn = (
        random_problem(rng, steps=3, tensors=2, stalls="allowed", channels=1, evictions="between_steps") for _ in range(40)
    )
    freer = [p for p in drawn if p.use_count <= 4 and optimum(p) < optimum(msgspec.structs.replace(p, evictions="whole_steps"))]
    assert len(freer) > 1
    for problem in freer[:2]:
        assert better_plan(problem, optimum(problem)) is None


def test_exhaustive_search_finds_what_is_better() -> None:
    """The reference above can say no."""
    rng = random.Random("judge")
    problem = next(problem for problem in iter(lambda: random_problem(rng, steps=3, tensors=2), None) if gains(problem))
    assert better_plan(problem, optimum(problem) + 1) is not None


def gains(problem: Problem) -> bool:
    return optimum(problem) < problem.all_slow_ps


@pytest.mark.parametrize("stalls", ["forbidden", "allowed"])
def test_plans_are_valid_and_no_random_plan_is_better(stalls: Stalls) -> None:
    rng = random.Random(f"random {stalls}")
    tight = 0
    for number in range(80):
        evictions: Evictions = "between_steps" if number % 4 == 3 else "whole_steps"
        channels = 1 if evictions == "between_steps" else None
        problem = random_problem(rng, steps=5, tensors=3, stalls=stalls, channels=channels, evictions=evictions)
        best = best_plan(problem)
        assert verify(problem, best).ok
        for _ in range(3):
            other = random_plan(problem, rng)
            assert best.objective <= other.objective
            tight += best.objective == other.objective
    assert tight > 5


def test_nothing_one_change_away_is_better() -> None:
    rng = random.Random("neighbours")
    for _ in range(12):
        problem = random_problem(rng, steps=6, tensors=3)
        best = best_plan(problem)
        for _, mutant in mutants(problem, best):
            if breaks_only(problem, mutant):
                assert with_objective(problem, mutant).objective >= best.objective


def test_stalls_and_freedom_never_hurt() -> None:
    """Allowing stalls, more memory, another engine or a preload leaves every plan valid, so that the optimum cannot rise."""
    rng = random.Random("freedom")
    for _ in range(40):
        problem = random_problem(rng, steps=5, tensors=3, stalls="forbidden", alias_rule="uniform")
        found = optimum(problem)
        for change in (
            {"stalls": "allowed"},
            {"capacity": problem.capacity + problem.alignment},
            {"channels": problem.channels + 1},
            {"max_preloads": problem.max_preloads + 1},
            {"alias_rule": "in_place"},
        ):
            assert optimum(msgspec.structs.replace(problem, **change)) <= found, change
