"""What solves inputs of a batch side by side: processes of this machine, or the workers of a Dask cluster.

As ``__main__`` this module is such a process: it has the process that starts it, and what is done with a task, as arguments.
Tasks come on standard input, outcomes go out on what was standard output. It ends with its parent, and what it has started ends
with it.

Why not an executor of joblib (loky 3.5): its processes share queues. One that is killed ends all others with what they were
doing. One that is killed while it writes a result leaves half a message in a pipe whose other end nobody closes, and the
executor waits for the other half for ever. After its parent was killed, a process of its own stays to complain of semaphores.
Here each process has a pipe to itself, so that its end is the end of the pipe, costs one input another try, and shows at once.

For a cluster, Dask's own client rather than joblib's backend: results come one by one and are kept as they come, and a task
that was lost because its workers ended can be told from one that failed.
"""

from __future__ import annotations

import contextlib
import logging
import os
import queue
import re
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from typing import Any, BinaryIO, Protocol, cast

import msgspec

from stowplan import kinds
from stowplan.arguments import show
from stowplan.child_process import (
    MAX_REUSE_MEMORY,
    ChildProcess,
    become_child,
    describe_end,
    light_imports,
    read_message,
    write_encoded,
)
from stowplan.errors import InputError, MissingDependencyError, UsageError, to_install
from stowplan.portfolio.batch.records import describe_failure
from stowplan.portfolio.batch.task import Outcome, Task, solve_task
from stowplan.process_memory import prefer_to_end, resident

