"""Workers that solve the inputs of a batch in parallel: processes of this machine, or the workers of a Dask cluster.

A *task* is the message that tells a worker to read and solve one input (:class:`~stowplan.portfolio.batch.task.Task`). Its
*outcome* has the result or the error (:class:`~stowplan.portfolio.batch.task.Outcome`). A task is *lost* if its worker ended
without an outcome.

Run as ``__main__``, this module is such a process. Its arguments are the process id of its parent and the import path of the
function that does a task. The process receives tasks on standard input and sends outcomes to its standard output, from which
all other output is kept away. It ends with its parent, and the processes that it has started end with it.

An executor of joblib (loky 3.5) cannot be used here, because its processes share queues. If one of them is killed, all others
end as well. If one is killed while it writes a result, half a message stays in a pipe that nobody closes, and the executor
waits forever for the other half. If the parent is killed, a helper process remains and warns about semaphores. Here each
process has a pipe of its own. If a process ends, its pipe closes, the parent notices this at once, and only the input of this
process is tried again.

For a cluster, this module uses Dask's own client instead of joblib's backend: results arrive one by one and are written as they
arrive, and a task whose worker ended can be distinguished from one that failed.
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

#: A function that does a task. When the event is set, it should soon return its best plan so far.
Work = Callable[[Task, threading.Event], Outcome]

#: An input counts as failed after its process has ended this many times without an outcome.
MOST_TRIES = 3


class Lost(msgspec.Struct, frozen=True):
    """The report on a lost task, which takes the place of its outcome."""

    why: str
    """Why there is no outcome, in one line. It becomes the error in the input's *record*, the file with its result."""
    is_final: bool = False
    """Whether another try would end in the same way, so that the input counts as failed at once."""


class Workers(Protocol):
    """Workers that do tasks: processes of this machine or of a cluster."""

    def has_room(self) -> bool:
        """Whether a worker is free, so that another task would be started at once."""

    def start(self, number: int, task: Task) -> None:
        """Pass a task to a worker; :meth:`take` returns its outcome together with ``number``, which identifies the task."""

    def take(self, seconds: float) -> tuple[int, Outcome | Lost] | None:
        """Wait until one of the started tasks ends or is lost; returns its number and its outcome. The result is None if none
        ends within ``seconds``. Raises InputError if the workers cannot be reached any more."""

    def cancel(self) -> None:
        """Ask the running tasks to end soon and return their best plans so far."""

    def close(self) -> None:
        """End the use of the workers, and if possible the running tasks."""

    blames: bool
    """Whether a lost task is itself to blame for the end of its worker, because each worker does one task at a time. If False,
    a worker may do several tasks at a time, and another of them may have ended it."""
    tries: int
    """An input counts as failed after its task has been lost this many times."""


