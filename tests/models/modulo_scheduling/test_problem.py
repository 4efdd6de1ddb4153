"""Bad input is refused with its place; files come back as they were; objectives order plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from stowplan.errors import InputError
from stowplan.models.modulo_scheduling import plan as plans
from stowplan.models.modulo_scheduling import problem as problems
from stowplan.models.modulo_scheduling.machine import AsynchronousFabric, Interface, Link
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Pin, Problem, Rules, Variable
from tests.models.modulo_scheduling.cases import graph, line, random_problem


def instruction(*operands: Operand, name: str = "a", op: str = "add") -> Instruction:
    return Instruction(id=name, op=op, operands=operands)


def sent(source: str, distance: int = 0) -> Operand:
    return Operand(instruction=source, distance=distance, asynchronous=True)


LINKED = line(asynchronous=AsynchronousFabric(interfaces=(Interface(name="m"),)))


@pytest.mark.parametrize(
    ("values", "message"),
    [
        ({"instructions": (instruction(), instruction())}, "'a' twice"),
        ({"instructions": (instruction(Operand(instruction="b")),)}, "'b'"),
        ({"instructions": (instruction(Operand(instruction="a")),)}, "cycle a -> a without a distance"),
        ({"instructions": (instruction(Operand()),)}, "found nothing"),
        ({"instructions": (instruction(Operand(constant=1.0, variable="v")),)}, "variable and constant"),
        ({"instructions": (instruction(Operand(variable="v")),)}, "'v'"),
        ({"instructions": (instruction(Operand(instruction="a", distance=-1)),)}, "distance -1"),
        ({"instructions": (instruction(Operand(constant=1.0, distance=1)),)}, "distance 1"),
        ({"instructions": (instruction(Operand(constant=float("inf"))),)}, "inf"),
        ({"instructions": (instruction(op="warp"),), "machine": line(operations=("add",))}, "'warp', which line cannot do"),
        ({"instructions": (Instruction(id="a", op="add", latency=0),)}, "latency 0"),
        ({"instructions": (Instruction(id="a", op="add", tiles=()),)}, "no tile"),
        ({"instructions": (Instruction(id="a", op="add", tiles=(1, 0)),)}, "tiles 1, 0"),
        ({"instructions": (Instruction(id="a", op="add", tiles=(1, 4)),)}, "tile 4"),
        ({"instructions": (Instruction(id="a", op="load", memory="load"),)}, "no memory interfaces"),
        ({"instructions": (instruction(sent("a", 1)),)}, "no asynchronous fabric"),
        ({"instructions": (instruction(sent("a")),), "machine": LINKED}, "cycle a -> a without a distance"),
        ({"instructions": (instruction(Operand(constant=1.0, asynchronous=True)),), "machine": LINKED}, "asynchronous"),
        # b waits for what a sends, while a value goes to it over links.
        (
            {
                "instructions": (instruction(), instruction(Operand(instruction="a"), sent("a"), name="b")),
                "machine": LINKED,
            },
            "from a to b, whose flows wait for each other",
        ),
        ({"instructions": (), "variables": (Variable(id="v"), Variable(id="v"))}, "'v' twice"),
        ({"instructions": (), "variables": (Variable(id="v", tile=4),)}, "tile 4"),
        ({"instructions": (), "variables": (Variable(id="v", words=0),)}, "words 0"),
        ({"instructions": (), "pins": (Pin(instruction="x"),)}, "'x'"),
        ({"instructions": (instruction(),), "pins": (Pin(instruction="a", tile=9),)}, "tile 9"),
        ({"instructions": (instruction(),), "pins": (Pin(instruction="a", time=-1),)}, "time -1"),
        ({"instructions": (instruction(),), "pins": (Pin(instruction="a", slot=4),)}, "slot 4"),
        ({"instructions": (instruction(),), "pins": (Pin(instruction="a"),) * 2}, "twice"),
        ({"instructions": (), "rules": Rules(max_delay=-1)}, "max_delay"),
    ],
)
def test_bad_problems(values: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        Problem(**{"machine": line(), **values})


def test_cycle_is_named_in_order() -> None:
    with pytest.raises(InputError, match=r"b -> c -> d -> b|c -> d -> b -> c|d -> b -> c -> d"):
        graph("a>b b>c c>d d>b d>e")
    graph("a>b b>c c>d d>b:1 d>e")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"rows": 0}, "rows"),
        ({"rows": 2000}, "tiles"),
        ({"latency": 0}, "latency"),
        ({"spoke_depth": 0}, "spoke_depth"),
        ({"links": (Link(name="x", rows=1), Link(name="x", rows=2))}, "name of its own"),
        ({"links": (Link(name="x", rows=0),)}, "feedback"),
        ({"links": (Link(name="x", rows=1, clocks=-1),)}, "clocks"),
        ({"asynchronous": AsynchronousFabric(latency=-1)}, r"asynchronous\.latency"),
        ({"asynchronous": AsynchronousFabric(interfaces=(Interface(name="m", ports=0),))}, "ports"),
        ({"asynchronous": AsynchronousFabric(interfaces=(Interface(name="m", tiles=(4,)),))}, "tile 4"),
        ({"asynchronous": AsynchronousFabric(interfaces=(Interface(name="m"),) * 2)}, "name of its own"),
    ],
)
def test_bad_machines(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        line(**changes)


def test_links_of_no_clocks_do_not_pass_through() -> None:
    machine = line(links=(Link(name="x", rows=1, clocks=0),))
    graph("a>b", machine)
    with pytest.raises(InputError, match="0 clocks"):
        graph("a>b", machine, rules=Rules(pass_through=True))


def test_files(tmp_path: Path) -> None:
    for seed in range(20):
        problem = random_problem(seed)
        problem.save(tmp_path / "p.json")
        again = problems.Problem.load(tmp_path / "p.json")
        assert again == problem
        assert again.digest == problem.digest
    text = (tmp_path / "p.json").read_bytes()
    with pytest.raises(InputError, match="unknown field"):
        problems.Problem.decode(text.replace(b'"name"', b'"nome"', 1), source="p.json")
    with pytest.raises(InputError, match="format"):
        plans.Plan.decode(text)


def test_digest_depends_on_rules_and_not_on_names() -> None:
    problem = graph("a>b")
    assert msgspec.structs.replace(problem, name="other").digest == problem.digest
    assert msgspec.structs.replace(problem, rules=Rules(max_delay=3)).digest != problem.digest
    assert msgspec.structs.replace(problem, machine=line(5)).digest != problem.digest


def test_a_fabric_that_nothing_takes_leaves_the_digest() -> None:
    problem = graph("a>b")
    assert graph("a>b", LINKED).digest == problem.digest
    slower = msgspec.structs.replace(LINKED, asynchronous=AsynchronousFabric(memory_latency=7))
    operands = (sent("a", 1),)
    both = [
        Problem(instructions=(Instruction(id="a", op="add", operands=operands),), machine=each) for each in (LINKED, slower)
    ]
    assert both[0].digest != both[1].digest


def test_objective() -> None:
    assert plans.encode_objective(4, 19) == 4_000_019
    assert plans.decode_objective(4_000_019) == (4, 19)
    assert plans.describe_objective(4_000_019) == "II 4, makespan 19"
    assert plans.encode_objective(2, 900_000) < plans.encode_objective(3, 1)


def test_least_clocks() -> None:
    machine = line(4)
    assert machine.one_link[0] == (0, 1, 2, None)
    assert machine.any_links[0] == (0, 1, 2, 3)
    ring = line(4, wraps=True, links=(Link(name="on", rows=1),))
    assert ring.one_link[3] == (1, None, None, 0)
    assert ring.any_links[3] == (1, 2, 3, 0)
