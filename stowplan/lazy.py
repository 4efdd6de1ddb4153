"""Makes packages import their public names from their modules only when a name is first used."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any


def lazy_names(package: str, places: Mapping[str, Sequence[str]]) -> Callable[[str], Any]:
    """Returns a function to use as ``__getattr__`` of a package, which imports the module of a name on first use (PEP 562).

    Parameters
    ----------
    package
        ``__name__`` of the package.
    places
        The public names of each module; the keys are paths of modules relative to the package, such as ``kernel.solve``.
    """
    modules = {name: f"{package}.{module}" for module, names in places.items() for name in names}

    def look_up(name: str) -> Any:
        if name not in modules:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        import importlib

        return getattr(importlib.import_module(modules[name]), name)

    return look_up


def public_names(module: dict[str, Any]) -> Callable[[], list[str]]:
    """Returns a function to use as ``__dir__`` of such a package: its public names, whether they are imported already or not.

    Parameters
    ----------
    module
        ``globals()`` of the package, in which ``__all__`` is defined.
    """
    return lambda: sorted({*module["__all__"], *(name for name in module if name.startswith("__"))})
