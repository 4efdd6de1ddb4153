"""Graphs of other tools: ops that no table knows, tables of one's own, constants by pattern."""

from __future__ import annotations

import json
from importlib import resources
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import stowplan
from stowplan.errors import InputError
from stowplan.frontends.dfg import Dfg, lower, read_dot, read_json
from stowplan.frontends.dfg.dot import parse_dot
from stowplan.frontends.dfg.graph import Reading, decode_json
from stowplan.frontends.dfg.op_table import OpTable, load_op_table
from stowplan.hardware.se import compare
from stowplan.hardware.se.machines import streaming_engine
from stowplan.models.modulo_scheduling import cpsat
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import GENERIC, Operand, Problem
from stowplan.models.modulo_scheduling.verify import verify
from tests.paths import EXAMPLES

HEAD = 'format = "stowplan.op_table"\nversion = 1\n'

#: A loop that sums a[i] * 3 + 240, as LLVM has it.
LLVM: dict[str, Any] = {
    "name": "sum",
    "nodes": [
        {"id": 0, "op": "phi"},
        {"id": 1, "op": "getelementptr"},
        {"id": 2, "op": "load"},
        {"id": 3, "op": "const_3"},
        {"id": 4, "op": "mul"},
        {"id": 5, "op": "const_240"},
        {"id": 6, "op": "add"},
        {"id": 7, "op": "icmp"},
        {"id": 8, "op": "br"},
    ],
    "edges": [
        {"src": 0, "dst": 1},
        {"src": 1, "dst": 2},
        {"src": 2, "dst": 4},
        {"src": 3, "dst": 4, "operand": 1},
        {"src": 4, "dst": 6},
        {"src": 5, "dst": 6, "operand": 1},
        {"src": 6, "dst": 0, "distance": 1},
        {"src": 6, "dst": 7},
        {"src": 7, "dst": 8},
    ],
}

#: As CGRA-ME and GenMap write theirs.
CGRA = """strict digraph {
    "INPUT_%10" [type=input];
    "op_%17" [type=op, opcode=SL];
    "1" [type=const, datatype=int, value=-7];
    const4[opcode=const, const_value=" 0x10"];
    "acc" [label="(12) φ"];
    "times" [label="×"];
    sum [label="%5 = add i32 %3, %4"];
    "INPUT_%10" -> "op_%17" [operand=0];
    "1" -> "op_%17" [operand=1];
    "op_%17" -> times; const4 -> times [operand=1];
    times -> sum -> acc; acc -> sum [distance=1];
    last [opcode=BSFA]; sum -> last [operand=0]; acc -> last [operand=1];
}"""


def from_json(graph: dict[str, Any], reading: Reading | None = None) -> Dfg:
    return decode_json(json.dumps(graph).encode(), source="g.json", reading=reading)


def renamed(graph: dict[str, Any], **ops: str) -> dict[str, Any]:
    """The graph, ops in place of others."""
    return graph | {"nodes": [each | {"op": ops.get(each["op"], each["op"])} for each in graph["nodes"]]}


def table_of(tmp_path: Path, text: str) -> OpTable:
    path = tmp_path / "ops.toml"
    path.write_text(HEAD + text)
    return load_op_table(path)


def solved(problem: Problem) -> Plan:
    """The best plan, verified and simulated."""
    plan = cpsat.solve(problem, time_limit=30).plan
    assert plan is not None
    assert verify(problem, plan).ok
    compare(problem, plan, 5)
    return plan


def test_llvm() -> None:
    graph = from_json(LLVM)
    ops = {each.id: (each.op, each.op_name) for each in graph.instructions}
    assert ops["0"] == ("merge", "phi")
    assert ops["1"] == ("generic:getelementptr", "getelementptr")
    assert ops["7"] == ("compare", "icmp")
    assert ops["6"] == ("add", "add")
    assert not graph.notes
    operands = {each.id: each.operands for each in graph.instructions}
    assert operands["4"] == (Operand(constant=3.0), Operand(instruction="2"))
    assert operands["6"] == (Operand(constant=240.0), Operand(instruction="4"))
    assert not {"3", "5"} & set(operands)
    solved(lower(graph, inputs="instructions"))


