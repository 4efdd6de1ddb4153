"""CP-SAT without pandas: it works, and whoever wants pandas has it."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.paths import ROOT

SOLVE = """
import sys
from stowplan.child_process import light_imports
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
    light = "import stowplan.child_process as light; light.CP_MODEL = 'wants'; light.light_imports(); import wants"
    check = "; import pandas; assert wants.found == (pandas.DataFrame, pandas.Series)"
    subprocess.run([sys.executable, "-c", light + check], check=True, env={**os.environ, "PYTHONPATH": f"{ROOT}:{tmp_path}"})
