"""Names of a package whose modules are imported when such a name is first asked for."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(package: str, places: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """What ``__getattr__`` of a package is, given the names in each of its modules; a module is named from the package on."""
    modules = {name: f"{package}.{module}" for module, names in places.items() for name in names}

    def look_up(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(modules[name]), name)

    return look_up


def listed(module: dict[str, Any]) -> Callable[[], list[str]]:
    """What ``__dir__`` of such a package is, given its ``globals()``: all that it offers, imported or not."""
    return lambda: sorted({*module["__all__"], *(name for name in module if name.startswith("__"))})
