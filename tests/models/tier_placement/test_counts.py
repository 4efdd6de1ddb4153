"""Branch and bound over counts: against every map of small random networks, part by part."""

from __future__ import annotations

import math
import random

import msgspec
import pytest

import stowplan
from benchmarks.lib.places import EXAMPLES
from stowplan.hardware.nnp_i.compiler import compiler_plan
from stowplan.models.tier_placement import structure
from stowplan.models.tier_placement.counts import Tree, solve_by_counts
from stowplan.models.tier_placement.milp import build, solve_milp
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.verify import verify
from tests.models.tier_placement import brute_force
from tests.models.tier_placement.cases import chain, random_problem


@pytest.fixture(autouse=True)
def _all_sizes_count(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(structure, "COUNTED", 0)


def repetitive(seed: int, *, layers: int = 4) -> Problem:
    """A random network with weights of few sizes."""
    chance, problem = random.Random(seed), random_problem(seed, layers=layers)
    changed = []
    for layer in problem.layers:
        weights = chance.choice((2, 4, 8)) if layer.weight_bytes else 0
        changed.append(msgspec.structs.replace(layer, weight_bytes=weights, weight_read_bytes=None))
    return msgspec.structs.replace(problem, layers=tuple(changed))


@pytest.mark.parametrize("block", range(10))
def test_no_bound_exceeds_the_optimum_and_no_step_loses_it(block: int) -> None:
    for seed in range(30 * block, 30 * block + 30):
        problem = repetitive(seed) if seed % 2 else random_problem(seed)
        best, model = brute_force.optimum(problem), build(problem, counted=True)
        plan = solve_milp(problem, time_limit=20).plan
        if best is None or not model.matrix.columns:
            continue
        assert plan is not None
        assert plan.objective == best
        point = model.add_hint(plan) * model.column_scale
        tree = Tree(model, seed=0, end=math.inf)
        for part in tree.grow():
            assert part.bound <= best
            holding = [
                each
                for each in tree.open
                if all(least <= point[column] <= most for column, (least, most) in each.limits.items())
            ]
            assert holding
            assert all(each.bound <= best for each in holding)
        assert tree.open[0].bound == best


@pytest.mark.parametrize("block", range(5))
def test_the_optimum_is_found_and_proven(block: int) -> None:
    for seed in range(1000 + 20 * block, 1020 + 20 * block):
        problem = repetitive(seed)
        best, outcome = brute_force.optimum(problem), solve_by_counts(problem, time_limit=20)
        if best is None:
            assert outcome.plan is None
            continue
        assert outcome.plan is not None
        assert verify(problem, outcome.plan).ok
        assert outcome.status == "optimal"
        assert outcome.plan.objective == outcome.bound == best


@pytest.mark.parametrize("seed", range(20))
def test_bytes_alone_are_counted_in_address_spaces(seed: int) -> None:
    problem = random_problem(seed, layers=3, address_spaces=True)
    best, outcome = brute_force.optimum(problem), solve_by_counts(problem, time_limit=20)
    if best is not None:
        assert outcome.bound is not None
        assert outcome.bound <= best
    if outcome.plan is not None:
        assert verify(problem, outcome.plan).ok


def test_a_known_plan_that_is_optimal_is_proven_so() -> None:
    problem = chain(30)
    plan = solve_milp(problem, time_limit=20).plan
    assert plan is not None
    outcome = solve_by_counts(problem, time_limit=20, incumbent=lambda: plan)
    assert outcome.plan == plan
    assert outcome.status == "optimal"


def test_bert_needs_few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    problem = stowplan.read(EXAMPLES / "bert_base_s384.layers.json", "nnp-i")
    hints: list[object] = []
    outcome = solve_by_counts(problem, time_limit=60, deterministic_limit=3, on_hint=hints.append)
    assert outcome.status == "optimal"
    assert len(hints) == 1
    assert structure.counted_sizes(problem)
    assert not structure.counted_sizes(stowplan.read(EXAMPLES / "resnet50.layers.json", "nnp-i"))


@pytest.mark.parametrize("seconds", [0.0, 0.003, 0.01, 0.03])
def test_time_that_is_up_proves_nothing_wrong(seconds: float) -> None:
    problem = chain(30)
    slow, best = compiler_plan(problem), solve_milp(problem, time_limit=20).plan
    assert slow is not None
    assert best is not None
    assert slow.objective > best.objective
    for stops in (lambda: False, lambda: True):
        outcome = solve_by_counts(problem, time_limit=seconds, hint=slow, incumbent=lambda: slow, should_stop=stops)
        assert outcome.bound is not None
        assert outcome.bound <= best.objective
        assert outcome.status in ("feasible", "optimal")
