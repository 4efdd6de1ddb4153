"""What makes processes of our own quick to start and to end."""

from __future__ import annotations

import atexit
import gc
from functools import cache

#: Objects that are made before cycles among the youngest are looked for, and how often those come before the next older ones.
#: Python's own 700 has it look more than a thousand times while solvers are imported.
_THRESHOLDS = 100_000, 10, 10


@cache
def collect_seldom() -> None:
    """Look for cycles of garbage seldom, and not once more at the end.

    That is a fifth of what a small problem takes on the command line: modules are full of cycles, none of which is garbage.
    Not for processes in which others may count on Python's own ways.
    """
    gc.set_threshold(*_THRESHOLDS)
    # In this order at the end, before the interpreter looks for cycles in all that is left.
    atexit.register(gc.freeze)
    atexit.register(gc.disable)
