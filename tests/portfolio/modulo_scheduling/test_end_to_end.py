"""Graphs on the command line and from Python: solve, verify, show, simulate, convert, batch, and what goes wrong."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

import stowplan
from stowplan import files
from stowplan.errors import InputError, UsageError
from stowplan.frontends.dfg import LoopOptions, parse_rules
from stowplan.hardware.se import compare
from stowplan.hardware.se import configuration as configurations
from stowplan.models.modulo_scheduling.problem import Rules
from tests.cli.conftest import Cli, cli
from tests.paths import EXAMPLES

#: A fixture for the tests here.
__all__ = ["cli"]

FIR = EXAMPLES / "fir.dfg.json"
SE = ["--target", "se"]


def chain(path: Path, count: int = 4, **changes: Any) -> Path:
    """A file with a chain of additions."""
    nodes = [{"id": f"n{number}", "op": "add"} for number in range(count)]
    edges = [{"src": f"n{number}", "dst": f"n{number + 1}"} for number in range(count - 1)]
    path.write_text(json.dumps({"name": path.stem, "nodes": nodes, "edges": edges, **changes}))
    return path


def test_from_a_graph_to_tables_and_a_picture(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install '.[viz]'")
    plan, config, picture = tmp_path / "plan.json", tmp_path / "config.json", tmp_path / "plan.png"
    outputs = ["-o", plan, "--emit", f"config={config}", "--png", picture]
    code, out, _ = cli("solve", FIR, *SE, *outputs, "--time-limit", 30, "--json", "-q")
    result = json.loads(out)
    assert (code, result["status"], result["kind"]) == (0, "optimal", "modulo_scheduling")
    details = result["details"]
    assert (details["mii"], details["mii_resources"], details["mii_recurrences"]) == (3, 3, 3)
    assert (details["ii"], details["latency"]) == divmod(result["objective"], 1_000_000) == (3, 24)
    assert details["ii_is_minimal"]
    assert (details["ii_bound"], details["latency_bound"]) == (3, 24)
    assert result["baseline_name"] == "list"
    assert picture.read_bytes().startswith(b"\x89PNG")
    tables = configurations.Configuration.load(config)
    assert tables.ii == 3
    assert sum(len(tile.instructions) for tile in tables.tiles) == details["instructions"]
    # The plan names its machine; nothing else need be said.
    assert cli("verify", FIR, plan)[:2] == (0, "valid: II 3, latency 24\n")
    code, out, _ = cli("show", plan, FIR)
    assert code == 0
    assert "MII 3 (resources 3, recurrences 3)" in out
    assert "master input" in out
    assert "alpha" in out
    code, out, _ = cli("show", plan, FIR, "--simulate", 6)
    assert (code, out) == (
        0,
        f"simulated 6 iterations in 39 clocks: all {6 * details['instructions']} results are those of NumPy\n",
    )
    code, out, _ = cli("show", plan, FIR, "--json")
    assert code == 0
    assert msgspec.json.decode(out, type=configurations.Configuration) == tables
    code, _, err = cli("show", plan, FIR, "--png", tmp_path / "again.svg")
    assert (code, err) == (0, f"{tmp_path / 'again.svg'}\n")
    assert cli("verify", FIR, plan, "--emit", f"config={tmp_path / 'again.json'}")[0] == 0
    assert (tmp_path / "again.json").read_bytes() == config.read_bytes()
    # Under other rules it is a plan for another problem.
    assert cli("verify", FIR, plan, "--set", "max_delay=0")[0] == 4
    code, _, err = cli("show", plan, FIR, "--set", "inputs=copies")
    assert (code, err.count("\n")) == (4, 1)
    assert "wrong_problem" in err


def test_memory_over_the_asynchronous_fabric(cli: Cli, tmp_path: Path) -> None:
    plan, graph = tmp_path / "plan.json", EXAMPLES / "saxpy.dfg.json"
    rule = ("--set", "memory=asynchronous")
    code, out, _ = cli("solve", graph, *SE, *rule, "-o", plan, "--time-limit", 30, "--json", "-q")
    details = json.loads(out)["details"]
    assert (code, details["ii"], details["ii_is_minimal"]) == (0, 3, True)
    assert (details["flows"], details["memory_accesses"]) == (2, 3)
    assert cli("verify", graph, plan, *rule)[0] == 0
    code, out, _ = cli("show", plan, graph, *rule, "--simulate", 9)
    assert (code, "with random latencies of the asynchronous fabric" in out) == (0, True)
    assert f"in {8 * 3 + details['latency']} clocks: all 63 results" in out
    # Without the rule loads are instructions: another problem.
    assert cli("verify", graph, plan)[0] == 4
    code, _, err = cli("solve", graph, "--target", "mesh-4x4", *rule)
    assert (code, err.count("\n")) == (2, 1)
    assert "mesh-4x4 has no memory interfaces" in err


def test_a_spoilt_plan_is_not_shown(cli: Cli, tmp_path: Path) -> None:
    plan = tmp_path / "plan.json"
    graph = chain(tmp_path / "g.json")
    assert cli("solve", graph, *SE, "-o", plan, "--candidates", "heuristic", "--time-limit", 3, "-q", "--gap", 0.5)[0] == 0
    content = json.loads(plan.read_text())
    content["tiles"][0] = (content["tiles"][0] + 7) % 16
    plan.write_text(json.dumps(content))
    code, out, err = cli("show", plan, graph)
    assert (code, out) == (4, "")
    assert "broken_route" in err


def test_summary_says_what_is_proven(cli: Cli, tmp_path: Path) -> None:
    code, out, err = cli("solve", chain(tmp_path / "chain.json"), *SE, "--time-limit", 20)
    assert code == 0
    assert out.startswith("chain on se (initiation interval, then latency, in clocks)\n")
    assert "objective  II 1, latency 15  (verified, by " in out
    assert "interval   II 1 is minimal (proven), latency 15 is minimal at it (proven)" in out
    assert "II 1, latency 15" in err


def test_dot_and_other_machines(cli: Cli, tmp_path: Path) -> None:
    graph = tmp_path / "kernel.dot"
    graph.write_text("digraph k { a [op=load]; b [op=mul]; c [op=add]; a -> b; b -> c; c -> c [distance=1] }")
    plan = tmp_path / "plan.json"
    for target, rule in (("torus-3x3", "inputs=instructions"), ("se-latency-4", "fuse=yes")):
        code, out, _ = cli("solve", graph, "--target", target, "--set", rule, "-o", plan, "--json", "-q", "--time-limit", 20)
        assert (code, json.loads(out)["status"]) == (0, "optimal")
        assert cli("show", plan, graph, "--set", rule, "--simulate", 5)[0] == 0
    machine = tmp_path / "mine.toml"
    machine.write_text(
        'name = "mine"\nrows = 1\ncolumns = 3\nlatency = 2\nlinks = [{ name = "right", rows = 0, columns = 1 }]\n'
    )
    code, out, _ = cli("solve", graph, "--target", machine, "-o", plan, "--json", "-q", "--time-limit", 20)
    assert (code, json.loads(out)["provenance"]["target"]) == (0, "mine")
    assert cli("verify", graph, plan, "--target", machine)[0] == 0


def test_fixed_instructions(cli: Cli, tmp_path: Path) -> None:
    graph = chain(tmp_path / "g.json", fixed=[{"instruction": "n0", "tile": 5}, {"instruction": "n3", "time": 30}])
    fixed = tmp_path / "fixed.json"
    fixed.write_text('[{"instruction": "n0", "tile": 2, "slot": 0}]')
    plan = tmp_path / "plan.json"
    assert cli("solve", graph, *SE, "-o", plan, "-q", "--time-limit", 20)[0] == 0
    content = json.loads(plan.read_text())
    assert (content["tiles"][0], content["times"][3]) == (5, 30)
    assert cli("solve", graph, *SE, "--set", f"fixed={fixed}", "-o", plan, "-q", "--time-limit", 20)[0] == 0
    content = json.loads(plan.read_text())
    assert (content["tiles"][0], content["slots"][0], content["times"][3]) == (2, 0, 30)
    assert cli("verify", graph, plan, "--set", f"fixed={fixed}")[0] == 0
    # Of a converted problem, fixed instructions are what may still be changed.
    problem = tmp_path / "problem.json"
    assert cli("convert", graph, *SE, "-o", problem)[::2] == (0, f"{problem}: 4 instructions, 3 edges\n")
    assert cli("solve", problem, "--set", f"fixed={fixed}", "-q", "--time-limit", 20, "-o", plan)[0] == 0
    assert json.loads(plan.read_text())["tiles"][0] == 2


INFEASIBLE = {
    "no links": ("rows = 4\nlinks = []\n", "n0 has 2 consumers that need different tiles, a tile reaches 1"),
    "too few slots": ("rows = 1\nspoke_depth = 2\nlinks = []\n", "5 instructions, but 1 tiles have 2 slots each, 2 in all"),
}


@pytest.mark.parametrize("case", INFEASIBLE)
def test_infeasible_machines(cli: Cli, tmp_path: Path, case: str) -> None:
    text, reason = INFEASIBLE[case]
    machine = tmp_path / "small.toml"
    machine.write_text(f'name = "small"\n{text}')
    graph = chain(tmp_path / "g.json", 5, edges=[{"src": "n0", "dst": "n1"}, {"src": "n0", "dst": "n2"}])
    code, out, _ = cli("solve", graph, "--target", machine, "-q", "--time-limit", 20)
    assert code == 1
    (line,) = [line for line in out.splitlines() if "because" in line]
    assert reason in line


NODES = [{"id": "a", "op": "add"}, {"id": "b", "op": "add"}]
BAD: dict[str, tuple[dict[str, Any], str]] = {
    "edge to nowhere": ({"nodes": NODES, "edges": [{"src": "a", "dst": "c"}]}, "edges[0]: found the node 'c'"),
    "cycle": (
        {"nodes": NODES, "edges": [{"src": "a", "dst": "b"}, {"src": "b", "dst": "a"}]},
        "instructions[1] (b): found the cycle b -> a -> b without a distance",
    ),
    "pairs": ({"nodes": NODES, "edges": [[0, 1]]}, "edges[0]: found a list, expected an object"),
    "no edges": ({"nodes": NODES}, "edges: found nothing, expected a list"),
    "fixed nobody": ({"nodes": NODES, "edges": [], "fixed": [{"instruction": "c"}]}, "pins[0] (c): found the instruction 'c'"),
    "fixed nowhere": (
        {"nodes": NODES, "edges": [], "fixed": [{"instruction": "a", "tile": 16}]},
        "pins[0] (a): found tile 16, expected 0 to 15",
    ),
    "fixed how": ({"nodes": NODES, "edges": [], "fixed": [{"instruction": "a", "at": 1}]}, "fixed[0]: Object contains unknown"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_graphs(cli: Cli, tmp_path: Path, case: str) -> None:
    content, expected = BAD[case]
    path = tmp_path / "bad.json"
    path.write_text(json.dumps(content))
    code, out, err = cli("solve", path, *SE)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"stowplan: {path}: ")
    assert expected in err


def test_bad_files(cli: Cli, tmp_path: Path) -> None:
    cut = tmp_path / "cut.json"
    cut.write_text('{"nodes": [')
    dot = tmp_path / "bad.dot"
    dot.write_text("digraph {\n a -> b [distance=x]\n}")
    fixed = tmp_path / "fixed.json"
    fixed.write_text('[{"instruction": 3}]')
    for arguments, expected in (
        ([cut, *SE], f"{cut}: "),
        ([dot, *SE], f"{dot}: line 2: found distance 'x'"),
        ([FIR, *SE, "--set", f"fixed={fixed}"], f"{fixed}: [0].instruction: Expected `str`, got `int`"),
        ([FIR, *SE, "--set", f"fixed={tmp_path / 'none.json'}"], "none.json: cannot read"),
    ):
        code, out, err = cli("solve", *arguments)
        assert (code, out, err.count("\n")) == (2, "", 1)
        assert expected in err


BAD_OPTIONS = {
    "no target": ([FIR], "is a data-flow graph: name a target such as se (a tile and a time"),
    "unknown machine": ([FIR, "--target", "tpu-v4"], "found machine 'tpu-v4', expected one of adres-4x4"),
    "rule": ([FIR, *SE, "--set", "speed=3"], "--set: found 'speed', expected one of hint_program, "),
    "value": ([FIR, *SE, "--set", "siblings=all"], "rule: found siblings 'all', expected one of consumers"),
    "number": ([FIR, *SE, "--set", "max_delay=-1"], "rule: found max_delay '-1', expected a number"),
    "flag": ([FIR, *SE, "--set", "pass_through=perhaps"], "rule: found pass_through 'perhaps', expected yes or no"),
    "capacity": (
        [FIR, *SE, "--capacity", 5],
        "is a data-flow graph: it takes --target, --set RULE=VALUE, fixed, op_table, but not",
    ),
    "candidate": ([FIR, *SE, "--candidates", "annealing"], "found candidate 'annealing', expected some of cpsat"),
}


@pytest.mark.parametrize("case", BAD_OPTIONS)
def test_bad_options(cli: Cli, case: str) -> None:
    arguments, expected = BAD_OPTIONS[case]
    code, out, err = cli("solve", *arguments)
    # Where a target is missing, the line to type follows.
    assert (code, out, err.count("\n")) == (2, "", 1 + (case == "no target"))
    assert expected in err


def test_rules_are_for_graphs(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "buffers.csv"
    path.write_text("id,lower,upper,size\na,0,1,5\n")
    code, _, err = cli("solve", path, "--set", "max_delay=1")
    assert (code, err.count("\n")) == (2, 1)
    code, _, err = cli("solve", path, "--emit", f"config={tmp_path / 'config.json'}")
    assert (code, err.count("\n")) == (2, 1)
    assert "--emit config" in err


def test_batch(cli: Cli, tmp_path: Path) -> None:
    chain(tmp_path / "one.json")
    (tmp_path / "two.dot").write_text("digraph { a [op=add]; b [op=add]; a -> b }")
    options = ["--candidates", "cpsat", "--set", "max_delay=2", "-q", "--time-limit", 20]
    code, out, err = cli("batch", tmp_path, "-o", tmp_path / "out", *SE, *options)
    assert code == 0, err
    assert "2 of 2 solved" in out
    record = json.loads((tmp_path / "out" / "one.result.json").read_text())
    assert record["result"]["details"]["ii_is_minimal"]
    assert "is finished" not in err


def test_plans_made_for_the_long_name_stay_valid(cli: Cli, tmp_path: Path) -> None:
    """The digest knows no names; pictures and messages say ``se``."""
    graph, plan, old = chain(tmp_path / "chain.json"), tmp_path / "plan.json", tmp_path / "old.json"
    code, out, _ = cli("solve", graph, "--target", "streaming-engine", "--time-limit", 20, "--candidates", "cpsat", "-o", plan)
    assert code == 0
    assert out.startswith("chain on se (")
    assert json.loads(plan.read_text())["target"] == "se"
    problem = stowplan.read(graph, "se")
    content = files.encode(problem).decode().replace('"name": "se"', '"name": "streaming-engine"')
    assert "streaming-engine" in content
    old.write_text(content)
    assert stowplan.read(old).digest == problem.digest
    plan.write_text(plan.read_text().replace('"target": "se"', '"target": "streaming-engine"'))
    for source, target in ((old, ()), (graph, SE), (graph, ("--target", "streaming-engine"))):
        assert cli("verify", source, plan, *target)[0] == 0


def test_targets(cli: Cli) -> None:
    code, out, _ = cli("targets")
    assert code == 0
    assert "se            16 tiles, instruction latency 3 clocks  Streaming Engine" in out
    assert "streaming-engine is another name of this target" in out


def test_from_python() -> None:
    problem = stowplan.read(FIR, "se", rules=["max_delay=4", "inputs=instructions"])
    result = stowplan.solve(problem, time_limit=20, candidates="search", gap=0.5)
    assert result.verified
    assert max(result.plan.delays) <= 4
    compare(problem, result.plan, 6)
    assert parse_rules(["max_delay=4", "inputs=instructions"]) == LoopOptions(rules=Rules(max_delay=4), inputs="instructions")
    with pytest.raises(UsageError, match="found inputs 'guess'"):
        stowplan.read(FIR, "se", rules=["inputs=guess"])
    with pytest.raises(InputError, match=r"expected one of .*, mesh-2x2, .*; perhaps se$"):
        stowplan.read(FIR, "sea")


def test_deterministic_runs_are_alike() -> None:
    problem = stowplan.read(FIR, "se", rules=["inputs=instructions"])
    results = [stowplan.solve(problem, time_limit=2, deterministic=True, seed=3, workers=workers) for workers in (1, 2)]
    assert results[0].plan == results[1].plan
    assert results[0].stop_reason == results[1].stop_reason
