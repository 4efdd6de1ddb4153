"""The quick packing is valid whenever it is stopped."""

from __future__ import annotations

import random

import msgspec

from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem
from stowplan.models.packing.verify import verify
from stowplan.portfolio.context import Options
from stowplan.portfolio.packing.quick import quick_plan
from tests.models.packing.cases import random_problem


def stopped_after(looks: int, problem: Problem) -> tuple[str, Plan] | None:
    left = iter([False] * looks)
    return quick_plan(problem, Options(), lambda: next(left, True))


def test_random_problems() -> None:
    for seed in range(300):
        problem = random_problem(seed, most=12)
        looks = random.Random(seed).choice([0, 1, 4, 1000])
        found = stopped_after(looks, problem)
        if found is None:
            fixed = [buffer for buffer in problem.buffers if buffer.offset is not None]
            assert len(fixed) > 1  # and they collide
            continue
        source, plan = found
        outcome = verify(problem, plan)
        assert (source, outcome.violations, outcome.height) == ("quick", (), plan.objective)
        # As much as it takes is enough, and with less there is no plan.
        assert stopped_after(looks, msgspec.structs.replace(problem, capacity=plan.objective)) is not None
        if plan.objective:
            assert stopped_after(looks, msgspec.structs.replace(problem, capacity=plan.objective - 1)) is None
