"""Constructive heuristics that follow a hint: tensors enter fast memory where the hint says so, and stay as long as it says.

An *access* is all uses of a tensor by one step of the program. A *hint* gives for each access of a tensor numbers in [0, 1],
such as how likely the access is served from fast memory in a good plan. One plan is built for each of several thresholds and
orders of insertion, and then filled up with tensors that the hint left out. Other heuristics run without a hint, so that a bad
hint only costs a little time. Hints come from the caller or from other candidates, or are computed here (:class:`Guides`). The
*relaxation* is a MILP of the problem without integrality, whose solution is such a hint. The *learned guide* is a neural
network that computes one. The *untrained guide* computes one without a network. *Benefit density* is an estimate of the time
that a tensor saves, divided by its bytes and its lifetime. The functions raise no errors, except as stated.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from typing import NamedTuple

import numpy as np

from stowplan import work_rates
from stowplan.errors import InputError
from stowplan.kernel.context import Context
from stowplan.models.hint import TRUST, Hint
from stowplan.models.memory_mapping.hint import FAST, KEEP, PLACE
from stowplan.models.memory_mapping.problem import Problem
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.memory_mapping.arrays import Data, Floats, Ints
from stowplan.portfolio.memory_mapping.convert import export_plan
from stowplan.portfolio.memory_mapping.heuristics import (
    Built,
    by_density,
    follow,
    inserted,
    lowest_places,
    permitted_gains,
    run,
    sizes,
)
from stowplan.portfolio.memory_mapping.learned import GUIDE
from stowplan.portfolio.memory_mapping.machine import BEST_FIT, FIRST_FIT, new_state
from stowplan.portfolio.memory_mapping.pace import report_every
from stowplan.portfolio.memory_mapping.state import ENTER, STAY, State


class GuideParameters(Parameters, frozen=True):
    """Parameters of guided plans."""

    thresholds: tuple[float, float] = (0.2, 0.05)
    """Values of a hint, between 0 and 1, that serve as thresholds; plans are built for each. A tensor enters fast memory only
    at accesses whose value ``fast`` (:class:`Guide`) reaches the threshold, and stays there only after accesses whose ``keep``
    reaches it. The thresholds are small, because a tensor that the relaxation keeps only partly in fast memory is worth trying.
    A threshold of one half is much worse (docs/results/guidance.md).
    """
    margin: float = 0.02
    """Fraction of the best objective. If the first plan that follows a hint is worse by more than this fraction, no further
    plans are built for the hint (docs/results/guidance.md)."""
    large_uses: int = 15_000
    """Number of uses (reads and writes of a tensor by a step) of a problem above which the exact candidate ``relaxation``
    spends only the part ``large_part`` of its time on the relaxation's hint."""
    large_part: float = 0.5
    """Part of its time that the candidate ``relaxation`` spends on the relaxation's hint if the problem has more than
    ``large_uses`` uses."""
    within_part: float = 0.25
    """Part of the time limit that the search may spend on a hint that it computes itself."""
    guide_seconds: float = 1.5e-5
    """Seconds that the learned guide needs for each use of a problem, estimated generously."""
    filled_seconds: float = 5e-6
    """Seconds that the untrained guide needs for each use of a problem, estimated generously."""
    iteration_uses: float = 5000.0
    """Number of uses of a problem whose simplex iterations take twice as long as those of a small problem."""
    orders: tuple[int, ...] = (0, 1, 2, 3)
    """Numbers of the orders of insertion that are tried. The *saving* of a tensor is an estimate of the time that it saves. The
    orders are by descending saving (0), bytes (1), saving divided by the square root of the bytes (2), and saving divided by
    the bytes (3)."""


PARAMS = parameters(GuideParameters, __name__)


class Guide(NamedTuple):
    """The values of a hint as arrays of shape ``[accesses]``, in [0, 1]."""

    fast: Floats
    """How likely the access is served from fast memory in a good plan."""
    keep: Floats
    """How likely the tensor stays in fast memory until its next access in a good plan."""
    sure: Floats
    """Confidence in these two values; 1 is full confidence."""
    place: Floats | None = None
    """Suggested offset in fast memory, as a fraction of the capacity; None if the hint suggests no places."""


