"""Plans become states and states plans."""

from __future__ import annotations

import random

import pytest

from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.memory_mapping import arrays
from stowplan.portfolio.memory_mapping.convert import export_plan, import_plan
from tests.models.memory_mapping.cases import random_plan, random_problem
from tests.portfolio.memory_mapping.states import assert_sound, built_states, searched, wide_problem


@pytest.mark.parametrize("seed", range(40))
def test_a_state_survives_export_and_import(seed: int) -> None:
    problem = random_problem(random.Random(seed)) if seed % 2 else wide_problem(seed)
    data = arrays.build(problem)
    for state in [*built_states(problem)[:2], searched(data, seed=seed, rounds=20, allowed=10.0)[0]]:
        plan = export_plan(problem, data, state)
        again = import_plan(problem, data, plan)
        assert again.totals[0].total == plan.objective
        assert export_plan(problem, data, again) == plan
        assert_sound(problem, data, again)


@pytest.mark.parametrize("seed", range(60))
def test_plans_from_elsewhere_are_taken_as_far_as_a_state_can_hold_them(seed: int) -> None:
    rng = random.Random(seed)
    problem = random_problem(rng, steps=12, tensors=6)
    plan = random_plan(problem, rng)
    state = import_plan(problem, arrays.build(problem), plan)
    total = state.totals[0].total
    for tensor in range(len(problem.tensors)):
        assert (state.first_slot[tensor] >= 0) <= any(each.tensor == tensor for each in plan.residencies)
    # Whatever the state says of itself is so, unless it holds what it should not: then it says NEVER, or verification shows it.
    exported = export_plan(problem, arrays.build(problem), state)
    found = verify(problem, exported)
    if found.ok:
        assert found.objective == total


def test_plans_that_use_the_freedoms_of_compilers() -> None:
    """A plan that leaves places between steps stays as it is, but for slices, which become whole copies."""
    sound = 0
    for seed in range(60):
        rng = random.Random(seed)
        problem = random_problem(
            rng, steps=12, tensors=6, stalls="allowed", channels=1, evictions="between_steps", prefetches="sliced"
        )
        data = arrays.build(problem)
        state = import_plan(problem, data, random_plan(problem, rng, attempts=15))
        found = verify(problem, export_plan(problem, data, state))
        # No place is taken twice, whatever else a state cannot hold.
        assert not {"overlap", "double_residency", "bad_part", "no_source"} & {violation.code for violation in found.violations}
        assert not found.ok or found.objective == state.totals[0].total
        sound += found.ok
    assert sound > 40
