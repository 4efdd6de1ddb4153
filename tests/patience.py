"""The tests' only clock: a guard against what hangs. No test may fail because a machine is slow."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

#: Seconds; far more than a busy machine delays anything here, far less than what hangs.
HANG = 300.0

#: Seconds; longer than any test may take. What is to be ended is made to run so long.
FOREVER = 4 * HANG


@contextmanager
def no_hang() -> Iterator[None]:
    """Fails where the block took longer than anything but a hang does."""
    began = time.monotonic()
    yield
    seconds = time.monotonic() - began
    assert seconds < HANG, f"took {seconds:.0f} s"


def wait_until(condition: Callable[[], object]) -> None:
    """Returns as soon as ``condition`` holds; fails where it never does."""
    end = time.monotonic() + HANG
    while not condition():
        assert time.monotonic() < end, f"waited for {HANG:.0f} s in vain"
        time.sleep(0.02)
