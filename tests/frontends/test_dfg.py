"""Front ends for loop bodies: JSON, DOT, Python; and what lowering does to graphs."""

from __future__ import annotations

import contextlib
import json
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stowplan
from benchmarks.lib.modulo_scheduling import kernels
from stowplan.errors import InputError, UsageError
from stowplan.frontends.dfg import Dfg, carried, lower, maximum, minimum, read_json, select, trace
from stowplan.frontends.dfg.dot import parse_dot, read_dot
from stowplan.frontends.dfg.graph import decode_json
from stowplan.frontends.dfg.lower import relay_fan_out
from stowplan.hardware.se import run_graph
from stowplan.hardware.se.reference import make_data
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Rules
from tests.paths import DATA


def from_json(nodes: list[Any], edges: list[Any]) -> Dfg:
    return decode_json(json.dumps({"name": "g", "nodes": nodes, "edges": edges}).encode(), source="g.json")


NODES = [{"id": 1, "op": "LOAD"}, {"id": 2, "op": "MUL"}, {"id": 3, "op": "ADD"}]


def test_json() -> None:
    edges = [
        {"src": 1, "dst": 2, "distance": 0, "mult": 2},
        {"src": 3, "dst": 3},
        {"src": 2, "dst": 3, "distance": 0, "operand": 0},
    ]
    graph = from_json(NODES, edges)
    assert [each.op for each in graph.instructions] == ["load", "mul", "add"]
    assert graph.instructions[1].operands == (Operand(instruction="1"),) * 2
    assert graph.instructions[2].operands == (Operand(instruction="2"), Operand(instruction="3", distance=1))


@pytest.mark.parametrize(
    ("nodes", "edges", "message"),
    [
        (NODES, [{"src": 1, "dst": 9}], r"g\.json: edges\[0\]: found the node '9'"),
        ([*NODES, NODES[0]], [], r"nodes\[3\]: found the id '1' twice"),
        (NODES, [{"src": 1, "dst": 2, "distance": -1}], r"edges\[0\]: found distance -1"),
        (NODES, [{"src": 1, "dst": 2, "mult": 0}], r"edges\[0\]: found mult 0"),
        (NODES, [{"src": 1}], r"g\.json: edges\[0\]: .*`dst`"),
        ([{"id": 1.5, "op": "add"}], [], r"nodes\[0\]\.id"),
        (NODES, [{"src": 1, "dst": 3, "operand": 0}, {"src": 2, "dst": 3, "operand": 0}], "two edges for one operand"),
    ],
)
def test_bad_json(nodes: list[Any], edges: list[Any], message: str) -> None:
    with pytest.raises(InputError, match=message):
        from_json(nodes, edges)


