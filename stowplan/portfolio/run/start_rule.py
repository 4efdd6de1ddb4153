"""Which candidate starts when, and for how long, where there are more than workers; and what is known of one that has."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from stowplan.portfolio.context import Options
from stowplan.portfolio.kind import Candidate
from stowplan.portfolio.run.clock import Clock
from stowplan.portfolio.run.messages import CandidateId
from stowplan.portfolio.run.warm_workers import workers
from stowplan.portfolio.run.worker_process import Assignment
from stowplan.portfolio.run.worker_thread import ThreadAssignment
from stowplan.result import CandidateReport

#: Part of the limit that the baseline may take where nothing runs beside it.
BASELINE_SHARE = 0.5

#: Seconds of this process's processors, since the start of a run, for which a candidate in a thread is alone: most are done by
#: then, with all that they import. Where others keep the processors busy, at most so many seconds, and that part of the limit,
#: but so many in any case.
ALONE_SECONDS, ALONE_AT_MOST, ALONE_PART, ALONE_AT_LEAST = 0.4, 1.5, 0.1, 0.25

#: A report keeps so many remarks of one candidate, each of so many characters.
_NOTES, _NOTE_LENGTH = 10, 500

Outcome = Literal["finished", "stopped", "rejected", "failed", "skipped"]


@dataclass
class Started:
    """What is known of one candidate that was started."""

    number: int
    candidate: Candidate
    began: float
    until: float
    """When it is to stop; like all times here in seconds since the start of the run."""
    process: Assignment | ThreadAssignment | None = None
    objective: int | None = None
    bound: int | None = None
    outcome: Outcome = "stopped"
    plans: int = 0
    notes: list[str] = field(default_factory=list)
    ended: float | None = None
    is_heard: bool = False
    """Whether it has reported, and of a heuristic whether it has found anything."""

    def note(self, text: str) -> None:
        """Keep a remark for the report."""
        if len(self.notes) < _NOTES:
            self.notes.append(text[:_NOTE_LENGTH])

    def report(self, now: float) -> CandidateReport:
        """For the result."""
        ended = now if self.ended is None else self.ended
        return CandidateReport(
            name=self.candidate.name,
            objective=self.objective,
            bound=self.bound,
            seconds=round(ended - self.began, 3),
            outcome=self.outcome,
            note="; ".join(self.notes),
            family=self.candidate.family,
        )


class StartRule:
    """The rule of a run, made when it begins.

    Parameters
    ----------
    kind, candidates
        Name of the problem's kind, and all candidates of the run.
    options
        Its options.
    clock
        Its time.
    """

    def __init__(self, kind: str, candidates: Iterable[Candidate], options: Options, clock: Clock):
        self._kind, self._options, self._clock = kind, options, clock
        sharing = [
            candidate
            for candidate in candidates
            if not (candidate.makes_baseline or candidate.is_presolver or candidate.takes_over)
        ]
        self._crowd = max(1.0, sum(candidate.share for candidate in sharing) / options.workers)
        self._is_crowded = len(sharing) > options.workers
        self._used = time.process_time()

    def seconds(self, candidate: Candidate, waiting: Sequence[Candidate]) -> float:
        """For how long a candidate may work, in seconds, while these wait behind it."""
        seconds = self._clock.worker_seconds(candidate)
        if self._options.deterministic:
            # A share of the clock would depend on the load; it has a limit of work.
            return seconds
        return min(seconds, self._share(candidate, waiting) * self._options.time_limit)

    def _share(self, candidate: Candidate, waiting: Sequence[Candidate]) -> float:
        if candidate.makes_baseline:
            return BASELINE_SHARE if self._options.workers == 1 else 1.0
        # Those who make way for others get their share; the last ones all the time that is left.
        if not self._is_crowded or all(later.takes_over for later in waiting):
            return 1.0
        return candidate.share if candidate.is_presolver else candidate.share / self._crowd

    def would_disturb(self, candidate: Candidate, busy: Iterable[Started]) -> bool:
        """Whether a thread is at work that may soon be done, or has no plan yet: what is not there yet would take its time."""
        threads = [worker for worker in busy if worker.candidate.in_thread]
        if candidate.in_thread and any(worker.candidate.is_presolver for worker in threads):
            # A presolver builds models in the interpreter, which two threads have only in turn.
            return True
        most = max(ALONE_AT_LEAST, min(ALONE_AT_MOST, ALONE_PART * self._options.time_limit))
        is_late = time.process_time() - self._used >= ALONE_SECONDS or self._clock.elapsed >= most
        if self._options.deterministic or is_late:
            return False
        is_there = workers().is_ready(CandidateId.of(self._kind, candidate.name))
        return any(not (worker.candidate.is_long and (is_there or worker.is_heard)) for worker in threads)
