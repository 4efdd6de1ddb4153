"""A candidate that has been started, as the run sees it: its turn in a thread or a process, and its findings."""

from __future__ import annotations

import contextlib
import queue
import threading
from dataclasses import dataclass, field

from stowplan.kernel.context import Report
from stowplan.kernel.kind import Candidate
from stowplan.kernel.workers.messages import Job, RunUpdate
from stowplan.result import CandidateReport, Outcome

#: Maximum number of reports that wait to be read. A candidate that reports faster than plans are verified has to wait.
QUEUE_SIZE = 64

#: Maximum number of remarks that are kept of a candidate, and of characters of each.
_MAX_NOTES, _MAX_NOTE_LENGTH = 10, 500


WorkerMessage = tuple[int, Report | None]
"""The number of a worker and its report; None in place of the report if its process has ended."""

MessageQueue = queue.Queue[WorkerMessage]


class Turn:
    """A candidate's turn in a thread or a process; this base class stands for one that has not started.

    Its reports are put into the queue ``messages`` together with ``number``.
    """

    unstarted_job: Job | None = None
    """The job, as long as a process that had been waiting for one has not started it. If that process dies, another can run the
    job."""

    def __init__(self, number: int, messages: MessageQueue):
        self._number, self._messages = number, messages
        self._is_unwanted = threading.Event()
        """Set once the run is over, so that further reports are ignored."""

    def post(self, report: Report | None) -> None:
        """Puts a report into the queue; None reports that the process has ended. Waits while the queue is full."""
        while not self._is_unwanted.is_set():
            with contextlib.suppress(queue.Full):
                self._messages.put((self._number, report), timeout=0.1)
                return

    def send_update(self, message: RunUpdate) -> None:
        """Sends an update to the candidate if its turn is not over. Returns at once."""

    def stop(self) -> None:
        """Asks the candidate to return. Its further reports are ignored."""
        self._is_unwanted.set()
        self.send_update(RunUpdate(is_over=True))

    def kill(self, why: str = "") -> None:
        """Kills the candidate's process and all its children, if its turn is not over. ``why`` is reported as the cause.

        A candidate in a thread is only asked to return.
        """
        self.stop()

    def cause_of_death(self) -> str:
        """The cause of an end without a last report, as text."""
        return "it ended without a last word"


@dataclass
class Started:
    """The run's record of a candidate that has been started."""

    number: int
    """Number of the worker, in the order in which the workers of a run start."""
    candidate: Candidate
    turn: Turn
    began: float
    """When it was started. All times here are in seconds since the start of the run."""
    until: float
    """When it must stop."""
    objective: int | None = None
    """Objective of the best valid plan that it has reported."""
    bound: int | None = None
    """Best bound that it has reported."""
    outcome: Outcome = "stopped"
    """How it ended, or would end if it were stopped now."""
    plans: int = 0
    """Number of plans that it has reported."""
    notes: list[str] = field(default_factory=list)
    ended: float | None = None
    """When it ended; None while it is running."""
    has_reported: bool = False
    """Whether it has reported anything; for a heuristic, whether it has found anything."""

    def note(self, text: str) -> None:
        """Adds a remark to the candidate's report."""
        if len(self.notes) < _MAX_NOTES:
            self.notes.append(text[:_MAX_NOTE_LENGTH])

    def report(self, now: float) -> CandidateReport:
        """The entry for the result."""
        return CandidateReport(
            name=self.candidate.name,
            objective=self.objective,
            bound=self.bound,
            seconds=round((now if self.ended is None else self.ended) - self.began, 3),
            outcome=self.outcome,
            note="; ".join(self.notes),
            family=self.candidate.family,
        )
