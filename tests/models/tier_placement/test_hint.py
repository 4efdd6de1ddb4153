"""Hints for tier placement: what plans, the relaxation and earlier versions of a network say, and what refuses them."""

from __future__ import annotations

import random

import msgspec
import pytest

from stowplan.errors import InputError
from stowplan.models.hint import Hint, check_hint, plan_of
from stowplan.models.tier_placement import cpsat
from stowplan.models.tier_placement import hint as hints
from stowplan.models.tier_placement.hint import VALUES, transferred
from stowplan.models.tier_placement.milp import relaxation
from stowplan.models.tier_placement.plan import Plan, placed
from stowplan.models.tier_placement.problem import Layer, Problem, Tier
from tests.models.tier_placement.brute_force import optimum
from tests.models.tier_placement.cases import chain, random_problem


def random_map(problem: Problem, chance: random.Random) -> Plan:
    """Of no use but to be a hint."""
    weights, outputs = [[chance.randrange(len(problem.tiers)) for _ in problem.layers] for _ in range(2)]
    return Plan(problem=problem.digest, objective=0, weight_tiers=tuple(weights), output_tiers=tuple(outputs))


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_becomes_a_hint_with_a_value_for_every_tensor_and_tier(seed: int) -> None:
    problem = random_problem(seed, layers=6)
    plan = random_map(problem, random.Random(seed))
    hint = hints.of_plan(problem, plan)
    check_hint(problem, hint, VALUES)
    assert plan_of(hint) == plan
    for number, (layer, is_output) in enumerate(placed(problem)):
        at = (plan.output_tiers if is_output else plan.weight_tiers)[layer]
        assert [hint.values[tier.name][number] for tier in problem.tiers] == [
            float(tier == at) for tier in range(len(problem.tiers))
        ]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"slow": (0.0,) * 6}, "values named slow, expected slow, fast"),
        ({"slow": (0.0,) * 6, "fast": (0.0,) * 5}, "found 5 numbers, expected 6"),
        ({"slow": (0.0,) * 6, "fast": (2.0,) * 6}, "found 2, expected a number from 0 to 1"),
    ],
)
def test_values_that_do_not_fit_are_refused(values: dict[str, tuple[float, ...]], message: str) -> None:
    problem = chain(3)
    with pytest.raises(InputError, match=message):
        check_hint(problem, Hint(kind="tier_placement", problem=problem.digest, values=values), VALUES)


def test_the_relaxation_says_where_tensors_stand_and_proves_a_bound() -> None:
    solved = 0
    for seed in range(120):
        problem = random_problem(seed, layers=3)
        best = optimum(problem)
        hint, bound = relaxation(problem, time_limit=60)
        if best is None:
            continue
        assert bound <= best
        if hint is not None:
            check_hint(problem, hint, VALUES)
            for shares in zip(*(hint.values[tier.name] for tier in problem.tiers), strict=True):
                assert sum(shares) == pytest.approx(1, abs=1e-6)
            solved += 1
    assert solved > 60


def test_layers_of_an_earlier_version_are_known_again() -> None:
    earlier = chain(6)
    found = cpsat.solve(earlier, time_limit=60).plan
    assert found is not None
    given = hints.of_plan(earlier, found)
    new = Layer(name="new", inputs=(2,), output_bytes=3, weight_bytes=5)
    later = [
        *earlier.layers[:3],
        new,
        *(
            msgspec.structs.replace(each, inputs=tuple(source + (source > 2) for source in each.inputs))
            for each in earlier.layers[3:]
        ),
    ]
    later[0] = msgspec.structs.replace(later[0], name="renamed")
    problem = msgspec.structs.replace(earlier, layers=tuple(later))
    hint = transferred(problem, earlier, given)
    check_hint(problem, hint, VALUES)
    assert [bool(trust) for trust in hint.confidence] == [layer != 3 for layer, _ in placed(problem)]
    for tier in problem.tiers:
        known = [value for value, trust in zip(hint.values[tier.name], hint.confidence, strict=True) if trust]
        assert known == list(given.values[tier.name])


def test_tiers_are_known_by_name() -> None:
    earlier = chain(4)
    given = hints.hint(earlier, [[0.0] * 8, [1.0] * 8])
    more = (*earlier.tiers, Tier(name="fastest", capacity=10, bandwidth=10**13, alignment=4))
    problem = msgspec.structs.replace(earlier, tiers=more)
    hint = transferred(problem, earlier, given)
    assert [set(hint.values[name]) for name in ("slow", "fast", "fastest")] == [{0.0}, {1.0}, {0.0}]
    with pytest.raises(InputError, match="expected"):
        transferred(problem, problem, given)
