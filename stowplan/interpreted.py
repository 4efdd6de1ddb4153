"""Candidates of small problems without numba: their modules a second time, with every compiled function left as it is written.

Importing numba and what it has compiled takes half a second to a second, what a heuristic does on a few dozen tensors takes
milliseconds interpreted. One source makes both, so that both find the same. The copies are modules of the heuristics' room
(:data:`ROOM`) and :data:`SHARED` alone; problems, plans and everything else are the classes that all others use.
"""

from __future__ import annotations

import builtins
import importlib.util
import sys
import threading
from collections.abc import Sequence
from importlib.abc import InspectLoader
from types import ModuleType
from typing import Any

#: Packages in here are copied, with all of their modules; modules that lie in it themselves are not.
ROOM = "stowplan.portfolio"

#: Of the modules that lie in the room itself, those that compile.
SHARED = {"stowplan.portfolio.random_numbers"}

_COMPILED = "stowplan.compiled"

#: What the copies' names end with.
_MARK = " (interpreted)"

_lock = threading.RLock()
_copies: dict[str, ModuleType] = {}


def load(place: str) -> Any:
    """The object at ``module:name``, of the module's copy."""
    module, _, name = place.partition(":")
    return getattr(_copy(module), name)


def _is_copied(name: str) -> bool:
    return name == _COMPILED or name in SHARED or _is_package(name.rpartition(".")[0]) or _is_package(name)


def _is_package(name: str) -> bool:
    """Whether this is a package in the room."""
    if name.rpartition(".")[0] != ROOM:
        return False
    spec = importlib.util.find_spec(name)
    return spec is not None and spec.submodule_search_locations is not None


def _copy(name: str) -> ModuleType:
    with _lock:
        if name in _copies:
            return _copies[name]
        spec = importlib.util.find_spec(name)
        if spec is None or not isinstance(spec.loader, InspectLoader):
            raise ModuleNotFoundError(f"found no code of {name}", name=name)
        code = spec.loader.get_code(name)
        copy = ModuleType(name + _MARK)
        copy.__file__ = spec.origin
        copy.__dict__["__builtins__"] = vars(builtins) | {"__import__": _import}
        # Where dataclasses look for the module of a class.
        sys.modules[copy.__name__] = _copies[name] = copy
        try:
            exec(code or "", copy.__dict__)
        except BaseException:
            del sys.modules[copy.__name__], _copies[name]
            raise
        if name == _COMPILED:
            copy.ALWAYS_INTERPRETED = True  # type: ignore[attr-defined]
        return copy


def _import(
    name: str, global_names: Any = None, local_names: Any = None, from_names: Sequence[str] | None = (), level: int = 0
) -> ModuleType:
    """What an import statement of a copied module, or of a function in it, does."""
    if level or not from_names or not _is_copied(name):
        return builtins.__import__(name, global_names, local_names, from_names or (), level)
    found = _copy(name)
    for each in from_names:
        if not hasattr(found, each) and importlib.util.find_spec(f"{name}.{each}") is not None:
            setattr(found, each, _copy(f"{name}.{each}"))
    return found
