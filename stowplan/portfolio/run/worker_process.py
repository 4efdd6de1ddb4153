"""A worker process, as its parent sees it: started, given jobs, listened to, ended."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable

import msgspec

from stowplan.child_process import ChildProcess, describe_end
from stowplan.portfolio.context import Report
from stowplan.portfolio.run.messages import (
    CandidateId,
    Incumbent,
    Job,
    Load,
    MessageQueue,
    Stop,
    ToWorker,
    Turn,
)

#: Seconds to wait for a thread whose process has ended.
_JOIN = 0.2


class Assignment(Turn):
    """A candidate's turn in a worker process, which may go on to another when it is over (:meth:`WorkerProcess.assign`)."""

    def __init__(self, process: WorkerProcess, number: int, job: Job, messages: MessageQueue):
        super().__init__(number, messages)
        self.process = process
        self.is_over = threading.Event()
        """Nothing more will be heard of it: the process has ended, or waits for another job."""
        self._job: Job | None = job
        self.killed_for = ""
        """Why it was killed, where that is known."""

    @property
    def pid(self) -> int:
        """Number of the process."""
        return self.process.pid

    @property
    def is_current(self) -> bool:
        """Whether the process is still this candidate's, be it dead or alive."""
        return self.process.assignment is self

    @property
    def lost_job(self) -> Job | None:
        """The job, of a process that ended while it waited, before it began: another may do it."""
        return self._job if self.process.was_kept else None

    def tell(self, message: Incumbent | Stop) -> None:
        """Tell the candidate what others have found, if it is still its turn; returns at once."""
        with self.process.lock:
            if self.is_current:
                self.process.put(message)

    def stop(self) -> None:
        """Ask the candidate to return; what it still reports goes nowhere. ``is_over`` says when it has."""
        self._is_unwanted.set()
        self.tell(Stop())

    def kill(self) -> None:
        """End the candidate and whatever it has started, whatever it is doing."""
        if self.is_current:
            self.process.kill()

    def end_for(self, why: str) -> None:
        """Kill it, if it is still at work, and let this be the cause of its death."""
        with self.process.lock:
            if self.is_current:
                self.killed_for = why
                self.process.kill()

    def cause_of_death(self) -> str:
        """How a process ended that has closed its end of the pipe without a last report."""
        return self.killed_for or describe_end(self.process.end())

    def post(self, report: Report | None) -> None:
        """Hand a report on, but that the candidate has begun: then its job is not lost with the process."""
        if report is not None and report.what == "started":
            self._job = None
        else:
            super().post(report)


class WorkerProcess(ChildProcess):
    """A process of :mod:`stowplan.portfolio.run.worker`, and the two threads that write to it and read from it.

    Parameters
    ----------
    environment
        Its environment.
    on_waiting
        Called with this process, from a thread of its own, when it waits for another job.

    Raises
    ------
    OSError
        The system has no room for another process.
    """

    def __init__(self, environment: dict[str, str], on_waiting: Callable[[WorkerProcess], None]):
        super().__init__("stowplan.portfolio.run.worker", str(os.getpid()), environment=environment)
        self._on_waiting = on_waiting
        self.assignment: Assignment | None = None
        self.was_kept = False
        """Whether it has had a job before, or waited for one."""
        self.has_run = False
        """Whether it has come to the end of a job."""
        self.candidates: set[CandidateId] = set()
        """Those that it has run, or made ready for: what they need is loaded."""
        self.lock = threading.Lock()
        """Held where it matters whose turn it is."""
        self._unsent: queue.SimpleQueue[ToWorker | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def assign(self, number: int, job: Job, messages: MessageQueue) -> Assignment:
        """Give a job to a process that waits for one.

        Parameters
        ----------
        number
            What the candidate's messages carry.
        messages
            Where its reports go; when the process ends, a message comes that has none.
        """
        with self.lock:
            assignment = self.assignment = Assignment(self, number, job, messages)
            self.candidates.add(job.candidate)
            self.put(job)
        return assignment

    def load(self, candidate: CandidateId) -> None:
        """Have it import what a candidate needs while it waits."""
        self.candidates.add(candidate)
        self.put(Load(candidate))

    def put(self, message: ToWorker) -> None:
        """Send something; returns at once."""
        self._unsent.put(message)

    def close(self) -> None:
        """Kill the process, wait for its end, and free what it took here."""
        if self.assignment is not None:
            self.assignment.stop()
        self.end()
        self._unsent.put(None)
        for thread in self._threads:
            if thread is not threading.current_thread():
                thread.join(_JOIN)
        if not any(thread.is_alive() for thread in self._threads):
            super().close()

    def _write(self) -> None:
        """Send what is told: a worker deep in a solver may be slow to read."""
        with contextlib.suppress(OSError, ValueError):
            while (message := self._unsent.get()) is not None:
                self.send(msgspec.msgpack.encode(message))

    def _read(self) -> None:
        """Hand on what the worker reports."""
        try:
            while (data := self.receive()) is not None:
                self._take(msgspec.msgpack.decode(data, type=Report))
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            self._post(Report("failed", text=f"sent what is no message: {error}"))
            self.kill()
        if self.assignment is not None:
            self.assignment.is_over.set()
        self._post(None)

    def _take(self, report: Report) -> None:
        assignment = self.assignment
        if report.waits:
            # Before the last report is heard, so that whoever is started next can have this process.
            with self.lock:
                self.assignment, self.was_kept, self.has_run = None, True, True
            self._on_waiting(self)
        if assignment is not None:
            assignment.post(report)
            if report.waits:
                assignment.is_over.set()

    def _post(self, report: Report | None) -> None:
        if self.assignment is not None:
            self.assignment.post(report)
