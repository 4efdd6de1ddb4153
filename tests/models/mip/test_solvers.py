"""Every solver there is, over one set of cases: the optimum is that of trying every point, and nothing is claimed unproven."""

from __future__ import annotations

import random
from pathlib import Path

import numpy as np
import pytest
from scipy import sparse

from stowplan.errors import UsageError
from stowplan.models.mip.matrix import MatrixModel, lowered
from stowplan.models.mip.solve import check_solver, solve, solvers
from tests.models.mip.cases import knapsack, optimum, random_model
from tests.patience import no_hang

#: Those that come with the package; of others by PuLP nothing is claimed but points.
SOLVERS = [name for name in solvers() if name in ("gscip", "highs", "cbc")]


def test_those_that_come_with_the_package_are_there() -> None:
    assert {"gscip", "highs", "cbc"} <= set(solvers())


@pytest.mark.parametrize("solver", SOLVERS)
def test_optimum_is_that_of_every_point(solver: str) -> None:
    feasible = 0
    for seed in range(20):
        model = random_model(random.Random(seed))
        best = optimum(model)
        found = solve(model, solver, time_limit=20)
        if best is None:
            assert found.status in ("infeasible", "unknown"), seed
            assert found.values is None
            continue
        feasible += 1
        assert found.status == "optimal", seed
        assert found.objective == pytest.approx(best, abs=1e-5)
        assert found.values is not None
        assert model.is_feasible(found.values)
        assert found.bound is not None
        assert lowered(found.bound, 1000) <= best <= found.bound + 1e-3
    assert 5 < feasible < 20


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_time_out_is_no_proof(solver: str, capfd: pytest.CaptureFixture[str]) -> None:
    model = knapsack(120)
    with no_hang():
        found = solve(model, solver, time_limit=0.4)
    assert found.status in ("feasible", "unknown")
    if found.values is not None:
        assert model.is_feasible(found.values)
    best = solve(model, "gscip", time_limit=0.5).objective
    if found.bound is not None and best is not None:
        assert found.bound <= best
    assert capfd.readouterr().out == ""


@pytest.mark.parametrize("solver", SOLVERS)
def test_infeasible_is_said(solver: str) -> None:
    model = MatrixModel(
        "none", np.ones(2), np.zeros(2), np.ones(2), np.ones(2, dtype=bool), sparse.csr_matrix([[1.0, 1.0]]),
        np.array([3.0]), np.array([np.inf]),
    )  # fmt: skip
    found = solve(model, solver)
    assert (found.status, found.values, found.objective) == ("infeasible", None, None)


@pytest.mark.parametrize("solver", SOLVERS)
def test_linear_programs_are_solved(solver: str) -> None:
    """min -x - 2y, x + y <= 4, y <= 3 as a row: -7."""
    model = MatrixModel(
        "linear", np.array([-1.0, -2.0]), np.zeros(2), np.full(2, 10.0), np.zeros(2, dtype=bool),
        sparse.csr_matrix([[1.0, 1.0], [0.0, 1.0]]), np.full(2, -np.inf), np.array([4.0, 3.0]), offset=100.0,
    )  # fmt: skip
    found = solve(model, solver)
    assert found.status == "optimal"
    assert found.objective == pytest.approx(93, abs=1e-3)
    assert found.bound is None or found.bound == pytest.approx(93, abs=1e-3)


@pytest.mark.parametrize("solver", ["gscip", "highs", "cbc"])
def test_solvers_stop_when_asked(solver: str) -> None:
    if solver == "cbc" and not Path("/proc/self/cmdline").exists():
        pytest.skip("programs are ended on Linux only")
    asked: list[bool] = []
    # GSCIP is left behind when it is told to stop, and goes on in its thread until its limit.
    found = solve(knapsack(120), solver, time_limit=3, should_stop=lambda: asked.append(True) or len(asked) > 2)
    # Who goes on regardless asks more than a hundred times until then.
    assert len(asked) < 20
    assert found.status in ("feasible", "unknown")


def test_bounds_come_on_the_way() -> None:
    bounds: list[float] = []
    found = solve(knapsack(24), "gscip", time_limit=20, on_bound=bounds.append)
    assert bounds
    assert bounds == sorted(bounds)
    assert found.objective is not None
    assert bounds[-1] <= found.objective + 1e-6


def test_a_start_is_used_by_cbc() -> None:
    """With no time to search, the point handed in is the point that comes out; without it there is another, or none."""
    model = knapsack(60)
    best = solve(model, "gscip", time_limit=3)
    assert best.values is not None
    assert best.objective is not None
    warm = solve(model, "cbc", time_limit=0.1, start=best.values)
    assert warm.objective is not None
    assert warm.objective <= best.objective + 1e-6


@pytest.mark.parametrize("solver", ["gscip", "highs"])
def test_equal_calls_give_equal_results(solver: str) -> None:
    one, two = (solve(knapsack(30), solver, node_limit=20, time_limit=60, seed=4) for _ in range(2))
    assert one.objective == two.objective
    assert one.bound == two.bound


def test_unknown_solvers_are_named_with_those_there_are() -> None:
    with pytest.raises(UsageError, match=r"'guroby'.*gscip.*cbc"):
        check_solver("guroby")
    with pytest.raises(UsageError, match="cbc"):
        solve(knapsack(4), "XPRESS_PY" if "XPRESS_PY" not in solvers() else "nobody")


def test_without_columns_there_is_nothing_to_choose() -> None:
    empty = MatrixModel(
        "empty", np.zeros(0), np.zeros(0), np.zeros(0), np.zeros(0, dtype=bool), sparse.csr_matrix((1, 0)),
        np.array([0.0]), np.array([1.0]), offset=5.0,
    )  # fmt: skip
    assert solve(empty, "gscip").bound == 5.0
