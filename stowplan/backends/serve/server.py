"""The server: takes requests from a pipe, runs some of them at a time, and writes answers to another pipe.

Each running request has a thread of this process, in which it calls :func:`stowplan.solve`; its candidates have threads and
processes of their own, which later requests use again. One more thread answers requests whose deadline passes while they wait.
Another one writes, so that a client that does not read its answers holds up nothing else.
"""

from __future__ import annotations

import contextlib
import os
import queue
import select
import threading
from collections.abc import Callable, Iterator
from typing import Any

import msgspec

from stowplan import kinds
from stowplan.backends.serve.jobs import Job, run
from stowplan.backends.serve.messages import (
    VERSION,
    Answer,
    Cancel,
    Done,
    Error,
    Hello,
    Progress,
    Request,
    RequestError,
    Shutdown,
    Versions,
    decode,
    failure,
)
from stowplan.kernel.context import Options
from stowplan.kernel.workers.warm import workers
from stowplan.version import VERSION as PACKAGE_VERSION

#: Seconds between two looks at whether to end.
_TICK = 0.1
#: Seconds that running requests have for their best plans when the server is interrupted, and that a client has to read them.
_LAST_SECONDS = 5.0
#: Bytes that are read at once.
_CHUNK = 1 << 20
#: Number of lines that wait to be written from which on progress is not reported.
_MAX_UNWRITTEN = 1_000

#: A line that was longer than allowed, whose content has been dropped.
_TOO_LONG = object()


