"""Other work on the machine: processes of full load, which end with whoever has started them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator

_LOOP = "import os\nparent = os.getppid()\nwhile os.getppid() == parent: pass"


@contextlib.contextmanager
def beside(count: int) -> Iterator[None]:
    """So many processes of full load."""
    loops = [subprocess.Popen([sys.executable, "-c", _LOOP]) for _ in range(count)]
    try:
        yield
    finally:
        for loop in loops:
            loop.kill()
            loop.wait()