def guide(hint: Hint) -> Guide:
    """The values of a hint, which :func:`stowplan.models.hint.check_hint` has accepted; without confidences, all are 1."""
    fast, keep = (np.array(hint.values[name], np.float64) for name in (FAST, KEEP))
    sure = np.array(hint.confidence, np.float64) if hint.confidence else np.ones_like(fast)
    return Guide(fast, keep, sure, np.array(hint.values[PLACE], np.float64) if PLACE in hint.values else None)


def followed(data: Data, guide: Guide, least: float, by: int) -> Built:
    """Insert every tensor in the best of the ways (:mod:`.machine`) that the hint permits.

    ``least`` is the threshold (:func:`~stowplan.portfolio.memory_mapping.heuristics.follow`), and ``by`` the number of the
    order of insertion (:attr:`GuideParameters.orders`, or :data:`BY_PLACE`). Raises AssertionError for :data:`BY_PLACE` if the
    hint suggests no places.
    """
    state = new_state(data)
    follow(data, state, guide.fast, guide.keep, guide.sure, least, TRUST)
    if by == BY_PLACE:
        assert guide.place is not None
        places = np.full(len(data.tensors) - 1, np.inf)
        lowest_places(data, guide.fast, guide.place, guide.sure, TRUST, places)
        order = np.argsort(places, kind="stable")[: np.count_nonzero(places < np.inf)]
    else:
        order = _order(data, state, by)
    return inserted(data, state, order, FIRST_FIT if by == BY_PLACE else BEST_FIT)


def guided(data: Data, guide: Guide, least: float, by: int) -> Built:
    """Build as :func:`followed` does, then insert the remaining tensors without the restrictions of the hint.

    The remaining tensors are inserted by benefit density.
    """
    for state in followed(data, guide, least, by):
        yield state
    state.permits[:] = ENTER | STAY
    yield from inserted(data, state, by_density(data, 1))


#: Number of one more order of insertion, for hints that suggest places. Tensors are inserted from the lowest place up, each as
#: low as possible. Tensors that fit together at the suggested places then fit again, at these places or below.
BY_PLACE = 4


def _order(data: Data, state: State, by: int) -> Ints:
    """Returns the tensors in the order of insertion number ``by``, without tensors whose permitted accesses save no time."""
    gains = np.zeros(len(data.tensors) - 1)
    permitted_gains(data, state, gains)
    size = sizes(data)
    keys = (gains, size, gains / np.sqrt(size), gains / size)[by]
    order = np.argsort(-keys, kind="stable")
    return order[gains[order] > 0]


def better_guided(data: Data, hint: Hint, stop: Callable[[], bool], objective: int | None = None) -> Iterator[State]:
    """Yield states that follow a hint, each better than the states before; at least one.

    ``objective`` is the objective (ps) of the best plan so far, None if there is none. If the first plan of a threshold and all
    plans before are worse than that by more than :attr:`GuideParameters.margin`, no further plans are built. A hint that fits
    the problem badly therefore costs little time. ``stop`` says whether to end.
    """
    values = guide(hint)
    acceptable = math.inf if objective is None else (1.0 + PARAMS.margin) * objective
    best: State | None = None
    for least in PARAMS.thresholds:
        for by in PARAMS.orders if values.place is None else (BY_PLACE, *PARAMS.orders):
            state, _ = run(guided(data, values, least, by), stop)
            if best is None or state.totals[0].total < best.totals[0].total:
                best = state
                yield best
            if stop() or (by == PARAMS.orders[0] and best.totals[0].total > acceptable):
                return


