"""CP-SAT without pandas, for processes of our own.

The module ``ortools.sat.python.cp_model`` imports pandas for a few methods that take its series and indices. This is more
than half of what importing it takes. None of the models here has a series.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

CP_MODEL = "ortools.sat.python.cp_model"


def light_imports() -> None:
    """From now on :data:`CP_MODEL` is imported without pandas, where it is not there yet.

    Methods of CP-SAT for series then refuse them. Not for processes in which others may want pandas.
    """
    if CP_MODEL not in sys.modules and not any(isinstance(finder, _Finder) for finder in sys.meta_path):
        sys.meta_path.insert(0, _Finder())


class _Finder(MetaPathFinder):
    """Finds the module, once."""

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        if name != CP_MODEL:
            return None
        sys.meta_path.remove(self)
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _WithoutPandas(spec.loader)
        return spec


class _WithoutPandas(Loader):
    def __init__(self, loader: Loader):
        self._loader = loader

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        if "pandas" not in sys.modules:
            stand_in = ModuleType("pandas")
            stand_in.__dict__.update(Index=type("Index", (), {}), Series=type("Series", (), {}))
            sys.modules["pandas"] = stand_in
            try:
                self._loader.exec_module(module)
                return
            except AttributeError:
                # Another version, which wants more of it.
                pass
            finally:
                del sys.modules["pandas"]
        self._loader.exec_module(module)
