"""What the package gives: on demand, and without loading a compiler."""

from __future__ import annotations

import pytest

import stowplan.backends.xla
from tests.test_imports import run_python


def test_importing_it_loads_no_compiler_and_no_solver() -> None:
    text = "import sys, stowplan.backends.xla, stowplan.backends.xla.child; print(*sys.modules)"
    assert not {"jax", "jaxlib", "libtpu", "numpy", "ortools", "numba", "torch"} & {*run_python(text).split()}
    # What comes with the first use is the loop, not jax.
    text = "import sys; from stowplan.backends.xla import tune, by_name; by_name('m:f'); print(*sys.modules)"
    assert not {"jax", "jaxlib", "libtpu"} & {*run_python(text).split()}


def test_all_names_are_there() -> None:
    for name in stowplan.backends.xla.__all__:
        assert getattr(stowplan.backends.xla, name).__name__ == name
    # No module takes the place of the function.
    assert stowplan.backends.xla.tune.__module__ == "stowplan.backends.xla.entry"
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        stowplan.backends.xla.nothing  # noqa: B018
