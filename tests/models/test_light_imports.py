"""CP-SAT without pandas and numba without SciPy: they work, and whoever wants those has them."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.paths import ROOT

SOLVE = """
import sys
from stowplan.models.light_imports import light_imports
light_imports()
{first}
from ortools.sat.python import cp_model
assert ("pandas" in sys.modules) == {there}
model = cp_model.CpModel()
x = model.new_int_var(0, 9, "x")
model.maximize(2 * x)
solver = cp_model.CpSolver()
assert solver.solve(model) == cp_model.OPTIMAL and solver.value(x) == 9
import pandas
assert pandas.Series([1, 2]).sum() == 3
assert (cp_model.pd is pandas) == {there}
"""


def run(first: str, there: bool) -> None:
    subprocess.run([sys.executable, "-c", SOLVE.format(first=first, there=there)], check=True)


def test_it_solves_without() -> None:
    run("", False)


def test_what_is_there_already_stays() -> None:
    run("import pandas", True)


def test_another_version_that_wants_more_gets_it(tmp_path: Path) -> None:
    """A module that looks for something else of pandas as it is imported."""
    (tmp_path / "wants.py").write_text("import pandas\nfound = pandas.DataFrame, pandas.Series\n")
    light = "import stowplan.models.light_imports as light; light.CP_MODEL = 'wants'; light.light_imports(); import wants"
    check = "; import pandas; assert wants.found == (pandas.DataFrame, pandas.Series)"
    subprocess.run([sys.executable, "-c", light + check], check=True, env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"})


MULTIPLY = """
import sys
from stowplan.models.light_imports import light_imports
light_imports()
{first}
import numba
import numpy as np

@numba.njit
def add(values):
    return values.sum()

assert add(np.arange(4.0)) == 6.0
assert ("scipy.linalg" in sys.modules) == {there}

@numba.njit
def multiply(one, other):
    return np.dot(one, other)

assert multiply(np.eye(2), np.ones((2, 2))).tolist() == [[1.0, 1.0], [1.0, 1.0]]
import scipy.linalg.cython_blas
assert scipy.linalg.norm([3.0, 4.0]) == 5.0
"""


@pytest.mark.slow
def test_numba_compiles_without_scipy_until_matrices_are_multiplied() -> None:
    subprocess.run([sys.executable, "-c", MULTIPLY.format(first="", there=False)], check=True)


@pytest.mark.slow
def test_scipy_that_is_there_already_stays() -> None:
    subprocess.run([sys.executable, "-c", MULTIPLY.format(first="import scipy.linalg.cython_blas", there=True)], check=True)
