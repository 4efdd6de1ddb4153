"""When a run ends: criteria, each a function of the run at a moment, which says why to stop, or None.

The caller's own (:mod:`stowplan.stop`) is one of them (:func:`asked`). The first that holds ends the run (:func:`first_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol

from stowplan import stop
from stowplan.portfolio.kind import Candidate
from stowplan.portfolio.run.clock import Clock, proves_only
from stowplan.portfolio.run.state import RunState
from stowplan.result import StopReason


class Moment(Protocol):
    """A run at a moment."""

    @property
    def state(self) -> RunState:
        """What is known."""

    @property
    def clock(self) -> Clock:
        """Its time."""

    @property
    def at_work(self) -> list[Candidate]:
        """Candidates that are running or wait for their turn."""

    @property
    def unfinished(self) -> list[Candidate]:
        """Candidates that have not come to the end of their work: those at work, and those that were stopped."""

    @property
    def ahead(self) -> list[Candidate]:
        """Those of them that were started before the one that made the best plan: theirs go first where they are as good."""

    @property
    def is_idle(self) -> bool:
        """Whether no candidate runs and none may start."""


Criterion = Callable[[Moment], StopReason | None]

#: Reasons that say that time is up, or that nothing runs: what came at the last moment may still be a proof.
OPEN: tuple[StopReason | None, ...] = ("time_limit", "work_limit", "candidates_done", "cancelled")


def first_of(*criteria: Criterion) -> Criterion:
    """The first of them that holds."""
    return lambda moment: next((reason for criterion in criteria if (reason := criterion(moment)) is not None), None)


def proven(moment: Moment) -> StopReason | None:
    """Nothing is left to gain, and nobody is waited for."""
    return _unless_awaited(moment, moment.state.closed())


def asked(criterion: stop.Criterion | None) -> Criterion:
    """The caller's criterion holds, and nobody is waited for."""

    def holds(moment: Moment) -> StopReason | None:
        is_held = criterion is not None and criterion(moment.state.progress)
        return _unless_awaited(moment, "criterion") if is_held else None

    return holds


def out_of_time(moment: Moment) -> StopReason | None:
    """The limit is reached, or somebody has cancelled the run."""
    return None if moment.clock.time_left(moment.at_work) > 0 else _limit(moment)


def idle(moment: Moment) -> StopReason | None:
    """No candidate runs, and none may start."""
    if not moment.is_idle:
        return None
    if moment.unfinished:
        # There is no time for them.
        return _limit(moment)
    return "work_limit" if moment.state.options.deterministic else "candidates_done"


def _limit(moment: Moment) -> StopReason:
    """What stops those who are not done: the limit is of work where the plan does not depend on them."""
    if moment.clock.was_cancelled:
        return "cancelled"
    return "work_limit" if moment.state.options.deterministic and proves_only(moment.unfinished) else "time_limit"


def _unless_awaited(moment: Moment, reason: StopReason | None) -> StopReason | None:
    if reason is None or reason == "infeasible":
        return reason
    if moment.state.options.deterministic and not is_decided(moment.state, moment.at_work, moment.ahead):
        return None
    return None if any(is_awaited(moment.state, candidate) for candidate in moment.at_work) else reason


def is_awaited(state: RunState, candidate: Candidate) -> bool:
    """Whether a run with nothing left to gain waits for a candidate."""
    # A result is no worse than the baseline that was named only where that has been seen.
    if candidate.makes_baseline:
        return True
    # A proof may come before the baselines: speedups are over something, so wait for those that heuristics will bring.
    awaited = {*state.kind.awaited_baselines(state.problem)}
    return candidate.family == "heuristic" and not awaited <= {*state.sources} | state.without_plan


def is_needless(state: RunState, candidate: Candidate) -> bool:
    """Whether nothing that a candidate may still find would count, while the run waits for others."""
    return not state.options.deterministic and state.closed() is not None and not is_awaited(state, candidate)


def is_decided(state: RunState, unfinished: Sequence[Candidate], ahead: Sequence[Candidate]) -> bool:
    """Whether the plan of a deterministic run is the one that all its work would end with, so that nothing is waited for.

    Without a proof all that make plans must finish. With one there is no plan, or none is better, and of equals the one
    that stands first in the order of candidates is kept: only those that stand before the best can change it. When the
    proof comes is a matter of load, the plan is not.

    Parameters
    ----------
    state
        What is known.
    unfinished, ahead
        As in :class:`Moment`.
    """
    if state.infeasible:
        return True
    only_ties_count = state.closed() == "optimal" and state.on_plan is None
    # A named baseline's plan goes before others that are as good, whoever makes it.
    if only_ties_count and state.best is not None and state.baseline in (None, state.best.source):
        return proves_only(ahead)
    return proves_only(unfinished)
