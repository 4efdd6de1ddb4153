"""Workers of a Dask cluster that solve inputs of a batch.

Its own client rather than joblib's backend: results come one by one and are kept as they come, and a task that was lost because
its workers ended can be told from one that failed.
"""

from __future__ import annotations

import contextlib
import logging
import queue
import re
import time
import uuid
from collections.abc import Iterator
from typing import Any

from stowplan.arguments import show
from stowplan.errors import InputError, MissingDependencyError, UsageError
from stowplan.portfolio.batch.records import describe_failure
from stowplan.portfolio.batch.task import Outcome, Task, solve_task
from stowplan.portfolio.batch.workers import Lost

#: Seconds that a scheduler has to answer.
CONNECT_SECONDS = 10.0

#: Seconds between two questions how many threads there are.
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
            raise MissingDependencyError("a Dask scheduler needs Dask: pip install 'stowplan[cluster]'") from error
        if not _ADDRESS.fullmatch(address):
            raise UsageError(f"found the scheduler {show(address)}, expected an address such as tcp://host:8786")
        self._address, self._most = address, most
        self._killed: type[Exception] = distributed.KilledWorker
        # It has no types of its own.
        client: Any = distributed.Client
        with _quiet():
            try:
                self._client = client(address, timeout=CONNECT_SECONDS, set_as_default=False, name="stowplan")
            except (OSError, ValueError, TypeError) as error:
                raise InputError(f"found no Dask scheduler that answers there: {error}", source=address) from error
        self._running: dict[int, Any] = {}
        self._ended: queue.SimpleQueue[tuple[int, Any]] = queue.SimpleQueue()
        self._counted, self._threads = -_COUNT_SECONDS, 0

    def has_room(self) -> bool:
        """Whether there is a thread for another task. Where there is no worker yet, one task waits for the first."""
        return len(self._running) < max(1, self._most or self._count())

    def start(self, number: int, task: Task) -> None:
        """Have a task done by some worker."""
        future: Any = self._client.submit(solve_task, task, key=f"stowplan-{number}-{uuid.uuid4().hex}", pure=False)
        self._running[number] = future
        future.add_done_callback(lambda ended: self._ended.put((number, ended)))

    def take(self) -> tuple[int, Outcome | Lost]:
        """Wait for the next outcome."""
        number, future = self._ended.get()
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
