"""A worker process as its parent sees it: starting it, giving it jobs, reading its reports and ending it."""

from __future__ import annotations

import contextlib
import os
import queue
import threading
from collections.abc import Callable

import msgspec

from stowplan.child_process import ChildProcess, describe_end
from stowplan.kernel.context import Report
from stowplan.kernel.workers.messages import CandidateId, Job, Load, RunUpdate, ToWorker
from stowplan.kernel.workers.started import MessageQueue, Turn

#: Seconds to wait for a thread whose process has ended.
_JOIN = 0.2


class ProcessTurn(Turn):
    """A candidate's turn in a worker process. When it is over, the process may take another candidate
    (:meth:`WorkerProcess.assign`)."""

    def __init__(self, process: WorkerProcess, number: int, job: Job, messages: MessageQueue):
        super().__init__(number, messages)
        self.process, self.pid = process, process.pid
        self.is_over = threading.Event()
        """Set once no further report can come: the process has ended, or waits for another job."""
        self._killed_for = ""
        # Only a process that has been waiting may have died before it got the job.
        self.unstarted_job = job if process.has_waited else None

    @property
    def is_current(self) -> bool:
        """Whether the process still belongs to this turn, be it alive or dead."""
        return self.process.turn is self

    def send_update(self, message: RunUpdate) -> None:
        """Sends an update to the candidate if its turn is not over. Returns at once."""
        with self.process.lock:
            if self.is_current:
                self.process.put(message)

    def kill(self, why: str = "") -> None:
        """Kills the candidate's process and all its children, if its turn is not over. ``why`` is reported as the cause."""
        with self.process.lock:
            if self.is_current:
                self._killed_for = why
                self.process.kill()

    def cause_of_death(self) -> str:
        """The cause for which the process closed its pipe without a last report, as text."""
        return self._killed_for or describe_end(self.process.end())


class WorkerProcess(ChildProcess):
    """A process that runs :mod:`stowplan.kernel.workers.worker`, with two threads that write to it and read from it.

    Parameters
    ----------
    environment
        Environment variables of the process.
    on_waiting
        Called with this object, in the reading thread, whenever the process waits for another job.

    Raises
    ------
    OSError
        The system cannot start another process.
    """

    def __init__(self, environment: dict[str, str], on_waiting: Callable[[WorkerProcess], None]):
        super().__init__("stowplan.kernel.workers.worker", str(os.getpid()), environment=environment)
        self._on_waiting = on_waiting
        self.turn: ProcessTurn | None = None
        self.has_waited = False
        """Whether it has had a job before, or has been waiting for one."""
        self.has_run = False
        """Whether it has completed a job."""
        self.candidates: set[CandidateId] = set()
        """Candidates that it has run or imported."""
        self.lock = threading.Lock()
        """Protects ``turn``."""
        self._has_ended = False
        """Whether its end of the pipe is closed."""
        self._unsent: queue.SimpleQueue[ToWorker | None] = queue.SimpleQueue()
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def assign(self, number: int, job: Job, messages: MessageQueue) -> ProcessTurn:
        """Gives a job to this process, which must be waiting for one, and returns the turn that runs it.

        Reports of the candidate are put into ``messages`` together with ``number``. When the process ends, ``(number, None)``
        is put there.
        """
        with self.lock:
            turn = self.turn = ProcessTurn(self, number, job, messages)
            self.candidates.add(job.candidate)
            self.put(job)
            has_ended = self._has_ended
        if has_ended:
            # The process ended before it had this turn, so that the reading thread reported its end to nobody.
            turn.is_over.set()
            turn.post(None)
        return turn

    def load(self, candidate: CandidateId) -> None:
        """Asks the process to import a candidate while it waits."""
        self.candidates.add(candidate)
        self.put(Load(candidate))

    def put(self, message: ToWorker) -> None:
        """Queues a message to the process. Returns at once."""
        self._unsent.put(message)

    def close(self) -> None:
        """Kills the process, waits for its end, and frees its threads and pipes."""
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
        """Body of the writing thread. A worker that is busy in a solver may be slow to read, which must not block the
        caller."""
        with contextlib.suppress(OSError, ValueError):
            while (message := self._unsent.get()) is not None:
                self.send(msgspec.msgpack.encode(message))

    def _read(self) -> None:
        """Body of the reading thread, which passes the reports on."""
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
        """Handles one report of the process."""
        turn = self.turn
        if report.is_reusable:
            # The process becomes available before the last report is read, so that the next candidate can use it.
            with self.lock:
                self.turn, self.has_waited, self.has_run = None, True, True
            self._on_waiting(self)
        if turn is not None and report.what == "started":
            turn.unstarted_job = None
        elif turn is not None:
            turn.post(report)
            if report.is_reusable:
                turn.is_over.set()

    def _post(self, report: Report | None) -> None:
        if self.turn is not None:
            self.turn.post(report)
