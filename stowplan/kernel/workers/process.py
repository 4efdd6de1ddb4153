"""A worker process, as its parent sees it: started, given jobs, listened to, ended."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable

import msgspec

from stowplan.child_process import ChildProcess, describe_end
from stowplan.kernel.context import Report
from stowplan.kernel.workers.messages import CandidateId, Job, Load, News, ToWorker
from stowplan.kernel.workers.started import MessageQueue, Turn

#: Seconds to wait for a thread whose process has ended.
_JOIN = 0.2


class ProcessTurn(Turn):
    """A candidate's turn in a worker process, which may go on to another when it is over (:meth:`WorkerProcess.assign`)."""

    def __init__(self, process: WorkerProcess, number: int, job: Job, messages: MessageQueue):
        super().__init__(number, messages)
        self.process, self.pid = process, process.pid
        self.is_over = threading.Event()
        """Nothing more will be heard of it: the process has ended, or waits for another job."""
        self._killed_for = ""
        # One that is new has not ended while it waited.
        self.lost_job = job if process.was_kept else None

    @property
    def is_current(self) -> bool:
        """Whether the process is still this candidate's, be it dead or alive."""
        return self.process.turn is self

    def tell(self, message: News) -> None:
        """Let the candidate know something, if it is still its turn; returns at once."""
        with self.process.lock:
            if self.is_current:
                self.process.put(message)

    def kill(self, why: str = "") -> None:
        """End the candidate, if it is still its turn, and what it has started; ``why`` is then the cause of its death."""
        with self.process.lock:
            if self.is_current:
                self._killed_for = why
                self.process.kill()

    def cause_of_death(self) -> str:
        """How a process ended that has closed its end of the pipe without a last report."""
        return self._killed_for or describe_end(self.process.end())


class WorkerProcess(ChildProcess):
    """A process of :mod:`stowplan.kernel.workers.worker`, and the two threads that write to it and read from it.

    ``on_waiting`` is called with it, from a thread of its own, when it waits for another job. Raises OSError where the system
    has no room for another process.
    """

    def __init__(self, environment: dict[str, str], on_waiting: Callable[[WorkerProcess], None]):
        super().__init__("stowplan.kernel.workers.worker", str(os.getpid()), environment=environment)
        self._on_waiting = on_waiting
        self.turn: ProcessTurn | None = None
        self.was_kept = False
        """Whether it has had a job before, or waited for one."""
        self.has_run = False
        """Whether it has come to the end of a job."""
        self.candidates: set[CandidateId] = set()
        """Those that it has run, or made ready for: what they need is loaded."""
        self.lock = threading.Lock()
        """Held where it matters whose turn it is."""
        self._has_ended = False
        """Nothing more will be read from it."""
        self._unsent: queue.SimpleQueue[ToWorker | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def assign(self, number: int, job: Job, messages: MessageQueue) -> ProcessTurn:
        """Give a job to a process that waits for one; when the process ends, a message comes that has no report."""
        with self.lock:
            turn = self.turn = ProcessTurn(self, number, job, messages)
            self.candidates.add(job.candidate)
            self.put(job)
            has_ended = self._has_ended
        if has_ended:
            # It ended before it had this turn, so that its end was told to nobody.
            turn.is_over.set()
            turn.post(None)
        return turn

    def load(self, candidate: CandidateId) -> None:
        """Have it import what a candidate needs while it waits."""
        self.candidates.add(candidate)
        self.put(Load(candidate))

    def put(self, message: ToWorker) -> None:
        """Send something; returns at once."""
        self._unsent.put(message)

    def close(self) -> None:
        """Kill the process, wait for its end, and free what it took here."""
        if self.turn is not None:
            self.turn.stop()
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
        with self.lock:
            self._has_ended, turn = True, self.turn
        if turn is not None:
            turn.is_over.set()
            turn.post(None)

    def _take(self, report: Report) -> None:
        turn = self.turn
        if report.waits:
            # Before the last report is heard, so that whoever is started next can have this process.
            with self.lock:
                self.turn, self.was_kept, self.has_run = None, True, True
            self._on_waiting(self)
        if turn is not None and report.what == "started":
            turn.lost_job = None
        elif turn is not None:
            turn.post(report)
            if report.waits:
                turn.is_over.set()

    def _post(self, report: Report | None) -> None:
        if self.turn is not None:
            self.turn.post(report)
