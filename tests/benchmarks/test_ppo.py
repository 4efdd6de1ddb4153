"""Runs of ``benchmarks/ppo/paper.py`` in their settings, and the tables of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

import benchmarks.ppo.paper
import benchmarks.ppo.runs
import benchmarks.ppo.tables
from stowplan.hardware.se import streaming_engine
from stowplan.models.modulo_scheduling.plan import encode_objective
from tests.paths import EXAMPLES


@pytest.fixture(autouse=True)
def cold(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing here is timed, so nothing need be compiled before."""
    monkeypatch.setattr(benchmarks.ppo.runs, "_warm_up", lambda: None)


@pytest.fixture
def graphs(tmp_path: Path) -> Path:
    """A suite of three graphs; the diamond has ways of two lengths, which takes delays."""
    suite = tmp_path / "graphs" / "suite"
    suite.mkdir(parents=True)
    (suite / "saxpy.json").write_bytes((EXAMPLES / "saxpy.dfg.json").read_bytes())
    (suite / "chain.dot").write_text("digraph { a [op=add]; b [op=add]; a -> b }")
    (suite / "diamond.dot").write_text("digraph { a [op=add]; b [op=add]; c [op=add]; a -> b; b -> c; a -> c }")
    return suite.parent


def made(ran: Any, method: str = "ppo", **changes: Any) -> Any:
    """A made-up run."""
    values = {
        "method": method, "suite": "suite", "graph": "chain", "digest": "d", "instructions": 2, "seed": 0, "evaluations": 64,
        "seconds": 1.0, "progress": [(8, 0.1, encode_objective(ran, 12))] if ran else [], "least": 1, "path": 10,
    }  # fmt: skip
    return benchmarks.ppo.runs.Run(**{**values, **changes})


def run(graphs: Path, *options: str) -> list[str]:
    """Names of the files that a command leaves."""
    folder = graphs.parent / "runs"
    assert benchmarks.ppo.paper.main(["run", str(graphs), "--folder", str(folder), "--seeds", "1", *options]) == 0
    return sorted(path.name for path in folder.iterdir())


def test_settings_lie_side_by_side_and_old_names_stay(graphs: Path, capsys: pytest.CaptureFixture[str]) -> None:
    only = ("--only", "chain", "--method", "list")
    machine = graphs.parent / "se-8.json"
    machine.write_bytes(msgspec.json.encode(streaming_engine(8)))
    (first,) = run(graphs, *only)
    assert first.startswith("list-")
    assert first.endswith("-0-64.json")
    for more in (["--machine", "mesh-4x4"], ["--machine", str(machine)], ["--max-delay", "0"], ["--max-delay", "unlimited"]):
        names = run(graphs, *only, *more)
    assert len(names) == 4
    names = run(graphs, *only, "--first", "latency")
    assert sum(name.endswith("-0-64-latency.json") for name in names) == 1
    names = run(graphs, *only, "--seconds", "0.05", "--repair")
    assert sum(name.endswith("-0-0.05s-repair.json") for name in names) == 1
    runs = benchmarks.ppo.runs.load(graphs.parent / "runs")
    for setting in ({}, {"machine": "mesh-4x4"}, {"machine": str(machine)}, {"max_delay": 0}, {"first": "latency"}):
        assert len([each for each in runs if benchmarks.ppo.runs.Setting(**setting).covers(each)]) == 1
    capsys.readouterr()
    options = ["tables", "--folder", str(graphs.parent / "runs"), "--as", "row"]
    assert benchmarks.ppo.paper.main([*options, "--seconds", "0.05", "--repair"]) == 0
    assert "| suite | chain | 2 | 1 | 1 |" in capsys.readouterr().out
    assert benchmarks.ppo.paper.main([*options, "--first", "latency"]) == 0
    # At an interval of 2 both stand on one tile, which saves the clock of a link.
    assert "| list | 100% | 1.000 | 2.000 |" in capsys.readouterr().out


def test_runs_from_before_there_were_settings() -> None:
    runs = benchmarks.ppo.runs
    known = msgspec.to_builtins(made(2))
    old = {name: known[name] for name in runs.Run.__struct_fields__[:10]}
    found = msgspec.convert(old, runs.Run)
    assert runs.Setting().covers(found)
    assert not runs.Setting(machine="mesh-4x4").covers(found)
    assert not runs.Setting(least=2).covers(found)
    assert not runs.Setting(seconds=1.0).covers(found)
    assert found.best() == (2, 12)


def test_graphs_by_size_and_limits_on_delays(graphs: Path) -> None:
    def names(**setting: Any) -> set[str]:
        found = benchmarks.ppo.runs.Setting(**setting).graphs(graphs)
        return {name for suite, name, _ in found if suite != "kernels"}

    assert names() == {"chain", "diamond", "saxpy"}
    assert names(least=2, most=4) == {"diamond"}
    assert "diamond" not in names(max_delay=0)
    assert "chain" in names(max_delay=0)
    files = run(graphs, "--method", "list", "--count", "2")
    assert len(files) == 2


def test_the_latency_first(graphs: Path) -> None:
    runs = benchmarks.ppo.runs
    setting = runs.Setting(first="latency", only=("saxpy",))
    ((_, _, problem),) = setting.graphs(graphs)
    _, ordinary = runs.play("list", problem, 0, runs.Setting())
    for method in ("list", "uniform"):
        evaluations, found = runs.play(method, problem, 0, setting)
        assert evaluations >= (64 if method == "uniform" else 1)
        own = made(None, progress=found, first="latency").best()
        assert own[1] <= made(None, progress=ordinary).best()[1]
    reversed_ones = [(8, 0.1, encode_objective(20, 3)), (9, 0.2, encode_objective(18, 5))]
    assert made(None, progress=reversed_ones, first="latency").best() == (5, 18)
    assert made(None, progress=reversed_ones, first="latency").best(evaluations=8) == (3, 20)


def test_processor_seconds_are_a_limit() -> None:
    late = made(None, limit=5.0, progress=[(8, 1.0, encode_objective(4, 9)), (9, 6.0, encode_objective(3, 9))])
    assert late.ii() == 4
    runs = [late, made(None, limit=5.0, seed=1), made(None, "search", limit=5.0)]
    (row,) = benchmarks.ppo.tables.by_graph(runs).splitlines()[2:]
    assert row == "| suite | chain | 2 | 1 | 4, none of 1 seeds | none |"


def test_seeds_of_a_training_share_a_row() -> None:
    runs = [made(ii, f"small@{seed}") for seed, ii in ((5, 1), (6, 2))]
    rows = benchmarks.ppo.tables.by_budget(runs, {"d": 1}, "evaluations", [64]).splitlines()[2:]
    assert rows == ["| small | 100% | 100% | 50% (0–100) |"]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        (["--method", "tuned"], "found the method 'tuned', expected one of reference, list"),
        (["--method", "random", "--first", "latency"], "found random with --first latency"),
        (["--seconds", "1", "--first", "latency"], "--first latency with --seconds"),
        (["--machine", "mesh-9x9"], "found machine 'mesh-9x9', expected one of"),
    ],
)
def test_what_does_not_go_together(graphs: Path, options: list[str], expected: str, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["run", str(graphs), "--folder", str(graphs.parent / "runs"), *options]
    assert benchmarks.ppo.paper.main(command) == 2
    assert expected in capsys.readouterr().err
    assert not list(graphs.parent.glob("runs/*"))
