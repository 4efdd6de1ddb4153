"""Copies on shorter ways, where delays are limited."""

from __future__ import annotations

import pytest

from stowplan.frontends.dfg import lower, parse_rules
from stowplan.frontends.dfg.balance import balanced
from stowplan.frontends.dfg.graph import Dfg
from stowplan.hardware.se import compare
from stowplan.models.modulo_scheduling import cpsat
from stowplan.models.modulo_scheduling.bounds import find_obstacle
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Rules
from tests.models.modulo_scheduling.cases import graph, line


def ladder() -> Dfg:
    """Two ways from one value to another: three instructions on one, none on the other."""
    sources = {"a": (), "b": ("a",), "c": ("b",), "d": ("c",), "e": ("d", "a")}
    made = (
        Instruction(id=name, op="add" if each else "input", operands=tuple(Operand(instruction=one) for one in each))
        for name, each in sources.items()
    )
    return Dfg("ladder", tuple(made), ())


@pytest.mark.parametrize(("max_delay", "expected"), [(0, 3), (1, 1)])
def test_copies_make_a_plan_possible(max_delay: int, expected: int) -> None:
    rules = Rules(max_delay=max_delay)
    assert "pass the value on (with balance=yes" in (find_obstacle(lower(ladder(), rules=rules, inputs="instructions")) or "")
    problem = lower(ladder(), rules=rules, inputs="instructions", balance=True)
    # Without delays two would be enough for the length, but make a cycle of an odd number of values.
    assert sum(each.op == "copy" for each in problem.instructions) == expected
    outcome = cpsat.solve(problem, time_limit=30)
    assert outcome.plan is not None
    compare(problem, outcome.plan, 6)


def test_nothing_is_put_where_nothing_is_needed() -> None:
    free = lower(ladder(), inputs="instructions")
    assert balanced(free) is free
    enough = lower(ladder(), rules=Rules(max_delay=20), inputs="instructions")
    assert balanced(enough) is enough


def test_distances_stay_behind_the_copies() -> None:
    # At an interval of 3, which a needs, the value of the iteration before comes 3 clocks sooner still.
    problem = graph("a>a:1 a>b b>c c>d d>e a>e:1", line(8, spoke_depth=8), rules=Rules(max_delay=0))
    assert find_obstacle(problem) is not None
    found = balanced(problem)
    assert find_obstacle(found) is None
    copies = [each for each in found.instructions if each.op == "copy"]
    assert copies
    assert all(operand.distance == 0 for each in copies for operand in each.operands)
    old = sorted(operand.distance for each in problem.instructions for operand in each.operands)
    assert old == sorted(operand.distance for each in found.instructions if each.op != "copy" for operand in each.operands)


def test_option() -> None:
    assert parse_rules(["balance=yes", "max_delay=1"]).balance
    assert not parse_rules(["max_delay=1"]).balance
