"""When a run ends, and how long its parts may take.

A limit is a limit: verifying the last plans, ending processes and assembling the result are part of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from stowplan.portfolio.kind import Candidate
from stowplan.portfolio.run.state import RunState
from stowplan.result import StopReason

#: Seconds kept back for ending processes and assembling the result: at most, and as part of the limit.
RESERVE = 0.1, 0.1

#: Seconds, and part of the limit, by which workers stop before the run does, so that their last plans arrive.
LAST_REPORT = 0.3, 0.05

#: Seconds that the first plan has at least, together with verifying it and another: where the limit is nearly over when the run
#: begins, there is still some plan.
FIRST_PLAN = 0.25

#: Seconds that no candidate works for.
UNLIMITED = 1e6


def proves_only(candidates: Iterable[Candidate]) -> bool:
    """Whether none of them makes plans; a deterministic run may end without them."""
    return all(candidate.proves_only for candidate in candidates)


class StopPolicy:
    """The rules by which a run stops. It reads the state of the run and changes nothing.

    Parameters
    ----------
    state
        What is known.
    """

    def __init__(self, state: RunState):
        self._state = state
        self._options, self._deadline = state.options, state.deadline
        most, part = RESERVE
        self._reserve = min(most, part * state.options.time_limit)

    # -------------------------------------------------------------------------------------------------------- reasons

    def may_stop(self, at_work: list[Candidate], ahead: Sequence[Candidate] = ()) -> StopReason | None:
        """Why the run may stop before its limit.

        Parameters
        ----------
        at_work
            Candidates that are running or wait for their turn.
        ahead
            Those of them whose plans go before the best where they are as good; see :meth:`is_decided`.

        Returns
        -------
        StopReason or None
            None while there is something to gain, or to wait for.
        """
        reason = self._state.closed()
        if reason is None or reason == "infeasible":
            return reason
        if self._options.deterministic and not self.is_decided(at_work, ahead):
            return None
        return None if any(map(self._is_awaited, at_work)) else reason

    def is_needless(self, candidate: Candidate) -> bool:
        """Whether nothing that a candidate may still find would count, while the run waits for others."""
        return not self._options.deterministic and self._state.closed() is not None and not self._is_awaited(candidate)

    def _is_awaited(self, candidate: Candidate) -> bool:
        """Whether a run with nothing left to gain waits for a candidate."""
        # A result is no worse than the baseline that was named only where that has been seen.
        if candidate.makes_baseline:
            return True
        # A proof may come before the baselines: speedups are over something, so wait for those that heuristics will bring.
        state = self._state
        awaited = state.kind.awaited_baselines(state.problem)
        return candidate.family == "heuristic" and not {*awaited} <= {*state.sources} | state.without_plan

    def is_decided(self, unfinished: Sequence[Candidate], ahead: Sequence[Candidate]) -> bool:
        """Whether the plan of a deterministic run is the one that all its work would end with, so that nothing is waited for.

        Without a proof all that make plans must finish. With one there is no plan, or none is better, and of equals the one
        that stands first in the order of candidates is kept: only those that stand before the best can change it. When the
        proof comes is a matter of load, the plan is not.

        Parameters
        ----------
        unfinished
            Candidates that have not come to the end of their work.
        ahead
            Those of them that were started before the one that made the best plan.
        """
        state = self._state
        if state.infeasible:
            return True
        only_ties_count = state.closed() == "optimal" and state.on_plan is None
        # A named baseline's plan goes before others that are as good, whoever makes it.
        if only_ties_count and state.best is not None and state.baseline in (None, state.best.source):
            return proves_only(ahead)
        return proves_only(unfinished)

    def at_limit(self, unfinished: list[Candidate]) -> StopReason:
        """Why a run stops whose time is up.

        Parameters
        ----------
        unfinished
            Candidates that were stopped or never started.

        Returns
        -------
        StopReason
            What is known comes first: an optimum found at the last moment is one.
        """
        if (reason := self._state.closed()) is not None:
            return reason
        if self._deadline.was_cancelled:
            return "cancelled"
        return "work_limit" if self._options.deterministic and proves_only(unfinished) else "time_limit"

    def when_idle(self, unfinished: list[Candidate]) -> StopReason:
        """Why a run stops in which no candidate runs and none may start; ``unfinished`` as in :meth:`at_limit`."""
        if unfinished:
            return self.at_limit(unfinished)
        return self._state.closed() or ("work_limit" if self._options.deterministic else "candidates_done")

    # ---------------------------------------------------------------------------------------------------------- clocks

    def time_left(self, at_work: list[Candidate]) -> float:
        """Seconds until the run must end; ``at_work`` as in :meth:`may_stop`."""
        return max([self._until_limit(proves_only(at_work)), *map(self._seconds_to_first_plan, at_work)])

    def worker_seconds(self, candidate: Candidate) -> float:
        """Seconds that a candidate may still work; not positive where it should not start."""
        seconds = self._until_limit(candidate.proves_only) - self.last_report_seconds()
        seconds = max(seconds, self._seconds_to_first_plan(candidate) - 2 * self._state.verify_seconds)
        # What makes plans sees no clock in a deterministic run: at the ceiling it is ended from outside.
        return UNLIMITED if self._options.deterministic and not candidate.proves_only and seconds > 0 else seconds

    def _seconds_to_first_plan(self, candidate: Candidate) -> float:
        """Seconds that a heuristic in a thread has in any case, while there is no plan of any candidate; others have none."""
        may_make_it = candidate.in_thread and candidate.family == "heuristic" and not self._state.families
        is_wanted = may_make_it and not (self._options.deterministic or self._deadline.was_cancelled)
        return FIRST_PLAN - self._deadline.elapsed if is_wanted else -math.inf

    def last_report_seconds(self) -> float:
        """Seconds for a worker to write its last plan and for it to arrive."""
        seconds, part = LAST_REPORT
        return min(seconds, part * self._options.time_limit)

    def waits_for_last(self, at_work: list[Candidate]) -> bool:
        """Whether another plan, were it verified now, could be in the way of the last ones."""
        return not self._options.deterministic and 0 < self.time_left(at_work) <= self._state.verify_seconds

    def may_verify(self) -> bool:
        """Whether there is time to verify another plan; for the first of a candidate somewhat more."""
        more = 0.0 if self._state.families or self._deadline.was_cancelled else FIRST_PLAN
        return self._deadline.remaining + more > self._state.verify_seconds

    def _until_limit(self, only_proofs: bool) -> float:
        """Seconds until the last reports must have been taken in."""
        remaining = self._deadline.remaining
        if self._options.deterministic and only_proofs:
            # What makes plans must come to its end; proofs get no more than the limit.
            remaining = min(remaining, self._options.time_limit - self._deadline.elapsed)
        return remaining - self._reserve - self._state.verify_seconds
