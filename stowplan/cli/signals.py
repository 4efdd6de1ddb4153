"""Signals that end a command: what Ctrl-C does, SIGTERM and SIGHUP do, too.

``timeout``, Slurm and CI send SIGTERM, a terminal that closes sends SIGHUP; both may come more than once. Handlers are those of
the command line alone: the library installs none, and leaves its user's as they are.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

#: What ends a command besides Ctrl-C, where the system has it.
ENDING = tuple(getattr(signal, name) for name in ("SIGTERM", "SIGHUP") if hasattr(signal, name))

#: Exit code after Ctrl-C; after another signal it is likewise 128 plus its number.
INTERRUPTED = 130


class Received:
    """The first of the :data:`ENDING` signals that has come."""

    def __init__(self) -> None:
        self.number: int | None = None

    def exit_code(self, code: int) -> int:
        """The code of a command that would return ``code``: one that was interrupted names the signal."""
        return code if self.number is None or code != INTERRUPTED else 128 + self.number


_received = Received()


@contextmanager
def as_interrupts() -> Iterator[Received]:
    """Within it, SIGTERM and SIGHUP raise KeyboardInterrupt, as Ctrl-C does; only the first of them.

    Those that are ignored (``nohup``) stay so. Off the main thread, which no signal reaches, nothing changes.
    """
    global _received
    _received = received = Received()

    def interrupt(number: int, frame: FrameType | None) -> None:
        if received.number is None:
            received.number = number
            raise KeyboardInterrupt

    with _handled(dict.fromkeys(ENDING, interrupt)):
        yield received


@contextmanager
def stopping() -> Iterator[threading.Event]:
    """An event that Ctrl-C, SIGTERM and SIGHUP set in place of interrupting; a second Ctrl-C interrupts as it always does."""
    event, received, is_set = threading.Event(), _received, False

    def stop(number: int, frame: FrameType | None) -> None:
        # A second signal may come while the first is setting the event, and would wait for its lock for ever.
        nonlocal is_set
        if not is_set:
            is_set = True
            event.set()
        if number == signal.SIGINT:
            signal.signal(signal.SIGINT, signal.default_int_handler)
        elif received.number is None:
            received.number = number

    with _handled(dict.fromkeys((signal.SIGINT, *ENDING), stop)):
        yield event


@contextmanager
def _handled(handlers: dict[signal.Signals, object]) -> Iterator[None]:
    """Handlers within it, and those that were there before after it."""
    before: dict[signal.Signals, object] = {}
    if threading.current_thread() is threading.main_thread():
        for number, handler in handlers.items():
            if signal.getsignal(number) is not signal.SIG_IGN:
                before[number] = signal.signal(number, handler)  # type: ignore[arg-type]
    try:
        yield
    finally:
        for number, handler in before.items():
            # One that no Python code has installed cannot be put back by any.
            signal.signal(number, signal.SIG_DFL if handler is None else handler)  # type: ignore[arg-type]