def test_cgra() -> None:
    graph = parse_dot(CGRA)
    ops = {each.id: (each.op, each.op_name) for each in graph.instructions}
    assert ops == {
        "INPUT_%10": ("input", "input"),
        "op_%17": ("shl", "SL"),
        "acc": ("merge", "φ"),
        "times": ("mul", "×"),
        "sum": ("add", "add"),
        "last": ("generic:bsfa", "BSFA"),
    }
    operands = {each.id: each.operands for each in graph.instructions}
    assert operands["op_%17"] == (Operand(instruction="INPUT_%10"), Operand(constant=-7.0))
    assert operands["times"][0] == Operand(constant=16.0)
    assert not graph.notes
    solved(lower(graph))


ISSUE = """
phi φ const_240 icmp getelementptr br zext sext trunc beq bsfa lshr ashr + × ld st select load store fadd
fmul udiv srem gep fcmp bitcast call ret CMERGE OLOADB MOVC LS ARS lod memr bge sel cat sr sra SADD LWI BZFA shrl
"""


def test_names_of_the_suites_are_known() -> None:
    table = load_op_table()
    assert [name for name in ISSUE.split() if table.find(name) is None] == []
    assert [name for name in ISSUE.split() if table.find(name.upper()) is None] == []
    assert table.find("warp") is None


@pytest.mark.parametrize(
    ("name", "op", "value"),
    [
        ("const_240", "constant", 240.0),
        ("CONST_-3", "constant", -3.0),
        ("const240", "constant", 240.0),
        ("constant 1.5e3", "constant", 1500.0),
        ("const_0xff", "constant", 255.0),
        ("const_N", "constant", None),
        ("const_1e999", "constant", None),
        ("i32 12", "constant", 12.0),
        ("icmp slt", "lt", None),
        ("fcmp oeq", "eq", None),
        ("llvm.fmuladd.f32", "madd", None),
        ("arith.addf", "add", None),
        ("constrain", None, None),
    ],
)
def test_patterns(name: str, op: str | None, value: float | None) -> None:
    found = load_op_table().find(name)
    assert (op, value) == (None, None) if found is None else (found.op, found.value) == (op, value)


def test_a_constant_that_something_leads_to_or_nothing_reads_stays() -> None:
    nodes = [{"id": "c", "op": "const_4"}, {"id": "a", "op": "add"}, {"id": "d", "op": "const_5"}]
    graph = from_json({"nodes": nodes, "edges": [{"src": "a", "dst": "c"}, {"src": "c", "dst": "a", "distance": 1}]})
    assert [each.id for each in graph.instructions] == ["c", "a", "d"]


def test_a_carried_value_may_share_an_operand() -> None:
    """As CGRA-ME has the counter of a loop; two values of one iteration may not."""
    one = 'const18[opcode=const, const_value=" 1"]; i[opcode=add]; i->i[operand=0]; const18->i[operand=0];'
    (counter,) = parse_dot(f"digraph g {{ {one} }}").instructions
    assert counter.operands == (Operand(instruction="i", distance=1), Operand(constant=1.0))
    with pytest.raises(InputError, match="two edges for one operand of 'i'"):
        parse_dot(f"digraph g {{ {one} x[opcode=load]; x->i[operand=0]; }}")


def test_the_value_of_a_constant_beside_its_op() -> None:
    nodes = [{"id": "c", "op": "CONST", "value": 7}, {"id": "a", "op": "neg"}]
    edges = [{"src": "c", "dst": "a"}]
    assert from_json({"nodes": nodes, "edges": edges}).instructions[0].operands == (Operand(constant=7.0),)
    with pytest.raises(InputError, match=r"g\.json: nodes\[0\]\.value: found a value of the op 'add', expected"):
        from_json({"nodes": [{"id": "c", "op": "add", "value": 7}], "edges": []})


