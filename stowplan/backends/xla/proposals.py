"""Strategies (*ways*) that propose the next settings from the results of all compilations of a program so far.

These results are the *evidence* (:class:`~stowplan.backends.xla.evidence.Evidence`). A *setting* says in which order XLA
assigns values to fast memory, and how it fetches them. Some strategies follow a plan of stowplan, which decides which values
are assigned first and which last. Others make small corrections to the best setting so far (the *incumbent*): they move the
tensors whose memory costs the most cycles. A *trial* is a setting with its compilation, or with its *preview*, a compilation
that ends right after the assignment. A *move* puts a tensor into fast memory for all of its uses, or out of it
(:class:`~stowplan.backends.xla.evidence.Move`). A *flag* is an option that changes the program before the assignment, and a
*knob* an option of the assignment.

All strategies have the same parameters and result, which :data:`Way` describes.
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

#: Seconds for a plan; by then the heuristics are within a percent of their best plan, and a compilation takes longer.
PLAN_SECONDS = 6.0

#: Seconds for a plan if the time limit is nearly reached.
_MIN_SECONDS = 0.2


class HeuristicPlan(NamedTuple):
    """A plan that heuristics have found, with its problem."""

    problem: Problem
    """The problem of memory mapping, whose costs are the cycles that are known or predicted."""
    plan: Plan
    """A valid plan of the problem."""

    @property
    def tensors(self) -> set[int]:
        """Tensors that are in fast memory for at least one step."""
        uses = [use.tensor for step in self.problem.steps for use in step.uses]
        return {uses[number] for number in self.plan.fast_uses}


def heuristic_plan(evidence: Evidence, generator: random.Random, start: Trial, capacity: int | None = None) -> HeuristicPlan:
    """Finds a plan with heuristics; it is the same for equal evidence and seed unless the deadline stops the search.

    The plan may use everything that XLA may do. The search starts from XLA's plan in the trial ``start``, and returns another
    plan only if it takes fewer cycles.

    Parameters
    ----------
    evidence
        The results of the program's compilations.
    generator
        Source of the seed of the search.
    start
        The trial.
    capacity
        Limit on fast memory in bytes; None for the limit of the trial.

    Raises
    ------
    InputError, VerificationError
        The files of the trial cannot be read, or XLA's plan cannot be made valid.
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
        time_limit=min(PLAN_SECONDS, max(evidence.deadline.remaining, _MIN_SECONDS)),
        candidates=["heuristic"],
        workers=1,
        deterministic=True,
        seed=generator.randrange(1 << 30),
        cancel=evidence.deadline.cancelled,
    )
    # There always is a plan: everything in slow memory.
    assert result.plan is not None
    return HeuristicPlan(problem, result.plan)


#: Numbers of moves in one correction, in the order in which they are proposed. They are small, because each move changes where
#: XLA puts all later values.
STEPS = (8, 4, 16, 2, 32, 64)

#: Fast memory is *valuable* to a program if the program takes more than this many times as many cycles with all values in slow
#: memory. Then limits near its present use of fast memory are tried first; otherwise much smaller limits.
_VALUABLE_RATIO = 1.15

#: Maximum number of inputs that are tried as the one that is in fast memory before the program starts.
MAX_PRELOADS = 2

#: Smaller limits on fast memory, in bytes, are not tried.
_MIN_CAPACITY = 1 << 16

#: Plans are made for limits of these shares of the fast memory that the incumbent uses, in this order.
_CAPACITY_SHARES = (0.75, 0.875, 0.5, 0.25)

#: A saving below this share of a program's cycles is not worth a compilation.
_MIN_GAIN = 0.001

#: Maximum number of random orders that are drawn to find a new one; a small program has few.
_MAX_DRAWS = 20

#: Settings that are tried for early fetching: the least size in bytes, and the eagerness.
_EAGERNESS_SETTINGS = ((1 << 16, 0.5), (1 << 20, 0.9), (1 << 16, 1.0))

#: Overlap ratios (:data:`~stowplan.backends.xla.knobs.OVERLAP_OPTION`) that are tried instead of XLA's own, and the largest
#: ratio that is tried.
_OVERLAP_RATIOS, _MAX_OVERLAP_RATIO = (10.0, 4.0), 100.0


