"""Problem and plan files: what is written is read back, and what is wrong is named."""

from __future__ import annotations

import gzip
import json
import random
from collections.abc import Callable
from itertools import product
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings

from stowplan.errors import InputError
from stowplan.models.memory_mapping import plan as plans
from stowplan.models.memory_mapping import problem as problems_module
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Piece, Problem, Step, Table, Tensor, Use
from tests.models.memory_mapping.cases import planned_problems, problems, random_problem


@given(planned_problems())
@settings(max_examples=40)
def test_files_round_trip(tmp_path_factory: pytest.TempPathFactory, case: tuple[Problem, Plan]) -> None:
    folder = tmp_path_factory.mktemp("files")
    problem, plan = case
    problem.save(folder / "problem.json")
    plan.save(folder / "plan.json")
    assert problems_module.Problem.load(folder / "problem.json") == problem
    assert problems_module.Problem.load(folder / "problem.json").digest == problem.digest
    assert plans.Plan.load(folder / "plan.json") == plan
    (folder / "packed").write_bytes(gzip.compress((folder / "problem.json").read_bytes()))
    assert problems_module.Problem.load(folder / "packed") == problem
    first = (folder / "plan.json").read_bytes()
    plan.save(folder / "plan.json")
    assert (folder / "plan.json").read_bytes() == first


@given(problems())
@settings(max_examples=60)
def test_floor_is_below_every_choice(problem: Problem) -> None:
    for step in problem.steps:
        latencies = [step.latency_ps(fast) for fast in product([False, True], repeat=len(step.uses))]
        assert 0 <= step.floor_ps <= min(latencies)
    assert problem.use_count == sum(len(step.uses) for step in problem.steps)


@given(problems())
@settings(max_examples=30)
def test_digest_is_of_everything_but_the_name(problem: Problem) -> None:
    replace = msgspec.structs.replace
    assert replace(problem, name="other").digest == problem.digest
    changed = [
        replace(problem, capacity=problem.capacity + 1),
        replace(problem, channels=problem.channels + 1),
        replace(problem, stalls="allowed" if problem.stalls == "forbidden" else "forbidden"),
        replace(problem, steps=(*problem.steps, Step("more", "op", 1, (), (Piece(0, (), ()),)))),
    ]
    assert len({problem.digest, *(other.digest for other in changed)}) == 1 + len(changed)


def test_later_fields_leave_the_digest_as_it_was() -> None:
    """The digest of a problem at a time when it had no such fields."""
    problem = Problem(
        name="pinned", target="none", cost_model="test", capacity=4,
        steps=(Step("a", "test", 2, (Use(0, False, 1), Use(1, True, 2)), (Piece(1, (10, 20), (2, 3)),)),),
        tensors=(Tensor("in", 1, 2, 3, is_input=True), Tensor("out", 2, 4, 5, is_output=True)),
    )  # fmt: skip
    assert problem.digest == "627c279dbaffd78ce0dcddad3f1d0e1aa53d69ff7437653db760fce09b87609b"
    freer = [{"evictions": "between_steps"}, {"prefetches": "sliced"}]
    assert len({problem.digest, *(msgspec.structs.replace(problem, **each).digest for each in freer)}) == 3
    for change in freer:
        with pytest.raises(InputError, match=f"{next(iter(change))}: found .* with 2 channels, expected 1 channel"):
            Problem(**msgspec.structs.asdict(problem) | change | {"channels": 2})


def test_latency_is_the_largest_piece() -> None:
    step = Step("s", "op", 1, (Use(0, False, 1), Use(1, True, 1)), (Piece(1, (10, 20), (2, 3)), Piece(12, (0, 0), (0, 0))))
    assert [step.latency_ps(fast) for fast in product([False, True], repeat=2)] == [31, 14, 23, 12]
    assert step.floor_ps == 12


def test_table_rows_are_masks_of_the_uses_it_lists() -> None:
    uses = tuple(Use(tensor, False, 1) for tensor in range(3))
    step = Step("s", "op", 1, uses, table=Table((2, 0), (9, 7, 8, 5)))
    assert step.latency_ps([False, True, False]) == 9
    assert step.latency_ps([False, True, True]) == 7
    assert step.latency_ps([True, True, False]) == 8
    assert step.latency_ps([True, False, True]) == 5
    assert step.floor_ps == 5


def test_normalised_return() -> None:
    problem = next(
        problem
        for problem in (random_problem(random.Random(seed)) for seed in range(50))
        if problem.all_slow_ps > problem.floor_ps
    )
    assert problem.normalised_return(problem.all_slow_ps) == 0.0
    assert problem.normalised_return(problem.floor_ps) == 1.0
    empty = msgspec.structs.replace(problem, steps=(), loops=(), tensors=())
    assert empty.normalised_return(0) == 1.0


