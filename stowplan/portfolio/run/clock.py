"""How long the parts of a run may take.

A limit is a limit: verifying the last plans, ending processes and assembling the result are part of it.
"""

from __future__ import annotations

import math
from collections.abc import Iterable

from stowplan.deadline import Deadline
from stowplan.portfolio.context import Options
from stowplan.portfolio.kind import Candidate
from stowplan.portfolio.run.state import RunState

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


class Clock:
    """The time of a run, in seconds.

    Parameters
    ----------
    state
        What is known: the limit leaves time to verify another plan.
    options, deadline
        Those of the run, which may be shorter than the call's.
    """

    def __init__(self, state: RunState, options: Options, deadline: Deadline):
        self._state, self._options, self._deadline = state, options, deadline
        most, part = RESERVE
        self._reserve = min(most, part * options.time_limit)

    @property
    def elapsed(self) -> float:
        """Since the run began."""
        return self._deadline.elapsed

    @property
    def was_cancelled(self) -> bool:
        """Whether somebody has cancelled the run."""
        return self._deadline.was_cancelled

    def time_left(self, at_work: list[Candidate]) -> float:
        """Until the run must end, where these candidates are running or wait for their turn."""
        return max([self._until_limit(proves_only(at_work)), *map(self._to_first_plan, at_work)])

    def worker_seconds(self, candidate: Candidate) -> float:
        """How long a candidate may still work; not positive where it should not start."""
        seconds = self._until_limit(candidate.proves_only) - self.last_report_seconds()
        seconds = max(seconds, self._to_first_plan(candidate) - 2 * self._state.verify_seconds)
        # What makes plans sees no clock in a deterministic run: at the ceiling it is ended from outside.
        return UNLIMITED if self._options.deterministic and not candidate.proves_only and seconds > 0 else seconds

    def last_report_seconds(self) -> float:
        """For a worker to write its last plan and for it to arrive."""
        seconds, part = LAST_REPORT
        return min(seconds, part * self._options.time_limit)

    def waits_for_last(self, at_work: list[Candidate]) -> bool:
        """Whether another plan, were it verified now, could be in the way of the last ones."""
        return not self._options.deterministic and 0 < self.time_left(at_work) <= self._state.verify_seconds

    def may_verify(self) -> bool:
        """Whether there is time to verify another plan; for the first of a candidate somewhat more."""
        more = 0.0 if self._state.families or self.was_cancelled else FIRST_PLAN
        return self._deadline.remaining + more > self._state.verify_seconds

    def _to_first_plan(self, candidate: Candidate) -> float:
        """What a heuristic in a thread has in any case, while there is no plan of any candidate; others have none."""
        may_make_it = candidate.in_thread and candidate.family == "heuristic" and not self._state.families
        is_wanted = may_make_it and not (self._options.deterministic or self.was_cancelled)
        return FIRST_PLAN - self.elapsed if is_wanted else -math.inf

    def _until_limit(self, only_proofs: bool) -> float:
        """Until the last reports must have been taken in."""
        remaining = self._deadline.remaining
        if self._options.deterministic and only_proofs:
            # What makes plans must come to its end; proofs get no more than the limit.
            remaining = min(remaining, self._options.time_limit - self.elapsed)
        return remaining - self._reserve - self._state.verify_seconds