class Proposal(NamedTuple):
    """A setting, with the cycles that it is expected to save."""

    way: str
    """Name of the strategy, or of the flag, that proposes it."""
    knobs: Knobs
    """The setting."""
    gain: float = 0.0
    """Cycles that it is expected to save compared with the incumbent, 0 if nothing is predicted. XLA decides what a setting
    leads to, so that the gain is never certain."""


#: A strategy: a function of the evidence, a trial to start from (the incumbent, or a better preview), and a random generator.
#: It yields settings, the most promising first; the caller uses the first ones that are new. Errors of reading the files of a
#: trial are raised.
Way = Callable[[Evidence, Trial, random.Random], Iterator[Proposal]]


def follow_plan(evidence: Evidence, trial: Trial, generator: random.Random) -> Iterator[Proposal]:
    """Proposes settings that follow a plan of stowplan, which is made with all cycles known so far.

    A tensor is *wanted* if the plan has it in fast memory, and *unwanted* if XLA has it there but the plan has not. There are
    five settings:

    - unwanted tensors are moved to the back
    - in addition, wanted tensors that XLA leaves in slow memory are moved to the front
    - all wanted tensors are moved to the front
    - in addition, unwanted tensors are moved to the back
    - all wanted tensors are moved to the front, and all other tensors to the back
    """
    fast = heuristic_plan(evidence, generator, trial).tensors
    front = msgspec.structs.replace(trial.knobs, first=evidence.names(fast), last=frozenset(), preload="")
    unwanted = evidence.fast_tensors(trial.assignment) - fast
    yield Proposal("plan", trial.knobs.moved(last=evidence.names(unwanted)))
    yield Proposal("plan", _towards_plan(evidence, trial, fast))
    yield Proposal("plan", front)
    yield Proposal("plan", front.moved(last=evidence.names(unwanted)))
    yield Proposal("plan", front.moved(last=evidence.names(set(evidence.values) - fast)))


def _towards_plan(evidence: Evidence, trial: Trial, fast: set[int]) -> Knobs:
    """Changes the setting of a trial towards a plan that has only the tensors ``fast`` in fast memory.

    Tensors of ``fast`` that are in slow memory go first, and all other tensors that are in fast memory go last.
    """
    in_fast_memory = evidence.fast_tensors(trial.assignment)
    return trial.knobs.moved(first=evidence.names(fast - in_fast_memory), last=evidence.names(in_fast_memory - fast))


