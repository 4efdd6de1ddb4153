"""When to stop: a time limit on the monotonic clock, and a cancel that anyone may pull."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

from stowplan.errors import TimeLimitError


class Deadline:
    """A moment on the monotonic clock after which work must stop, or stop sooner when cancelled.

    Parameters
    ----------
    seconds
        Time from now; ``None`` or infinity for no limit.
    cancelled
        Shared event; setting it (or calling :meth:`cancel`) makes the deadline expire at once.
    """

    def __init__(self, seconds: float | None = None, cancelled: threading.Event | None = None):
        self.began = time.monotonic()
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


#: Reading may take this long whatever the limit: a short one still gets the plans that cost nothing.
LEAST_READING = 10.0

_READING: ContextVar[tuple[Deadline, float] | None] = ContextVar("reading", default=None)


@contextmanager
def reading_within(seconds: float | None) -> Iterator[None]:
    """Let :func:`check_reading` raise, within this context, once ``seconds`` (:data:`LEAST_READING` at least) are over.

    For readers, whose work is spread over many functions of one thread. ``None`` sets no limit.
    """
    if seconds is None or math.isnan(seconds):
        yield
        return
    token = _READING.set((Deadline(max(seconds, LEAST_READING)), seconds))
    try:
        yield
    finally:
        _READING.reset(token)


def check_reading() -> None:
    """Raise :class:`~stowplan.errors.TimeLimitError` where the input takes longer to read than it may."""
    found = _READING.get()
    if found is not None and found[0].expired:
        raise TimeLimitError(
            f"the time limit of {found[1]:g} s was over after {found[0].elapsed:.1f} s, before the input was read: give it more"
        )
