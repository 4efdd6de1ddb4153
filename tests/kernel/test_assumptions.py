"""What a verdict rests on: rules that could be others, by kind, and how a front end made the problem."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stowplan
from stowplan import kinds
from stowplan.frontends.dfg.graph import decode_json
from stowplan.frontends.dfg.lower import lower
from stowplan.hardware.se.machines import load_machine, streaming_engine
from stowplan.kernel.assumptions import assumptions
from stowplan.kernel.kind import kind, kind_of
from stowplan.models.banked_packing import problem as banked
from stowplan.models.packing import problem as packing
from stowplan.models.rematerialization import problem as remat
from stowplan.models.tier_placement import problem as tiers
from stowplan.result import Assumption
from tests.kernel.test_checks import PROBLEMS
from tests.models.modulo_scheduling import cases as loops


def written(problem: Any) -> list[str]:
    """What verdicts on a problem rest on, in words."""
    return [*map(str, assumptions(kind_of(problem), problem))]


@pytest.mark.parametrize("name", [each.name for each in kinds.registered()])
def test_the_rules_of_every_kind_are_fields_of_its_problems(name: str) -> None:
    """A field that is renamed fails here, and not in a verdict."""
    assert kind(name).assumptions
    written(PROBLEMS[name])


def test_rules_that_forbid_nothing_are_no_assumptions() -> None:
    free = packing.Problem(buffers=(packing.Buffer(id="a", lower=0, upper=1, size=4),))
    assert written(free) == []
    buffers = tuple(packing.Buffer(id=str(at), lower=0, upper=1, size=8, alignment=at) for at in (1, 2, 4, 8, 16, 32))
    assert written(msgspec.structs.replace(free, buffers=buffers, capacity=9)) == [
        "capacity=9 (try a larger --capacity)",
        "buffers.alignment=2, 4, 8, 16, ... (try 1 in the file)",
    ]


def test_memory_mapping() -> None:
    problem = PROBLEMS["memory_mapping"]
    strict = msgspec.structs.replace(problem, stalls="forbidden", evictions="whole_steps", prefetches="whole", channels=1)
    found = written(strict)
    assert "stalls=forbidden (try --set stalls=allowed)" in found
    assert "evictions=whole_steps (try --set evictions=between_steps)" in found
    assert "prefetches=whole (try --set prefetches=sliced)" in found
    lax = msgspec.structs.replace(strict, stalls="allowed", evictions="between_steps", prefetches="sliced")
    assert not re.search("stalls|evictions|prefetches", " ".join(written(lax)))


def _too_high() -> Any:
    buffers = tuple(packing.Buffer(id=name, lower=0, upper=2, size=4, alignment=4) for name in "abc")
    return packing.Problem(buffers=buffers, capacity=8)


def _too_narrow_banks() -> Any:
    buffers = tuple(banked.Buffer(id=name, lower=0, upper=1, size=4, banks=("near",)) for name in "ab")
    banks = (banked.Bank(name="near", capacity=7, cost=0), banked.Bank(name="far", capacity=99, cost=1))
    return banked.Problem(buffers=buffers, banks=banks)


def _too_small_a_tier() -> Any:
    tier = tiers.Tier(name="ram", capacity=10, bandwidth=10**9)
    return tiers.Problem(tiers=(tier,), layers=(tiers.Layer(name="big", output_bytes=1, weight_bytes=12),), address_spaces=True)


def _too_low_a_limit() -> Any:
    tensors = (remat.Tensor(id="t", size=8),)
    return remat.Problem(tensors=tensors, ops=(remat.Op(id="a", writes=(0,), once=True),), outputs=(0,), limit=4)


def _too_many_instructions() -> Any:
    return loops.graph("a>b a>c a>d", machine=loops.line(tiles=2))


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (_too_high, ["capacity=8 (try a larger --capacity, at least 12)"]),
        (_too_narrow_banks, ["banks.capacity=7, 99 (try another in the file)", "buffers.banks=near (try another in the file)"]),
        (
            _too_small_a_tier,
            ["tiers.capacity=10 (try a larger --capacity)", "address_spaces=yes (try no --set address_spaces)"],
        ),
        (_too_low_a_limit, ["limit=4 (try a larger --capacity)", "ops.once=yes (try no in the file)"]),
        (
            _too_many_instructions,
            ["siblings=consumers (try --set siblings=none)", "pass_through=no (try --set pass_through=yes)"],
        ),
    ],
)
def test_a_proof_that_there_is_no_plan_names_what_it_rests_on(make: Any, expected: list[str]) -> None:
    result = stowplan.solve(make(), time_limit=20)
    assert result.status == "infeasible"
    assert {*expected} <= {*map(str, result.assumptions)}
    assert all(f"  assuming   {each}" in result.summary() for each in expected)
    shown = json.loads(json.dumps(result.to_dict()))["assumptions"]
    assert [Assumption(**each) for each in shown] == [*result.assumptions]


def _buffers(*rows: tuple[int, int, int, int, int | None], capacity: int) -> packing.Problem:
    """A packing problem of buffers with these lower ends, upper ends, sizes, alignments and offsets."""
    names = ("lower", "upper", "size", "alignment", "offset")
    buffers = tuple(packing.Buffer(id=f"b{at}", **dict(zip(names, row, strict=True))) for at, row in enumerate(rows))
    return packing.Problem(buffers=buffers, capacity=capacity)


@pytest.mark.parametrize(
    ("problem", "expected"),
    [
        # The sizes alone are too large, so that neither alignments nor other offsets help.
        (
            _buffers((0, 2, 60, 64, None), (1, 3, 32, 64, 0), capacity=80),
            ["capacity=80 (try a larger --capacity, at least 92)"],
        ),
        # The sizes would fit, and the alignment is in the way.
        (
            _buffers((0, 2, 60, 64, None), (1, 3, 32, 64, None), capacity=92),
            ["capacity=92 (try a larger --capacity, at least 93)", "buffers.alignment=64 (try 1 in the file)"],
        ),
        # A fixed buffer ends beyond the capacity.
        (
            _buffers((0, 2, 8, 8, None), (1, 3, 8, 8, 96), capacity=100),
            [
                "capacity=100 (try a larger --capacity, at least 104)",
                "buffers.offset=96 (try another in the file)",
            ],
        ),
        # Fixed buffers overlap, whatever the capacity is.
        (_buffers((0, 2, 8, 8, 0), (1, 3, 8, 8, 0), capacity=100), ["buffers.offset=0 (try another in the file)"]),
        (
            _buffers((0, 2, 8, 8, 0), (1, 3, 8, 8, 0), capacity=10),
            ["capacity=10 (try a larger --capacity, at least 16)", "buffers.offset=0 (try another in the file)"],
        ),
    ],
)
def test_only_what_can_help_a_packing_is_advised(problem: packing.Problem, expected: list[str]) -> None:
    result = stowplan.solve(problem, time_limit=20)
    assert result.status == "infeasible"
    assert [*map(str, result.assumptions)] == expected


def test_the_least_capacity_that_is_advised_suffices() -> None:
    problem = _buffers((0, 2, 60, 64, None), (1, 3, 32, 64, None), capacity=80)
    least = int(stowplan.solve(problem, time_limit=20).assumptions[0].instead.split()[-1])
    roomy = _buffers((0, 2, 60, 1, None), (1, 3, 32, 1, None), capacity=least)
    assert stowplan.solve(roomy, time_limit=20).status == "optimal"


def wide(consumers: int) -> Any:
    """A value with so many consumers."""
    nodes = [{"id": "s", "op": "add"}, *({"id": f"c{at}", "op": "add"} for at in range(consumers))]
    edges = [{"src": "s", "dst": f"c{at}"} for at in range(consumers)]
    return decode_json(json.dumps({"nodes": nodes, "edges": edges}).encode())


def test_choices_of_the_front_end_that_make_other_instructions() -> None:
    mesh = load_machine("mesh-4x4")
    assert lower(wide(2), mesh).choices == ()
    assert lower(wide(3), mesh).choices == (Assumption("fan_out", "4", "--set fan_out=2"),)
    assert lower(wide(3), mesh, fan_out=2).choices == (Assumption("fan_out", "2", "--set fan_out=3"),)
    assert lower(wide(3), mesh, fan_out=0).choices == (Assumption("fan_out", "0", "--set fan_out=2"),)
    nodes = [{"id": name, "op": op} for name, op in (("x", "load"), ("m", "mul"), ("a", "add"))]
    edges = [{"src": one, "dst": two} for one, two in ("xm", "xm", "ma", "xa")]
    graph = decode_json(json.dumps({"nodes": nodes, "edges": edges}).encode())
    assert [*map(str, lower(graph, mesh).choices)] == [
        "inputs=variables (try --set inputs=copies)",
        "fuse=no (try --set fuse=yes)",
    ]
    assert [*map(str, lower(graph, streaming_engine(), inputs="instructions", fuse=True).choices)] == [
        "inputs=instructions (try --set inputs=copies)",
        "fuse=yes (try --set fuse=no)",
        "memory=instructions (try --set memory=asynchronous)",
    ]


def test_choices_change_no_digest() -> None:
    """A plan for a loop body is one for the same body, whatever was said of how it came about."""
    problem = lower(wide(3), load_machine("mesh-4x4"))
    assert problem.digest == msgspec.structs.replace(problem, choices=()).digest
    assert type(problem).decode(msgspec.json.encode(problem)) == problem


def test_what_is_tried_in_place_of_a_choice_maps_the_loop(tmp_path: Path) -> None:
    """Four loads that only two tiles may do: siblings that four consumers make, and fewer do not."""
    nodes = [{"id": "i", "op": "add"}, *({"id": f"l{at}", "op": "load"} for at in range(3))]
    edges = [{"src": "i", "dst": "i", "distance": 1}, *({"src": "i", "dst": f"l{at}"} for at in range(3))]
    (tmp_path / "graph.json").write_text(json.dumps({"nodes": nodes, "edges": edges}))
    (tmp_path / "own.toml").write_text('format = "stowplan.op_table"\nversion = 1\n[class.memory]\ntiles = [0, 2]\n')
    given: dict[str, Any] = {"target": "mesh-2x2", "op_table": tmp_path / "own.toml"}
    result = stowplan.solve(stowplan.read(tmp_path / "graph.json", rules=["fan_out=4"], **given), time_limit=20)
    assert result.status == "infeasible"
    advice = next(each.instead for each in result.assumptions if each.name == "fan_out")
    assert advice == "--set fan_out=2"
    again = stowplan.solve(stowplan.read(tmp_path / "graph.json", rules=[advice.split()[1]], **given), time_limit=20)
    assert again.status in ("optimal", "feasible")
    assert "fan_out=2" in again.details["under"]
    assert "  under      fan_out=2, siblings=consumers, pass_through=no" in again.summary()
