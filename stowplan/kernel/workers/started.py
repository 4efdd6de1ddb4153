"""A candidate that was started, as the run sees it: its turn in a thread or a process, and what is known of it."""

from __future__ import annotations

import contextlib
import queue
import threading
from dataclasses import dataclass, field

from stowplan.kernel.context import Report
from stowplan.kernel.kind import Candidate
from stowplan.kernel.workers.messages import Job, News
from stowplan.result import CandidateReport, Outcome

#: Worker messages that wait at most. A candidate that reports faster than plans are verified waits itself.
QUEUE_SIZE = 64

#: A report keeps so many remarks of one candidate, each of so many characters.
_NOTES, _NOTE_LENGTH = 10, 500


WorkerMessage = tuple[int, Report | None]
"""The number of a worker and its report; None when its process has ended."""

MessageQueue = queue.Queue[WorkerMessage]


class Turn:
    """A candidate's turn in a thread or a process, or, this one, in neither.

    Its reports go to ``messages`` and carry ``number``.
    """

    lost_job: Job | None = None
    """The job, of a process that had waited and has not begun with it yet: where it has ended, another may do it."""

    def __init__(self, number: int, messages: MessageQueue):
        self._number, self._messages = number, messages
        self._is_unwanted = threading.Event()
        """The run is over: what is still reported goes nowhere."""

    def post(self, report: Report | None) -> None:
        """Hand a report on, None for the end of a process; waits where those before it have not been taken."""
        while not self._is_unwanted.is_set():
            with contextlib.suppress(queue.Full):
                self._messages.put((self._number, report), timeout=0.1)
                return

    def tell(self, message: News) -> None:
        """Let the candidate know something, if it is still its turn; returns at once."""

    def stop(self) -> None:
        """Ask the candidate to return; what it still reports goes nowhere."""
        self._is_unwanted.set()
        self.tell(News(is_over=True))

    def kill(self, why: str = "") -> None:
        """End the candidate, if it is still its turn, and what it has started; ``why`` is then the cause of its death.

        A thread is only asked to return.
        """
        self.stop()

    def cause_of_death(self) -> str:
        """Why there was no last report."""
        return "it ended without a last word"


@dataclass
class Started:
    """What is known of one candidate that was started."""

    number: int
    candidate: Candidate
    turn: Turn
    began: float
    until: float
    """When it is to stop; like all times here in seconds since the start of the run."""
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
        return CandidateReport(
            name=self.candidate.name,
            objective=self.objective,
            bound=self.bound,
            seconds=round((now if self.ended is None else self.ended) - self.began, 3),
            outcome=self.outcome,
            note="; ".join(self.notes),
            family=self.candidate.family,
        )
