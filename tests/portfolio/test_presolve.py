"""Small problems of every kind in the calling process: no worker, no numba, and what is proven is the same."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

import stowplan
from stowplan.kernel.call import select_candidates
from stowplan.kernel.context import Options
from stowplan.kernel.kind import kind_of
from stowplan.portfolio import presolve
from tests.paths import EXAMPLES
from tests.patience import HANG

#: Small instances, with their targets and optima.
SMALL = [
    ("buffers.csv", None, None),
    ("fir.dfg.json", "se", None),
    ("attention.hlo.txt", "inferentia", None),
    ("resnet50.layers.json", "nnp-i", 108_062_993),
    ("alexnet_inf_b1.hlo.txt.gz", "teaching", 25_415_502_072),
    ("lstm_scan_inf_b32.hlo.txt.gz", "tpu-v4", 2_546_155_263),
    ("cells.graph.json", None, 622_592),
    ("attention.hlo.txt", "order", 24_791_040),
    ("banks.json", None, 3_323_904),
]

#: Solves in a process in which no other can be started, and in which numba and SciPy cannot be imported.
ALONE = """
import json, sys
sys.modules |= {name: None for name in ("numba", "scipy", "highspy", "torch")}
import stowplan
from stowplan.portfolio import presolve
from stowplan.kernel.workers import warm as warm_workers

# However slow the machine is.
presolve.PRESOLVE_SECONDS = 1e3

class Refused:
    def __init__(self, *_):
        raise OSError("no room for another process")

warm_workers.WorkerProcess = Refused
result = stowplan.solve(stowplan.read(sys.argv[1], target=sys.argv[2] or None), time_limit=400.0)
print(json.dumps([result.status, result.objective, result.baseline]))
"""


@pytest.mark.parametrize(("file", "target", "optimum"), SMALL)
def test_small_problems_need_no_worker(file: str, target: str | None, optimum: int | None) -> None:
    command = [sys.executable, "-c", ALONE, str(EXAMPLES / file), target or ""]
    # The worker that a slow machine asks for is refused, which costs nothing but a remark.
    done = subprocess.run(command, check=True, timeout=HANG, stdout=subprocess.PIPE)
    status, objective, baseline = json.loads(done.stdout)
    assert status == "optimal"
    assert optimum is None or objective == optimum
    assert baseline is not None


@pytest.mark.parametrize(("file", "target", "optimum"), [each for each in SMALL if each[2] is not None])
def test_the_others_are_as_they_are_without_it(file: str, target: str | None, optimum: int) -> None:
    """It is an addition, of no share; deterministic runs, in which all that make plans must finish, go without."""
    problem = stowplan.read(EXAMPLES / file, target=target)
    kind = kind_of(problem)
    first, *others = kind.candidates(problem, Options())
    assert (first.name, first.turn, first.place) == ("presolve", "presolver", "thread")
    assert not any(each.turn == "presolver" for each in others)
    options = Options(deterministic=True)
    deterministic = select_candidates(kind.candidates(problem, options), options)
    assert deterministic
    assert not any(each.turn == "presolver" for each in deterministic)


def test_baselines_are_left_out_with_the_heuristics(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(presolve, "PRESOLVE_SECONDS", 1e3)
    problem = stowplan.read(EXAMPLES / "resnet50.layers.json", target="nnp-i")
    result = stowplan.solve(problem, time_limit=400.0, candidates="exact")
    assert result.status == "optimal"
    assert "greedy_dp" not in result.baselines
