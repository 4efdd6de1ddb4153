"""Steers worth a compile: each way of finding one looks at the evidence so far and proposes the next.

Values that fast memory harms go last, values that a plan of ours keeps go first, and small corrections of the best steer so far
move what its own cycles blame.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import msgspec

from stowplan.backends.xla.evidence import Evidence, Move, Trial
from stowplan.backends.xla.score import with_freedoms
from stowplan.backends.xla.steer import DEFAULT, OVERLAP_OPTION, RETRIES_OPTION, Prefetch, Steer
from stowplan.hardware.costs import make_problem
from stowplan.hardware.costs.roofline import CycleTable, StepCycles
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem, Use
from stowplan.portfolio.solve import solve

PlanModel = Literal["roofline", "table", "signatures"]

#: Seconds that a plan may take; the heuristics' plan is within a percent by then, and a compile takes longer.
PLAN_SECONDS = 6.0

#: What it gets where the time is nearly over.
_LEAST_SECONDS = 0.2

#: Entries of a text of prefetches: XLA looks them up one by one.
MOST_PREFETCHES = 200


def problem_of(evidence: Evidence, model: PlanModel, capacity: int | None = None) -> Problem:
    """The program's problem under a cost model that knows the trials; ``capacity`` in bytes, the target's where None."""
    program, target = evidence.program, evidence.judge.target
    if model == "roofline":
        return make_problem(program, target, cost_model="roofline", capacity=capacity)
    if model == "table":
        return make_problem(program, target, cost_model="table", capacity=capacity, cycles=cycle_table(evidence))
    return make_problem(program, target, cost_model="signatures", capacity=capacity, signatures=evidence.costs)


class Planned(NamedTuple):
    """A plan of ours, and the problem it is for."""

    problem: Problem
    plan: Plan

    @property
    def tensors(self) -> set[int]:
        """Tensors that some step finds in fast memory."""
        return {use.tensor for _, use in self.fast_uses()}

    def fast_uses(self) -> Iterator[tuple[int, Use]]:
        """Step and use, of all that are served from fast memory."""
        uses = ((at, use) for at, step in enumerate(self.problem.steps) for use in step.uses)
        fast = set(self.plan.fast_uses)
        return (each for number, each in enumerate(uses) if number in fast)


def planned(
    evidence: Evidence, model: PlanModel, chance: random.Random, start: Trial | None = None, capacity: int | None = None
) -> Planned:
    """A plan of the heuristics; the same for equal evidence and seed, unless the evidence's deadline cuts it short.

    It begins from what XLA made of ``start``, within that trial's capacity or ``capacity`` bytes. Then it has XLA's freedoms,
    too, is no worse than XLA's plan by the model, and differs from it only where that gains something.
    """
    hint = None
    if start is None:
        problem = problem_of(evidence, model, capacity)
    else:
        problem = with_freedoms(problem_of(evidence, model, start.steer.capacity if capacity is None else capacity))
        if evidence.judge.has_fast_memory(start.compiled):
            hint = evidence.judge.plan(start.compiled, problem).plan
    found = solve(
        problem,
        hint=hint,
        time_limit=min(PLAN_SECONDS, max(evidence.deadline.remaining, _LEAST_SECONDS)),
        candidates=["heuristic"],
        workers=1,
        deterministic=True,
        seed=chance.randrange(1 << 30),
        cancel=evidence.deadline.cancelled,
    )
    return Planned(problem, found.plan)


def planned_prefetches(evidence: Evidence, found: Planned) -> frozenset[Prefetch]:
    """The plan's copies to fast memory, largest first: the step that needs each of them, and the one that it begins after.

    Copies from within loops, or for what is no operand by itself, are left out: XLA could not be told of them.
    """
    problem, plan = found
    reads: dict[int, list[int]] = {}
    for at, use in found.fast_uses():
        if not use.is_output:
            reads.setdefault(use.tensor, []).append(at)
    prefetches: dict[tuple[int, int], Prefetch] = {}
    copies = [copy for copy in plan.copies if copy.direction == "in" and copy.start > 0]
    for copy in sorted(copies, key=lambda copy: (-problem.tensors[copy.tensor].size, copy.start)):
        user = next((at for at in reads.get(copy.tensor, ()) if at >= copy.end), None)
        before = problem.steps[copy.start - 1].name
        if user is None or "/" in before or "/" in problem.steps[user].name:
            continue
        operand = evidence.operands.get((problem.steps[user].name, copy.tensor))
        if operand is not None and len(prefetches) < MOST_PREFETCHES:
            prefetches.setdefault((user, operand), Prefetch(problem.steps[user].name, operand, before))
    return frozenset(prefetches.values())


def cycle_table(evidence: Evidence) -> CycleTable:
    """Cycles of all in slow memory and of XLA's default, as the cost model ``table`` takes them."""
    default = evidence.trials[0]
    slow = evidence.all_slow or default
    steps = {}
    for step in evidence.program.steps:
        signature = evidence.signatures.get(step.name)
        before, after = slow.assignment.steps.get(step.name), default.assignment.steps.get(step.name)
        if signature is None or before is None or before.cycles is None:
            continue
        if after is None or after.cycles is None:
            steps[step.name] = StepCycles(before.cycles)
            continue
        fast = {
            (step.uses[use].tensor, step.uses[use].is_output)
            for use, mask in signature.used_leaves().items()
            if after.pattern & mask
        }
        steps[step.name] = StepCycles(before.cycles, after.cycles, frozenset(fast))
    return CycleTable(steps)