def test_unknown_ops_are_generic_and_counted_once(tmp_path: Path) -> None:
    path = tmp_path / "g.json"
    path.write_text(json.dumps(renamed(LLVM, mul="warp", add="weft", icmp="warp")))
    problem = stowplan.read(path, "se", rules=["inputs=instructions"])
    assert problem.notes == (
        "3 instructions have ops that no op table knows, mapped as a generic operation: warp (2), weft (1)",
    )
    assert [each.op for each in problem.instructions if each.op_name == "warp"] == [f"{GENERIC}warp"] * 2
    result = stowplan.solve(problem, time_limit=20, gap=0.001)
    assert result.warnings == problem.notes
    compare(problem, result.plan)
    again = Problem.decode(msgspec.json.encode(problem))
    assert again == problem
    # Neither names nor notes are what a plan depends on.
    bare = msgspec.structs.replace(
        problem, notes=(), instructions=tuple(msgspec.structs.replace(each, source_op=None) for each in problem.instructions)
    )
    assert bare.digest == problem.digest


def test_the_warning_is_short() -> None:
    strange = [{"id": at, "op": f"\x1b[31mwarp{'x' * 5000}{at % 40}"} for at in range(60)]
    (note,) = from_json({"nodes": strange, "edges": []}).notes
    assert note.isprintable()
    assert len(note) < 500
    assert note.startswith("60 instructions")
    assert note.endswith("and 28 more ops")


@pytest.mark.parametrize("rules", [["strict=yes"], ["inputs=instructions", "strict=true"]])
def test_strict(tmp_path: Path, rules: list[str]) -> None:
    path = tmp_path / "g.json"
    path.write_text(json.dumps(renamed(LLVM, mul="muul")))
    with pytest.raises(InputError, match=r"nodes\[4\]: found the unknown op 'muul', expected perhaps mul; one of add"):
        stowplan.read(path, "se", rules=rules)
    path.write_text(json.dumps(LLVM))
    assert not stowplan.read(path, "se", rules=rules).notes
    dot = tmp_path / "g.dot"
    dot.write_text("digraph g {\n a [op=add]\n b [op=warp] }")
    with pytest.raises(InputError, match=r"line 3: found the unknown op 'warp'"):
        stowplan.read(dot, "se", rules=rules)


def test_what_makes_no_sense() -> None:
    strange = renamed(LLVM, mul="warp")
    with pytest.raises(InputError, match=r"edges\[0\]: found the node '99'"):
        from_json(strange | {"edges": [{"src": 0, "dst": 99}]})
    with pytest.raises(InputError, match=r"cycle .* without a distance"):
        lower(from_json(strange | {"edges": [{"src": 4, "dst": 6}, {"src": 6, "dst": 4}]}))


def test_a_table_of_ones_own(tmp_path: Path) -> None:
    table = table_of(
        tmp_path,
        """
        [[op]]
        names = ["warp"]
        meaning = "mul"
        class = "slow"

        [[op]]
        pattern = "vec\\\\.ld[0-9]+"
        meaning = "load"

        [[op]]
        names = ["mul"]
        latency = 5

        [[op]]
        names = ["fmul"]
        tiles = [3, 1]

        [[op]]
        pattern = "K(?P<value>[0-9]+)"
        meaning = "constant"

        [class.slow]
        latency = 9
        tiles = [2]

        [class.memory]
        tiles = [0, 4, 8, 12]

        [class.generic]
        latency = 7
        """,
    )
    found = {name: table.find(name) for name in ("warp", "VEC.LD12", "fmul", "mult", "st", "K17", "add")}
    # An op's own entry comes before the one of its meaning, and that before its class.
    assert [(each.op, each.latency, each.tiles) for each in found.values() if each] == [
        ("mul", 5, (2,)),
        ("load", None, (0, 4, 8, 12)),
        ("mul", 5, (1, 3)),
        ("mul", 5, None),
        ("store", None, (0, 4, 8, 12)),
        ("constant", None, None),
        ("add", None, None),
    ]
    assert found["K17"] is not None
    assert found["K17"].value == 17.0
    assert table.find("weft") is None
    assert table.generic("Weft").op == "generic:weft"
    assert table.generic("weft").latency == 7


