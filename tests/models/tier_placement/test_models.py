"""Rows, hints, limits and stops of the exact models."""

from __future__ import annotations

import itertools
import math
import re

import numpy as np
import pytest

from stowplan.hardware.nnp_i.compiler import compiler_plan
from stowplan.models.mip.with_highs import new_highs, solve_relaxed
from stowplan.models.packing import cpsat as packing_model
from stowplan.models.tier_placement import cpsat, milp
from stowplan.models.tier_placement.milp import relaxation, solve_milp
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.structure import Offsets, Structure
from stowplan.models.tier_placement.verify import verify
from tests.models.tier_placement import brute_force
from tests.models.tier_placement.cases import chain, random_problem


@pytest.mark.parametrize("seed", range(60))
def test_rows_hold_in_every_map_and_define_the_excess(seed: int) -> None:
    structure = Structure(random_problem(seed, layers=4))
    for excess in structure.excesses:
        rows = structure.rows(excess)
        tensors = [tensor for tensor, _ in excess.uses]
        fitting = [structure.tensors[tensor].tiers for tensor in tensors]
        for tiers in itertools.product(*fitting):
            tier_of = [0] * len(structure.tensors)
            for tensor, tier in zip(tensors, tiers, strict=True):
                tier_of[tensor] = tier
            value = excess.at(tier_of)
            sides = [row.least - sum(saved for tensor, tier, saved in row.savings if tier_of[tensor] == tier) for row in rows]
            assert max(0, sides[0]) == value
            assert max(sides) <= value
            assert value <= excess.most


@pytest.mark.parametrize("seed", range(30))
def test_moments_cover_every_step(seed: int) -> None:
    problem = random_problem(seed, layers=8)
    structure = Structure(problem)
    for step in range(len(problem.layers)):
        live = {number for number, each in enumerate(structure.tensors) if each.is_output and each.first <= step <= each.last}
        assert any(live <= set(moment) for moment in structure.moments)
    for one, two in itertools.pairwise(structure.moments):
        assert not set(one) <= set(two)


def _plan(seed: int, *, address_spaces: bool) -> tuple[cpsat.Model, Plan]:
    problem = random_problem(seed, layers=6, address_spaces=address_spaces)
    built = cpsat.Model(problem)
    plan = compiler_plan(problem)
    if plan is None:
        pytest.skip("the compiler finds no plan to hint")
    return built, plan


@pytest.mark.parametrize("address_spaces", [False, True])
@pytest.mark.parametrize("seed", [0, 8, 11, 17, 21])
def test_hints_are_complete_and_feasible(seed: int, address_spaces: bool) -> None:
    built, plan = _plan(seed, address_spaces=address_spaces)
    lines: list[str] = []
    outcome = cpsat.solve(built.structure.problem, time_limit=10, hint=plan, log=lines.append)
    built.add_hint(plan)
    assert len(built.model.proto.solution_hint.vars) == len(built.model.proto.variables)
    # Where presolve decides everything, the log does not speak of hints; where it does, it must not complain.
    assert not [line for line in lines if "hint" in line and ("infeasible" in line or "incomplete" in line)]
    assert outcome.plan is not None
    assert outcome.plan.objective <= plan.objective


def test_the_log_speaks_of_the_hint() -> None:
    problem = chain(12)
    plan = compiler_plan(problem)
    lines: list[str] = []
    cpsat.solve(problem, time_limit=10, hint=plan, log=lines.append)
    assert any("complete and is feasible" in line for line in lines), "\n".join(lines)


@pytest.mark.parametrize("seed", range(25))
def test_a_plan_is_a_point_of_the_milp(seed: int) -> None:
    problem = random_problem(seed, layers=6)
    plan = compiler_plan(problem)
    built = milp.build(problem)
    if plan is None or not built.matrix.columns:
        return
    values = built.add_hint(plan)
    assert built.matrix.is_feasible(values)
    assert built.structure.base_ps + built.matrix.objective(values) * built.time_unit == pytest.approx(plan.objective)
    again = built.extract(values)
    assert (again.objective, again.output_tiers) == (plan.objective, plan.output_tiers)


def test_highs_takes_a_plan_to_start_from(capfd: pytest.CaptureFixture[str]) -> None:
    problem = chain(30)
    plan = compiler_plan(problem)
    assert plan is not None
    built = milp.build(problem)
    highs = new_highs(built.matrix, 0)
    import highspy

    start = highspy.HighsSolution()
    start.col_value = built.add_hint(plan).tolist()
    highs.setSolution(start)
    highs.setOptionValue("mip_max_nodes", 0)
    highs.setOptionValue("output_flag", True)
    highs.setOptionValue("log_to_console", True)
    highs.run()
    log = capfd.readouterr().out
    assert "Assessing feasibility of MIP" in log
    found = re.findall(r"^(Col|Integer|Row) +infeasibilities +(\d+)", log, re.MULTILINE)
    assert found == [("Col", "0"), ("Integer", "0"), ("Row", "0")]


