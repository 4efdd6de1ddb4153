"""The verifier: every code, and mutated plans."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stowplan.models.overlaps import MOST_OVERLAPS
from stowplan.models.tier_placement import cpsat
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Layer, Problem, Tier
from stowplan.models.tier_placement.verify import verify
from tests.models.tier_placement import brute_force
from tests.models.tier_placement.cases import chain, random_problem


def small() -> Problem:
    """Two layers; the second reads the first. A byte takes 10 ps in the slow tier, 1 ps in the fast one."""
    return Problem(
        tiers=(
            Tier(name="slow", capacity=64, bandwidth=10**11, alignment=4),
            Tier(name="fast", capacity=16, bandwidth=10**12, alignment=4),
        ),
        layers=(
            Layer(name="a", output_bytes=8, external_bytes=2, compute_ps=50, overhead_ps=3),
            Layer(name="b", inputs=(0,), output_bytes=4, weight_bytes=6, compute_ps=70),
        ),
        address_spaces=True,
    )


def valid() -> Plan:
    """Outputs fast, weights slow: 3 + max(50, 20 + 8) + max(70, 8 + 60 + 4)."""
    return Plan(
        problem=small().digest,
        objective=53 + 72,
        weight_tiers=(0, 0),
        output_tiers=(1, 1),
        weight_offsets=(0, 0),
        output_offsets=(0, 8),
    )


def test_a_valid_plan() -> None:
    found = verify(small(), valid())
    assert found.ok
    assert found.objective == 125


@pytest.mark.parametrize(
    ("changes", "codes"),
    [
        ({"problem": "x"}, {"wrong_problem"}),
        ({"weight_tiers": (0,)}, {"wrong_count"}),
        ({"output_tiers": (1, 1, 1)}, {"wrong_count"}),
        ({"output_offsets": (0, 8, 0)}, {"wrong_count"}),
        ({"objective": 124}, {"wrong_objective"}),
        ({"output_tiers": (1, 2)}, {"unknown_tier"}),
        ({"weight_tiers": (-1, 0)}, {"unknown_tier"}),
        ({"weight_tiers": (0, 1), "objective": 123}, {"over_capacity", "overlap"}),
        ({"weight_offsets": ()}, {"missing_offsets"}),
        ({"weight_offsets": (), "output_offsets": ()}, {"missing_offsets"}),
        ({"output_offsets": (-4, 8)}, {"negative_offset"}),
        ({"output_offsets": (0, 10)}, {"misaligned"}),
        ({"output_offsets": (0, 16)}, {"beyond_tier"}),
        ({"output_offsets": (0, 4)}, {"overlap"}),
        ({"output_offsets": (4, 0)}, set()),
        ({"weight_offsets": (999, 56)}, set()),
        ({"weight_offsets": (0, 60)}, {"beyond_tier"}),
    ],
)
def test_codes(changes: dict[str, Any], codes: set[str]) -> None:
    found = verify(small(), msgspec.structs.replace(valid(), **changes))
    assert {violation.code for violation in found.violations} == codes


def test_offsets_are_checked_where_nobody_asked_for_them() -> None:
    problem = msgspec.structs.replace(small(), address_spaces=False)
    plan = msgspec.structs.replace(valid(), problem=problem.digest)
    assert verify(problem, plan).ok
    without = msgspec.structs.replace(plan, weight_offsets=(), output_offsets=())
    assert verify(problem, without).ok
    wrong = msgspec.structs.replace(plan, output_offsets=(0, 4))
    assert [violation.code for violation in verify(problem, wrong).violations] == ["overlap"]


def test_tensors_may_follow_each_other_at_one_place() -> None:
    layers = tuple(Layer(name=f"l{at}", inputs=(at - 1,) if at else (), output_bytes=8) for at in range(4))
    tiers = (Tier(name="only", capacity=16, bandwidth=10**12),)
    problem = Problem(tiers=tiers, layers=layers, address_spaces=True)
    plan = Plan(
        problem=problem.digest,
        objective=8 + 3 * 16,
        weight_tiers=(0,) * 4,
        output_tiers=(0,) * 4,
        weight_offsets=(0,) * 4,
        output_offsets=(0, 8, 0, 8),
    )
    assert verify(problem, plan).ok
    found = verify(problem, msgspec.structs.replace(plan, output_offsets=(0, 8, 8, 0)))
    assert [violation.concerns["layers"] for violation in found.violations] == [(1, 2)]


def test_overflow_is_listed_once_for_each_run_of_steps() -> None:
    layers = [Layer(name=f"l{at}", output_bytes=9 if at in (1, 2, 4) else 1) for at in range(6)]
    problem = Problem(tiers=(Tier(name="only", capacity=8, bandwidth=10**12),), layers=tuple(layers))
    plan = Plan(problem=problem.digest, objective=30, weight_tiers=(0,) * 6, output_tiers=(0,) * 6)
    assert [violation.concerns["layers"] for violation in verify(problem, plan).violations] == [(1,), (4,)]


def test_overlaps_are_cut_off() -> None:
    layers = tuple(Layer(name=f"l{at}", output_bytes=1, weight_bytes=1) for at in range(150))
    problem = Problem(tiers=(Tier(name="only", capacity=400, bandwidth=10**12),), layers=layers, address_spaces=True)
    zeros = (0,) * 150
    plan = Plan(
        problem=problem.digest,
        objective=300,
        weight_tiers=zeros,
        output_tiers=zeros,
        weight_offsets=zeros,
        output_offsets=zeros,
    )
    assert len(verify(problem, plan).violations) == MOST_OVERLAPS


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), data=st.data())
def test_overlaps_are_those_that_every_pair_shows(seed: int, data: st.DataObject) -> None:
    problem = random_problem(seed, layers=5, address_spaces=True)
    count = len(problem.layers)
    tiers = st.lists(st.integers(0, len(problem.tiers) - 1), min_size=count, max_size=count).map(tuple)
    offsets = st.lists(st.integers(0, 12), min_size=count, max_size=count).map(tuple)
    plan = Plan(
        problem=problem.digest,
        objective=0,
        weight_tiers=data.draw(tiers),
        output_tiers=data.draw(tiers),
        weight_offsets=data.draw(offsets),
        output_offsets=data.draw(offsets),
    )
    found = verify(problem, plan)
    stays = brute_force.stays(problem, (plan.weight_tiers, plan.output_tiers))
    places = [offset for pair in zip(plan.weight_offsets, plan.output_offsets, strict=True) for offset in pair]
    expected = 0
    for one in range(len(stays)):
        for two in range(one):
            (tier, size, steps), (other, width, those) = stays[one], stays[two]
            share = places[one] < places[two] + width and places[two] < places[one] + size
            expected += bool(tier == other and size and width and share and steps & those)
    assert sum(violation.code == "overlap" for violation in found.violations) == expected


@pytest.mark.parametrize("seed", range(8))
def test_a_tensor_moved_changes_latency_or_room(seed: int) -> None:
    problem = chain(4 + seed % 3, address_spaces=True)
    plan = cpsat.solve(problem, time_limit=20, seed=seed).plan
    assert plan is not None
    assert verify(problem, plan).ok
    for number, tier in enumerate(plan.output_tiers):
        moved = (*plan.output_tiers[:number], 1 - tier, *plan.output_tiers[number + 1 :])
        assert not verify(problem, msgspec.structs.replace(plan, output_tiers=moved)).ok
    for number, tier in enumerate(plan.weight_tiers):
        moved = (*plan.weight_tiers[:number], 1 - tier, *plan.weight_tiers[number + 1 :])
        assert not verify(problem, msgspec.structs.replace(plan, weight_tiers=moved)).ok
