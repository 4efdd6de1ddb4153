"""When the candidates of a run start, and how long they and the run may take.

The time limit includes verifying the last plans, ending processes and assembling the result.
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

#: Time reserved for ending processes and assembling the result: at most this many seconds, and at most this part of the limit.
RESERVE = 0.1, 0.1

#: Time before the end of the run at which workers stop, so that their last plans arrive: at most this many seconds, and at most
#: this part of the limit.
LAST_REPORT = 0.3, 0.05

#: Seconds after the start of the run during which a heuristic in a thread may look for the first plan, even if the limit is
#: shorter. They include the time to verify two plans. So there is a plan even if the limit is nearly over when the run begins.
FIRST_PLAN = 0.25

#: A number of seconds that stands for no limit.
UNLIMITED = 1e6

#: Part of the limit that a candidate that makes the plan of a baseline may take if the run has only one worker and other
#: candidates wait for it.
BASELINE_SHARE = 0.5

#: A candidate in a thread runs alone until this process has used ALONE_SECONDS of CPU time since the start of the run: by then
#: most such candidates have finished, including their imports. If other processes keep the CPUs busy, that takes long. It
#: therefore does not run alone any longer after ALONE_PART of the time limit, which is raised to ALONE_AT_LEAST or lowered to
#: ALONE_AT_MOST seconds if it is outside of these two.
ALONE_SECONDS, ALONE_AT_MOST, ALONE_PART, ALONE_AT_LEAST = 0.4, 1.5, 0.1, 0.25


def proves_only(candidates: Iterable[Candidate]) -> bool:
    """Whether none of these candidates makes plans. A deterministic run need not wait for such candidates to finish."""
    return all(candidate.proves_only for candidate in candidates)


class Clock:
    """The time of a run in seconds; create it when the run begins.

    Parameters
    ----------
    state
        State of the run.
    options, deadline
        Limits of the run, which may be shorter than those of the call.
    candidates
        All candidates that the run may start.
    """

    def __init__(self, state: RunState, options: Options, deadline: Deadline, candidates: Iterable[Candidate] = ()):
        self.deadline = deadline
        self._state, self._options = state, options
        max_seconds, part = RESERVE
        self._reserve = min(max_seconds, part * options.time_limit)
        sharing = [candidate for candidate in candidates if not (candidate.makes_baseline or candidate.turn != "share")]
        self._oversubscription = max(1.0, sum(candidate.share for candidate in sharing) / options.workers)
        self._is_oversubscribed = len(sharing) > options.workers
        self._cpu_at_start = time.process_time()

    # ------------------------------------------------------------------------------------------------- of one candidate

    def would_disturb(self, candidate: Candidate, busy: Iterable[Started]) -> bool:
        """Whether starting this candidate would slow down a thread that may soon finish or has no plan yet."""
        threads = [worker for worker in busy if worker.candidate.in_thread]
        if candidate.in_thread and any(worker.candidate.turn == "presolver" for worker in threads):
            # A presolver builds models in Python code, which only one thread at a time can execute.
            return True
        max_seconds = max(ALONE_AT_LEAST, min(ALONE_AT_MOST, ALONE_PART * self._options.time_limit))
        is_late = time.process_time() - self._cpu_at_start >= ALONE_SECONDS or self.deadline.elapsed >= max_seconds
        if self._options.deterministic or is_late:
            return False
        has_process = workers().is_ready(CandidateId.of(self._state.kind.name, candidate.name))
        return any(
            not (worker.candidate.place == "compiled thread" and (has_process or worker.has_reported)) for worker in threads
        )

    def worker_seconds(self, candidate: Candidate, waiting: Sequence[Candidate] = ()) -> float:
        """Seconds that a candidate may work while ``waiting`` candidates wait behind it. It should not start if the number is
        not positive."""
        seconds = self._until_limit(candidate.proves_only) - self.last_report_seconds()
        seconds = max(seconds, self._to_first_plan(candidate) - 2 * self._state.verify_seconds)
        if not self._options.deterministic:
            return min(seconds, self._share(candidate, waiting) * self._options.time_limit)
        # A share of the time would depend on the load of the machine. Candidates that make plans are limited by work instead.
        # They are killed only at the deadline, which is later than the time limit in a deterministic run.
        return seconds if candidate.proves_only or seconds <= 0 else UNLIMITED

    def last_report_seconds(self) -> float:
        """Seconds for a worker to write its last plan and for the plan to arrive."""
        seconds, part = LAST_REPORT
        return min(seconds, part * self._options.time_limit)

    @staticmethod
    def needs_shares(waiting: Iterable[Candidate]) -> bool:
        """Whether time is set aside for one of the waiting candidates. If not, the running ones may use all that is left."""
        return not all(later.turn == "reserve" for later in waiting)

    def _share(self, candidate: Candidate, waiting: Sequence[Candidate]) -> float:
        """Part of the limit that this candidate may use."""
        if not self.needs_shares(waiting):
            return 1.0
        if candidate.makes_baseline:
            return BASELINE_SHARE if self._options.workers == 1 else 1.0
        # If there are more candidates than workers, each gets its share.
        return (
            1.0
            if not self._is_oversubscribed
            else candidate.share / (1.0 if candidate.turn == "presolver" else self._oversubscription)
        )

    def _to_first_plan(self, candidate: Candidate) -> float:
        """Seconds that a heuristic in a thread has in any case while no candidate has found a plan.

        The result is minus infinity for other candidates, in deterministic runs, and once the run is cancelled.
        """
        may_find_it = candidate.in_thread and candidate.family == "heuristic" and not self._state.families
        is_wanted = may_find_it and not (self._options.deterministic or self.deadline.was_cancelled)
        return FIRST_PLAN - self.deadline.elapsed if is_wanted else -math.inf

    # ------------------------------------------------------------------------------------------------------- of the run

    def time_left(self, running_or_waiting: list[Candidate]) -> float:
        """Seconds until the run must end, if these candidates are running or waiting to start."""
        return max([self._until_limit(proves_only(running_or_waiting)), *map(self._to_first_plan, running_or_waiting)])

    def waits_for_last(self, running_or_waiting: list[Candidate]) -> bool:
        """Whether so little time is left that verifying another plan now could delay the last reports."""
        return not self._options.deterministic and 0 < self.time_left(running_or_waiting) <= self._state.verify_seconds

    def may_verify(self) -> bool:
        """Whether there is time to verify another plan.

        If no candidate has found a plan before, the limit may be exceeded by :data:`FIRST_PLAN` seconds.
        """
        more = 0.0 if self._state.families or self.deadline.was_cancelled else FIRST_PLAN
        return self.deadline.remaining + more > self._state.verify_seconds

    def _until_limit(self, only_proofs: bool) -> float:
        """Seconds until the last reports must have been read."""
        remaining = self.deadline.remaining
        if self._options.deterministic and only_proofs:
            # Candidates that make plans must finish their work; those that only prove bounds get no more than the time limit.
            remaining = min(remaining, self._options.time_limit - self.deadline.elapsed)
        return remaining - self._reserve - self._state.verify_seconds
