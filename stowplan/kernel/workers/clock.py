"""When the parts of a run begin, and how long they may take.

A limit is a limit: verifying the last plans, ending processes and assembling the result are part of it.
"""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence

from stowplan.deadline import Deadline
from stowplan.kernel.context import Options
from stowplan.kernel.kind import Candidate
from stowplan.kernel.state import RunState
from stowplan.kernel.workers.messages import CandidateId
from stowplan.kernel.workers.started import Started
from stowplan.kernel.workers.warm import workers

#: Seconds kept back for ending processes and assembling the result: at most, and as part of the limit.
RESERVE = 0.1, 0.1

#: Seconds, and part of the limit, by which workers stop before the run does, so that their last plans arrive.
LAST_REPORT = 0.3, 0.05

#: Seconds that the first plan has at least, together with verifying it and another: where the limit is nearly over when the run
#: begins, there is still some plan.
FIRST_PLAN = 0.25

#: Seconds that no candidate works for.
UNLIMITED = 1e6

#: Part of the limit that the baseline may take where nothing runs beside it.
BASELINE_SHARE = 0.5

#: Seconds of this process's processors, since the start of a run, for which a candidate in a thread is alone: most are done by
#: then, with all that they import. Where others keep the processors busy, at most so many seconds, and that part of the limit,
#: but so many in any case.
ALONE_SECONDS, ALONE_AT_MOST, ALONE_PART, ALONE_AT_LEAST = 0.4, 1.5, 0.1, 0.25


def proves_only(candidates: Iterable[Candidate]) -> bool:
    """Whether none of them makes plans; a deterministic run may end without them."""
    return all(candidate.proves_only for candidate in candidates)


class Clock:
    """The time of a run, made when it begins; all in seconds.

    ``options`` and ``deadline`` are the run's, which may be shorter than the call's; ``candidates`` are all that it may start.
    """

    def __init__(self, state: RunState, options: Options, deadline: Deadline, candidates: Iterable[Candidate] = ()):
        self.deadline = deadline
        self._state, self._options = state, options
        most, part = RESERVE
        self._reserve = min(most, part * options.time_limit)
        sharing = [candidate for candidate in candidates if not (candidate.makes_baseline or candidate.turn != "share")]
        self._crowd = max(1.0, sum(candidate.share for candidate in sharing) / options.workers)
        self._is_crowded = len(sharing) > options.workers
        self._used = time.process_time()

    # ------------------------------------------------------------------------------------------------- of one candidate

    def would_disturb(self, candidate: Candidate, busy: Iterable[Started]) -> bool:
        """Whether a thread is at work that may soon be done, or has no plan yet: what is not there yet would take its time."""
        threads = [worker for worker in busy if worker.candidate.in_thread]
        if candidate.in_thread and any(worker.candidate.turn == "presolver" for worker in threads):
            # A presolver builds models in the interpreter, which two threads have only in turn.
            return True
        most = max(ALONE_AT_LEAST, min(ALONE_AT_MOST, ALONE_PART * self._options.time_limit))
        is_late = time.process_time() - self._used >= ALONE_SECONDS or self.deadline.elapsed >= most
        if self._options.deterministic or is_late:
            return False
        is_there = workers().is_ready(CandidateId.of(self._state.kind.name, candidate.name))
        return any(not (worker.candidate.place == "compiled thread" and (is_there or worker.is_heard)) for worker in threads)

    def worker_seconds(self, candidate: Candidate, waiting: Sequence[Candidate] = ()) -> float:
        """How long a candidate may work while these wait behind it; not positive where it should not start."""
        seconds = self._until_limit(candidate.proves_only) - self.last_report_seconds()
        seconds = max(seconds, self._to_first_plan(candidate) - 2 * self._state.verify_seconds)
        if not self._options.deterministic:
            return min(seconds, self._share(candidate, waiting) * self._options.time_limit)
        # A share of the clock would depend on the load. What makes plans sees no clock, but has a limit of work; at the ceiling
        # it is ended from outside.
        return seconds if candidate.proves_only or seconds <= 0 else UNLIMITED

    def last_report_seconds(self) -> float:
        """For a worker to write its last plan and for it to arrive."""
        seconds, part = LAST_REPORT
        return min(seconds, part * self._options.time_limit)

    @staticmethod
    def needs_shares(waiting: Iterable[Candidate]) -> bool:
        """Whether time is set aside for one of those that wait; where it is not, whoever runs may have all that is left."""
        return not all(later.turn == "reserve" for later in waiting)

    def _share(self, candidate: Candidate, waiting: Sequence[Candidate]) -> float:
        """Part of the limit."""
        if not self.needs_shares(waiting):
            return 1.0
        if candidate.makes_baseline:
            return BASELINE_SHARE if self._options.workers == 1 else 1.0
        # Those who make way for others get their share.
        return 1.0 if not self._is_crowded else candidate.share / (1.0 if candidate.turn == "presolver" else self._crowd)

    def _to_first_plan(self, candidate: Candidate) -> float:
        """What a heuristic in a thread has in any case, while there is no plan of any candidate; others have none."""
        may_make_it = candidate.in_thread and candidate.family == "heuristic" and not self._state.families
        is_wanted = may_make_it and not (self._options.deterministic or self.deadline.was_cancelled)
        return FIRST_PLAN - self.deadline.elapsed if is_wanted else -math.inf

    # ------------------------------------------------------------------------------------------------------- of the run

    def time_left(self, at_work: list[Candidate]) -> float:
        """Until the run must end, where these candidates are running or wait for their turn."""
        return max([self._until_limit(proves_only(at_work)), *map(self._to_first_plan, at_work)])

    def waits_for_last(self, at_work: list[Candidate]) -> bool:
        """Whether another plan, were it verified now, could be in the way of the last ones."""
        return not self._options.deterministic and 0 < self.time_left(at_work) <= self._state.verify_seconds

    def may_verify(self) -> bool:
        """Whether there is time to verify another plan; for the first of a candidate somewhat more."""
        more = 0.0 if self._state.families or self.deadline.was_cancelled else FIRST_PLAN
        return self.deadline.remaining + more > self._state.verify_seconds

    def _until_limit(self, only_proofs: bool) -> float:
        """Until the last reports must have been taken in."""
        remaining = self.deadline.remaining
        if self._options.deterministic and only_proofs:
            # What makes plans must come to its end; proofs get no more than the limit.
            remaining = min(remaining, self._options.time_limit - self.deadline.elapsed)
        return remaining - self._reserve - self._state.verify_seconds
