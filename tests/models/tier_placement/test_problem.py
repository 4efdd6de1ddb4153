"""Problems and plans: rules, files, digests."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from stowplan import files
from stowplan.errors import InputError
from stowplan.models.tier_placement import plan as plans
from stowplan.models.tier_placement import problem as problems
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Layer, Problem, Tier
from stowplan.models.tier_placement.structure import find_overload
from tests.models.tier_placement.cases import chain, random_problem

SLOW = Tier(name="slow", capacity=100, bandwidth=10**11)
FAST = Tier(name="fast", capacity=10, bandwidth=10**12)
ONE = Layer(name="one", output_bytes=1)


def test_round_trip(tmp_path: Path) -> None:
    problem = random_problem(5)
    problem.save(tmp_path / "problem.json")
    assert problems.Problem.load(tmp_path / "problem.json") == problem
    plan = Plan(problem=problem.digest, objective=7, weight_tiers=(0,), output_tiers=(1,), output_offsets=(3,))
    plan.save(tmp_path / "plan.json")
    assert plans.Plan.load(tmp_path / "plan.json") == plan


@pytest.mark.parametrize(("size", "expected"), [(0, 0), (1, 3), (2, 7), (3, 10), (3 * 10**12, 10**13)])
def test_moves_are_rounded(size: int, expected: int) -> None:
    assert Tier(name="t", capacity=1, bandwidth=3 * 10**11).move_ps(size) == expected


def test_halves_are_rounded_up() -> None:
    assert Tier(name="t", capacity=1, bandwidth=2 * 10**12).move_ps(1) == 1


def test_last_use() -> None:
    layers = (ONE, ONE, msgspec.structs.replace(ONE, inputs=(0, 1)), msgspec.structs.replace(ONE, inputs=(0,)))
    assert Problem(tiers=(SLOW,), layers=layers).last_use == (3, 2, 2, 3)


def test_digest_leaves_out_names_and_features() -> None:
    problem = chain(3)
    named = msgspec.structs.replace(problem, name="other", target="t", cost_model="c", features=((1,), (2,), (3,)))
    assert named.digest == problem.digest
    assert msgspec.structs.replace(problem, address_spaces=True).digest != problem.digest
    assert msgspec.structs.replace(problem, layers=problem.layers[:2]).digest != problem.digest


@pytest.mark.parametrize(
    ("tiers", "layers", "message"),
    [
        ((), (ONE,), "tiers: found no tiers"),
        ((SLOW,), (), "layers: found no layers"),
        ((SLOW, SLOW), (ONE,), "'slow' twice"),
        ((FAST, SLOW), (ONE,), "found slow after fast"),
        ((Tier(name="t", capacity=-1, bandwidth=1),), (ONE,), r"tiers\[0\] \(t\): found capacity -1"),
        ((Tier(name="t", capacity=1, bandwidth=0),), (ONE,), "bandwidth 0"),
        ((Tier(name="t", capacity=1, bandwidth=1, alignment=0),), (ONE,), "alignment 0"),
        ((Tier(name="t", capacity=1 << 61, bandwidth=1),), (ONE,), "capacity"),
        ((SLOW,), (Layer(name="x", output_bytes=-1),), r"layers\[0\] \(x\): found output_bytes -1"),
        ((SLOW,), (Layer(name="x", output_bytes=1, weight_bytes=-4),), "weight_bytes -4"),
        ((SLOW,), (Layer(name="x", output_bytes=1, compute_ps=-1),), "compute_ps -1"),
        ((SLOW,), (Layer(name="x", output_bytes=1, overhead_ps=-1),), "overhead_ps -1"),
        ((SLOW,), (Layer(name="x", output_bytes=1, external_bytes=-1),), "external_bytes -1"),
        ((SLOW,), (Layer(name="x", output_bytes=1, weight_read_bytes=3),), "expected weights"),
        ((SLOW,), (ONE, Layer(name="x", output_bytes=1, inputs=(1,))), "expected one that runs before it"),
        ((SLOW,), (Layer(name="x", output_bytes=1, inputs=(1,)), ONE), "without cycles"),
        ((SLOW,), (ONE, Layer(name="x", output_bytes=1, inputs=(7,))), r"layers\[1\] \(x\)\.inputs: found layer 7"),
        ((SLOW,), (ONE, Layer(name="x", output_bytes=1, inputs=(-1,))), "found layer -1"),
        ((SLOW,), (ONE, Layer(name="x", output_bytes=1, inputs=(0, 0))), "each once"),
        ((SLOW,), (Layer(name="x", output_bytes=1 << 60), Layer(name="y", output_bytes=1 << 60)), "ps in the slowest tier"),
        (
            (Tier(name="t", capacity=1, bandwidth=10**18),),
            (Layer(name="x", output_bytes=1 << 60), Layer(name="y", output_bytes=1 << 60)),
            "bytes in all",
        ),
    ],
)
def test_bad_problems(tiers: tuple[Tier, ...], layers: tuple[Layer, ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Problem(tiers=tiers, layers=layers)


@pytest.mark.parametrize(("features", "message"), [(((1,),), "found 1 rows"), (((1,), (1, 2)), "found 2 features")])
def test_bad_features(features: tuple[tuple[int, ...], ...], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Problem(tiers=(SLOW,), layers=(ONE, ONE), features=features)


def test_a_bad_file_names_file_and_field() -> None:
    data = files.encode(chain(2)).replace(b'"output_bytes": 10', b'"output_bytes": "ten"', 1)
    with pytest.raises(InputError, match=r"net\.json: layers\[0\]\.output_bytes"):
        problems.Problem.decode(data, source="net.json")
    with pytest.raises(InputError, match=r"net\.json: format"):
        problems.Problem.decode(
            files.encode(chain(2)).replace(b"tier_placement.problem", b"packing.problem"), source="net.json"
        )


def test_overloads_say_why() -> None:
    too_large = Problem(tiers=(FAST,), layers=(Layer(name="big", output_bytes=11),))
    found = find_overload(too_large)
    assert found is not None
    assert found.reason == "the output of layer big has 11 bytes, the largest tier has 10"
    crowded = Problem(
        tiers=(FAST,), layers=(Layer(name="a", output_bytes=4), Layer(name="b", inputs=(0,), output_bytes=4, weight_bytes=3))
    )
    found = find_overload(crowded)
    assert found is not None
    assert (found.step, found.size, found.room) == (1, 11, 10)
    assert "layer b" in found.reason
    assert find_overload(chain(4)) is None
