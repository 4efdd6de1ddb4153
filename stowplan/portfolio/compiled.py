"""``njit`` with a compile cache that never breaks an import.

Numba caches compiled code beside the source; where the package lies in a read-only place and there is no writable home,
importing a cached function raises. The cache then moves to a temporary folder of the user's.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])


def _choose_cache() -> None:
    if "NUMBA_CACHE_DIR" in os.environ:
        return
    here = Path(__file__).resolve().parent
    home = Path(os.path.expanduser("~"))
    if not os.access(here, os.W_OK) and not os.access(home, os.W_OK):
        os.environ["NUMBA_CACHE_DIR"] = os.path.join(tempfile.gettempdir(), f"stowplan-numba-{os.getuid()}")


def njit(function: F) -> F:
    """Compile with numba on first call and keep the result on disk."""
    _choose_cache()
    import numba

    return cast(F, numba.njit(function, cache=True))
