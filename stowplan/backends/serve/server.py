"""The server: takes requests from a pipe, runs several of them at the same time, and writes answers to another pipe.

A *job* is a request to solve a problem or to verify a plan, with its deadline (:class:`~stowplan.backends.serve.jobs.Job`).
Each running job has a thread of this process, which calls :func:`stowplan.solve`. The methods of its search (*candidates*) run
in threads and processes of their own; later jobs use these processes again. One more thread answers requests whose deadline
passes while they wait. Another thread writes all lines, so that requests go on even if the client does not read its answers.
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

#: Seconds between two checks of whether the server must end.
_TICK = 0.1
#: When the server ends, running requests have this many seconds to return their best plans. After that, the client has the same
#: time to read the answers.
_LAST_SECONDS = 5.0
#: Maximum number of bytes of one read.
_CHUNK = 1 << 20
#: While this many lines wait to be written, lines about the progress are dropped.
_MAX_UNWRITTEN = 1_000

#: Stands for a line that was longer than allowed, whose content has been dropped.
_TOO_LONG = object()


class Server:
    """A server of requests; call :meth:`run` once.

    Parameters
    ----------
    incoming, outgoing
        File descriptors of the pipes from and to the client.
    defaults
        Options of the search for which a request has no value. Its ``workers`` is the largest number that a request may have.
    jobs
        Maximum number of requests that run at the same time.
    most_waiting
        Maximum number of requests that wait; further requests are refused.
    most_bytes
        Maximum length of a line in bytes.
    cache
        A plan cache, which keeps results of earlier calls: its folder, or a :class:`~stowplan.kernel.plan_cache.PlanCache`;
        None for no cache.
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
        """Guards the dictionaries of waiting and of running requests, and is notified when a request arrives or ends."""
        self._waiting: dict[Any, Job] = {}
        """From the ``id`` of each request that waits to its job, in the order in which they arrived."""
        self._running: dict[Any, Job] = {}
        """From the ``id`` of each request that runs to its job."""
        self._lines: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        """Lines to be written; None ends the thread that writes."""
        self._is_unread = threading.Event()
        """Set once the client has closed the pipe from which it reads answers."""
        self._shutdown: Shutdown | None = None
        """The request to shut down, once there is one."""

    def run(self, interrupted: threading.Event) -> None:
        """Serve requests until the input ends, a request shuts the server down, or ``interrupted`` is set.

        At the end of the input, all requests are completed first, unless the client no longer reads answers. In the other
        cases, running requests end with their best plans so far, and waiting requests are refused. Errors of requests become
        answers; this method raises none of them.
        """
        writer = threading.Thread(target=self._write, daemon=True)
        writer.start()
        # As many worker processes are kept for later requests as run at the same time.
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
        """Yields lines without their line breaks, and ``_TOO_LONG`` in place of each line that is too long.

        It ends at the end of the input, at an interruption, or when the client no longer reads answers.
        """
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
        """Have a line written to the client; progress is dropped if the client does not read its lines."""
        if not isinstance(answer, Progress) or self._lines.qsize() < _MAX_UNWRITTEN:
            self._lines.put(_encode(answer))

    def _write(self) -> None:
        """Write lines until there are no more. If the client has closed the pipe, they are dropped."""
        while (line := self._lines.get()) is not None:
            rest = memoryview(line)
            try:
                while rest and not self._is_unread.is_set():
                    rest = rest[os.write(self._outgoing, rest) :]
            except OSError:
                self._is_unread.set()

    def _has_lost_client(self) -> bool:
        """Whether the client has closed the pipe from which it reads. ``poll`` reports that even if nothing is written."""
        with contextlib.suppress(OSError, AttributeError):
            poll = select.poll()
            poll.register(self._outgoing, 0)
            if any(events & (select.POLLERR | select.POLLNVAL) for _, events in poll.poll(0)):
                self._is_unread.set()
        return self._is_unread.is_set()

    # ------------------------------------------------------------------------------------------------------- requests

    def _take(self, line: Any) -> None:
        """Answer a line at once, or add its request to the waiting ones."""
        if line is _TOO_LONG:
            message = f"found a line of more than {self._most_bytes} bytes, expected shorter ones, or paths of files"
            self._send(Error(id=None, code="line_too_long", message=message))
        elif line.strip():
            try:
                self._accept(decode(line))
            except RequestError as error:
                self._send(error.answer)

    def _accept(self, request: Request) -> None:
        """Answer a request, or add it to the waiting ones; raises RequestError if it is refused."""
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
        """Returns the answer to ``hello``."""
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
        """Cancel a request; raises RequestError if no unanswered request has that ``id``."""
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
        """Refuse all waiting requests, and end all running ones with their best plans so far."""
        with self._changed:
            waiting, self._waiting = [*self._waiting], {}
            for job in self._running.values():
                job.cancel.set()
        for name in waiting:
            self._send(Error(id=name, code="ending", message="the server ends before the request could begin"))

    def _wait_for_end(self, seconds: float) -> bool:
        """Wait until all requests have ended, but at most this many seconds; returns whether they have ended."""
        with self._changed:
            return self._changed.wait_for(lambda: not (self._waiting or self._running), seconds)

    # ---------------------------------------------------------------------------------------------------------- work

    def _work(self, next_job: Callable[[], Job]) -> None:
        """Run jobs one after the other, forever; ``next_job`` waits for the next one."""
        while True:
            job = next_job()
            try:
                if job.left <= 0 and not job.keeps_working:
                    others = "another request was" if self._jobs == 1 else f"{self._jobs} other requests were"
                    message = f"the deadline was over before the request could begin, because {others} running"
                    answer: Answer = Error(id=job.request.id, code="deadline", message=message)
                else:
                    answer = run(job, self._defaults, self._cache, self._send)
            except BaseException as error:  # Whatever happens to one request, the server and the other requests go on.
                answer = failure(job.request.id, error)
            line = _encode(answer)
            # Both happen under one lock, because a client that has the answer may use the ``id`` again, and because the server
            # may end only after it has written the answer.
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
        """Move a request from the waiting to the running ones, and return its job; the caller holds the lock."""
        job = self._running[name] = self._waiting.pop(name)
        return job


def _encode(answer: Answer) -> bytes:
    """Returns an answer as a line of JSON."""
    return msgspec.json.encode(answer) + b"\n"


def open_pipes() -> tuple[int, int]:
    """Returns file descriptors for standard input and output, for the lines of requests and answers.

    From then on, everything that this process prints goes to standard error, so that only answers are written to the client.
    """
    outgoing = os.dup(1)
    os.dup2(2, 1)
    return 0, outgoing