#: Moves of one correction: few at a time, since each changes what XLA does with all that follow.
STEPS = (8, 4, 16, 2, 32, 64)

#: A program that is slower than this without fast memory can do without little of it.
_WORTH_MUCH = 1.15

#: Inputs that are tried as the one that is there before the program starts.
MOST_PRELOADS = 2

#: Bytes of fast memory that are worth a try.
_LEAST_CAPACITY = 1 << 16

#: Shares of the fast memory that the incumbent takes, for which a plan is made.
_FITS = (0.75, 0.875, 0.5, 0.25)

#: What saves a smaller part of a program's time is not worth a compile.
_LEAST_GAIN = 0.001

#: Overlap ratios that are tried in place of XLA's own, and the largest.
_OVERLAPS, _MOST_OVERLAP = (10.0, 4.0), 100.0


class Proposal(NamedTuple):
    """A steer and what is expected of it."""

    way: str
    steer: Steer
    gain: float = 0.0
    """Cycles that it is expected to save against the incumbent; an order's effect is never certain."""


#: One way of steering: the steers that it would propose now, the most promising first; the loop takes the first
#: that is new.
Way = Callable[[Evidence, random.Random], Iterator[Proposal]]


def harm_last(evidence: Evidence, planned: Trial, all_slow: Trial) -> Steer:
    """To the back goes what fast memory harms: tensors whose steps are slower with XLA's plan than with none."""
    return DEFAULT.moved(last=evidence.names(evidence.harmful(planned.assignment, all_slow.assignment)))


def plan_first(evidence: Evidence, fast: set[int]) -> Steer:
    """To the front goes what a plan keeps in fast memory for some of its uses."""
    return DEFAULT.moved(first=evidence.names(fast))


def plans(evidence: Evidence, chance: random.Random) -> Iterator[Proposal]:
    """A plan under everything measured so far, from the incumbent's on: what XLA keeps and the plan does not goes last.

    Other forms put to the front what the plan keeps and XLA does not, or all that it keeps, and to the back all that it does
    not keep.
    """
    incumbent = evidence.incumbent
    fast = planned(evidence, "signatures", chance, incumbent).tensors
    front = Steer(evidence.names(fast), options=incumbent.steer.options, prefetches=incumbent.steer.prefetches)
    unwanted = evidence.fast_tensors(incumbent.assignment) - fast
    yield Proposal("plan", incumbent.steer.moved(last=evidence.names(unwanted)))
    yield Proposal("plan", _towards(evidence, incumbent, fast))
    yield Proposal("plan", front)
    yield Proposal("plan", front.moved(last=evidence.names(unwanted)))
    yield Proposal("plan", front.moved(last=evidence.names(set(evidence.values) - fast)))