def test_a_table_holds_in_plan_and_simulator(tmp_path: Path) -> None:
    path = tmp_path / "ops.toml"
    path.write_text(HEAD + '[[op]]\nnames = ["mul"]\nlatency = 11\n[class.memory]\ntiles = [4]\n')
    graph = tmp_path / "g.json"
    graph.write_text(json.dumps(LLVM))
    rules = ["inputs=instructions"]
    plain, tabled = stowplan.read(graph, "se", rules=rules), stowplan.read(graph, "se", rules=rules, op_table=path)
    one, two = solved(plain), solved(tabled)
    # The multiplication is on the recurrence.
    assert two.ii == one.ii + 8
    assert two.tiles[tabled.number["2"]] == 4
    assert plain.digest != tabled.digest


def test_relays_and_fused_instructions_cost_what_the_table_says(tmp_path: Path) -> None:
    path = tmp_path / "ops.toml"
    path.write_text(HEAD + '[[op]]\nnames = ["copy"]\nlatency = 1\n[[op]]\nnames = ["madd"]\nlatency = 6\n')
    graph = tmp_path / "g.json"
    nodes = [{"id": "p", "op": "mul"}, {"id": "s", "op": "add"}, *({"id": f"r{at}", "op": "neg"} for at in range(7))]
    edges = [{"src": "p", "dst": "s"}, *({"src": "s", "dst": f"r{at}"} for at in range(7))]
    nodes += [{"id": f"i{at}", "op": "load"} for at in range(3)]
    edges += [{"src": "i0", "dst": "p"}, {"src": "i1", "dst": "p"}, {"src": "i2", "dst": "s"}]
    graph.write_text(json.dumps({"nodes": nodes, "edges": edges}))
    problem = stowplan.read(graph, "se", rules=["fuse=yes"], op_table=path)
    costs = {each.op: each.latency for each in problem.instructions}
    assert costs == {"madd": 6, "neg": None, "copy": 1}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[op]]\nnames = ['x']\nlatency = 0\n", r"ops\.toml: op\[0\]\.latency: found latency 0, expected 1 to 1000 clocks"),
        ("[[op]]\nnames = ['x']\nmeaning = 'warp'\n", r"op\[0\]\.meaning: found 'warp', expected one of add, sub"),
        ("[[op]]\nnames = ['x']\npattern = 'y'\n", r"op\[0\]: expected either names or a pattern"),
        ("[[op]]\nlatency = 3\n", r"op\[0\]: expected either names or a pattern"),
        ("[[op]]\npattern = '('\n", r"op\[0\]\.pattern: found '\(', expected a regular expression"),
        ("[[op]]\nnames = ['x']\ntiles = [16]\n", r"ops\.toml: op\[0\]: found tile 16, expected 0 to 15"),
        ("[[op]]\nnames = ['x']\ntiles = []\n", r"op\[0\]\.tiles: expected one tile or more"),
        ("[[op]]\nnames = ['x']\n[[op]]\nnames = ['X']\n", r"op\[1\]\.names: found the op 'X' twice"),
        ("[class.memory]\ntiles = [-1]\n", r"class\.memory\.tiles: found tile -1"),
        ("[class.memory]\ncolour = 3\n", r"unknown field `colour`"),
        ("[[op]\n", r"ops\.toml: not a TOML file"),
        ("[[op]]\nnames = 3\n", r"op\[0\]\.names"),
    ],
)
def test_bad_tables(tmp_path: Path, text: str, message: str) -> None:
    path, graph = tmp_path / "ops.toml", tmp_path / "g.json"
    path.write_text(HEAD + text)
    graph.write_text(json.dumps(LLVM))
    with pytest.raises(InputError, match=message) as caught:
        stowplan.read(graph, "se", op_table=path)
    assert "\n" not in str(caught.value)