#: What is done with a task, and an event that is set where it is to end soon.
Work = Callable[[Task, threading.Event], Outcome]

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

    def take(self, seconds: float) -> tuple[int, Outcome | Lost] | None:
        """Wait so long for the next task to end, of those that were started; None where none has."""

    def cancel(self) -> None:
        """Have what is at work end soon, with the best plan so far."""

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
    work
        What is done with a task: a function at the top of a module.
    """

    blames = True
    tries = MOST_TRIES

    def __init__(self, most: int, work: Work = solve_task):
        self._most, self._work = most, work
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
            process = self._waiting() or _Process(self._work, self._messages)
        except OSError as error:
            self._unstarted.append((number, Lost(f"its process could not be started: {error}")))
            return
        self._busy[process] = number
        # One that has ended in the meantime says so by the end of its pipe.
        with contextlib.suppress(OSError):
            process.send(msgspec.msgpack.encode(task))

    def take(self, seconds: float) -> tuple[int, Outcome | Lost] | None:
        """Wait so long for the next outcome, or the end of a process."""
        while True:
            if self._unstarted:
                return self._unstarted.pop()
            try:
                process, data = self._messages.get(timeout=seconds)
            except queue.Empty:
                return None
            number = self._busy.pop(process, None)
            if number is None:
                # It had nothing to do.
                continue
            try:
                if data is not None:
                    outcome = msgspec.msgpack.decode(data, type=Outcome)
                    if resident(process.pid) <= MAX_REUSE_MEMORY:
                        self._idle.append(process)
                    else:
                        process.end()
                    return number, outcome
                return number, Lost(describe_end(process.end()))
            except msgspec.DecodeError as error:
                process.end()
                return number, Lost(f"its process sent what is no outcome: {error}")

    def cancel(self) -> None:
        """Tell the processes that are at work."""
        for process in self._busy:
            with contextlib.suppress(OSError):
                process.send(_CANCEL)

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


class _Process(ChildProcess):
    """A process that solves inputs one by one (:func:`main`), and the thread that listens to it."""

    def __init__(self, work: Work, messages: queue.SimpleQueue[tuple[_Process, bytes | None]]):
        place = f"{work.__module__}:{work.__qualname__}"
        super().__init__("stowplan.portfolio.batch.workers", str(os.getpid()), place, is_quiet=False)
        self._messages = messages
        threading.Thread(target=self._listen, daemon=True).start()

    def end(self) -> int:
        """Kill it where it has not ended, and return its exit status."""
        code = super().end()
        with contextlib.suppress(OSError):
            self._outgoing.close()
        return code

    def _listen(self) -> None:
        with contextlib.suppress(OSError, ValueError), self._incoming:
            while (data := self.receive()) is not None:
                self._messages.put((self, data))
        self._messages.put((self, None))


#: Where memory runs out, an input can be done without, and a candidate of it sooner.
OOM_SCORE = 250


def main() -> None:
    """Do tasks until the parent has no more."""
    incoming, outgoing = become_child(int(sys.argv[1]))
    prefer_to_end(OOM_SCORE)
    light_imports()
    work = cast(Work, kinds.load(sys.argv[2]))
    tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
    # Nothing is begun after a cancel.
    cancel = threading.Event()
    threading.Thread(target=_take_in, args=(incoming, tasks, cancel), daemon=True).start()
    while True:
        write_encoded(outgoing, msgspec.msgpack.encode(work(tasks.get(), cancel)))


#: A message that is no task.
_CANCEL = b""


def _take_in(incoming: BinaryIO, tasks: queue.SimpleQueue[Task], cancel: threading.Event) -> None:
    """Take in tasks, and a cancel, until the parent goes away; then end the process, whatever it is doing."""
    while (data := read_message(incoming)) is not None:
        if data == _CANCEL:
            cancel.set()
        else:
            tasks.put(msgspec.msgpack.decode(data, type=Task))
    os._exit(0)


#: Seconds that a scheduler has to answer.
CONNECT_SECONDS = 10.0

#: Seconds between two questions to the scheduler: how many threads there are, whether the run is cancelled.
_COUNT_SECONDS = 1.0

_ADDRESS = re.compile(r"(tcp|tls|ucx|wss?)://.+:\d+")


class DaskWorkers:
    """All workers of a scheduler.

    The cluster tries a task again whose worker has ended, as often as its ``allowed-failures`` say. It blames every task that
    was on such a worker, so that one which it gives up is then tried once more, alone.

    Parameters
    ----------
    address
        Of the scheduler, as ``tcp://host:port``.
    most
        Tasks side by side, at most; 0 for as many as the cluster has threads.

    Raises
    ------
    MissingDependencyError
        Dask is not installed.
    InputError
        No scheduler answers there.
    UsageError
        This is no address.
    """

    blames = False
    tries = 2

    def __init__(self, address: str, most: int = 0):
        try:
            import distributed
        except ImportError as error:
            raise MissingDependencyError(f"a Dask scheduler needs Dask: {to_install('cluster')}") from error
        if not _ADDRESS.fullmatch(address):
            raise UsageError(f"found the scheduler {show(address)}, expected an address such as tcp://host:8786")
        self._address, self._most = address, most
        self._killed: type[Exception] = distributed.KilledWorker
        # It has no types of its own.
        client: Any = distributed.Client
        event: Any = distributed.Event
        with _quiet():
            try:
                self._client = client(address, timeout=CONNECT_SECONDS, set_as_default=False, name="stowplan")
            except (OSError, ValueError, TypeError) as error:
                raise InputError(f"found no Dask scheduler that answers there: {error}", source=address) from error
        self._running: dict[int, Any] = {}
        self._ended: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._counted, self._threads = -_COUNT_SECONDS, 0
        self._cancel: Any = event(f"stowplan-{uuid.uuid4().hex}", client=self._client)

    def has_room(self) -> bool:
        """Whether there is a thread for another task. Where there is no worker yet, one task waits for the first."""
        return len(self._running) < max(1, self._most or self._count())

    def start(self, number: int, task: Task) -> None:
        """Have a task done by some worker."""
        key = f"stowplan-{number}-{uuid.uuid4().hex}"
        future: Any = self._client.submit(_until_cancelled, solve_task, task, self._cancel.name, key=key, pure=False)
        self._running[number] = future
        future.add_done_callback(lambda ended: self._ended.put((number, ended)))

    def take(self, seconds: float) -> tuple[int, Outcome | Lost] | None:
        """Wait so long for the next outcome."""
        try:
            number, future = self._ended.get(timeout=seconds)
        except queue.Empty:
            return None
        del self._running[number]
        try:
            if future.cancelled():
                raise InputError("the Dask scheduler has gone away; the same command goes on", source=self._address)
            error = future.exception()
            if error is None:
                return number, future.result()
        finally:
            future.release()
        if isinstance(error, self._killed):
            return number, Lost("all workers that took it ended before it did")
        return number, Lost(describe_failure(error)[1], is_final=True)

    def cancel(self) -> None:
        """Tell the workers of the cluster."""
        with _quiet(), contextlib.suppress(Exception):
            self._cancel.set()

    def close(self) -> None:
        """Leave the cluster. What is not begun is taken back; what is at work ends by its time limit."""
        with _quiet(), contextlib.suppress(Exception):
            self._client.cancel(list(self._running.values()), force=True)
            self._client.close(timeout=CONNECT_SECONDS)

    def _count(self) -> int:
        """Threads of the cluster, which may grow and shrink."""
        now = time.monotonic()
        if now - self._counted >= _COUNT_SECONDS:
            with contextlib.suppress(OSError):
                self._threads = sum(self._client.nthreads().values())
            self._counted = now
        return self._threads


def _until_cancelled(work: Callable[[Task, threading.Event], Outcome], task: Task, name: str) -> Outcome:
    """Do a task on a worker of a cluster; the event of this name cancels it."""
    import distributed

    event: Any = distributed.Event
    # The thread has no client of its own.
    told = event(name, client=distributed.get_client())
    cancel, is_over = threading.Event(), threading.Event()

    def listen() -> None:
        with contextlib.suppress(Exception):
            while not is_over.wait(_COUNT_SECONDS):
                if told.is_set():
                    cancel.set()

    threading.Thread(target=listen, daemon=True).start()
    try:
        return work(task, cancel)
    finally:
        is_over.set()


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What goes wrong is told by an error, once; Dask's log has many lines of it."""
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


if __name__ == "__main__":
    main()
