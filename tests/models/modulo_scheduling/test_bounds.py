"""Bounds and obstacles that show without a search."""

from __future__ import annotations

import msgspec
import pytest

from stowplan.models.modulo_scheduling.bounds import critical_path, find_obstacle, least_ii, recurrence_mii, resource_mii
from stowplan.models.modulo_scheduling.machine import AsynchronousFabric, Interface, Link
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Pin, Problem, Variable
from tests.models.modulo_scheduling.cases import graph, line


def test_resources() -> None:
    assert resource_mii(graph("a b c d")) == 1
    assert resource_mii(graph("a b c d e")) == 2
    # Three that read one variable share a tile; so do two on tiles that are pinned to be one.
    shared = tuple(Instruction(id=name, op="add", operands=(Operand(variable="v"),)) for name in "abc")
    assert resource_mii(Problem(instructions=shared, variables=(Variable(id="v"),), machine=line())) == 3
    assert resource_mii(graph("a b", pins=(Pin(instruction="a", tile=1), Pin(instruction="b", tile=1)))) == 2


@pytest.mark.parametrize(
    ("edges", "expected"),
    [("a>b", 1), ("a>a:1", 3), ("a>a:2", 2), ("a>b b>a:1", 6), ("a>b b>a:4", 2), ("a>b b>a:1 a>a:1", 8)],
)
def test_recurrences(edges: str, expected: int) -> None:
    # The last: a and b both consume a, so they stand apart, and the value comes and goes over links.
    assert recurrence_mii(graph(edges)) == expected


def test_tiles_and_latencies_of_their_own() -> None:
    def some(*tiles: tuple[int, ...] | None, latency: int | None = None) -> Problem:
        made = (Instruction(id=f"i{at}", op="add", tiles=each, latency=latency) for at, each in enumerate(tiles))
        return Problem(instructions=tuple(made), machine=line())

    assert resource_mii(some((0, 2), (0, 2), (2,), None)) == 2
    assert resource_mii(some((0,), (0,), (0, 2), None)) == 2
    assert critical_path(some(None, latency=9)) == 9
    shared = (Operand(variable="v"),)
    both = tuple(Instruction(id=name, op="add", operands=shared, tiles=(at,)) for at, name in enumerate("ab"))
    found = find_obstacle(Problem(instructions=both, variables=(Variable(id="v"),), machine=line()))
    assert "no tile will do for a, b" in (found or "")


def test_memory_and_linked_flows() -> None:
    def loads(count: int, *interfaces: Interface, distance: int | None = None) -> Problem:
        operands = () if distance is None else (Operand(instruction="l0", distance=distance),)
        made = (Instruction(id=f"l{at}", op="load", memory="load", operands=operands) for at in range(count))
        machine = line(asynchronous=AsynchronousFabric(memory_latency=9, interfaces=interfaces), spoke_depth=16)
        return Problem(instructions=tuple(made), machine=machine)

    near, everywhere = Interface(name="near", tiles=(0, 1)), Interface(name="all")
    assert resource_mii(loads(4, everywhere)) == 4
    assert resource_mii(loads(4, everywhere, near)) == 2
    # Only two tiles are served at all.
    assert resource_mii(loads(4, near, Interface(name="more", tiles=(0, 1)))) == 2
    # A pointer that is loaded: nominal clocks bound the interval.
    assert recurrence_mii(loads(1, everywhere, distance=1)) == 12
    assert recurrence_mii(loads(1, everywhere, distance=2)) == 6
    chased = loads(1, everywhere, distance=1)
    shallow = msgspec.structs.replace(chased.machine, spoke_depth=8)
    assert "interval of 12" in (find_obstacle(msgspec.structs.replace(chased, machine=shallow)) or "")


def test_critical_path() -> None:
    assert critical_path(graph("a>b b>c")) == 9
    assert critical_path(graph("a>b b>c c>a:1")) == 9
    assert critical_path(graph("a>b a>c b>c")) == 10
    assert critical_path(graph("a>b", pins=(Pin(instruction="a", time=5),))) == 11


def variables(*uses: str, **places: int) -> Problem:
    """Instructions that read variables, one letter each."""
    instructions = tuple(
        Instruction(id=f"i{at}", op="add", operands=tuple(Operand(variable=name) for name in use))
        for at, use in enumerate(uses)
    )
    known = tuple(Variable(id=name, tile=places.get(name)) for name in sorted(set("".join(uses))))
    return Problem(instructions=instructions, variables=known, machine=line())


def test_obstacles() -> None:
    assert find_obstacle(graph("a>b b>c")) is None
    cases = {
        "i0 uses x, in the memory of tile 0 and i0 uses y, in the memory of tile 1": variables("xy", x=0, y=1),
        "17 instructions, but 4 tiles have 4 slots each, 16 in all": graph(" ".join("abcdefghijklmnopq")),
        "5 instructions, it has 4 slots": variables("x", "x", "x", "x", "x"),
        "5 flows need starts on different tiles, there are 4": graph("a b c d e"),
        "a has 5 consumers that need different tiles, a tile reaches 4": graph("a>b a>c a>d a>e a>f"),
        "the recurrences need an initiation interval of 6, the spoke RAM has 4 entries": graph("a>b b>a:1"),
    }
    for words, problem in cases.items():
        assert words in (find_obstacle(problem) or ""), words


def test_siblings_that_share_a_variable() -> None:
    operands = (Operand(instruction="a"), Operand(variable="v"))
    both = (Instruction(id="b", op="add", operands=operands), Instruction(id="c", op="add", operands=operands))
    problem = Problem(instructions=(Instruction(id="a", op="add"), *both), variables=(Variable(id="v"),), machine=line())
    assert "must not, as siblings" in (find_obstacle(problem) or "")


def test_words() -> None:
    one = Instruction(id="a", op="add", operands=(Operand(variable="v"), Operand(variable="w")))
    known = (Variable(id="v", words=800), Variable(id="w", words=800))
    problem = Problem(instructions=(one,), variables=known, machine=line())
    assert "1600 words" in (find_obstacle(problem) or "")


def test_bounds_are_not_above_a_long_row() -> None:
    chain = " ".join(f"n{at}>n{at + 1}" for at in range(40))
    problem = graph(chain, line(16, links=(Link(name="on", rows=1, clocks=0),)))
    assert (least_ii(problem), critical_path(problem)) == (3, 123)