class Server:
    """A server of requests; call :meth:`run` once.

    Parameters
    ----------
    incoming, outgoing
        File descriptors of the pipes from and to the client.
    defaults
        Options of the search for requests that state none; ``workers`` is the most that a request may ask for.
    jobs
        Maximum number of requests that run at the same time.
    most_waiting
        Maximum number of requests that wait; further ones are refused.
    most_bytes
        Maximum length of a line in bytes.
    cache
        Folder of a plan cache, or a :class:`~stowplan.kernel.plan_cache.PlanCache`; None for no cache.
    """

    def __init__(
        self,
        incoming: int,
        outgoing: int,
        *,
        defaults: Options,
        jobs: int = 1,
        most_waiting: int = 64,
        most_bytes: int = 64 << 20,
        cache: Any = None,
    ):
        self._incoming, self._outgoing = incoming, outgoing
        self._defaults, self._cache = defaults, cache
        self._jobs, self._most_waiting, self._most_bytes = jobs, most_waiting, most_bytes
        self._changed = threading.Condition()
        """Guards the two dictionaries, and is notified when a request arrives or ends."""
        self._waiting: dict[Any, Job] = {}
        self._running: dict[Any, Job] = {}
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        self._is_unread = threading.Event()
        """Set once the client has closed the pipe to it."""
        self._shutdown: Shutdown | None = None

    def run(self, interrupted: threading.Event) -> None:
        """Takes requests until the end of the input, which waits for all answers; or until a request to shut down or an
        interruption, which end all requests with their best plans so far."""
        writer = threading.Thread(target=self._write, daemon=True)
        writer.start()
        # Processes are kept for as many runs as there are at the same time.
        workers().begin_run(self._jobs * (self._defaults.workers + 1))
        for next_job in (*[self._next_job] * self._jobs, self._next_overdue):
            threading.Thread(target=self._work, args=(next_job,), daemon=True).start()
        for line in self._read(interrupted):
            self._take(line)
            if self._shutdown is not None:
                break
        while not (self._shutdown or interrupted.is_set() or self._has_lost_client() or self._wait_for_end(_TICK)):
            pass
        self._end_all()
        self._wait_for_end(_LAST_SECONDS)
        if self._shutdown is not None:
            self._send(Done(id=self._shutdown.id))
        self._lines.put(None)
        writer.join(_LAST_SECONDS)

    # ---------------------------------------------------------------------------------------------------------- lines

    def _read(self, interrupted: threading.Event) -> Iterator[bytes | object]:
        """Yields lines without their ends, until the end of the input or an interruption."""
        buffer, searched, is_dropping = bytearray(), 0, False
        while not (interrupted.is_set() or self._is_unread.is_set()):
            try:
                if not select.select([self._incoming], [], [], _TICK)[0]:
                    continue
                data = os.read(self._incoming, _CHUNK)
            except OSError:
                data = b""
            buffer += data or (b"\n" if buffer else b"")
            while (end := buffer.find(b"\n", searched)) >= 0:
                line = bytes(buffer[:end])
                del buffer[: end + 1]
                searched = 0
                if is_dropping or len(line) > self._most_bytes:
                    yield _TOO_LONG
                else:
                    yield line
                is_dropping = False
            searched = len(buffer)
            if searched > self._most_bytes:
                buffer.clear()
                searched, is_dropping = 0, True
            if not data:
                return

    def _send(self, answer: Answer) -> None:
        """Sends a line to the client, unless it is about progress and the client does not read."""
        if not isinstance(answer, Progress) or self._lines.qsize() < _MAX_UNWRITTEN:
            self._lines.put(_encode(answer))

    def _write(self) -> None:
        """Writes lines until there are no more. If the client has closed the pipe, the rest is dropped."""
        while (line := self._lines.get()) is not None:
            rest = memoryview(line)
            try:
                while rest and not self._is_unread.is_set():
                    rest = rest[os.write(self._outgoing, rest) :]
            except OSError:
                self._is_unread.set()

    def _has_lost_client(self) -> bool:
        """Whether the client has closed the pipe to it. The system says so even if nothing is written."""
        with contextlib.suppress(OSError, AttributeError):
            poll = select.poll()
            poll.register(self._outgoing, 0)
            if any(events & (select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0)):
                self._is_unread.set()
        return self._is_unread.is_set()

    # ------------------------------------------------------------------------------------------------------- requests

    def _take(self, line: Any) -> None:
        """Answers a line at once, or makes it wait for its turn."""
        if line is _TOO_LONG:
            message = f"found a line of more than {self._most_bytes} bytes, expected shorter ones, or paths of files"
            self._send(Error(id=None, code="line_too_long", message=message))
        elif line.strip():
            try:
                self._accept(decode(line))
            except RequestError as error:
                self._send(error.answer)

    def _accept(self, request: Request) -> None:
        """Answers a request, or makes it wait; raises RequestError if it is refused."""
        if isinstance(request, Hello):
            self._send(self._versions(request))
        elif isinstance(request, Shutdown):
            self._shutdown = request
        elif isinstance(request, Cancel):
            self._cancel(request)
        else:
            with self._changed:
                if request.id in self._waiting or request.id in self._running:
                    raise RequestError("duplicate_id", f"found the id {request.id!r} of a request without answer", request.id)
                if len(self._waiting) >= self._most_waiting:
                    raise RequestError("busy", f"{len(self._waiting)} requests wait already, expected fewer", request.id)
                self._waiting[request.id] = Job(request)
                self._changed.notify_all()

    def _versions(self, request: Hello) -> Versions:
        return Versions(
            id=request.id,
            version=VERSION,
            stowplan=PACKAGE_VERSION,
            kinds=[*kinds.import_paths()],
            jobs=self._jobs,
            workers=self._defaults.workers,
            queue=self._most_waiting,
            max_line_bytes=self._most_bytes,
        )

    def _cancel(self, request: Cancel) -> None:
        """Cancels a request; raises RequestError if there is none of that id."""
        with self._changed:
            waiting = self._waiting.pop(request.request, None)
            running = self._running.get(request.request)
        if waiting is not None:
            self._send(Error(id=request.request, code="cancelled", message="cancelled before it began"))
        elif running is not None:
            running.cancel.set()
        else:
            raise RequestError("unknown_request", f"found no request {request.request!r} without answer", request.id)
        self._send(Done(id=request.id))

    def _end_all(self) -> None:
        """Refuses all requests that wait, and ends those that run with their best plans so far."""
        with self._changed:
            waiting, self._waiting = [*self._waiting], {}
            for job in self._running.values():
                job.cancel.set()
        for name in waiting:
            self._send(Error(id=name, code="ending", message="the server ends before the request could begin"))

    def _wait_for_end(self, seconds: float) -> bool:
        """Waits until all requests have ended, but not longer than this; returns whether they have."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._running), seconds)

    # ---------------------------------------------------------------------------------------------------------- work

    def _work(self, next_job: Callable[[], Job]) -> None:
        """Runs jobs one after the other."""
        while True:
            job = next_job()
            try:
                if job.left <= 0 and not job.keeps_working:
                    message = f"the deadline was over before the request could begin: {self._jobs} others were running"
                    answer: Answer = Error(id=job.request.id, code="deadline", message=message)
                else:
                    answer = run(job, self._defaults, self._cache, self._send)
            except BaseException as error:  # whatever happens to one request, the server and the others go on
                answer = failure(job.request.id, error)
            line = _encode(answer)
            # Both at once: a client that has the answer may use the id again, and the server may end only after the answer.
            with self._changed:
                self._lines.put(line)
                del self._running[job.request.id]
                self._changed.notify_all()

    def _next_job(self) -> Job:
        """Waits for the next request, in the order in which they arrived."""
        with self._changed:
            self._changed.wait_for(lambda: self._waiting)
            return self._begin(next(iter(self._waiting)))

    def _next_overdue(self) -> Job:
        """Waits for the next request whose deadline passes while it waits."""
        with self._changed:
            while True:
                first = min(self._waiting.values(), key=lambda job: job.deadline, default=None)
                if first is not None and first.left <= 0:
                    return self._begin(first.request.id)
                seconds = None if first is None or first.left == float("inf") else min(first.left, threading.TIMEOUT_MAX)
                self._changed.wait(seconds)

    def _begin(self, name: Any) -> Job:
        """Takes a request out of those that wait. The caller holds the lock."""
        job = self._running[name] = self._waiting.pop(name)
        return job


def _encode(answer: Answer) -> bytes:
    return msgspec.json.encode(answer) + b"\n"


def open_pipes() -> tuple[int, int]:
    """The descriptors of standard input and output. From now on, everything that this process prints goes to standard error,
    so that nothing but answers is written to the client."""
    outgoing = os.dup(1)
    os.dup2(2, 1)
    return 0, outgoing