class LocalWorkers:
    """Processes of this machine. They are started as needed, reused for further tasks, and replaced when they end.

    Parameters
    ----------
    most
        Largest number of processes at the same time.
    work
        The function that does a task; it must be at the top level of a module.
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
        """Whether fewer than the largest number of processes are busy."""
        return len(self._busy) + len(self._unstarted) < self._most

    def start(self, number: int, task: Task) -> None:
        """Pass a task to an idle process, or to a new one. If no process can be started, the task counts as lost."""
        try:
            process = self._find_idle() or _Process(self._work, self._messages)
        except OSError as error:
            self._unstarted.append((number, Lost(f"its process could not be started: {error}")))
            return
        self._busy[process] = number
        # If the process has ended in the meantime, the end of its pipe will show that.
        with contextlib.suppress(OSError):
            process.send(msgspec.msgpack.encode(task))

    def take(self, seconds: float) -> tuple[int, Outcome | Lost] | None:
        """Wait for the next outcome, or until a busy process ends; None if neither happens within ``seconds``.

        A task is also lost if its process sends something that is no outcome. The process is then killed. A process that uses
        more than :data:`~stowplan.child_process.MAX_REUSE_MEMORY` bytes is not used for another task.
        """
        while True:
            if self._unstarted:
                return self._unstarted.pop()
            try:
                process, data = self._messages.get(timeout=seconds)
            except queue.Empty:
                return None
            number = self._busy.pop(process, None)
            if number is None:
                # This was the end of an idle process.
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
        """Send a cancellation to all busy processes."""
        for process in self._busy:
            with contextlib.suppress(OSError):
                process.send(_CANCEL)

    def close(self) -> None:
        """Kill all processes, with those that they have started."""
        for process in (*self._busy, *self._idle):
            process.end()

    @property
    def pids(self) -> list[int]:
        """Process ids of all processes."""
        return [process.pid for process in (*self._busy, *self._idle)]

    def _find_idle(self) -> _Process | None:
        """An idle process that is alive; None if there is none."""
        while self._idle:
            process = self._idle.pop()
            if process.is_alive:
                return process
            process.end()
        return None


class _Process(ChildProcess):
    """A process that solves inputs one by one (:func:`main`), with a thread that forwards its outcomes to ``messages``."""

    def __init__(self, work: Work, messages: queue.SimpleQueue[tuple[_Process, bytes | None]]):
        place = f"{work.__module__}:{work.__qualname__}"
        super().__init__("stowplan.portfolio.batch.workers", str(os.getpid()), place, is_quiet=False)
        self._messages = messages
        threading.Thread(target=self._listen, daemon=True).start()

    def end(self) -> int:
        """Kill the process if it has not ended; returns its exit status."""
        code = super().end()
        with contextlib.suppress(OSError):
            self._outgoing.close()
        return code

    def _listen(self) -> None:
        """Forward the messages of the process, and then None when the process has ended."""
        with contextlib.suppress(OSError, ValueError), self._incoming:
            while (data := self.receive()) is not None:
                self._messages.put((self, data))
        self._messages.put((self, None))


#: Linux's ``oom_score_adj`` of these processes: if memory runs out, they are killed before other programs, but only after the
#: processes of their candidates.
OOM_SCORE = 250


def main() -> None:
    """Do tasks one after the other until the parent ends."""
    incoming, outgoing = become_child(int(sys.argv[1]))
    prefer_to_end(OOM_SCORE)
    light_imports()
    work = cast(Work, kinds.load(sys.argv[2]))
    tasks: queue.SimpleQueue[Task] = queue.SimpleQueue()
    # All tasks share one event, because no task is started after a cancellation.
    cancel = threading.Event()
    threading.Thread(target=_receive_messages, args=(incoming, tasks, cancel), daemon=True).start()
    while True:
        write_encoded(outgoing, msgspec.msgpack.encode(work(tasks.get(), cancel)))


#: The message that cancels the current task.
_CANCEL = b""


def _receive_messages(incoming: BinaryIO, tasks: queue.SimpleQueue[Task], cancel: threading.Event) -> None:
    """Receive tasks and cancellations until the parent ends; then end this process, even while it does a task."""
    while (data := read_message(incoming)) is not None:
        if data == _CANCEL:
            cancel.set()
        else:
            tasks.put(msgspec.msgpack.decode(data, type=Task))
    os._exit(0)


#: Seconds within which a scheduler has to answer.
CONNECT_SECONDS = 10.0

#: Seconds between two queries to the scheduler, for the number of threads and for a cancellation.
_COUNT_SECONDS = 1.0

#: The addresses that Dask accepts: a protocol, a host and a port.
_ADDRESS = re.compile(r"(tcp|tls|ucx|wss?)://.+:\d+")


class DaskWorkers:
    """All workers of a Dask scheduler.

    If a worker ends, the cluster tries its tasks again, as often as Dask's setting ``allowed-failures`` says. Dask counts a
    failure for every task that was on the worker, not only for the one that ended it. Therefore, when Dask has given
    up a task, :func:`~.run.run_batch` tries it one more time, while no other task is running.

    Parameters
    ----------
    address
        Address of the scheduler, as ``tcp://host:port``.
    most
        Largest number of tasks at the same time; 0 for as many as the cluster has threads.

    Raises
    ------
    MissingDependencyError
        Dask is not installed.
    InputError
        No scheduler answers at the address.
    UsageError
        The address is malformed.
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
        # Dask has no type annotations.
        client: Any = distributed.Client
        event: Any = distributed.Event
        with _silence_dask():
            try:
                self._client = client(address, timeout=CONNECT_SECONDS, set_as_default=False, name="stowplan")
            except (OSError, ValueError, TypeError) as error:
                raise InputError(f"found no Dask scheduler that answers there: {error}", source=address) from error
        self._running: dict[int, Any] = {}
        self._ended: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._counted, self._threads = -_COUNT_SECONDS, 0
        self._cancel: Any = event(f"stowplan-{uuid.uuid4().hex}", client=self._client)

    def has_room(self) -> bool:
        """Whether there is a thread for another task. If the cluster has no worker yet, one task may wait for the first one."""
        return len(self._running) < max(1, self._most or self._count_threads())

    def start(self, number: int, task: Task) -> None:
        """Submit a task to the cluster."""
        key = f"stowplan-{number}-{uuid.uuid4().hex}"
        future: Any = self._client.submit(_until_cancelled, solve_task, task, self._cancel.name, key=key, pure=False)
        self._running[number] = future
        future.add_done_callback(lambda ended: self._ended.put((number, ended)))

    def take(self, seconds: float) -> tuple[int, Outcome | Lost] | None:
        """Wait for the next outcome; None if no task ends within ``seconds``. Raises InputError if the scheduler has gone away.

        A task that raised an error is lost for good (:attr:`Lost.is_final`), because it would do so again.
        """
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
        """Set the Dask event that cancels the tasks. Errors are ignored: the tasks then end by their time limits."""
        with _silence_dask(), contextlib.suppress(Exception):
            self._cancel.set()

    def close(self) -> None:
        """Disconnect from the cluster. Tasks that have not started are withdrawn; running ones end by their time limits."""
        with _silence_dask(), contextlib.suppress(Exception):
            self._client.cancel(list(self._running.values()), force=True)
            self._client.close(timeout=CONNECT_SECONDS)

    def _count_threads(self) -> int:
        """Current number of threads of the cluster, which may grow and shrink."""
        now = time.monotonic()
        if now - self._counted >= _COUNT_SECONDS:
            with contextlib.suppress(OSError):
                self._threads = sum(self._client.nthreads().values())
            self._counted = now
        return self._threads


def _until_cancelled(work: Callable[[Task, threading.Event], Outcome], task: Task, name: str) -> Outcome:
    """Do a task on a worker of the cluster; the Dask event called ``name`` cancels it. Raises the errors of ``work``."""
    import distributed

    event: Any = distributed.Event
    # The client is passed on, because the listening thread, which uses the event, could not find one.
    cancellation = event(name, client=distributed.get_client())
    cancel, is_over = threading.Event(), threading.Event()

    def listen() -> None:
        with contextlib.suppress(Exception):
            while not is_over.wait(_COUNT_SECONDS):
                if cancellation.is_set():
                    cancel.set()

    threading.Thread(target=listen, daemon=True).start()
    try:
        return work(task, cancel)
    finally:
        is_over.set()


@contextlib.contextmanager
def _silence_dask() -> Iterator[None]:
    """Silence Dask's log within the block, because it repeats in many lines what an error message says once."""
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        yield
    finally:
        logger.setLevel(before)


if __name__ == "__main__":
    main()
