"""Hints for memory mapping: their files, what refuses them, and what plans and the relaxation say."""

from __future__ import annotations

import math
import random
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stowplan.errors import InputError, UsageError
from stowplan.models.hint import Hint, check_hint, plan_of
from stowplan.models.memory_mapping import hint as hints
from stowplan.models.memory_mapping.accesses import access_sequences
from stowplan.models.memory_mapping.hint import VALUES
from stowplan.models.memory_mapping.milp.hint import relaxation_hint
from stowplan.models.memory_mapping.milp.solve import Effort
from stowplan.models.memory_mapping.problem import Problem
from tests.models.memory_mapping.brute_force import best_plan, optimum
from tests.models.memory_mapping.cases import random_plan, random_problem


def effort(**others: Any) -> Effort:
    return Effort(end=math.inf, **others)


def planned(seed: int) -> tuple[Problem, Hint]:
    rng = random.Random(seed)
    problem = random_problem(rng)
    return problem, hints.of_plan(problem, random_plan(problem, rng))


@pytest.mark.parametrize("seed", range(20))
def test_a_plan_becomes_a_hint_with_a_value_for_every_access(seed: int, tmp_path: Path) -> None:
    problem, hint = planned(seed)
    check_hint(problem, hint, VALUES)
    accesses = [access for sequence in access_sequences(problem) for access in sequence.accesses]
    assert hints.counts(problem) == dict.fromkeys(("fast", "keep", "place"), len(accesses))
    assert {*hint.values} == {*hints.counts(problem)}
    plan = plan_of(hint)
    assert [bool(value) for value in hint.values["fast"]] == [
        {*access.uses} <= {*plan.fast_uses} and bool(access.uses) for access in accesses
    ]
    hint.save(tmp_path / "hint.json")
    assert Hint.load(tmp_path / "hint.json") == hint


def test_a_tensor_is_kept_between_two_accesses_of_one_residency() -> None:
    problem, hint = next(found for found in map(planned, range(100)) if sum(found[1].values["keep"]))
    plan = plan_of(hint)
    number = 0
    for sequence in access_sequences(problem):
        for place, access in enumerate(sequence.accesses):
            if hint.values["keep"][number]:
                following = sequence.accesses[place + 1]
                assert any(
                    each.tensor == sequence.tensor and each.start <= access.step < following.step < each.end
                    for each in plan.residencies
                )
            number += 1


SPOILT: list[tuple[str, dict[str, Any]]] = [
    ("kind: found a hint for packing, expected one for memory_mapping", {"kind": "packing"}),
    ("problem: found a hint for the problem other, expected", {"problem": "other"}),
    ("values: found values named warm, expected fast, keep", {"values": {"warm": ()}}),
    ("values.fast: found 1 numbers, expected", {"values": {"fast": (1.0,), "keep": ()}}),
    ("found neither values nor a plan", {"values": {}, "plan": None}),
    ("confidence: found confidences without values", {"values": {}, "confidence": (1.0,)}),
    ("confidence: found 1 numbers, expected", {"confidence": (1.0,)}),
]


@pytest.mark.parametrize(("expected", "changes"), SPOILT, ids=[text for text, _ in SPOILT])
def test_what_does_not_fit_is_one_line(expected: str, changes: dict[str, Any]) -> None:
    problem, hint = planned(3)
    assert len(hint.values["fast"]) > 1
    with pytest.raises(InputError, match=expected) as error:
        check_hint(problem, msgspec.structs.replace(hint, **changes), VALUES)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("value", [-0.1, 1.1, float("nan"), float("inf")])
def test_values_out_of_range_are_named(value: float) -> None:
    problem, hint = planned(3)
    keep = (*hint.values["keep"][:-1], value)
    place = rf"values\.keep\[{len(keep) - 1}\]: found .*, expected a number from 0 to 1"
    with pytest.raises(InputError, match=place):
        check_hint(problem, msgspec.structs.replace(hint, values={**hint.values, "keep": keep}), VALUES)


def test_a_kind_without_values_takes_none() -> None:
    from stowplan.models.packing.problem import Buffer
    from stowplan.models.packing.problem import Problem as Packing

    problem = Packing(name="one", capacity=1, buffers=(Buffer(id="a", lower=0, upper=1, size=1),))
    hint = Hint(kind="packing", problem=problem.digest, values={"offset": (0.5,)})
    with pytest.raises(UsageError, match="expected a plan"):
        check_hint(problem, hint, None)


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"format": "stowplan.hint", "version": 2}', '{"format": "stowplan.hint", "version": 1, "x": 1}']
)
def test_damaged_files_are_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "hint.json"
    path.write_text(text)
    with pytest.raises(InputError, match=r"hint\.json"):
        Hint.load(path)


@pytest.mark.parametrize("seed", range(20))
def test_the_relaxation_is_a_hint_and_a_bound(seed: int) -> None:
    problem = random_problem(random.Random(seed), steps=6, tensors=3)
    hint, bound = relaxation_hint(problem, effort())
    assert bound <= optimum(problem)
    if hint is not None:
        check_hint(problem, hint, VALUES)


def test_where_everything_fits_the_relaxation_says_what_the_best_plan_does() -> None:
    compared = 0
    for seed in range(60):
        problem = random_problem(random.Random(seed), steps=5, tensors=2, loops=0, tables=False)
        best = best_plan(problem)
        hint, bound = relaxation_hint(problem, effort())
        if hint is None or bound < best.objective or any(0.0 < value < 1.0 for value in hint.values["fast"]):
            continue
        compared += 1
        # The optimum may not be the only one: but what is fast in the relaxation of that cost saves as much.
        uses = [access.uses for sequence in access_sequences(problem) for access in sequence.accesses]
        fast = {use for access, value in zip(uses, hint.values["fast"], strict=True) if value == 1.0 for use in access}
        latency, number = 0, 0
        for step in problem.steps:
            latency += step.weight * step.latency_ps([number + place in fast for place in range(len(step.uses))])
            number += len(step.uses)
        assert latency <= best.objective
    assert compared > 5


def test_stopped_at_once_there_is_no_hint_but_a_bound() -> None:
    problem = random_problem(random.Random(1), steps=6, tensors=3)
    hint, bound = relaxation_hint(problem, Effort(end=-math.inf))
    assert hint is None
    assert bound == problem.floor_ps
    assert relaxation_hint(problem, effort(should_stop=lambda: True))[0] is None


def test_equal_calls_give_equal_hints() -> None:
    problem = random_problem(random.Random(4), steps=10, tensors=6)
    assert relaxation_hint(problem, effort(iteration_limit=100)) == relaxation_hint(problem, effort(iteration_limit=100))
