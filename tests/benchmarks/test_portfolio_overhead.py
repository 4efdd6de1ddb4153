"""``benchmarks/calls/overhead.py``: a candidate by itself, and when it has what the portfolio had."""

from __future__ import annotations

import os
import sys

import pytest

import benchmarks.calls.overhead
import stowplan
from benchmarks.lib.processor import seconds_of
from stowplan.kernel import run
from stowplan.kernel.workers.pool import WorkerPool
from tests.paths import EXAMPLES
from tests.patience import HANG


def test_a_candidate_by_itself() -> None:
    problem = stowplan.read(EXAMPLES / "banks.json")
    found = benchmarks.calls.overhead.bare(problem, "choice", HANG, {"candidates": ("exact",), "workers": 2})
    objectives = [point.objective for point in found.points]
    assert objectives == sorted({*objectives}, reverse=True)
    assert found.best.objective == objectives[-1]
    assert [point.wall for point in found.points] == sorted(point.wall for point in found.points)


def test_when_a_plan_is_as_good() -> None:
    overhead = benchmarks.calls.overhead
    points = [overhead.Point(1.0, 0.5, 90), overhead.Point(2.0, 1.5, 70)]
    assert [overhead.first_at(points, each) for each in (95, 70, 60)] == [points[0], points[1], None]


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_processor_time_of_a_process() -> None:
    seconds = seconds_of(os.getpid())
    assert 0 < seconds <= sum(os.times()[:4]) + 0.1
    assert seconds_of(2**22 + 1) == 0.0


def test_a_row() -> None:
    """Whatever the machine does, a row has all columns, and the pool is the package's own again."""
    overhead = benchmarks.calls.overhead
    options = {"candidates": ("heuristic", "exact"), "workers": 2}
    cells = overhead.row(str(EXAMPLES / "saxpy.dfg.json"), "se", 1.0, options)
    assert len(cells) == len(overhead.COLUMNS)
    assert cells[:2] == ["saxpy", "modulo scheduling"]
    assert run.WorkerPool is WorkerPool
