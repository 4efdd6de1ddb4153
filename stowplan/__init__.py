"""stowplan: verified, provably good memory plans for compiled machine-learning programs.

:func:`read` makes a problem from a file, :func:`solve` finds a plan with a proven bound, and :func:`verify` checks a plan.
Importing the package loads neither solvers nor learning libraries; the first call that needs them imports them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from stowplan.errors import InputError, MissingDependencyError, StowplanError, UsageError, VerificationError
from stowplan.lazy import lazy_names, public_names
from stowplan.version import VERSION

if TYPE_CHECKING:
    from stowplan.frontends.read import read as read
    from stowplan.kernel.plan_changes import KeepClose as KeepClose
    from stowplan.kernel.solve import solve as solve
    from stowplan.kernel.verify import verify as verify
    from stowplan.result import Progress as Progress
    from stowplan.result import Result as Result

__version__ = VERSION

__all__ = [
    "InputError",
    "KeepClose",
    "MissingDependencyError",
    "Progress",
    "Result",
    "StowplanError",
    "UsageError",
    "VerificationError",
    "read",
    "solve",
    "verify",
]

__getattr__ = lazy_names(
    __name__,
    {
        "frontends.read": ["read"],
        "kernel.plan_changes": ["KeepClose"],
        "result": ["Progress", "Result"],
        "kernel.solve": ["solve"],
        "kernel.verify": ["verify"],
    },
)
__dir__ = public_names(globals())
