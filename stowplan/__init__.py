"""stowplan: verified, provably good memory plans for compiled machine-learning programs.

Importing the package loads neither solvers nor learning libraries; they come with the first call that needs them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from stowplan.errors import InputError, MissingDependencyError, StowplanError, UsageError, VerificationError
from stowplan.version import VERSION

if TYPE_CHECKING:
    from stowplan.frontends.read import read as read
    from stowplan.portfolio.keep_close.earlier_plan import KeepClose as KeepClose
    from stowplan.portfolio.solve import solve as solve

__version__ = VERSION

__all__ = [
    "InputError",
    "KeepClose",
    "MissingDependencyError",
    "StowplanError",
    "UsageError",
    "VerificationError",
    "read",
    "solve",
]

_LAZY = {
    "KeepClose": "stowplan.portfolio.keep_close.earlier_plan",
    "read": "stowplan.frontends.read",
    "solve": "stowplan.portfolio.solve",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(_LAZY[name]), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
