"""CP-SAT without pandas and numba without SciPy, for processes of our own.

The module ``ortools.sat.python.cp_model`` imports pandas for a few methods that take its series and indices. This is more
than half of what importing it takes. None of the models here has a series.

The module ``numba.np.arraymath``, which numba imports before it loads or compiles the first function, imports SciPy's linear
algebra to see whether it is there. None of the functions here multiplies matrices.
"""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any, cast

CP_MODEL, ARRAY_MATH = "ortools.sat.python.cp_model", "numba.np.arraymath"

#: What numba looks for.
_BLAS = "scipy.linalg.cython_blas"


def light_imports() -> None:
    """From now on :data:`CP_MODEL` is imported without pandas, :data:`ARRAY_MATH` without SciPy, where these are not there yet.

    Methods of CP-SAT for series then refuse them. Functions that multiply matrices load SciPy when they are compiled. Not for
    processes in which others may want pandas.
    """
    if not any(isinstance(each, _Finder) for each in sys.meta_path):
        found = {CP_MODEL: _without_pandas, ARRAY_MATH: _without_blas}
        sys.meta_path.insert(0, _Finder({name: how for name, how in found.items() if name not in sys.modules}))


class _Finder(MetaPathFinder):
    """Finds modules that are executed in ways of our own, each once."""

    def __init__(self, ways: dict[str, Callable[[Loader, ModuleType], None]]):
        self._ways = ways

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None) -> ModuleSpec | None:
        way = self._ways.pop(name, None)
        if way is None:
            return None
        spec = importlib.util.find_spec(name)
        if spec is not None and spec.loader is not None:
            spec.loader = _Light(spec.loader, way)
        return spec


class _Light(Loader):
    def __init__(self, loader: Loader, way: Callable[[Loader, ModuleType], None]):
        self._loader, self._way = loader, way

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        return self._loader.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        self._way(self._loader, module)


def _without_pandas(loader: Loader, module: ModuleType) -> None:
    if "pandas" not in sys.modules:
        stand_in = ModuleType("pandas")
        stand_in.__dict__.update(Index=type("Index", (), {}), Series=type("Series", (), {}))
        sys.modules["pandas"] = stand_in
        try:
            loader.exec_module(module)
            return
        except AttributeError:
            # Another version, which wants more of it.
            pass
        finally:
            del sys.modules["pandas"]
    loader.exec_module(module)


def _without_blas(loader: Loader, module: ModuleType) -> None:
    if _BLAS in sys.modules or importlib.util.find_spec("scipy") is None:
        loader.exec_module(module)
        return
    # Which is how Python marks a module that is not to be had.
    cast(dict[str, Any], sys.modules)[_BLAS] = None
    try:
        loader.exec_module(module)
    finally:
        del sys.modules[_BLAS]
    # What it has found out. Whatever needs it looks for it once more.
    if hasattr(module, "_HAVE_BLAS"):
        vars(module)["_HAVE_BLAS"] = True