def test_graphs_of_other_tools() -> None:
    """NetworkX calls edges links; Morpher has opcodes, sources and targets."""
    ours = from_json(NODES, [{"src": 1, "dst": 2}, {"src": 2, "dst": 3, "distance": 4, "operand": 1}, {"src": 1, "dst": 3}])
    theirs = {
        "directed": True,
        "multigraph": False,
        "graph": {"name": "g"},
        "nodes": [
            {"id": 1, "opcode": "LOAD", "label": "x[i]", "pos": [0, 1]},
            {"id": 2, "operation": "MUL", "type": "int32"},
            {"id": 3, "type": "ADD", "ASAP": 2},
        ],
        "links": [
            {"source": 1, "target": 2, "key": 0},
            {"from": 2, "to": 3, "dist": 4, "operand": 1, "color": "red"},
            {"src": 1, "target": 3},
        ],
    }
    assert decode_json(json.dumps(theirs).encode()) == ours
    again = theirs | {"nodes": [{"op": "load", "opcode": "load", "id": 1}, *theirs["nodes"][1:]]}  # type: ignore[index]
    assert decode_json(json.dumps(again).encode()) == ours


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            {"edges": [{"src": 1, "dst": 2, "distnace": 4}]},
            r"g\.json: edges\[0\]: found the key 'distnace', expected src, dst, dist",
        ),
        ({"edges": [{"src": 1, "dst": 2, "weight": 4}]}, r"edges\[0\]: found the key 'weight'"),
        ({"edges": [{"src": 1, "source": 2, "dst": 2}]}, r"edges\[0\]: found src 1 and source 2, expected one of them"),
        ({"edges": [{"src": 1, "dst": 2, "dist": 1, "distance": 2}]}, "found distance 2 and dist 1"),
        ({"edges": [{"src": 1, "dst": 2, "operand": -1}]}, "found operand -1, expected 0 or more"),
        ({"edges": [[1, 2]]}, r"edges\[0\]: found a list, expected an object"),
        ({"links": [{"source": 1, "target": 9}]}, "found edges .* and links .*, expected one of them"),
        ({"edges": 3}, "edges: found a number, expected a list"),
        (
            {"nodes": [{"id": 1, "op": "add", "constant": 4}]},
            r"nodes\[0\]: found the key 'constant', expected id, op, variables, value",
        ),
        ({"nodes": [{"id": 1, "op": "add", "opcode": "sub"}]}, r"nodes\[0\]: found op 'add' and opcode 'sub'"),
        ({"nodes": [{"id": 1}]}, r"nodes\[0\]: .*`op`"),
        ({"directed": False}, "directed: found False, expected true"),
        ({"fixd": []}, r"g\.json: found the key 'fixd'"),
        ({"name": 3}, "name: found a number, expected a string"),
    ],
)
def test_keys_that_nothing_is_known_of(change: dict[str, Any], message: str) -> None:
    graph = {"nodes": NODES, "edges": [{"src": 1, "dst": 2}]} | change
    with pytest.raises(InputError, match=message):
        decode_json(json.dumps(graph).encode(), source="g.json")


