"""Large-neighbourhood search over maps: what it frees, and that it only gets better."""

from __future__ import annotations

from itertools import pairwise

import msgspec
import pytest

import stowplan
from stowplan.models.tier_placement.milp import relaxation
from stowplan.models.tier_placement.plan import Plan, placed
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.structure import Structure
from stowplan.models.tier_placement.verify import verify
from stowplan.portfolio.tier_placement import kind
from stowplan.portfolio.tier_placement.candidates import Neighbourhoods, lns
from tests.kernel.recorder import Recorder
from tests.models.tier_placement.brute_force import optimum
from tests.models.tier_placement.cases import chain, random_problem


def all_slow(problem: Problem) -> Plan:
    zeros = (0,) * len(problem.layers)
    plan = Plan(problem=problem.digest, objective=0, weight_tiers=zeros, output_tiers=zeros)
    structure = Structure(problem)
    return msgspec.structs.replace(plan, objective=structure.latency_ps([0] * len(structure.tensors)))


def test_small_networks_are_solved() -> None:
    solved = 0
    for seed in range(60):
        problem = random_problem(seed, layers=4)
        start, best = all_slow(problem), optimum(problem)
        if best is None or not verify(problem, start).ok:
            continue
        context = Recorder(start_plan=start, deterministic=True, time_limit=20.0, seed=seed)
        lns(problem, context)
        plans = [plan for plan, _ in context.plans]
        objectives = [plan.objective for plan in (start, *plans)]
        assert all(later < earlier for earlier, later in pairwise(objectives))
        assert all(verify(problem, plan).ok for plan in plans)
        # As many tensors are free as there are.
        assert objectives[-1] == best
        solved += 1
    assert solved >= 20


@pytest.mark.parametrize("seed", range(10))
def test_what_is_free_is_there_and_the_rest_stays(seed: int) -> None:
    problem = chain(30)
    plan = all_slow(problem)
    neighbourhoods = Neighbourhoods(problem, None, seed)
    neighbourhoods.sizes = dict.fromkeys(neighbourhoods.sizes, 20.0)
    keys = set(placed(problem))
    for _ in range(6):
        way, free = neighbourhoods.draw(plan)
        assert free <= keys
        assert 20 <= len(free) <= 24
        pins = neighbourhoods.pins(plan, free)
        assert pins == dict.fromkeys(keys - free, 0)
        neighbourhoods.learn(way, easy=False, hard=True)
        assert neighbourhoods.sizes[way] == 20
    neighbourhoods.learn("near", easy=True, hard=False)
    assert neighbourhoods.sizes["near"] > 20


def test_what_the_relaxation_has_elsewhere_is_free_first() -> None:
    problem = chain(30)
    hint, _ = relaxation(problem, time_limit=60)
    assert hint is not None
    way, free = Neighbourhoods(problem, hint, 0).draw(all_slow(problem))
    assert way == "relaxation"
    assert free == {key for number, key in enumerate(placed(problem)) if hint.values["slow"][number] < 0.999}


def test_it_begins_with_the_plan_at_hand_and_equal_runs_are_equal() -> None:
    problem = chain(30)
    found = []
    for _ in range(2):
        context = Recorder(start_plan=all_slow(problem), deterministic=True, time_limit=20.0)
        lns(problem, context)
        found.append([plan for plan, source in context.plans])
        assert "neighbourhoods" in context.notes[-1]
    assert found[0] == found[1]
    assert found[0]
    nothing = Recorder(deterministic=True)
    lns(problem, nothing)
    assert nothing.notes == ["found no plan to begin with"]


def test_large_networks_have_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kind, "PARAMS", msgspec.structs.replace(kind.PARAMS, exact_layers=10))
    result = stowplan.solve(chain(40), time_limit=6, candidates="exact", seed=1)
    assert {"linear", "lns"} <= {each.name for each in result.candidates}
    assert result.status in ("optimal", "feasible")
