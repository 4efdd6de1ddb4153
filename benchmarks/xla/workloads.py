"""The corpus' JAX functions as a factory, for a compiling process to import; ``--dump`` of xla_tuning.py is on its path."""

from __future__ import annotations

from typing import Any


def make(name: str) -> Any:
    """Function, arguments and donated positions."""
    import workloads

    return workloads.W[name]()