def test_links_alone_tell_a_graph_from_a_network(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_text(json.dumps({"nodes": NODES, "links": [{"source": 1, "target": 2, "dist": 4}]}))
    with pytest.raises(UsageError, match="is a data-flow graph: name a target such as se "):
        stowplan.read(path)
    assert stowplan.read(path, "se", rules=["inputs=instructions"]).edges[0].distance == 4
    path.write_text(json.dumps({"nodes": NODES, "links": [{"source": 1, "target": 9}]}))
    with pytest.raises(InputError, match=r"links\[0\]: found the node '9'"):
        stowplan.read(path, "se")


def test_a_long_chain_takes_no_time_with_its_square() -> None:
    """Heights once took a sweep over all instructions for each of them."""
    nodes = [{"id": at, "op": "add"} for at in range(20_000)]
    graph = from_json(nodes, [{"src": at, "dst": at + 1} for at in range(len(nodes) - 1)])
    assert len(lower(graph).instructions) == len(nodes)


def test_a_cycle_without_distance_is_refused() -> None:
    graph = from_json(NODES, [{"src": 2, "dst": 3}, {"src": 3, "dst": 2}])
    with pytest.raises(InputError, match=r"cycle .* without a distance"):
        lower(graph)


def test_dot() -> None:
    graph = read_dot(DATA / "kernel.dot")
    assert graph.name == "kernel"
    assert {each.id: each.op for each in graph.instructions} == {
        "a": "mul",
        "b": "add",
        "c": "add",
        "load-1": "load",
        "sub4": "sub",
    }
    operands = {each.id: each.operands for each in graph.instructions}
    assert operands["b"] == (Operand(instruction="a"), Operand(instruction="c", distance=2))
    assert operands["a"] == (Operand(instruction="load-1"),)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("graph g { a -- b }", "line 1: expected a digraph"),
        ("digraph g {\n a [op=add] b [op=add]\n a -- b }", "line 3: found --"),
        ("digraph g {\n a [op=add\n", "line 2"),
        ("digraph g { a [op=add] ", "expected }"),
        ("digraph g { a [op=add]\n a -> a [distance=x] }", "line 2: found distance 'x'"),
        ("", "expected a digraph"),
        ('digraph g { a [op="add] }', "expected DOT"),
        ("digraph g { -> a }", "expected a name"),
    ],
)
def test_bad_dot(text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        parse_dot(text)


@given(st.text(alphabet='digraph{}[]->;=":ab \n', max_size=60))
@settings(max_examples=150)
def test_no_text_breaks_the_dot_reader(text: str) -> None:
    with contextlib.suppress(InputError):
        parse_dot("digraph {" + text)


def ops(graph: Dfg) -> list[str]:
    return [each.op for each in graph.instructions]


def test_the_paper_in_three_lines() -> None:
    def distance(x: Any, y: Any, z: Any, x0: float = 0.0, y0: float = 0.0, z0: float = 0.0) -> Any:
        return (x - x0) ** 2 + (y - y0) ** 2 + (z - z0) ** 2

    graph = trace(distance)
    assert ops(graph) == ["sub", "sub", "mul", "madd", "sub", "madd"]
    assert ops(trace(distance, fuse=False)) == ["sub", "mul", "sub", "mul", "add", "sub", "mul", "add"]
    assert [(each.id, each.streams) for each in graph.variables][2:4] == [("z", True), ("x0", False)]


def test_expressions_compute_what_python_does() -> None:
    def body(a: Any, b: Any, k: float = 0.0) -> Any:
        last = carried(initial=1.5)
        mixed = select(a > b, 2 * a - 1, -b / 3) + minimum(a, k) * maximum(b, 0.5)
        total = last.becomes(last + mixed**5, distance=2)
        return total, a - mixed, 1 - a, 2 / (a * a + 1), (a < b) + (b >> 1) + (b << 2)

    problem = lower(trace(body))
    data = make_data(problem, 6)
    values = run_graph(problem, data, 6)
    a, b, k = data["a"], data["b"], data["k"]
    mixed = np.where(a > b, 2 * a - 1, -b / 3) + np.minimum(a, k) * np.maximum(b, 0.5)
    assert any(np.allclose(each, mixed) for each in values.values())
    total = np.full((6, 4), 1.5) + mixed**5
    total[2:] = mixed[2:] ** 5
    for at in range(2, 6):
        total[at] += total[at - 2]
    wanted = (total, a - mixed, 1 - a, 2 / (a * a + 1), (a < b) + b / 2 + b * 4)
    for each in wanted:
        assert any(np.allclose(found, each) for found in values.values())


def test_bad_expressions() -> None:
    with pytest.raises(UsageError, match="select"):
        trace(lambda a: a if a > 0 else -a)
    with pytest.raises(UsageError, match="power"):
        trace(lambda a: a**0.5)
    with pytest.raises(UsageError, match="'x'"):
        trace(lambda a: a + "x")
    with pytest.raises(UsageError, match="never says"):
        trace(lambda a: a + carried())
    with pytest.raises(InputError, match="no computed value"):
        trace(lambda a: a)
    with pytest.raises(InputError, match="no computed value"):
        trace(lambda a: None)


def test_operations_outside_of_a_loop_body_are_refused() -> None:
    kept: list[Any] = []
    trace(lambda a: kept.append(a) or a + 1)  # type: ignore[func-returns-value]
    (value,) = kept
    uses: list[Callable[[], Any]] = [
        carried,
        lambda: select(1, 2, 3),
        lambda: minimum(1, 2),
        lambda: maximum(1, 2),
        lambda: value + 1,
        lambda: 2 - value,
        lambda: -value,
        lambda: value**2,
    ]
    for use in uses:
        with pytest.raises(UsageError, match=r"expected it in a function that trace\(\) runs"):
            use()


def test_equal_work_is_done_once_and_dead_work_never() -> None:
    graph = trace(lambda a, b: ((a + b) * (a + b), (a - b, 0)[1] + (a + b))[0])
    assert ops(graph) == ["add", "mul"]


def test_fusion_keeps_products_that_others_read() -> None:
    assert ops(trace(lambda a, b: (a * b + 1, a * b - 1))) == ["mul", "add", "sub"]
    assert ops(trace(lambda a, b: a * b + 1)) == ["madd"]


def test_fusion_keeps_products_that_are_returned() -> None:
    def both(a: Any, b: Any, c: Any) -> Any:
        product = a * b
        return product, product + c

    def earlier(a: Any, b: Any, c: Any) -> Any:
        before = carried()
        product = before.becomes(a * b)
        return before, product + c

    for body in (both, earlier):
        assert ops(trace(body)) == ["mul", "add"]
        assert [each.op for each in lower(trace(body, fuse=False), fuse=True).instructions] == ["mul", "add"]
        assert [each.op for each in lower(kernels.unrolled(trace(body), 2), fuse=True).instructions] == ["mul", "add"] * 2


def test_unrolled() -> None:
    def sums(x: Any) -> Any:
        before = carried()
        return before.becomes(before + x, distance=3)

    once = lower(trace(sums))
    four = lower(kernels.unrolled(trace(sums), 4))
    data = make_data(once, 12)
    split = {f"x_{copy}": data["x"][copy::4] for copy in range(4)}
    expected = run_graph(once, data, 12)["add0"]
    found = run_graph(four, split, 3)
    for copy in range(4):
        assert np.allclose(found[f"add0_{copy}"], expected[copy::4])


def test_inputs() -> None:
    graph = from_json(
        [*NODES, {"id": 4, "op": "MOVC"}],
        [{"src": 1, "dst": 2}, {"src": 1, "dst": 3}, {"src": 2, "dst": 3}, {"src": 4, "dst": 3}],
    )
    kept = lower(graph, inputs="instructions")
    assert len(kept.instructions) == 4
    shared = lower(graph)
    assert [variable.id for variable in shared.variables] == ["1"]
    assert shared.instructions[1].operands[-1].constant is not None
    copied = lower(graph, inputs="copies")
    assert [variable.id for variable in copied.variables] == ["1@2", "1@3"]
    with pytest.raises(UsageError, match="variables, copies, instructions"):
        lower(graph, inputs="magic")  # type: ignore[arg-type]
    with pytest.raises(UsageError, match="found memory 'bogus', expected one of instructions, asynchronous"):
        lower(graph, memory="bogus")  # type: ignore[arg-type]


def star(readers: int, carried_by: int = 0) -> Dfg:
    instructions = [Instruction(id="u", op="add", operands=(Operand(instruction="r0", distance=1),) * (readers > 0))]
    instructions += [
        Instruction(id=f"r{at}", op="neg", operands=(Operand(instruction="u", distance=int(at < carried_by)),))
        for at in range(readers)
    ]
    return Dfg("star", tuple(instructions))


@given(st.integers(0, 40), st.integers(2, 5), st.integers(0, 3))
@settings(max_examples=60)
def test_relays(readers: int, limit: int, carried_by: int) -> None:
    """No value has too many consumers, the recurrence is no longer, and the numbers are the same."""
    graph = star(readers, min(carried_by, readers))
    relayed = relay_fan_out(graph, limit)
    consumers: dict[str, set[str]] = defaultdict(set)
    for each in relayed.instructions:
        for operand in each.operands:
            consumers[operand.instruction or ""].add(each.id)
    assert max(map(len, consumers.values()), default=0) <= limit
    if readers:
        assert "r0" in consumers["u"]
    before, after = (run_graph(lower(each, fan_out=0), {}, 4) for each in (graph, relayed))
    assert all(np.allclose(after[name], values) for name, values in before.items())


def test_relays_come_with_the_machine() -> None:
    assert len(lower(star(4)).instructions) == 5
    assert len(lower(star(5)).instructions) == 7
    assert len(lower(star(5), rules=Rules(siblings="none")).instructions) == 6
    with pytest.raises(UsageError, match="fan-out of 1"):
        lower(star(5), fan_out=1)


def test_fft_needs_a_power_of_two() -> None:
    assert len(kernels.fft(16, inputs=True).instructions) == 80
    with pytest.raises(UsageError, match="power of two"):
        kernels.fft(12)


def test_every_graph_of_the_suites_is_read(shared: Path) -> None:
    files = sorted((shared / "dfg").glob("*/*.json"))
    if not files:
        pytest.skip("needs the data-flow graphs in ../shared/dfg")
    for file in files:
        graph = read_json(file)
        problem = lower(graph, inputs="instructions")
        assert len(problem.instructions) >= len(graph.instructions) == len(json.loads(file.read_text())["nodes"])