def small() -> dict[str, Any]:
    """A valid problem as JSON data."""
    piece = {"base_ps": 1, "slow_ps": [5], "fast_ps": [2]}
    return {
        "format": "stowplan.memory_mapping.problem",
        "version": 1,
        "name": "small",
        "target": "none",
        "cost_model": "by hand",
        "capacity": 4,
        "steps": [
            {
                "name": "make",
                "opcode": "op",
                "weight": 1,
                "pieces": [piece],
                "uses": [{"tensor": 0, "is_output": True, "bytes": 1}],
            },
            {
                "name": "take",
                "opcode": "op",
                "weight": 1,
                "pieces": [piece],
                "uses": [{"tensor": 0, "is_output": False, "bytes": 1}],
            },
        ],
        "tensors": [{"name": "t", "size": 2, "copy_in_ps": 3, "copy_out_ps": 3}],
        "loops": [{"start": 0, "end": 2, "trip_count": 2}],
    }


def read_small(change: Callable[[dict[str, Any]], object]) -> Problem:
    data = small()
    change(data)
    return problems_module.Problem.decode(json.dumps(data).encode(), source="small.json")


def test_small_is_valid() -> None:
    assert read_small(lambda data: None).horizon == 2


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda data: data.update(capacity=0), "capacity.*found 0"),
        (lambda data: data.update(alignment=0), "alignment.*found 0"),
        (lambda data: data.update(channels=0), "channels.*found 0"),
        (lambda data: data.update(max_preloads=-1), "max_preloads.*found -1"),
        (lambda data: data.update(stalls="maybe"), "maybe"),
        (lambda data: data.update(colour="red"), "colour"),
        (lambda data: data.pop("target"), "target"),
        (lambda data: data.update(format="other"), "format.*other"),
        (lambda data: data.update(version=99), "version.*99"),
        (lambda data: data["tensors"][0].update(size=0), r"tensors\[0\] \(t\).size.*found 0"),
        (lambda data: data["tensors"][0].update(size="big"), "small.json.*size"),
        (lambda data: data["tensors"][0].update(copy_in_ps=-1), "copy_in_ps.*found -1"),
        (lambda data: data["tensors"].clear(), r"steps\[0\] \(make\).*found tensor 0"),
        (lambda data: data["steps"][0].update(weight=0), "weight.*found 0"),
        (lambda data: data["steps"].reverse(), r"steps\[0\] \(take\).*read of t before anything writes it"),
        (lambda data: data["steps"][0]["uses"][0].update(bytes=-1), "bytes.*found -1"),
        (lambda data: data["steps"][0]["uses"].append(data["steps"][0]["uses"][0]), "twice in one role"),
        (lambda data: data["steps"][0].update(pieces=[]), "neither of pieces and table"),
        (lambda data: data["steps"][0].update(table={"uses": [], "latency_ps": [1]}), "both or neither"),
        (lambda data: data["steps"][0]["pieces"][0].update(slow_ps=[]), "found 0 slow and 1 fast"),
        (lambda data: data["steps"][0]["pieces"][0].update(base_ps=-9), "least latency of -7"),
        (lambda data: data["steps"][0].update(pieces=[], table={"uses": [0, 0], "latency_ps": [1] * 4}), "distinct"),
        (lambda data: data["steps"][0].update(pieces=[], table={"uses": [1], "latency_ps": [1] * 2}), "positions below 1"),
        (lambda data: data["steps"][0].update(pieces=[], table={"uses": [0], "latency_ps": [1]}), "found 1 entries"),
        (lambda data: data["loops"][0].update(end=3), r"loops\[0\].*\[0, 3\)"),
        (lambda data: data["loops"][0].update(trip_count=0), "trip count of 0"),
        (
            lambda data: data["tensors"].append({**data["tensors"][0], "name": "o", "is_output": True}),
            "output that nothing writes",
        ),
    ],
)
def test_bad_problems_are_named(change: Callable[[dict[str, Any]], object], message: str) -> None:
    with pytest.raises(InputError, match=message) as caught:
        read_small(change)
    assert "\n" not in str(caught.value)


def test_crossing_loops_are_refused() -> None:
    def change(data: dict[str, Any]) -> None:
        data["steps"].append(data["steps"][1])
        data["loops"] = [{"start": 0, "end": 2, "trip_count": 2}, {"start": 1, "end": 3, "trip_count": 2}]

    with pytest.raises(InputError, match="crosses another loop"):
        read_small(change)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (b"not json", "not a stowplan.memory_mapping.plan file"),
        (b"[]", "not a stowplan.memory_mapping.plan file"),
        (b'{"format": "stowplan.memory_mapping.problem", "version": 1}', "found format"),
        (b'{"format": "stowplan.memory_mapping.plan", "version": 1}', "missing required field"),
        (b'{"format": "stowplan.memory_mapping.plan", "version": 1, "problem": "", "objective_ps": 1.5}', "objective_ps"),
    ],
)
def test_bad_plan_files_are_named(tmp_path: Path, text: bytes, message: str) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(text)
    with pytest.raises(InputError, match=message) as caught:
        plans.Plan.load(path)
    assert str(caught.value).startswith(str(path))
