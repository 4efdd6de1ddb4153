"""Hints for modulo scheduling: what plans and earlier versions of a loop body say, and what refuses them."""

from __future__ import annotations

import random

import msgspec
import pytest

from stowplan.errors import InputError
from stowplan.models.hint import Hint, check_hint, plan_of
from stowplan.models.modulo_scheduling import hint as hints
from stowplan.models.modulo_scheduling.hint import VALUES, transferred
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Problem
from stowplan.portfolio.modulo_scheduling.candidates import list_plan
from tests.models.modulo_scheduling.cases import graph, line

CHAIN = "a>b b>c c>d d>e a>f f>g g>h"


def planned(problem: Problem) -> Plan:
    found = list_plan(problem, 0, lambda: False)
    assert found is not None
    return found


def test_a_plan_becomes_a_hint_with_values_for_every_instruction() -> None:
    problem = graph(CHAIN)
    plan = planned(problem)
    hint = hints.of_plan(problem, plan)
    check_hint(problem, hint, VALUES)
    assert plan_of(hint) == plan
    assert [round(time * max(plan.times)) for time in hint.values[hints.TIME]] == list(plan.times)
    for number, at in enumerate(plan.tiles):
        assert [tile for tile in range(4) if hint.values[hints.tile_name(tile)][number]] == [at]


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"time": (0.0,) * 8}, "found values named time, expected time, tile 0, tile 1, tile 2, tile 3"),
        ({"time": (0.0,) * 7} | {f"tile {tile}": (0.0,) * 8 for tile in range(4)}, "found 7 numbers, expected 8"),
        ({"time": (-1.0,) * 8} | {f"tile {tile}": (0.0,) * 8 for tile in range(4)}, "found -1, expected a number from 0 to 1"),
    ],
)
def test_values_that_do_not_fit_are_refused(values: dict[str, tuple[float, ...]], message: str) -> None:
    problem = graph(CHAIN)
    with pytest.raises(InputError, match=message):
        check_hint(problem, Hint(kind="modulo_scheduling", problem=problem.digest, values=values), VALUES)


def test_instructions_of_an_earlier_version_are_known_again() -> None:
    earlier = graph(CHAIN)
    given = hints.of_plan(earlier, planned(earlier))
    new = Instruction(id="new", op="mul", operands=(Operand(instruction="d"),))
    renamed = [msgspec.structs.replace(each, id="z") if each.id == "h" else each for each in earlier.instructions]
    problem = msgspec.structs.replace(earlier, instructions=(*renamed[:4], new, *renamed[4:]))
    hint = transferred(problem, earlier, given)
    check_hint(problem, hint, VALUES)
    assert [each.id for each, trust in zip(problem.instructions, hint.confidence, strict=True) if not trust] == ["new"]
    for name, values in given.values.items():
        assert [value for value, trust in zip(hint.values[name], hint.confidence, strict=True) if trust] == list(values)


def test_tiles_that_are_new_are_left_open() -> None:
    earlier = graph(CHAIN)
    given = hints.of_plan(earlier, planned(earlier))
    problem = graph(CHAIN, line(6))
    hint = transferred(problem, earlier, given)
    check_hint(problem, hint, VALUES)
    assert not any(hint.values[hints.tile_name(5)])
    with pytest.raises(InputError, match="expected"):
        transferred(problem, problem, given)


def test_any_other_loop_body_gives_a_hint_that_fits() -> None:
    chance = random.Random(3)
    for _ in range(30):
        one, two = (graph(" ".join(f"n{chance.randrange(number)}>n{number}" for number in range(1, 9))) for _ in range(2))
        given = hints.hint(two, [0.5] * len(two.instructions), [[0.25] * len(two.instructions)] * 4)
        check_hint(one, transferred(one, two, given), VALUES)