def test_plans_of_others_are_taken_over() -> None:
    problem = chain(24)
    best = cpsat.solve(problem, time_limit=20).plan
    assert best is not None
    asked = 0

    def incumbent() -> Plan:
        nonlocal asked
        asked += 1
        return best

    outcome = solve_milp(problem, time_limit=20, incumbent=incumbent)
    assert outcome.status == "optimal"
    assert outcome.plan is not None
    assert outcome.plan.objective == best.objective
    assert verify(problem, outcome.plan).ok


def test_models_agree_and_prove_with_exact_bounds() -> None:
    problem = chain(14)
    exact = cpsat.solve(problem, time_limit=20)
    outcome = solve_milp(problem, time_limit=20)
    assert exact.status == "optimal"
    assert exact.plan is not None
    assert outcome.plan is not None
    assert outcome.plan.objective == exact.bound
    assert relaxation(problem, time_limit=60.0)[1] <= exact.bound
    assert outcome.bound <= exact.bound


def test_dual_bounds_do_not_trust_the_solver() -> None:
    problem = chain(10)
    built = milp.build(problem)
    best = cpsat.solve(problem, time_limit=20).bound
    found = solve_relaxed(built.matrix, 0, 10, None)
    assert found.dual_valid
    duals = np.array(found.row_dual)
    proven = built.dual_bound_ps(duals)
    assert built.structure.base_ps < proven <= best
    chance = np.random.default_rng(0)
    for _ in range(20):
        assert built.dual_bound_ps(duals * chance.normal(1, 0.5, len(duals))) <= best


def test_running_out_of_time_is_not_infeasible() -> None:
    problem = chain(60)
    for outcome in (cpsat.solve(problem, time_limit=0.001), solve_milp(problem, time_limit=0.001)):
        assert outcome.status in ("unknown", "feasible", "optimal")


def test_a_hint_is_kept_where_time_is_short() -> None:
    problem = chain(60, address_spaces=True)
    plan = compiler_plan(problem)
    assert plan is not None
    for outcome in (cpsat.solve(problem, time_limit=0.01, hint=plan), solve_milp(problem, time_limit=0.01, hint=plan)):
        assert outcome.plan is not None
        assert outcome.bound <= outcome.plan.objective <= plan.objective


def test_offsets_are_looked_for_within_the_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    """A point of the solver whose offsets are hard to find took ten seconds on top of any limit."""
    asked: list[float] = []
    solve = packing_model.solve
    monkeypatch.setattr(
        packing_model, "solve", lambda *args, **limits: asked.append(limits["time_limit"]) or solve(*args, **limits)
    )
    problem = chain(20, address_spaces=True)
    structure = Structure(problem)
    # More than the tier holds, and its time is over: no quick order does, and nothing is searched.
    assert Offsets(structure, end=0.0).pack(1, list(range(len(structure.tensors)))) is None
    assert asked == [0.0]
    ends: list[float] = []
    monkeypatch.setattr(milp, "Offsets", lambda *args, end: ends.append(end) or Offsets(*args, end=end))
    assert solve_milp(problem, time_limit=0.01, hint=compiler_plan(problem)).plan is not None
    assert all(map(math.isfinite, ends))
    assert ends


def test_stops_when_told() -> None:
    problem = chain(200)
    for outcome in (
        cpsat.solve(problem, time_limit=60, should_stop=lambda: True),
        solve_milp(problem, time_limit=60, should_stop=lambda: True),
    ):
        assert outcome.status != "infeasible"


@pytest.mark.parametrize("address_spaces", [False, True])
def test_limited_work_gives_the_same_plan_again(address_spaces: bool) -> None:
    problem = chain(40, address_spaces=address_spaces)
    first, second = (solve_milp(problem, time_limit=60, deterministic_limit=0.1) for _ in range(2))
    assert first == second
    first, second = (cpsat.solve(problem, time_limit=60, deterministic_limit=0.1) for _ in range(2))
    assert first == second


def test_reports_better_plans_and_bounds_only() -> None:
    problem = chain(16)
    for call in (cpsat.solve, solve_milp):
        plans: list[Plan] = []
        bounds: list[int] = []
        outcome = call(problem, time_limit=20, on_plan=plans.append, on_bound=bounds.append)  # type: ignore[operator]
        assert outcome.status == "optimal"
        assert all(verify(problem, plan).ok for plan in plans)
        latencies = [plan.objective for plan in plans]
        assert latencies == sorted(latencies, reverse=True)
        assert min(latencies) == outcome.bound
        assert max(bounds, default=0) <= outcome.bound


@pytest.mark.parametrize("seed", range(40))
def test_offsets_for_settled_tiers(seed: int) -> None:
    problem = random_problem(seed, layers=4, address_spaces=True)
    structure = Structure(problem)
    for at, tiers in enumerate(brute_force.maps(problem)):
        if at % 17:
            continue
        tier_of = [tiers[tensor.is_output][tensor.layer] for tensor in structure.tensors]
        plan = Offsets(structure).place(tier_of)
        assert (plan is not None) == brute_force.fits(problem, tiers)
        assert plan is None or verify(problem, plan).ok
