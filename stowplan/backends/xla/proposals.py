"""Settings worth a compile: each way of finding one looks at the evidence so far and proposes the next.

A plan of ours says what goes first and what last; small corrections of the best setting so far move what its own cycles blame.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import NamedTuple

import msgspec

from stowplan.backends.xla.evidence import Evidence, Move, Trial
from stowplan.backends.xla.knobs import OVERLAP_OPTION, SLICES_OPTION, Knobs
from stowplan.backends.xla.score import with_freedoms
from stowplan.hardware.costs import make_problem
from stowplan.hardware.targets import KnobName
from stowplan.kernel.solve import solve
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem

#: Seconds that a plan may take; the heuristics' plan is within a percent by then, and a compile takes longer.
PLAN_SECONDS = 6.0

#: What it gets where the time is nearly over.
_LEAST_SECONDS = 0.2


class Planned(NamedTuple):
    """A plan of ours, and the problem it is for."""

    problem: Problem
    plan: Plan

    @property
    def tensors(self) -> set[int]:
        """Tensors that some step finds in fast memory."""
        uses = [use.tensor for step in self.problem.steps for use in step.uses]
        return {uses[number] for number in self.plan.fast_uses}


def planned(evidence: Evidence, chance: random.Random, start: Trial, capacity: int | None = None) -> Planned:
    """A plan of the heuristics; the same for equal evidence and seed, unless the evidence's deadline cuts it short.

    It has XLA's freedoms, begins from what XLA made of ``start``, within that trial's capacity or ``capacity`` bytes, is no
    worse than XLA's plan by what the trials have shown, and differs from it only where that gains something.
    """
    problem = with_freedoms(
        make_problem(
            evidence.program,
            evidence.scorer.target,
            cost_model="signatures",
            capacity=start.knobs.capacity if capacity is None else capacity,
            signatures=evidence.costs,
        )
    )
    hint = evidence.scorer.plan(start.compiled, problem).plan if start.has_fast_memory else None
    result = solve(
        problem,
        hint=hint,
        time_limit=min(PLAN_SECONDS, max(evidence.deadline.remaining, _LEAST_SECONDS)),
        candidates=["heuristic"],
        workers=1,
        deterministic=True,
        seed=chance.randrange(1 << 30),
        cancel=evidence.deadline.cancelled,
    )
    # All in main memory is a plan.
    assert result.plan is not None
    return Planned(problem, result.plan)


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

#: Orders by lot that are looked at for new ones: a small program has few.
_DRAWS = 20

#: From how many bytes on values are fetched how early.
_EAGER = ((1 << 16, 0.5), (1 << 20, 0.9), (1 << 16, 1.0))

#: Overlap ratios that are tried in place of XLA's own, and the largest.
_OVERLAPS, _MOST_OVERLAP = (10.0, 4.0), 100.0


class Proposal(NamedTuple):
    """A setting and what is expected of it."""

    way: str
    knobs: Knobs
    gain: float = 0.0
    """Cycles that it is expected to save against the incumbent; an order's effect is never certain."""


#: One way of setting knobs: the settings that it would propose from a trial or a preview on, the most promising first;
#: the first that are new are taken.
Way = Callable[[Evidence, Trial, random.Random], Iterator[Proposal]]


def plans(evidence: Evidence, trial: Trial, chance: random.Random) -> Iterator[Proposal]:
    """A plan under everything measured so far, from the incumbent's on: what XLA keeps and the plan does not goes last.

    Other forms put to the front what the plan keeps and XLA does not, or all that it keeps, and to the back all that it does
    not keep.
    """
    fast = planned(evidence, chance, trial).tensors
    front = msgspec.structs.replace(trial.knobs, first=evidence.names(fast), last=frozenset(), preload="")
    unwanted = evidence.fast_tensors(trial.assignment) - fast
    yield Proposal("plan", trial.knobs.moved(last=evidence.names(unwanted)))
    yield Proposal("plan", _towards(evidence, trial, fast))
    yield Proposal("plan", front)
    yield Proposal("plan", front.moved(last=evidence.names(unwanted)))
    yield Proposal("plan", front.moved(last=evidence.names(set(evidence.values) - fast)))


def _towards(evidence: Evidence, trial: Trial, fast: set[int]) -> Knobs:
    """A trial's setting, moved to keep some tensors and no others: what it lacks goes first, what it has besides goes last."""
    kept = evidence.fast_tensors(trial.assignment)
    return trial.knobs.moved(first=evidence.names(fast - kept), last=evidence.names(kept - fast))


