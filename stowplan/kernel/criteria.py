"""When a run ends: criteria, each a function of its candidates at a moment, which says why to stop, or None.

The caller's own (:mod:`stowplan.stop`) is one of them (:func:`asked`). The first that holds ends the run (:func:`first_of`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from stowplan import stop
from stowplan.kernel.kind import Candidate
from stowplan.kernel.state import RunState
from stowplan.kernel.workers.clock import proves_only
from stowplan.kernel.workers.pool import WorkerPool
from stowplan.result import StopReason

Criterion = Callable[[WorkerPool], StopReason | None]

#: Reasons that say that time is up, or that nothing runs: what came at the last moment may still be a proof.
OPEN: tuple[StopReason | None, ...] = ("time_limit", "work_limit", "candidates_done", "cancelled")


def first_of(*criteria: Criterion) -> Criterion:
    """The first of them that holds."""
    return lambda pool: next((reason for criterion in criteria if (reason := criterion(pool)) is not None), None)


def proven(pool: WorkerPool) -> StopReason | None:
    """Nothing is left to gain, and nobody is waited for."""
    return _unless_awaited(pool, pool.state.closed())


def asked(criterion: stop.Criterion | None) -> Criterion:
    """The caller's criterion holds, and nobody is waited for."""

    def holds(pool: WorkerPool) -> StopReason | None:
        is_held = criterion is not None and criterion(pool.state.progress)
        return _unless_awaited(pool, "criterion") if is_held else None

    return holds


def out_of_time(pool: WorkerPool) -> StopReason | None:
    """The limit is reached, or somebody has cancelled the run."""
    return None if pool.clock.time_left(pool.at_work) > 0 else _limit(pool)


def idle(pool: WorkerPool) -> StopReason | None:
    """No candidate runs, and none may start."""
    if not pool.is_idle:
        return None
    if pool.unfinished:
        # There is no time for them.
        return _limit(pool)
    return "work_limit" if pool.state.options.deterministic else "candidates_done"


def _limit(pool: WorkerPool) -> StopReason:
    """What stops those who are not done: the limit is of work where the plan does not depend on them."""
    if pool.clock.deadline.was_cancelled:
        return "cancelled"
    return "work_limit" if pool.state.options.deterministic and proves_only(pool.unfinished) else "time_limit"


def _unless_awaited(pool: WorkerPool, reason: StopReason | None) -> StopReason | None:
    if reason is None or reason == "infeasible":
        return reason
    if pool.state.options.deterministic and not is_decided(pool.state, pool.at_work, pool.ahead):
        return None
    return None if any(pool.state.is_awaited(candidate) for candidate in pool.at_work) else reason


def is_decided(state: RunState, unfinished: Sequence[Candidate], ahead: Sequence[Candidate]) -> bool:
    """Whether the plan of a deterministic run is the one that all its work would end with, so that nothing is waited for.

    Without a proof all that make plans must finish. With one there is no plan, or none is better, and of equals the one
    that stands first in the order of candidates is kept: only those that stand before the best can change it. When the
    proof comes is a matter of load, the plan is not. ``unfinished`` and ``ahead`` are those of the worker pool.
    """
    if state.infeasible:
        return True
    only_ties_count = state.closed() == "optimal" and state.on_plan is None
    # A named baseline's plan goes before others that are as good, whoever makes it.
    if only_ties_count and state.best is not None and state.baseline in (None, state.best.source):
        return proves_only(ahead)
    return proves_only(unfinished)
