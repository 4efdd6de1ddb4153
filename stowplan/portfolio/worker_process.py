"""A candidate's process, as its parent sees it: started, written to, listened to, ended."""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import BinaryIO, cast

import msgspec

from stowplan.compiled import INTERPRET
from stowplan.portfolio.messages import Incumbent, Job, MessageQueue, Report, WorkerMessage, read_message, write_message

#: Seconds to wait for a thread whose process has ended.
_JOIN = 0.2


class WorkerProcess:
    """A process of :mod:`stowplan.portfolio.worker` with a job, and the two threads that write to it and read from it.

    Parameters
    ----------
    number
        What its messages carry.
    job
        Sent at once.
    messages
        Where its reports go; the last message has none.
    interpret
        Whether compiled functions run interpreted in it.

    Raises
    ------
    OSError
        The system has no room for another process.
    """

    def __init__(self, number: int, job: Job, messages: MessageQueue, *, interpret: bool = False):
        self.number = number
        self._messages = messages
        self._closed = False
        self._unsent: queue.SimpleQueue[Job | Incumbent | None] = queue.SimpleQueue()
        self._unsent.put(job)
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "stowplan.portfolio.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("STOWPLAN_DEBUG") else subprocess.DEVNULL,
            env=_environment(interpret),
            # A session of its own: Ctrl-C at the terminal is for the parent, and what the worker starts ends with it.
            start_new_session=True,
        )
        self._threads = [threading.Thread(target=work, daemon=True) for work in (self._write, self._read)]
        for thread in self._threads:
            thread.start()

    def tell(self, incumbent: Incumbent) -> None:
        """Let the worker know what others have found; returns at once."""
        self._unsent.put(incumbent)

    def kill(self) -> None:
        """End the process and whatever it has started, whatever it is doing."""
        # Nobody has waited for the process yet, so that its number cannot belong to another.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._process.pid, signal.SIGKILL)

    def close(self) -> None:
        """Kill the process, wait for its end, and free what it took here."""
        self._closed = True
        self.kill()
        self._process.wait()
        self._unsent.put(None)
        for thread in self._threads:
            thread.join(_JOIN)
        if not any(thread.is_alive() for thread in self._threads):
            with contextlib.suppress(OSError):
                cast(BinaryIO, self._process.stdin).close()
            cast(BinaryIO, self._process.stdout).close()

    def cause_of_death(self) -> str:
        """How a process ended that has closed its end of the pipe without a last report."""
        # A signal does not change how a process ends that is about to; what it has started must not stay behind.
        self.kill()
        code = self._process.wait()
        if code >= 0:
            return f"its process ended without a last word, with exit status {code}"
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = str(-code)
        return f"its process was ended by signal {name}"

    def _write(self) -> None:
        """Send what is told: a worker deep in a solver may be slow to read."""
        with contextlib.suppress(OSError, ValueError):
            while (message := self._unsent.get()) is not None:
                write_message(cast(BinaryIO, self._process.stdin), message)

    def _read(self) -> None:
        """Put what the worker reports into the message queue."""
        try:
            while (data := read_message(cast(BinaryIO, self._process.stdout))) is not None:
                self._post(msgspec.msgpack.decode(data, type=Report))
        except (OSError, ValueError) as error:  # msgspec's errors are ValueErrors
            self._post(Report("failed", text=f"sent what is no message: {error}"))
            self.kill()
        self._post(None)

    def _post(self, report: Report | None) -> None:
        while not self._closed:
            with contextlib.suppress(queue.Full):
                self._messages.put(WorkerMessage(self.number, report), timeout=0.1)
                return


def _environment(interpret: bool) -> dict[str, str]:
    environment = dict(os.environ)
    # The worker finds its modules where this process finds them, and not in the folder it happens to be started from.
    environment["PYTHONPATH"] = os.pathsep.join(path or os.getcwd() for path in sys.path)
    # One thread a process: the processes are what runs in parallel.
    for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
        environment.setdefault(name, "1")
    if interpret:
        environment[INTERPRET] = "1"
    return environment
