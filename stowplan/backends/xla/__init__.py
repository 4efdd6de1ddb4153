"""XLA: plans become compiler options, and what the compiler made of them comes back.

Importing it loads neither jax nor a solver: what compiles does so in a process of its own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stowplan.backends.xla.compiler import CompileError as CompileError
    from stowplan.backends.xla.compiler import Compiler as Compiler
    from stowplan.backends.xla.loop import tune as tune
    from stowplan.backends.xla.loop import tune_workload as tune_workload
    from stowplan.backends.xla.steer import Steer as Steer
    from stowplan.backends.xla.steer import as_flags as as_flags
    from stowplan.backends.xla.tuning import Tuning as Tuning
    from stowplan.backends.xla.workload import Workload as Workload
    from stowplan.backends.xla.workload import by_name as by_name
    from stowplan.backends.xla.workload import of_function as of_function

_LAZY = {
    "CompileError": "compiler",
    "Compiler": "compiler",
    "Steer": "steer",
    "as_flags": "steer",
    "tune": "loop",
    "tune_workload": "loop",
    "Tuning": "tuning",
    "Workload": "workload",
    "by_name": "workload",
    "of_function": "workload",
}


__all__ = [*_LAZY]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
