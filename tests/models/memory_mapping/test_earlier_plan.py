"""Plans of an earlier version of a program."""

from __future__ import annotations

import random

import msgspec
import pytest

from stowplan.models.hint import plan_of
from stowplan.models.memory_mapping import hint as hints
from stowplan.models.memory_mapping.hint import carried_plan, matched_steps, transferred
from stowplan.models.memory_mapping.verify import verify
from tests.models.memory_mapping.cases import random_plan, random_problem
from tests.models.memory_mapping.test_earlier import changed


def test_steps_between_take_the_plan_along() -> None:
    """New steps that use nothing leave all of it that serves something."""
    whole, plans = 0, 0
    for seed in range(60):
        rng = random.Random(seed)
        problem = random_problem(rng, loops=0)
        plan = random_plan(problem, rng)
        if plan.objective >= problem.all_slow_ps:
            continue
        later, _ = changed(problem, rng, rename=False)
        found = plan_of(transferred(later, problem, hints.of_plan(problem, plan)))
        plans += 1
        if found is not None:
            assert verify(later, found).ok
            whole += found.fast_uses == plan.fast_uses
    assert plans > 15
    assert whole >= 0.9 * plans


@pytest.mark.parametrize("seed", range(40))
def test_what_is_carried_is_valid_or_nothing(seed: int) -> None:
    """Whatever the two programs have in common."""
    rng = random.Random(seed)
    earlier = random_problem(rng)
    plan = random_plan(earlier, rng)
    other = random_problem(rng)
    shrunk = msgspec.structs.replace(
        earlier, capacity=max(earlier.alignment, earlier.capacity // 2 // earlier.alignment * earlier.alignment)
    )
    steps = list(earlier.steps)
    rng.shuffle(steps)
    inputs = tuple(msgspec.structs.replace(tensor, is_input=True) for tensor in earlier.tensors)
    turned = msgspec.structs.replace(earlier, tensors=inputs, steps=tuple(steps), loops=())
    for problem in (earlier, other, shrunk, turned):
        found = carried_plan(problem, earlier, plan, matched_steps(problem, earlier))
        assert found is None or (verify(problem, found).ok and found.objective < problem.all_slow_ps)
