"""Copies of modules without compiled code: no numba, the same results, and the classes that all others use."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

import stowplan
from stowplan import compiled, interpreted, kinds
from stowplan.portfolio.context import Options
from stowplan.portfolio.kind import Candidate, kind_of
from stowplan.portfolio.run.messages import Job, Report, WorkerContext
from tests.paths import EXAMPLES
from tests.patience import HANG


def test_numba_is_not_imported() -> None:
    """Nor are the modules that compile, which are there a second time."""
    code = """
import sys
from stowplan import interpreted
for name in ("memory_mapping", "tier_placement", "operator_order", "banked_packing"):
    interpreted.load(f"stowplan.portfolio.{name}.candidates:presolve")
assert not {"numba", "stowplan.compiled", "stowplan.portfolio.packing.beam"} & {*sys.modules}, sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True, timeout=HANG)


def reports(function: Callable[[Any, Any], None], problem: Any) -> list[tuple[str, Any]]:
    """What a candidate reports in a deterministic run."""
    found: list[Report] = []
    options = Options(time_limit=1.0, deterministic=True)
    function(problem, WorkerContext(Job(kind_of(problem).modules, {}, options, b"", 1e18), found.append))
    return [(each.what, each.plan if each.what == "plan" else each.text) for each in found]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("file", "target", "function"),
    [
        ("lstm_scan_inf_b32.hlo.txt.gz", "tpu-v4", "stowplan.portfolio.memory_mapping.candidates:greedy"),
        ("resnet50.layers.json", "nnp-i", "stowplan.portfolio.tier_placement.candidates:presolve"),
        ("cells.graph.json", None, "stowplan.portfolio.operator_order.candidates:presolve"),
    ],
)
def test_the_same_is_found(file: str, target: str | None, function: str) -> None:
    problem = stowplan.read(EXAMPLES / file, target=target)
    copied, original = interpreted.load(function), kinds.load(function)
    assert copied is not original
    found = reports(copied, problem)
    assert any(what == "plan" for what, _ in found)
    assert found == reports(original, problem)


def test_threads_may_load_side_by_side() -> None:
    together = threading.Barrier(4)

    def load(_: int) -> Any:
        together.wait()
        return interpreted.load("stowplan.portfolio.tier_placement.candidates:presolve")

    with ThreadPoolExecutor(4) as pool:
        assert len({*pool.map(load, range(4))}) == 1


def test_the_copy_of_the_compiler_leaves_functions_alone() -> None:
    """Also where it is asked later: tables of records are plain objects for interpreted functions."""
    copy = interpreted.load("stowplan.portfolio.memory_mapping.candidates:arrays").__builtins__["__import__"](
        "stowplan.compiled", None, None, ("records",)
    )
    assert copy is not compiled

    class Row:
        width: int

    assert isinstance(copy.records(Row, 2), list)
    assert copy.is_interpreted()
    assert copy.njit(reports) is reports


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(ModuleNotFoundError, match=r"stowplan\.portfolio\.packing\.nowhere"):
        interpreted.load("stowplan.portfolio.packing.nowhere:search")


def test_a_module_that_breaks_may_be_tried_again() -> None:
    with pytest.raises(AttributeError):
        interpreted.load("stowplan.portfolio.packing.candidates:nothing")
    candidate = Candidate("search", "heuristic", "stowplan.portfolio.packing.candidates:search", interpret=True, in_thread=True)
    assert candidate.load() is interpreted.load(candidate.function)