def capacities(evidence: Evidence, trial: Trial, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent within less fast memory than it takes.

    The order cannot keep a value out where there is room for all. Less room can: what goes last then finds none, and what is
    larger than all of it never does.
    """
    knobs, used = trial.knobs, trial.score.fast_bytes
    if knobs.capacity is not None:
        parts = [round(knobs.capacity * factor) for factor in (0.75, 1.5, 0.5, 1.25)]
    elif _worth(evidence) > _WORTH_MUCH:
        parts = [3 * used // 4, used // 2, 7 * used // 8, used // 4]
    else:
        parts = [used // 4, used // 2, used // 8, 3 * used // 4]
    for part in parts:
        if _LEAST_CAPACITY <= part <= evidence.capacity:
            yield Proposal("capacity", knobs.within(part))


def fitted(evidence: Evidence, trial: Trial, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent within less fast memory, moved to a plan that was made for so little: what the plan would still keep goes
    first, and what it would not goes last."""
    tried = {earlier.knobs.capacity for earlier in evidence.trials}
    for share in _FITS:
        part = min(round(share * trial.score.fast_bytes), evidence.capacity) >> 10 << 10
        if part >= _LEAST_CAPACITY and part not in tried:
            fast = planned(evidence, chance, trial, part).tensors
            yield Proposal("fit", _towards(evidence, trial, fast).within(part))


def tightened(evidence: Evidence, trial: Trial, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent with all that fast memory harms at the back, and no more room than the rest takes.

    Either alone does less: what goes last still gets what place is left, and less room by itself takes it from anything. Other
    forms take away only the half, or the quarter, that does most harm.
    """
    harmful = [move for move in evidence.moves(trial) if not move.to_fast and move.cycles < 0]
    if not harmful:
        return
    plan = evidence.scorer.plan(trial.compiled).plan
    for part in (1, 2, 4):
        chosen = harmful[: -(-len(harmful) // part)]
        left = evidence.scorer.most_bytes(plan, {move.tensor for move in chosen})
        if _LEAST_CAPACITY <= left < evidence.capacity:
            knobs = trial.knobs.moved(last=evidence.names(move.tensor for move in chosen))
            # Rounded up: the rest has to fit.
            yield Proposal("tighten", knobs.within(left + 1023), -sum(move.cycles for move in chosen))


def _worth(evidence: Evidence) -> float:
    """Cycles of all in slow memory over those of the default: how much fast memory is worth to the program."""
    return evidence.all_slow.score.total / evidence.trials[0].score.total if evidence.all_slow is not None else 0.0


def preloads(evidence: Evidence, trial: Trial, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent with another input in fast memory before the program starts: those that save most cycles there."""
    gains = []
    for move in evidence.moves(trial):
        if move.to_fast and move.tensor in evidence.parameters:
            # It is there from the start on, not from its first use on.
            cycles = move.cycles + evidence.waiting_cost(move.tensor)
            gains.append((-cycles, evidence.values[move.tensor][0]))
    for gain, name in sorted(gains, reverse=True)[:MOST_PRELOADS]:
        if gain >= _LEAST_GAIN * trial.score.total:
            yield Proposal("preload", msgspec.structs.replace(trial.knobs, preload=name), gain)


def overlaps(evidence: Evidence, trial: Trial, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent with copies that begin earlier, where it waits for copies.

    XLA has a copy begin about so early that the program has twice the copy's time to do beside it. That is too late where
    copies queue, and what then waits shows in the stalls alone.
    """
    if not waits(trial):
        return
    ratio = trial.knobs.overlap
    for larger in _OVERLAPS if ratio is None else (3 * ratio,):
        if larger <= _MOST_OVERLAP:
            yield Proposal("overlap", trial.knobs.with_option(OVERLAP_OPTION, f"{larger:g}"))


def waits(trial: Trial) -> bool:
    """Whether a trial waits for copies for a part of its time that is worth a compile."""
    return trial.score.stall_cycles >= _LEAST_GAIN * trial.score.total


def corrections(evidence: Evidence, trial: Trial, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent with the moves that its own cycles recommend most."""
    yield from _corrected("correct", evidence, trial, [move for move in evidence.moves(trial) if move.cycles < 0])


def explorations(evidence: Evidence, trial: Trial, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent with the moves that may be worth most: expected gain and what is not known of it."""
    moves = [move for move in evidence.moves(trial) if move.cycles - move.deviation < 0]
    moves.sort(key=lambda move: (move.cycles - move.deviation, move.tensor, move.to_fast))
    yield from _corrected("explore", evidence, trial, moves)


def returns(evidence: Evidence, trial: Trial, chance: random.Random) -> Iterator[Proposal]:
    """Another trial than the incumbent, corrected: what to do where the incumbent's own corrections are used up."""
    for other in sorted(evidence.trials, key=lambda other: other.score.total)[1:4]:
        yield from _corrected("return", evidence, other, [move for move in evidence.moves(other) if move.cycles < 0])


def perturbations(evidence: Evidence, trial: Trial, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent with a few tensors moved by lot, among those that stand in its way or in fast memory."""
    tensors = sorted(evidence.values)
    for share in (0.02, 0.05, 0.1):
        chosen = [tensor for tensor in tensors if chance.random() < share] or [chance.choice(tensors)]
        first = [tensor for tensor in chosen if chance.random() < 0.5]
        last = [tensor for tensor in chosen if tensor not in first]
        yield Proposal("perturb", trial.knobs.moved(first=evidence.names(first), last=evidence.names(last)))


def draws(evidence: Evidence, trial: Trial, chance: random.Random) -> Iterator[Proposal]:
    """An order by lot, 5 to 50 % of all tensors moved, with the incumbent's other options."""
    tensors = sorted(evidence.values)
    for _ in range(_DRAWS):
        share = chance.uniform(0.05, 0.5)
        sides = {tensor: chance.random() < 0.5 for tensor in tensors if chance.random() < share}
        first = evidence.names(tensor for tensor, side in sides.items() if side)
        last = evidence.names(tensor for tensor, side in sides.items() if not side)
        yield Proposal("draw", msgspec.structs.replace(trial.knobs, first=first, last=last, preload=""))


def _corrected(way: str, evidence: Evidence, trial: Trial, moves: list[Move]) -> Iterator[Proposal]:
    for count in (*STEPS, len(moves)):
        if count > len(moves):
            continue
        chosen = moves[:count]
        knobs = trial.knobs.moved(
            first=evidence.names(move.tensor for move in chosen if move.to_fast),
            last=evidence.names(move.tensor for move in chosen if not move.to_fast),
        )
        yield Proposal(way, knobs, -sum(move.cycles for move in chosen))


def eager(evidence: Evidence, trial: Trial, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent with large values fetched earlier or later, where it waits for copies."""
    if waits(trial):
        for setting in _EAGER:
            yield Proposal("eager", msgspec.structs.replace(trial.knobs, eager=setting))


def whole(evidence: Evidence, trial: Trial, chance: random.Random) -> Iterator[Proposal]:
    """The incumbent with values fetched whole, not in slices, each of which is a copy of its own."""
    yield Proposal("whole", trial.knobs.with_option(SLICES_OPTION, "0"))


class KnobWay(NamedTuple):
    """A way, and what is known of it."""

    name: str
    """What its trials are called."""
    way: Way
    knob: KnobName
    """What has to act on a chip for it."""
    worth: float
    """What it is worth before anything is known of a program: its share of compiles that were better than the incumbent."""


#: Ways of setting knobs (``benchmarks/xla/tuning.py`` prints the shares).
WAYS = (
    KnobWay("tighten", tightened, "capacity", 0.3),
    KnobWay("capacity", capacities, "capacity", 0.35),
    KnobWay("plan", plans, "order", 0.2),
    KnobWay("fit", fitted, "capacity", 0.28),
    KnobWay("correct", corrections, "order", 0.346),
    KnobWay("explore", explorations, "order", 0.1),
    KnobWay("preload", preloads, "preload", 0.38),
    KnobWay("return", returns, "order", 0.1),
    KnobWay("perturb", perturbations, "order", 0.3),
    KnobWay("draw", draws, "order", 0.3),
    # Less than its share: it can save the stalls alone, so others, which save cycles, come first where they are as good.
    KnobWay("overlap", overlaps, "overlap", 0.345),
    KnobWay("eager", eager, "eagerness", 0.2),
    KnobWay("whole", whole, "slices", 0.2),
)
