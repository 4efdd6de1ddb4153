"""The quick packing is valid whenever it is stopped."""

from __future__ import annotations

import random

import msgspec
import pytest

from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem
from stowplan.models.packing.verify import verify
from stowplan.portfolio.context import Options
from stowplan.portfolio.packing import quick
from stowplan.portfolio.packing.quick import quick_plan
from tests.models.packing.cases import random_problem


def stopped_after(looks: int, problem: Problem) -> tuple[str, Plan] | None:
    left = iter([False] * looks)
    return quick_plan(problem, Options(), lambda: next(left, True))


@pytest.mark.parametrize("many", [quick.MANY, 0])
def test_random_problems(many: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quick, "MANY", many)
    monkeypatch.setattr(quick, "_BATCH", 2)
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


def test_blocks_are_used_again_and_joined() -> None:
    blocks = quick.Blocks()
    assert [blocks.take(size, 1) for size in (4, 2, 6)] == [0, 4, 6]
    blocks.release(0, 4)
    blocks.release(4, 2)
    # One block of six; the larger alignment leaves two bytes below.
    assert blocks.take(4, 2) == 0
    assert blocks.take(2, 1) == 4
    # What is free at the top is part of what comes there.
    blocks.release(6, 6)
    assert blocks.take(9, 4) == 8
    assert blocks.height == 17


def test_no_quick_plan_of_what_takes_longer_to_verify(monkeypatch: pytest.MonkeyPatch) -> None:
    problem = random_problem(0)
    monkeypatch.setattr(quick, "TOO_MANY", len(problem.buffers) - 1)
    assert quick_plan(problem, Options(), lambda: False) is None
