"""When to stop: a time limit on the monotonic clock, and a cancel that anyone may pull."""

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
    """A moment on the monotonic clock after which work must stop, or stop sooner when cancelled.

    Parameters
    ----------
    seconds
        Time from now; ``None`` or infinity for no limit.
    cancelled
        Shared event; setting it (or calling :meth:`cancel`) makes the deadline expire at once.
    began
        When it was set, where that is not now.
    """

    def __init__(self, seconds: float | None = None, cancelled: threading.Event | None = None, *, began: float | None = None):
        self.began = time.monotonic() if began is None else began
        self.seconds = seconds
        self._end = math.inf if seconds is None else self.began + seconds
        self._cancelled = cancelled if cancelled is not None else threading.Event()

    @property
    def elapsed(self) -> float:
        """Seconds since it was set."""
        return time.monotonic() - self.began

    @property
    def remaining(self) -> float:
        """Seconds left, never negative; 0 once cancelled, infinity where there is no limit."""
        return 0.0 if self._cancelled.is_set() else max(0.0, self._end - time.monotonic())

    @property
    def expired(self) -> bool:
        """Whether to stop now."""
        return self.remaining <= 0.0

    @property
    def was_cancelled(self) -> bool:
        """Whether it was cancelled rather than run out."""
        return self._cancelled.is_set()

    @property
    def cancelled(self) -> threading.Event:
        """The event that cancels it."""
        return self._cancelled

    def within(self, seconds: float) -> Deadline:
        """A deadline no later than this one and at most ``seconds`` from now; it shares the cancel."""
        return Deadline(min(seconds, self.remaining), self._cancelled)

    def stopper(self) -> Callable[[], bool]:
        """``should_stop`` callback for solvers and heuristics."""
        return lambda: self.expired


class Watch:
    """While it is open, looks at the clock and at ``should_stop`` from a thread of its own, and stops what runs beside it.

    Parameters
    ----------
    seconds
        Time from now.
    should_stop
        Asked at every look, ``look_every`` seconds apart.
    stop
        Called again and again once time is up or somebody says stop: what is only about to start does not hear it.
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
    """What is left of a limit of ``seconds`` set at ``began`` (monotonic clock); never less than 0.2 s or the limit itself.

    A limit that makes no sense comes back as it is, for whoever takes it to refuse.
    """
    return max(min(seconds, 0.2), seconds - (time.monotonic() - began)) if seconds > 0 else seconds


#: When this module was imported, by the monotonic clock.
_IMPORTED = time.monotonic()

#: A process that was started longer ago than this (seconds) did something else before, as a shell that becomes the command.
_LONGEST_START = 30.0


def process_began() -> float:
    """When this process was started, by the monotonic clock; when this module was imported where the system does not say."""
    try:
        with open("/proc/self/stat", "rb") as stream:
            ticks = int(stream.read().rpartition(b")")[2].split()[19])
        age = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    except (OSError, ValueError, IndexError, AttributeError):
        return _IMPORTED
    began = time.monotonic() - age
    return began if 0 <= _IMPORTED - began <= _LONGEST_START else _IMPORTED


#: Reading may take this long whatever the limit: what any limit may be exceeded by.
LEAST_READING = 0.5

_READING: ContextVar[tuple[Deadline, float] | None] = ContextVar("reading", default=None)

#: Name of the threads that read.
_READER = "stowplan reader"

T = TypeVar("T")


def read_within(seconds: float | None, read: Callable[[], T], began: float | None = None) -> T:
    """What a reader returns, where it does so within ``seconds`` (:data:`LEAST_READING` at least) from ``began``, or from now.

    It runs in a thread, in which :func:`check_reading` then raises. What does not look at the clock, such as the import of a
    framework, cannot be interrupted: its thread is left behind (:func:`is_still_reading`). ``None`` sets no limit.

    Raises
    ------
    TimeLimitError
        The time was over before; or whatever ``read`` raises.
    """
    if seconds is None or math.isnan(seconds):
        return read()
    deadline, context, outcome = Deadline(max(seconds, LEAST_READING), began=began), copy_context(), Future[T]()
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
        raise _not_read(deadline, seconds)
    return outcome.result()


def is_still_reading() -> bool:
    """Whether a reader has been left behind that has not ended."""
    return any(thread.name == _READER for thread in threading.enumerate())


def check_reading() -> None:
    """Raise :class:`~stowplan.errors.TimeLimitError` where the input takes longer to read than it may."""
    reading = _READING.get()
    if reading is not None and reading[0].expired:
        raise _not_read(*reading)


def _not_read(deadline: Deadline, seconds: float) -> TimeLimitError:
    over = f"the time limit of {seconds:g} s was over after {deadline.elapsed:.1f} s"
    return TimeLimitError(f"{over}, before the input was read: give it more")
