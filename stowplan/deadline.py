"""When to stop: a time limit on the monotonic clock, and a cancel that anyone may pull."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable


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

    def cancel(self) -> None:
        """Make it expire now, here and in every deadline made from it."""
        self._cancelled.set()

    def within(self, seconds: float) -> Deadline:
        """A deadline no later than this one and at most ``seconds`` from now; it shares the cancel."""
        return Deadline(min(seconds, self.remaining), self._cancelled)

    def stopper(self) -> Callable[[], bool]:
        """``should_stop`` callback for solvers and heuristics."""
        return lambda: self.expired


def limit_after(began: float, seconds: float) -> float:
    """What is left of a limit of ``seconds`` set at ``began`` (monotonic clock); never less than 0.2 s or the limit itself.

    A limit that makes no sense comes back as it is, for whoever takes it to refuse.
    """
    return max(min(seconds, 0.2), seconds - (time.monotonic() - began)) if seconds > 0 else seconds