class Guides:
    """Collects hints as they arrive and builds plans that follow them.

    If there is no hint at the beginning, the learned guide computes one. If learned candidates are excluded or the learned
    guide would take too long, the untrained guide computes it, which fills memory by benefit density. If no other candidate
    solves the linear relaxation at the same time, it is solved here, within the time of the search.
    """

    def __init__(self, problem: Problem, context: Context, data: Data):
        self._problem, self._context, self._data = problem, context, data
        self._hints_seen = 0
        self._is_first = True
        self._learned: Hint | None = None
        self._must_relax = relaxes_in_search(context)
        self._reported, self._report_at = -1, 0.0

    @property
    def has_followed_hint(self) -> bool:
        """Whether a hint of the caller or of another candidate has arrived and was followed."""
        return self._hints_seen > 0

    def better(self, objective: int) -> State | None:
        """The state of the best plan that follows a hint which has arrived or was computed since the last call.

        It is None if there is no such hint, or if no plan is better than ``objective`` (ps). The plan is reported.
        """
        best: State | None = None
        for hint in self._new_hints():
            if self._context.closed():
                break
            if hint is self._learned:
                self._context.follows(GUIDE.file_and_digest)
            for state in better_guided(self._data, hint, self._context.closed, objective):
                if state.totals[0].total < (objective if best is None else best.totals[0].total):
                    best = state
                    self._report(best)
            if hint is self._learned:
                self._context.hint(hint)
        if best is not None:
            self._report(best, is_last=True)
        return best

    def _report(self, state: State, *, is_last: bool = False) -> None:
        """Report a plan, unless another one was reported a short time ago and further ones may follow.

        ``is_last`` says that no further plan follows.
        """
        total = int(state.totals[0].total)
        if total != self._reported and (is_last or time.monotonic() >= self._report_at):
            self._reported, self._report_at = total, time.monotonic() + report_every(self._problem)
            self._context.plan(export_plan(self._problem, self._data, state), "guided")

    def _new_hints(self) -> list[Hint]:
        """The hints that have arrived or were computed since the last call."""
        hints = self._context.hints()
        new = [*hints[self._hints_seen :]]
        self._hints_seen = len(hints)
        if self._is_first:
            self._is_first = False
            first = [] if hints else self._first_hint()
            if first:
                return first
        if self._must_relax:
            self._must_relax = False
            hint, bound = solve_relaxation(self._problem, self._context)
            self._context.bound(bound, "relaxation")
            new += [] if hint is None else [hint]
        return new

    def _first_hint(self) -> list[Hint]:
        """A list with a hint that is computed quickly, for the beginning; empty if none would be quick."""
        problem, context = self._problem, self._context
        self._learned = learned_hint(problem, context) if "learned" in context.options.candidates else None
        # The hint of the untrained guide gains nothing in addition to that of the learned guide.
        hint = filled_hint(problem, context) if self._learned is None else self._learned
        return [] if hint is None else [hint]


def learned_hint(problem: Problem, context: Context) -> Hint | None:
    """The hint of the learned guide.

    It is None if it would take too long, if the problem has no uses, or if the guide's file cannot be read. In the last case
    the candidate leaves a note.
    """
    from stowplan.learned_guidance.memory_mapping.guide import guide

    if not 0 < PARAMS.guide_seconds * problem.use_count <= context.seconds(PARAMS.within_part):
        return None
    try:
        return guide.learned_hint(problem, GUIDE.path)
    except InputError as error:
        context.note(f"the learned guide: {error}")
        return None


def filled_hint(problem: Problem, context: Context) -> Hint | None:
    """The hint of the untrained guide, which fills memory by benefit density.

    It is None if it would take too long, or if the problem has no uses.
    """
    from stowplan.learned_guidance.memory_mapping.guide import guide

    is_quick = 0 < PARAMS.filled_seconds * problem.use_count <= context.seconds(PARAMS.within_part)
    return guide.filled_hint(problem) if is_quick else None


def relaxes_in_search(context: Context) -> bool:
    """Whether the search solves the relaxation itself.

    It does so if the exact candidate ``relaxation`` is requested, but would run only after the search (with one worker) or
    could not send its hint (in a deterministic run).
    """
    is_requested = not {"exact", "relaxation"}.isdisjoint(context.options.candidates)
    return is_requested and (context.heard() is None or context.options.workers == 1)


def solve_relaxation(problem: Problem, context: Context) -> tuple[Hint | None, int]:
    """Solve the linear relaxation; returns its hint, which is None if it takes too long, and its bound (ps)."""
    from stowplan.models.memory_mapping.milp.hint import relaxation_hint
    from stowplan.models.memory_mapping.milp.solve import Effort

    iterations = context.work(work_rates.MAPPING_SIMPLEX, 1.0 + problem.use_count / PARAMS.iteration_uses)
    seconds = context.remaining()
    # A deterministic run is limited by iterations, not by time.
    if iterations is None and relaxes_in_search(context):
        seconds = min(seconds, context.seconds(PARAMS.within_part))
    elif iterations is None and problem.use_count > PARAMS.large_uses:
        seconds *= PARAMS.large_part
    effort = Effort(end=time.monotonic() + seconds, seed=context.seed(), iteration_limit=iterations, should_stop=context.closed)
    return relaxation_hint(problem, effort)
