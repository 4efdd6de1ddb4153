"""Operator order end to end: solve, verify, save; the contract of its results."""

from __future__ import annotations

from pathlib import Path

import pytest

import stowplan
from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Op, Problem, Tensor
from stowplan.models.operator_order.verify import verify
from tests.models.operator_order.cases import least_peak, random_problem
from tests.patience import HANG


def branches(count: int, size: int = 1 << 10) -> Problem:
    """Branches that each write much and leave little: one after the other is best, side by side is the order given."""
    tensors = [Tensor(id="x", size=16)]
    for number in range(count):
        tensors += [Tensor(id=f"big{number}", size=size + number), Tensor(id=f"small{number}", size=8)]
    ops = [Op(id=f"grow{number}", reads=(0,), writes=(1 + 2 * number,)) for number in range(count)]
    ops += [Op(id=f"shrink{number}", reads=(1 + 2 * number,), writes=(2 + 2 * number,)) for number in range(count)]
    tensors.append(Tensor(id="y", size=8))
    ops.append(Op(id="sum", reads=tuple(2 + 2 * number for number in range(count)), writes=(len(tensors) - 1,)))
    return Problem(tensors=tuple(tensors), ops=tuple(ops), inputs=(0,), outputs=(len(tensors) - 1,), name="branches")


def test_branches_run_one_after_the_other(tmp_path: Path) -> None:
    problem = branches(6)
    result = stowplan.solve(problem, time_limit=HANG)
    assert (result.status, result.kind, result.unit.name) == ("optimal", "operator_order", "bytes")
    assert result.objective == result.bound == result.details["arena"]
    assert result.baselines["given"] > 5 * result.objective
    assert result.objective <= min(result.baselines.values())
    assert {"given", "bfs", "dfs", "lpmf"} <= set(result.baselines)
    assert result.plan is not None
    result.plan.save(tmp_path / "plan.json")
    assert verify(problem, Plan.load(tmp_path / "plan.json")).ok


@pytest.mark.parametrize("seed", [3, 5, 11])
def test_least_peaks_of_small_graphs(seed: int) -> None:
    problem = random_problem(seed)
    result = stowplan.solve(problem, time_limit=HANG)
    assert (result.status, result.objective) == ("optimal", least_peak(problem))


def test_deterministic_plans_are_the_same() -> None:
    problem = branches(5)
    plans = [stowplan.solve(problem, time_limit=1, deterministic=True, workers=workers).plan for workers in (1, 2)]
    assert plans[0] == plans[1]


def test_no_operators_at_all() -> None:
    result = stowplan.solve(Problem(tensors=(), ops=()), time_limit=HANG)
    assert (result.status, result.objective) == ("optimal", 0)


def test_the_arena_decides_between_plans_of_one_peak() -> None:
    """A plan of the least peak that wastes memory is not the end of the run."""
    problem = branches(3)
    best = stowplan.solve(problem, time_limit=HANG).plan
    assert best is not None
    offset = 1 << 20
    top = max(range(len(best.offsets)), key=lambda number: best.offsets[number])
    offsets = tuple(offset if number == top else each for number, each in enumerate(best.offsets))
    wasteful = Plan(
        problem=problem.digest,
        objective=best.objective,
        arena=offset + problem.tensors[top].size,
        order=best.order,
        offsets=offsets,
    )
    result = stowplan.solve(problem, time_limit=HANG, plans={"wasteful": wasteful})
    assert result.plan is not None
    assert result.plan.arena == best.arena
