"""Time limits on the monotonic clock, which can also be cancelled, and a limit on the time for reading an input."""

from __future__ import annotations

import math
import os
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from contextvars import ContextVar, copy_context
from typing import TypeVar

from stowplan.errors import TimeLimitError


class Deadline:
    """A moment on the monotonic clock at which work must stop. Cancelling makes it expire at once.

    Parameters
    ----------
    seconds
        Length of the limit in seconds, counted from ``began``; ``None`` or infinity for no limit.
    cancelled
        Event that may be shared with others; setting it makes the deadline expire.
    began
        Start of the limit on the monotonic clock; now by default.
    """

    def __init__(self, seconds: float | None = None, cancelled: threading.Event | None = None, *, began: float | None = None):
        self.began = time.monotonic() if began is None else began
        self.seconds = seconds
        self._end = math.inf if seconds is None else self.began + seconds
        self._cancelled = cancelled if cancelled is not None else threading.Event()

    @property
    def elapsed(self) -> float:
        """Seconds since the start of the limit."""
        return time.monotonic() - self.began

    @property
    def remaining(self) -> float:
        """Seconds left, never negative: 0 once cancelled, infinity if there is no limit."""
        return 0.0 if self._cancelled.is_set() else max(0.0, self._end - time.monotonic())

    @property
    def expired(self) -> bool:
        """Whether work must stop now."""
        return self.remaining <= 0.0

    @property
    def was_cancelled(self) -> bool:
        """Whether the deadline was cancelled."""
        return self._cancelled.is_set()

    @property
    def cancelled(self) -> threading.Event:
        """The event that cancels the deadline."""
        return self._cancelled

    def within(self, seconds: float) -> Deadline:
        """A deadline at most ``seconds`` from now that is no later than this one; cancelling either cancels both."""
        return Deadline(min(seconds, self.remaining), self._cancelled)

    def stopper(self) -> Callable[[], bool]:
        """Returns a ``should_stop`` callback for solvers and heuristics."""
        return lambda: self.expired


class Watchdog:
    """Context manager with a thread that stops the code in the block when time is up or ``should_stop`` returns True.

    Parameters
    ----------
    seconds
        Length of the limit in seconds, counted from the creation of this object.
    should_stop
        Called every ``look_every`` seconds; None if only the time counts.
    stop
        Stops the code in the block. It is called repeatedly until the block ends, because code that is only about to start may
        miss a call.
    look_every
        Seconds between two checks.
    """

    def __init__(
        self, seconds: float, should_stop: Callable[[], bool] | None, stop: Callable[[], object], look_every: float = 0.05
    ):
        self._end = time.monotonic() + seconds
        self._should_stop, self._stop, self._look_every = should_stop, stop, look_every
        self._closed = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._closed.wait(self._look_every):
            if time.monotonic() >= self._end or (self._should_stop is not None and self._should_stop()):
                self._stop()


def limit_after(began: float, seconds: float) -> float:
    """Seconds left of a limit of ``seconds`` that began at ``began`` on the monotonic clock.

    The result is never less than 0.2 s, or than the limit itself if that is less. A limit that is not positive is returned
    unchanged, so that the code that uses it can refuse it.
    """
    return max(min(seconds, 0.2), seconds - (time.monotonic() - began)) if seconds > 0 else seconds


#: When this module was imported, on the monotonic clock.
_IMPORTED = time.monotonic()

#: If the process was started more seconds before the import than this, it did something else first, like a shell that replaces
#: itself with the command.
_MAX_START_SECONDS = 30.0


def process_began() -> float:
    """The time at which this process was started, on the monotonic clock. If the system does not tell it, or if the process did
    something else first, it is the time at which this module was imported."""
    try:
        with open("/proc/self/stat", "rb") as stream:
            ticks = int(stream.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED
    began = time.monotonic() - age
    return began if 0 <= _IMPORTED - began <= _MAX_START_SECONDS else _IMPORTED


#: Seconds that reading may take even if the limit is smaller: every limit may be exceeded by this much.
MIN_READING_SECONDS = 0.5

_READING: ContextVar[tuple[Deadline, float] | None] = ContextVar("reading", default=None)

#: Name of the threads that read inputs.
_READER = "stowplan reader"

T = TypeVar("T")


def read_within(seconds: float | None, read: Callable[[], T], began: float | None = None) -> T:
    """Calls ``read`` with a time limit and returns its result.

    ``read`` runs in a thread, and :func:`check_reading` raises in that thread once the time is over. Code that never calls it,
    such as the import of a framework, cannot be interrupted: its thread is abandoned and keeps running
    (:func:`is_still_reading`).

    Parameters
    ----------
    seconds
        Time limit. A limit under :data:`MIN_READING_SECONDS` is raised to it; ``None`` or NaN sets no limit, and ``read`` then
        runs in the calling thread.
    read
        Reads the input.
    began
        Start of the limit on the monotonic clock; now by default.

    Raises
    ------
    TimeLimitError
        The time was over before ``read`` returned.
    Exception
        Any error that ``read`` raises in time.
    """
    if seconds is None or math.isnan(seconds):
        return read()
    deadline, context, outcome = Deadline(max(seconds, MIN_READING_SECONDS), began=began), copy_context(), Future[T]()
    context.run(_READING.set, (deadline, seconds))

    def run() -> None:
        try:
            outcome.set_result(context.run(read))
        except BaseException as error:
            outcome.set_exception(error)

    threading.Thread(target=run, name=_READER, daemon=True).start()
    with suppress(TimeoutError):
        outcome.exception(min(deadline.remaining, threading.TIMEOUT_MAX))
    if not outcome.done():
        raise _reading_error(deadline, seconds)
    return outcome.result()


def is_still_reading() -> bool:
    """Whether a thread that :func:`read_within` started is still running, for example an abandoned one."""
    return any(thread.name == _READER for thread in threading.enumerate())


def check_reading() -> None:
    """Raises :class:`~stowplan.errors.TimeLimitError` if this thread runs ``read`` for :func:`read_within` and its time is
    over. Readers call it often; it does nothing in any other thread."""
    reading = _READING.get()
    if reading is not None and reading[0].expired:
        raise _reading_error(*reading)


def _reading_error(deadline: Deadline, seconds: float) -> TimeLimitError:
    over = f"the time limit of {seconds:g} s was over after {deadline.elapsed:.1f} s"
    return TimeLimitError(f"{over}, before the input was read: give it more")
