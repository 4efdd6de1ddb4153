"""The first plan of the search is valid whenever it is stopped, and saves something wherever a tensor fits."""

from __future__ import annotations

import random
from collections.abc import Callable

import msgspec
import pytest

import stowplan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.memory_mapping import arrays, heuristics
from stowplan.portfolio.memory_mapping.convert import export_plan
from tests.models.memory_mapping.cases import random_problem
from tests.paths import EXAMPLES


def never() -> bool:
    return False


def after(looks: int) -> Callable[[], bool]:
    """Stops at the look with this number."""
    left = [looks]

    def should_stop() -> bool:
        left[0] -= 1
        return left[0] < 0

    return should_stop


def check(problem: Problem, should_stop: Callable[[], bool]) -> int:
    """Residencies of the plan, which is valid and better than leaving everything slow; 0 without one."""
    data = arrays.build(problem)
    state, _ = heuristics.run(heuristics.best_insertion(data, 1), should_stop)
    plan = export_plan(problem, data, state)
    outcome = verify(problem, plan)
    assert outcome.ok, outcome.violations
    assert outcome.objective is not None
    assert (outcome.objective < problem.all_slow_ps) is bool(plan.residencies)
    return len(plan.residencies)


@pytest.mark.parametrize("stalls", ["allowed", "forbidden"])
@pytest.mark.parametrize("alias_rule", ["in_place", "uniform"])
def test_random_problems(stalls: str, alias_rule: str) -> None:
    with_plan = 0
    for seed in range(150):
        rng = random.Random(f"first plan {seed}")
        problem = random_problem(rng, steps=rng.randint(2, 25), tensors=rng.randint(1, 12))
        problem = msgspec.structs.replace(problem, stalls=stalls, alias_rule=alias_rule)
        with_plan += check(problem, never) > 0
        check(problem, after(rng.randint(0, 20)))
    assert with_plan > 50


@pytest.mark.parametrize("name", ["alexnet_inf_b1", "lstm_scan_inf_b32", "gpt_decode_loop_b8"])
def test_programs(name: str) -> None:
    problem = stowplan.read(EXAMPLES / f"{name}.hlo.txt.gz", target="tpu-v4")
    assert check(problem, never) > 3
    # However little time there is.
    assert check(problem, lambda: True) > 3
    assert check(msgspec.structs.replace(problem, capacity=1), never) == 0
