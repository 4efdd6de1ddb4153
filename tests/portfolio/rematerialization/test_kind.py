"""Rematerialization end to end: solve, verify, save; the frontier of peak and added cost."""

from __future__ import annotations

import re
from pathlib import Path

import msgspec
import numpy as np
import pytest

import stowplan
from stowplan.errors import UsageError
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Host, Problem
from stowplan.models.rematerialization.structure import build
from stowplan.models.rematerialization.verify import load_bytes, verify
from stowplan.portfolio.rematerialization.engine import profile
from stowplan.portfolio.rematerialization.frontier import frontier
from stowplan.portfolio.rematerialization.greedy import simulate
from stowplan.portfolio.rematerialization.insertion import Insertion
from stowplan.portfolio.rematerialization.kind import KIND
from stowplan.portfolio.rematerialization.peaks import least_peak
from tests.cli.conftest import Cli, cli
from tests.models.rematerialization import cases
from tests.paths import EXAMPLES
from tests.patience import HANG

__all__ = ["cli"]

EXAMPLE = EXAMPLES / "training.remat.json"


def test_within_a_limit(tmp_path: Path) -> None:
    seed = next(each for each in range(20) if cases.least_cost(cases.limited(each)))
    problem = cases.limited(seed)
    result = stowplan.solve(problem, time_limit=HANG)
    assert (result.status, result.kind, result.unit.name) == ("optimal", "rematerialization", "cost")
    assert result.objective == cases.least_cost(problem) == result.bound
    assert result.plan is not None
    result.plan.save(tmp_path / "plan.json")
    assert verify(problem, Plan.load(tmp_path / "plan.json")).ok


def test_a_baseline_above_the_limit_is_refused_with_the_reason() -> None:
    problem = Problem.load(EXAMPLE)
    peak = KIND.facts(problem, None, None)["given_peak"]
    text = f"found baseline 'given', which has no plan here (the given order needs {peak:,} bytes, and the limit is "
    with pytest.raises(UsageError, match=re.escape(text) + r"[\d,]+ bytes\), expected one of greedy, prod"):
        stowplan.solve(problem, baseline="given")
    within = msgspec.structs.replace(problem, limit=peak)
    assert "given" in stowplan.solve(within, baseline="given", time_limit=HANG).baselines
    with pytest.raises(UsageError, match="found baseline 'mine', expected one of greedy, given, prod"):
        stowplan.solve(within, baseline="mine")


@pytest.mark.parametrize("seed", range(cases.RESERVED, cases.RESERVED + 6))
def test_with_reservations(seed: int) -> None:
    problem = cases.limited(seed)
    least, result = cases.least_cost(problem), stowplan.solve(problem, time_limit=HANG)
    assert result.status == ("infeasible" if least is None else "optimal")
    assert result.objective == least


def test_heuristics_keep_what_is_reserved() -> None:
    """Insertion, simulation and the profile of local search agree with the verifier on what is live and reserved."""
    found = 0
    for seed in range(cases.RESERVED, cases.RESERVED + 150):
        problem = cases.limited(seed)
        structure = build(problem)
        insertion, live = Insertion(structure), np.zeros(4 * structure.ops + 9, np.int64)
        assert problem.limit is not None
        for runs in (
            simulate(structure, structure.order, problem.limit),
            insertion.repaired(structure.order, problem.limit),
        ):
            if runs is None:
                continue
            found += 1
            plan = structure.made(runs)
            assert profile(insertion.graph, insertion.work, np.array(runs, np.int64), len(runs), live)
            assert tuple(live[: len(runs)].tolist()) == load_bytes(problem, plan), seed
            assert verify(problem, plan).ok, seed
    assert found > 150


def test_the_summary_states_units() -> None:
    result = stowplan.solve(stowplan.read(EXAMPLE, capacity="40MB"), time_limit=1, deterministic=True)
    assert result.details["added_runs"] > 1
    lines = result.summary().splitlines()
    assert f"  peak       {result.details['peak']:,} bytes" in lines
    assert f"  added      {result.details['added_runs']} runs" in lines


def test_without_a_limit_nothing_is_added() -> None:
    result = stowplan.solve(cases.training(1), time_limit=HANG)
    assert (result.status, result.objective) == ("optimal", 0)
    empty = stowplan.solve(Problem(tensors=(), ops=()), time_limit=HANG)
    assert (empty.status, empty.objective) == ("optimal", 0)


def test_a_limit_that_no_plan_keeps() -> None:
    problem = stowplan.read(EXAMPLE, capacity=1000)
    result = stowplan.solve(problem, time_limit=HANG)
    assert (result.status, result.plan) == ("infeasible", None)


def test_the_frontier_falls() -> None:
    problem = cases.training(7)
    points = frontier(problem, 4, time_limit=2, deterministic=True)
    costs = [point.added_cost for point in points if point.added_cost is not None]
    known = [point.bound for point in points if point.bound is not None]
    assert costs == sorted(costs, reverse=True)
    assert known == sorted(known, reverse=True)
    assert costs[-1] == 0
    for point in points:
        least = cases.least_cost(msgspec.structs.replace(problem, limit=point.limit))
        assert least is None or (point.bound is not None and point.bound <= least)
        if point.plan is not None:
            assert verify(msgspec.structs.replace(problem, limit=point.limit), point.plan).ok
            assert point.added_cost is not None
            assert least is not None
            assert point.added_cost >= least


@pytest.mark.parametrize("seed", range(0, 30, 3))
def test_the_least_peak_of_the_simulation(seed: int) -> None:
    problem = cases.training(seed)
    plan, bound = least_peak(problem)
    assert bound <= cases.least_peak(problem) <= plan.peak
    assert verify(problem, plan).ok
    assert plan.peak <= build(problem).made(build(problem).order).peak
    # What is reached is reached when it is asked for.
    assert least_peak(problem, enough=plan.peak)[0].peak <= plan.peak


def test_the_command_line(cli: Cli, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    options = ("--capacity", 40 << 20, "--candidates", "cuts", "--time-limit", 5, "-q")
    assert cli("solve", EXAMPLE, "-o", plan, *options).code == 0
    assert "added cost" in cli("show", plan, EXAMPLE, "--capacity", 40 << 20).out
    assert cli("verify", EXAMPLE, plan, "--capacity", 40 << 20).code == 0
    assert cli("verify", EXAMPLE, plan, "--capacity", 11 << 20).code == 4


@pytest.mark.parametrize("seed", range(12))
def test_bounds_are_multiples_of_what_divides_all_costs(seed: int) -> None:
    plain = cases.limited(seed)
    ops = tuple(msgspec.structs.replace(op, cost=1000 * (1 + op.cost)) for op in plain.ops)
    problem = msgspec.structs.replace(plain, ops=ops)
    assert KIND.granularity(problem) % 1000 == 0
    least = cases.least_cost(problem)
    result = stowplan.solve(problem, time_limit=HANG, candidates=["cuts", "stages"])
    if least is not None and result.bound is not None:
        assert result.bound % 1000 == 0
        assert result.bound <= least
    elif least is None:
        assert result.plan is None


def test_waiting_for_a_host_may_cost_any_number() -> None:
    problem = msgspec.structs.replace(cases.limited(0), host=Host(limit=100, bandwidth=0.3))
    assert KIND.granularity(problem) == 1