def _towards(evidence: Evidence, trial: Trial, fast: set[int]) -> Steer:
    """A trial's steer, moved to keep some tensors and no others: what it lacks goes first, what it has besides goes last."""
    kept = evidence.fast_tensors(trial.assignment)
    return trial.steer.moved(first=evidence.names(fast - kept), last=evidence.names(kept - fast))


def capacities(evidence: Evidence, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent within less fast memory than it takes.

    The order cannot keep a value out where there is room for all. Less room can: what goes last then finds none, and what is
    larger than all of it never does.
    """
    incumbent = evidence.incumbent
    steer, used = incumbent.steer, incumbent.score.fast_bytes
    if steer.capacity is not None:
        parts = [round(steer.capacity * factor) for factor in (0.75, 1.5, 0.5, 1.25)]
    elif _worth(evidence) > _WORTH_MUCH:
        parts = [3 * used // 4, used // 2, 7 * used // 8, used // 4]
    else:
        parts = [used // 4, used // 2, used // 8, 3 * used // 4]
    for part in parts:
        if _LEAST_CAPACITY <= part <= evidence.capacity:
            yield Proposal("capacity", steer.within(part))


def fitted(evidence: Evidence, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent within less fast memory, moved to a plan that was made for so little: what the plan would still keep goes
    first, and what it would not goes last."""
    trial = evidence.incumbent
    tried = {each.steer.capacity for each in evidence.trials}
    for share in _FITS:
        part = min(round(share * trial.score.fast_bytes), evidence.capacity) >> 10 << 10
        if part >= _LEAST_CAPACITY and part not in tried:
            fast = planned(evidence, "signatures", chance, trial, part).tensors
            yield Proposal("fit", _towards(evidence, trial, fast).within(part))


def tightened(evidence: Evidence, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent with all that fast memory harms at the back, and no more room than the rest takes.

    Either alone does less: what goes last still gets what place is left, and less room by itself takes it from anything. Other
    forms take away only the half, or the quarter, that does most harm.
    """
    trial = evidence.incumbent
    harmful = [move for move in evidence.moves(trial) if not move.to_fast and move.cycles < 0]
    if not harmful:
        return
    plan = evidence.judge.plan(trial.compiled).plan
    for part in (1, 2, 4):
        chosen = harmful[: -(-len(harmful) // part)]
        left = evidence.judge.most_bytes(plan, {move.tensor for move in chosen})
        if _LEAST_CAPACITY <= left < evidence.capacity:
            steer = trial.steer.moved(last=evidence.names(move.tensor for move in chosen))
            # Rounded up: the rest has to fit.
            yield Proposal("tighten", steer.within(left + 1023), -sum(move.cycles for move in chosen))


def _worth(evidence: Evidence) -> float:
    """Cycles of all in slow memory over those of the default: how much fast memory is worth to the program."""
    slow = evidence.all_slow.score.total if evidence.all_slow is not None else 0
    return slow / evidence.trials[0].score.total


def retries(evidence: Evidence, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent with more tries for values that do not fit at first."""
    yield Proposal("retries", evidence.incumbent.steer.with_option(RETRIES_OPTION, "20"))


def preloads(evidence: Evidence, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent with another input in fast memory before the program starts: those that save most cycles there."""
    trial = evidence.incumbent
    gains = []
    for move in evidence.moves(trial):
        if move.to_fast and move.tensor in evidence.parameters:
            # It is there from the start on, not from its first use on.
            cycles = move.cycles + evidence.waiting_cost(move.tensor)
            gains.append((-cycles, evidence.values[move.tensor][0]))
    for gain, name in sorted(gains, reverse=True)[:MOST_PRELOADS]:
        if gain >= _LEAST_GAIN * trial.score.total:
            yield Proposal("preload", msgspec.structs.replace(trial.steer, preload=name), gain)


def prefetches(evidence: Evidence, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent with copies that begin when those of a plan do, where it waits for copies."""
    incumbent = evidence.incumbent
    if not waits(incumbent):
        return
    found = planned_prefetches(evidence, planned(evidence, "signatures", chance, incumbent))
    if found:
        yield Proposal("prefetch", msgspec.structs.replace(incumbent.steer, prefetches=found))


def overlaps(evidence: Evidence, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent with copies that begin earlier, where it waits for copies.

    XLA has a copy begin about so early that the program has twice the copy's time to do beside it. That is too late where
    copies queue, and what then waits shows in the stalls alone.
    """
    incumbent = evidence.incumbent
    if not waits(incumbent):
        return
    ratio = incumbent.steer.overlap
    for each in _OVERLAPS if ratio is None else (3 * ratio,):
        if each <= _MOST_OVERLAP:
            yield Proposal("overlap", incumbent.steer.with_option(OVERLAP_OPTION, f"{each:g}"))


def waits(trial: Trial) -> bool:
    """Whether a trial waits for copies for a part of its time that is worth a compile."""
    return trial.score.stall_cycles >= _LEAST_GAIN * trial.score.total


def corrections(evidence: Evidence, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent with the moves that its own cycles recommend most."""
    trial = evidence.incumbent
    yield from _corrected("correct", evidence, trial, [move for move in evidence.moves(trial) if move.cycles < 0])


def explorations(evidence: Evidence, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent with the moves that may be worth most: expected gain and what is not known of it."""
    trial = evidence.incumbent
    moves = [move for move in evidence.moves(trial) if move.cycles - move.deviation < 0]
    moves.sort(key=lambda move: (move.cycles - move.deviation, move.tensor, move.to_fast))
    yield from _corrected("explore", evidence, trial, moves)


def returns(evidence: Evidence, chance: random.Random) -> Iterator[Proposal]:
    """Another trial than the incumbent, corrected: what to do where the incumbent's own corrections are used up."""
    for trial in sorted(evidence.trials, key=lambda each: each.score.total)[1:4]:
        yield from _corrected("return", evidence, trial, [move for move in evidence.moves(trial) if move.cycles < 0])


def perturbations(evidence: Evidence, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent with a few tensors moved by lot, among those that stand in its way or in fast memory."""
    trial = evidence.incumbent
    tensors = sorted(evidence.values)
    for share in (0.02, 0.05, 0.1):
        chosen = [tensor for tensor in tensors if chance.random() < share] or [chance.choice(tensors)]
        first = [tensor for tensor in chosen if chance.random() < 0.5]
        last = [tensor for tensor in chosen if tensor not in first]
        yield Proposal("perturb", trial.steer.moved(first=evidence.names(first), last=evidence.names(last)))


def _corrected(way: str, evidence: Evidence, trial: Trial, moves: list[Move]) -> Iterator[Proposal]:
    for count in (*STEPS, len(moves)):
        if count > len(moves):
            continue
        chosen = moves[:count]
        steer = trial.steer.moved(
            first=evidence.names(move.tensor for move in chosen if move.to_fast),
            last=evidence.names(move.tensor for move in chosen if not move.to_fast),
        )
        yield Proposal(way, steer, -sum(move.cycles for move in chosen))


#: Ways of steering, and what each is worth before anything is known of it: its share of compiles that were better than the
#: incumbent (``benchmarks/xla/tuning.py`` prints the shares).
WAYS: tuple[tuple[Way, float], ...] = (
    (tightened, 0.3),
    (capacities, 0.35),
    (plans, 0.2),
    (fitted, 0.28),
    (corrections, 0.346),
    (retries, 0.1),
    (explorations, 0.1),
    (preloads, 0.38),
    (prefetches, 0.15),
    (returns, 0.1),
    (perturbations, 0.05),
    # Less than its share: it can save the stalls alone, so others, which save cycles, come first where they are as good.
    (overlaps, 0.345),
)