def test_a_table_of_another_format_or_none(tmp_path: Path) -> None:
    path = tmp_path / "ops.toml"
    path.write_text('[[op]]\nnames = ["x"]\n')
    with pytest.raises(InputError, match=r"ops\.toml: format: found None, expected 'stowplan.op_table'"):
        load_op_table(path)
    with pytest.raises(InputError, match="cannot read"):
        load_op_table(tmp_path / "nothing.toml")


def test_the_tables_come_with_the_package() -> None:
    folder = resources.files("stowplan.frontends.dfg")
    assert {entry.name for entry in folder.iterdir() if entry.name.endswith(".toml")} == {"own.toml", "llvm.toml", "cgra.toml"}


@pytest.mark.parametrize(
    ("statement", "op"),
    [
        ('a [label="mul\\n12"]', "mul"),
        ('a [label="{add|<s0>T}"]', "add"),
        ('a [label="(12) fadd_3"]', "add"),
        ('a [label="x + y"]', "add"),
        ('a [label="%7 = icmp slt i32 %2, 10"]', "compare"),
        ('a [label="warp_3"]', "generic:warp"),
        ("mul7", "mul"),
        ("warp7", "generic:warp"),
        ("12", "generic:12"),
        ('a [label="12"]', "generic:a"),
    ],
)
def test_ops_of_dot_nodes(statement: str, op: str) -> None:
    assert [each.op for each in parse_dot(f"digraph g {{ {statement} }}").instructions] == [op]


@given(st.integers(0, 1000), st.integers(3, 9), st.data())
@settings(max_examples=12)
def test_renaming_leaves_the_interval(seed: int, count: int, data: st.DataObject) -> None:
    """Any op may be called what nobody knows: the schedule depends on operands only."""
    names = ["add", "mul", "sub", "phi", "icmp"]
    ops = [data.draw(st.sampled_from(names)) for _ in range(count)]
    edges = [
        {"src": data.draw(st.integers(0, at - 1)), "dst": at, "distance": data.draw(st.integers(0, 1))}
        for at in range(1, count)
    ]
    edges.append({"src": count - 1, "dst": 0, "distance": data.draw(st.integers(1, 2))})
    machine = streaming_engine(4)

    def interval(called: list[str]) -> int:
        nodes = [{"id": at, "op": op} for at, op in enumerate(called)]
        problem = lower(from_json({"nodes": nodes, "edges": edges}), machine)
        outcome = cpsat.solve(problem, time_limit=30)
        assert outcome.plan is not None
        return outcome.plan.ii

    hidden = [op if data.draw(st.booleans()) else f"{op}{seed}.foreign" for op in ops]
    assert interval(ops) == interval(hidden)


def test_every_graph_of_the_suites_without_its_names(shared: Path) -> None:
    """Raw names are known; names that nobody knows make the same graph."""
    files = sorted((shared / "dfg").glob("*/*.json"))
    if not files:
        pytest.skip("needs the data-flow graphs in ../shared/dfg")
    for file in files:
        graph = read_json(file, Reading(strict=True))
        given = json.loads(file.read_text())
        strange = given | {"nodes": [each | {"op": f"{each['op']}.foreign"} for each in given["nodes"]]}
        hidden = from_json({key: value for key, value in strange.items() if key in ("nodes", "edges")})
        assert [each.operands for each in hidden.instructions] == [each.operands for each in graph.instructions]
        assert hidden.notes[0].startswith(f"{len(given['nodes'])} instruction")
        lower(hidden, inputs="instructions")


def test_the_example_is_read_with_its_table() -> None:
    path = EXAMPLES / "dot_product.llvm.dot"
    assert read_dot(path).notes
    table = load_op_table(EXAMPLES / "dot_product.ops.toml")
    graph = read_dot(path, Reading(table, strict=True))
    assert not graph.notes
    solved(lower(graph, inputs="instructions", table=table))
