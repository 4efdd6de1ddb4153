"""Criteria for ending a run. Each is a function that returns a reason to stop, or None. A criterion *holds* if it returns a
reason.

The argument of a criterion is the :class:`~stowplan.kernel.workers.pool.WorkerPool`, which starts the candidates of the run,
collects their reports, and knows which candidates are running or waiting.

The caller's criterion (:mod:`stowplan.stop`) becomes one of them (:func:`user_criterion`). The run ends as soon as one of the
criteria holds (:func:`first_of`).
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

#: Reasons for ending a run although it is not known that its result is optimal or good enough. Before it ends, the run reads
#: the messages that have arrived, because one of them may still contain the proof.
LIMIT_REASONS: tuple[StopReason | None, ...] = ("time_limit", "work_limit", "candidates_done", "cancelled")


def first_of(*criteria: Criterion) -> Criterion:
    """A criterion that returns the reason of the first of these criteria that holds."""
    return lambda pool: next((reason for criterion in criteria if (reason := criterion(pool)) is not None), None)


def settled(pool: WorkerPool) -> StopReason | None:
    """Holds if no better result is possible, or the caller's options ask for none, and the run need not wait for any of its
    candidates."""
    return _unless_awaited(pool, pool.state.settled_reason())


def user_criterion(criterion: stop.Criterion | None) -> Criterion:
    """A criterion that holds if the caller's holds and the run need not wait for any candidate.

    If the caller has none (``criterion`` is None), it never holds.
    """

    def holds(pool: WorkerPool) -> StopReason | None:
        is_held = criterion is not None and criterion(pool.state.progress)
        return _unless_awaited(pool, "criterion") if is_held else None

    return holds


def out_of_time(pool: WorkerPool) -> StopReason | None:
    """Holds if the limit is reached or the run was cancelled."""
    return None if pool.clock.time_left(pool.running_or_waiting) > 0 else _limit(pool)


def idle(pool: WorkerPool) -> StopReason | None:
    """Holds if no candidate is running and none can start."""
    if not pool.is_idle:
        return None
    if pool.unfinished:
        # Some candidates could not start because too little time is left.
        return _limit(pool)
    return "work_limit" if pool.state.options.deterministic else "candidates_done"


def _limit(pool: WorkerPool) -> StopReason:
    """Why the candidates that have not finished are stopped: the run was cancelled, or a limit is reached.

    In a deterministic run whose remaining candidates only prove bounds, this is the limit on work: all candidates that make
    plans have done their work, so that the plan does not depend on time.
    """
    if pool.clock.deadline.was_cancelled:
        return "cancelled"
    return "work_limit" if pool.state.options.deterministic and proves_only(pool.unfinished) else "time_limit"


def _unless_awaited(pool: WorkerPool, reason: StopReason | None) -> StopReason | None:
    """The reason, or None if the run must wait for a candidate. A run that is proven infeasible waits for none."""
    if reason is None or reason == "infeasible":
        return reason
    if pool.state.options.deterministic and not is_decided(pool.state, pool.running_or_waiting, pool.could_win_ties):
        return None
    return None if any(pool.state.is_awaited(candidate) for candidate in pool.running_or_waiting) else reason


def is_decided(state: RunState, unfinished: Sequence[Candidate], could_win_ties: Sequence[Candidate]) -> bool:
    """Whether a deterministic run can end now, because the remaining work cannot change its plan.

    Without a proof, all candidates that make plans must finish. With a proof that no better plan exists, only equally good
    plans matter. Of these, the run keeps the plan of the candidate that was started first. Therefore only candidates that were
    started before the one that made the best plan can still replace it. They must finish, because the plan must not depend on
    when the proof arrives, which varies with the load of the machine.

    Parameters
    ----------
    state
        State of the run.
    unfinished
        Candidates that have not finished their work.
    could_win_ties
        The unfinished candidates whose plans would be preferred to an equally good best plan.
    """
    if state.infeasible:
        return True
    only_ties_count = state.settled_reason() == "optimal" and state.on_plan is None
    # If the caller named a baseline, its plan replaces an equally good one, even one by a candidate that was started earlier.
    # Unless the best plan is that of the baseline, all candidates that make plans must therefore finish.
    if only_ties_count and state.best is not None and state.baseline in (None, state.best.source):
        return proves_only(could_win_ties)
    return proves_only(unfinished)