def limit_capacity(evidence: Evidence, trial: Trial, generator: random.Random) -> Iterator[Proposal]:
    """Proposes the incumbent with a limit on fast memory, in most cases below the bytes that it uses.

    If there is room for all values, no order keeps a value out of fast memory. A limit does: there is no room for the values
    that come last, or for values that are larger than the limit.
    """
    knobs, used = trial.knobs, trial.score.fast_bytes
    if knobs.capacity is not None:
        parts = [round(knobs.capacity * factor) for factor in (0.75, 1.5, 0.5, 1.25)]
    elif _worth_of_fast_memory(evidence) > _VALUABLE_RATIO:
        parts = [3 * used // 4, used // 2, 7 * used // 8, used // 4]
    else:
        parts = [used // 4, used // 2, used // 8, 3 * used // 4]
    for part in parts:
        if _MIN_CAPACITY <= part <= evidence.capacity:
            yield Proposal("capacity", knobs.within(part))


def fit_to_capacity(evidence: Evidence, trial: Trial, generator: random.Random) -> Iterator[Proposal]:
    """Proposes the incumbent with a limit on fast memory, changed to follow a plan that was made for this limit."""
    tried = {earlier.knobs.capacity for earlier in evidence.trials}
    for share in _CAPACITY_SHARES:
        part = min(round(share * trial.score.fast_bytes), evidence.capacity) >> 10 << 10
        if part >= _MIN_CAPACITY and part not in tried:
            fast = heuristic_plan(evidence, generator, trial, part).tensors
            yield Proposal("fit", _towards_plan(evidence, trial, fast).within(part))


def move_harmful_last(evidence: Evidence, trial: Trial, generator: random.Random) -> Iterator[Proposal]:
    """Proposes the incumbent without its *harmful* tensors in fast memory.

    A tensor is harmful if the program is predicted to be faster with the tensor in slow memory. Harmful tensors are moved to
    the back, and fast memory is limited so that only the other tensors have room. Neither change suffices alone: tensors at the
    back are still placed if there is room, and with a limit alone any tensor may lose its place. Further proposals only move
    the half, or the quarter, of the harmful tensors that costs the most cycles.
    """
    harmful = [move for move in evidence.moves(trial) if not move.to_fast and move.cycles < 0]
    if not harmful:
        return
    plan = evidence.scorer.plan(trial.compiled).plan
    for part in (1, 2, 4):
        chosen = harmful[: -(-len(harmful) // part)]
        other_bytes = evidence.scorer.most_bytes(plan, {move.tensor for move in chosen})
        if _MIN_CAPACITY <= other_bytes < evidence.capacity:
            knobs = trial.knobs.moved(last=evidence.names(move.tensor for move in chosen))
            # The limit is rounded up, because the other tensors have to fit.
            yield Proposal("tighten", knobs.within(other_bytes + 1023), -sum(move.cycles for move in chosen))


def _worth_of_fast_memory(evidence: Evidence) -> float:
    """Returns the ratio of the cycles with all values in slow memory to the cycles of the default; 0 if it is not known."""
    return evidence.all_slow.score.total / evidence.trials[0].score.total if evidence.all_slow is not None else 0.0


def preload_input(evidence: Evidence, trial: Trial, generator: random.Random) -> Iterator[Proposal]:
    """Proposes the incumbent with another input in fast memory before the program starts; the best input comes first."""
    gains = []
    for move in evidence.moves(trial):
        if move.to_fast and move.tensor in evidence.parameters:
            # The input occupies fast memory from the start of the program, not only from its first use.
            cycles = move.cycles + evidence.waiting_cost(move.tensor)
            gains.append((-cycles, evidence.values[move.tensor][0]))
    for gain, name in sorted(gains, reverse=True)[:MAX_PRELOADS]:
        if gain >= _MIN_GAIN * trial.score.total:
            yield Proposal("preload", msgspec.structs.replace(trial.knobs, preload=name), gain)


def overlap_copies(evidence: Evidence, trial: Trial, generator: random.Random) -> Iterator[Proposal]:
    """Proposes the incumbent with copies that begin earlier, if it waits for copies.

    By default XLA begins a copy about twice the copy's own time before its value is used. That is too late if copies queue
    behind each other; the program then waits for them (*stalls*).
    """
    if not waits(trial):
        return
    ratio = trial.knobs.overlap
    for larger in _OVERLAP_RATIOS if ratio is None else (3 * ratio,):
        if larger <= _MAX_OVERLAP_RATIO:
            yield Proposal("overlap", trial.knobs.with_option(OVERLAP_OPTION, f"{larger:g}"))


def waits(trial: Trial) -> bool:
    """Whether the program waits for copies for so long in a trial that a compilation with earlier copies may be worth it."""
    return trial.score.stall_cycles >= _MIN_GAIN * trial.score.total


def correct_incumbent(evidence: Evidence, trial: Trial, generator: random.Random) -> Iterator[Proposal]:
    """Proposes the incumbent with the moves that are predicted to save the most cycles."""
    yield from _with_moves("correct", evidence, trial, [move for move in evidence.moves(trial) if move.cycles < 0])


def explore_moves(evidence: Evidence, trial: Trial, generator: random.Random) -> Iterator[Proposal]:
    """Proposes the incumbent with the moves that may save the most, by the expected gain plus its uncertainty."""
    moves = [move for move in evidence.moves(trial) if move.cycles - move.deviation < 0]
    moves.sort(key=lambda move: (move.cycles - move.deviation, move.tensor, move.to_fast))
    yield from _with_moves("explore", evidence, trial, moves)


def correct_other_trials(evidence: Evidence, trial: Trial, generator: random.Random) -> Iterator[Proposal]:
    """Proposes corrections of the second to fourth best trial: each with the moves that are predicted to save it cycles."""
    for other in sorted(evidence.trials, key=lambda other: other.score.total)[1:4]:
        yield from _with_moves("return", evidence, other, [move for move in evidence.moves(other) if move.cycles < 0])


def perturb_order(evidence: Evidence, trial: Trial, generator: random.Random) -> Iterator[Proposal]:
    """Proposes the incumbent with a few random tensors moved to the front or the back."""
    tensors = sorted(evidence.values)
    for share in (0.02, 0.05, 0.1):
        chosen = [tensor for tensor in tensors if generator.random() < share] or [generator.choice(tensors)]
        first = [tensor for tensor in chosen if generator.random() < 0.5]
        last = [tensor for tensor in chosen if tensor not in first]
        yield Proposal("perturb", trial.knobs.moved(first=evidence.names(first), last=evidence.names(last)))


def draw_order(evidence: Evidence, trial: Trial, generator: random.Random) -> Iterator[Proposal]:
    """Proposes random orders with the incumbent's other options; a tensor is moved with a probability between 5 and 50 %."""
    tensors = sorted(evidence.values)
    for _ in range(_MAX_DRAWS):
        share = generator.uniform(0.05, 0.5)
        sides = {tensor: generator.random() < 0.5 for tensor in tensors if generator.random() < share}
        first = evidence.names(tensor for tensor, side in sides.items() if side)
        last = evidence.names(tensor for tensor, side in sides.items() if not side)
        yield Proposal("draw", msgspec.structs.replace(trial.knobs, first=first, last=last, preload=""))


def _with_moves(way: str, evidence: Evidence, trial: Trial, moves: list[Move]) -> Iterator[Proposal]:
    """Proposes the setting of a trial with the first few of these moves, for several numbers of moves."""
    for count in (*STEPS, len(moves)):
        if count > len(moves):
            continue
        chosen = moves[:count]
        knobs = trial.knobs.moved(
            first=evidence.names(move.tensor for move in chosen if move.to_fast),
            last=evidence.names(move.tensor for move in chosen if not move.to_fast),
        )
        yield Proposal(way, knobs, -sum(move.cycles for move in chosen))


def fetch_earlier(evidence: Evidence, trial: Trial, generator: random.Random) -> Iterator[Proposal]:
    """Proposes the incumbent with other times at which large values are copied to fast memory, if it waits for copies."""
    if waits(trial):
        for setting in _EAGERNESS_SETTINGS:
            yield Proposal("eager", msgspec.structs.replace(trial.knobs, eager=setting))


def fetch_unsliced(evidence: Evidence, trial: Trial, generator: random.Random) -> Iterator[Proposal]:
    """Proposes the incumbent with values copied in one piece rather than in slices, each of which is a separate copy."""
    yield Proposal("whole", trial.knobs.with_option(SLICES_OPTION, "0"))


class KnobWay(NamedTuple):
    """A strategy with its name and its prior win rate."""

    name: str
    """The name of its proposals."""
    way: Way
    """The strategy."""
    knob: KnobName
    """The knob that the strategy changes; it is used only on chips on which the knob has an effect."""
    worth: float
    """Its prior win rate: the share of its compilations that were better than the incumbent on earlier programs."""


#: All strategies; ``benchmarks/xla/tuning.py`` prints their win rates.
WAYS = (
    KnobWay("tighten", move_harmful_last, "capacity", 0.3),
    KnobWay("capacity", limit_capacity, "capacity", 0.35),
    KnobWay("plan", follow_plan, "order", 0.2),
    KnobWay("fit", fit_to_capacity, "capacity", 0.28),
    KnobWay("correct", correct_incumbent, "order", 0.346),
    KnobWay("explore", explore_moves, "order", 0.1),
    KnobWay("preload", preload_input, "preload", 0.38),
    KnobWay("return", correct_other_trials, "order", 0.1),
    KnobWay("perturb", perturb_order, "order", 0.3),
    KnobWay("draw", draw_order, "order", 0.3),
    # This number is less than the measured win rate, so that strategies of about the same win rate come first. They save cycles
    # of steps, while this strategy can only save stalls.
    KnobWay("overlap", overlap_copies, "overlap", 0.345),
    KnobWay("eager", fetch_earlier, "eagerness", 0.2),
    KnobWay("whole", fetch_unsliced, "slices", 0.2),
)
