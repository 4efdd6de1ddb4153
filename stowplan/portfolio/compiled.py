"""``njit`` with a compile cache that is never stale and never breaks an import.

Numba looks only at the file of a function to see whether its cached code is fresh, not at the files of those it calls, and
it cannot import a cached function where the package is read-only and there is no writable home. So the cache lies in a
folder of the user's whose name carries a digest of all the compiled sources (:data:`SOURCES`).

Compiling everything takes most of a minute, once. Until it has been done on a machine (:func:`is_warm`), the runner lets the
same functions run interpreted: set ``STOWPLAN_INTERPRET=1`` to get that by hand.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Callable
from functools import lru_cache
from importlib import metadata
from pathlib import Path
from typing import Any, TypeVar, cast

F = TypeVar("F", bound=Callable[..., Any])

INTERPRET = "STOWPLAN_INTERPRET"
_MARKER = "complete"

#: Files that decide what the compiled code is: every module with compiled functions, and what it takes constants from.
SOURCES = (
    "compiled.py",
    "memory_mapping/arrays.py",
    "memory_mapping/engine.py",
    "memory_mapping/insert.py",
    "memory_mapping/search.py",
)


@lru_cache(maxsize=1)
def cache_folder() -> Path:
    """Where compiled code is kept; ``STOWPLAN_CACHE`` names another place."""
    # Not numba.__version__: the parent of the workers asks too, and importing numba takes a third of a second.
    digest = hashlib.sha256(metadata.version("numba").encode())
    for source in SOURCES:
        digest.update((Path(__file__).parent / source).read_bytes())
    base = os.environ.get("STOWPLAN_CACHE")
    places = [Path(base)] if base else [Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "stowplan"]
    places.append(Path(tempfile.gettempdir()) / f"stowplan-{os.getuid()}")
    for place in places:
        folder = place / f"compiled-{digest.hexdigest()[:16]}"
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return Path(tempfile.mkdtemp(prefix="stowplan-"))


def is_warm() -> bool:
    """Whether everything has been compiled on this machine."""
    return (cache_folder() / _MARKER).exists()


def mark_warm() -> None:
    """Remember that everything has been compiled; nothing has where functions are interpreted."""
    if os.environ.get(INTERPRET) != "1":
        (cache_folder() / _MARKER).touch()


def njit(function: F) -> F:
    """Compile with numba on first call and keep the result on disk; a function to be interpreted stays as it is."""
    if os.environ.get(INTERPRET) == "1":
        return function
    import numba

    # The place of a function's cache is fixed when it is decorated; other packages keep theirs.
    config: Any = numba.config
    before = config.CACHE_DIR
    config.CACHE_DIR = str(cache_folder())
    try:
        return cast(F, numba.njit(function, cache=True))
    finally:
        config.CACHE_DIR = before
