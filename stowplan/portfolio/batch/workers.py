"""Processes of this machine that solve inputs of a batch side by side.

Why not an executor of joblib (loky 3.5): its processes share queues. One that is killed ends all others with what they were
doing. One that is killed while it writes a result leaves half a message in a pipe whose other end nobody closes, and the
executor waits for the other half for ever. After its parent was killed, a process of its own stays to complain of semaphores.
Here each process has a pipe to itself, so that its end is the end of the pipe, costs one input another try, and shows at once.
"""

from __future__ import annotations

import contextlib
import os
import queue
import signal
import subprocess
import sys
import threading
from typing import BinaryIO, Protocol, cast

import msgspec

from stowplan.child_process import MOST_KEPT_MEMORY, child_environment, describe_end, read_message
from stowplan.portfolio.batch.task import Outcome, Task
from stowplan.portfolio.messages import write_message
from stowplan.portfolio.process_memory import resident

#: ``module:name`` of what is done with a task.
SOLVE = "stowplan.portfolio.batch.task:solve_task"

#: An input whose process ends without an outcome so many times has failed.
MOST_TRIES = 3


class Lost(msgspec.Struct, frozen=True):
    """Whatever worked on a task has ended without an outcome."""

    why: str
    is_final: bool = False
    """Whether another try would come to the same."""


class Workers(Protocol):
    """What tasks are given to."""

    def has_room(self) -> bool:
        """Whether another task would be begun at once."""

    def start(self, number: int, task: Task) -> None:
        """Give it a task; its number is for :meth:`take`."""

    def take(self) -> tuple[int, Outcome | Lost]:
        """Wait for the next task to end, of those that were started."""

    def close(self) -> None:
        """End what is still at work."""

    blames: bool
    """Whether a task is lost only to its own worker's end; else others may have to do with it."""
    tries: int
    """An input that is lost so many times has failed."""


class LocalWorkers:
    """Processes, started as they are needed and kept for the next task, replaced when they end.

    Parameters
    ----------
    most
        Processes side by side, at most.
    function
        ``module:name`` of what is done with a task.
    """

    blames = True
    tries = MOST_TRIES

    def __init__(self, most: int, function: str = SOLVE):
        self._most, self._function = most, function
        self._busy: dict[_Process, int] = {}
        self._idle: list[_Process] = []
        self._unstarted: list[tuple[int, Lost]] = []
        self._messages: queue.SimpleQueue[tuple[_Process, bytes | None]] = queue.SimpleQueue()

    def has_room(self) -> bool:
        """Whether there is a process for another task."""
        return len(self._busy) + len(self._unstarted) < self._most

    def start(self, number: int, task: Task) -> None:
        """Give a process a task."""
        try:
            process = self._waiting() or _Process(self._function, self._messages)
        except OSError as error:
            self._unstarted.append((number, Lost(f"its process could not be started: {error}")))
            return
        self._busy[process] = number
        # One that has ended in the meantime says so by the end of its pipe.
        with contextlib.suppress(OSError):
            process.send(task)

    def take(self) -> tuple[int, Outcome | Lost]:
        """Wait for the next outcome, or the end of a process."""
        while True:
            if self._unstarted:
                return self._unstarted.pop()
            process, data = self._messages.get()
            number = self._busy.pop(process, None)
            if number is None:
                # It had nothing to do.
                continue
            try:
                if data is not None:
                    outcome = msgspec.msgpack.decode(data, type=Outcome)
                    if resident(process.pid) <= MOST_KEPT_MEMORY:
                        self._idle.append(process)
                    else:
                        process.end()
                    return number, outcome
                return number, Lost(describe_end(process.end()))
            except msgspec.DecodeError as error:
                process.end()
                return number, Lost(f"its process sent what is no outcome: {error}")

    def close(self) -> None:
        """Kill all processes, with what they have started."""
        for process in (*self._busy, *self._idle):
            process.end()

    @property
    def pids(self) -> list[int]:
        """Numbers of the processes."""
        return [process.pid for process in (*self._busy, *self._idle)]

    def _waiting(self) -> _Process | None:
        while self._idle:
            process = self._idle.pop()
            if process.is_alive:
                return process
            process.end()
        return None


class _Process:
    """A process of :mod:`stowplan.portfolio.batch.worker`, and the thread that listens to it."""

    def __init__(self, function: str, messages: queue.SimpleQueue[tuple[_Process, bytes | None]]):
        self._messages = messages
        self._process = subprocess.Popen(
            [sys.executable, "-P", "-m", "stowplan.portfolio.batch.worker", str(os.getpid()), function],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            env=child_environment(),
            # A session of its own: Ctrl-C at the terminal is for the parent. It ends with the thread that has started it
            # (PR_SET_PDEATHSIG), so with the one that runs the batch.
            start_new_session=True,
        )
        self.pid = self._process.pid
        threading.Thread(target=self._listen, daemon=True).start()

    @property
    def is_alive(self) -> bool:
        return self._process.poll() is None

    def send(self, task: Task) -> None:
        write_message(cast(BinaryIO, self._process.stdin), task)

    def end(self) -> int:
        """Kill the process, where it has not ended, and return its exit status."""
        # A signal does not change how a process ends that is about to; what it has started must not stay behind.
        if self._process.returncode is None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
        code = self._process.wait()
        with contextlib.suppress(OSError):
            cast(BinaryIO, self._process.stdin).close()
        return code

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError), cast(BinaryIO, self._process.stdout) as stream:
            while (data := read_message(stream)) is not None:
                self._messages.put((self, data))
        self._messages.put((self, None))
