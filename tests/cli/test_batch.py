"""Suites of inputs: a target for each kind, what is finished is skipped, what fails is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import EXAMPLES, Cli, error_line

#: A module from before XLA's optimisations, so for banks; and the same one scheduled.
GRAPH = """HloModule tiny, entry_computation_layout={(f32[8,8]{1,0})->f32[8,8]{1,0}}

ENTRY main {
  x = f32[8,8]{1,0} parameter(0)
  t = f32[8,8]{1,0} transpose(x), dimensions={1,0}
  ROOT y = f32[8,8]{1,0} add(x, t)
}
"""
LAYER = {"op": "fc", "ofm": [1, 1, 64], "ofm_elems": 64, "ifm_elems": 64, "weight_elems": 4096, "macs": 4096}
NETWORK = {"nodes": [{"id": 0, "name": "a", **LAYER}, {"id": 1, "name": "b", **LAYER}], "edges": [[0, 1]]}
#: Every kind has it, and it compiles nothing.
BRIEF = ("--candidates", "cpsat", "-q", "--time-limit", 20)


def record(folder: Path, name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((folder / f"{name}.result.json").read_text())
    return found


@pytest.fixture
def suite(tmp_path: Path) -> Path:
    """An input of every kind."""
    folder = tmp_path / "suite"
    folder.mkdir()
    (folder / "buffers.csv").write_text("id,lower,upper,size\na,0,2,5\nb,1,3,4\n")
    (folder / "graph.hlo").write_text(GRAPH)
    (folder / "scheduled.hlo").write_text(GRAPH.replace("tiny,", "tiny, is_scheduled=true,"))
    (folder / "network.json").write_text(json.dumps(NETWORK))
    (folder / "loop.dot").write_text("digraph { a [op=add]; b [op=add]; a -> b }")
    return folder


def test_every_kind_gets_its_target(cli: Cli, suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    targets = [word for name in ("teaching", "nnp-i", "se", "inferentia") for word in ("--target", name)]
    outcome = cli("batch", suite, "-o", out, *targets, *BRIEF)
    assert outcome.code == 0, (outcome, [record(out, path.stem).get("error") for path in suite.iterdir()])
    assert "5 of 5 solved" in outcome.out
    formats = {path.name.partition(".")[0]: json.loads(path.read_text())["format"] for path in out.glob("*.plan.json")}
    assert formats == {
        "buffers": "stowplan.packing.plan",
        "graph": "stowplan.bank_mapping.plan",
        "scheduled": "stowplan.memory_mapping.plan",
        "network": "stowplan.tier_placement.plan",
        "loop": "stowplan.modulo_scheduling.plan",
    }
    assert record(out, "loop")["settings"]["target"] == ["teaching", "nnp-i", "se", "inferentia"]


def test_a_target_is_used_only_for_its_kind(cli: Cli, suite: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    outcome = cli("batch", suite / "network.json", suite / "buffers.csv", "-o", out, "--target", "se", *BRIEF)
    assert outcome.code == 2
    assert "1 of 2 solved" in outcome.out
    assert "network.json is a network: name a target such as nnp-i" in outcome.out


@pytest.mark.parametrize(
    ("targets", "expected"),
    [
        (
            ("teaching", "tpu-v4"),
            "found targets teaching and tpu-v4, expected one for each kind of input: both are for compiled",
        ),
        (("se", "streaming-engine"), "both are for data-flow graphs"),
        (("se", "tpu-v9"), "found target 'tpu-v9', expected one of "),
    ],
)
def test_targets_that_cannot_be(cli: Cli, suite: Path, tmp_path: Path, targets: tuple[str, ...], expected: str) -> None:
    words = [word for name in targets for word in ("--target", name)]
    assert expected in error_line(cli("batch", suite, "-o", tmp_path / "out", *words, *BRIEF))
    assert not (tmp_path / "out").exists()


def onnx_model(path: Path) -> Path:
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")
    helper, kinds = onnx.helper, onnx.TensorProto
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Relu", ["p"], ["y"])]
    weights = [helper.make_tensor("w", kinds.FLOAT, (4, 4), [0.0] * 16)]
    ends = [helper.make_tensor_value_info(name, kinds.FLOAT, (4, 4)) for name in ("x", "y")]
    graph = helper.make_graph(nodes, "g", ends[:1], ends[1:], weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def test_options_of_networks(cli: Cli, suite: Path, tmp_path: Path) -> None:
    """A granularity is for ONNX models, address spaces are for all networks; other inputs stand beside them."""
    onnx_model(suite / "model.onnx")
    out = tmp_path / "out"
    inputs = [suite / name for name in ("model.onnx", "network.json", "buffers.csv")]
    options = ("--target", "nnp-i", "--set", "granularity=fine", "--set", "address_spaces=yes", *BRIEF)
    outcome = cli("batch", *inputs, "-o", out, *options)
    assert outcome.code == 0, outcome
    coarse = cli("batch", *inputs, "-o", tmp_path / "coarse", "--target", "nnp-i", "--set", "granularity=layer", *BRIEF)
    assert coarse.code == 0, coarse
    fine, plain = (
        {name: json.loads((folder / f"{name}.plan.json").read_text()) for name in ("network", "model.onnx")}
        for folder in (out, tmp_path / "coarse")
    )
    assert fine["network"]["weight_offsets"]
    assert not plain["network"]["weight_offsets"]
    # Each operation of the model is a layer of its own, in place of one for both.
    assert (len(fine["model.onnx"]["weight_tiers"]), len(plain["model.onnx"]["weight_tiers"])) == (2, 1)


def test_a_model_that_two_targets_take(cli: Cli, tmp_path: Path) -> None:
    model, out = onnx_model(tmp_path / "model.onnx"), tmp_path / "out"
    outcome = cli("batch", model, "-o", out, "--target", "nnp-i", "--target", "inferentia", *BRIEF)
    assert outcome.code == 2
    assert "both nnp-i and inferentia take it" in outcome.out
    assert cli("batch", model, "-o", out, "--target", "inferentia", "--set", "precision=fp16", *BRIEF).code == 0


def test_what_is_finished_is_skipped(cli: Cli, suite: Path, tmp_path: Path) -> None:
    out, options = tmp_path / "out", ("--candidates", "cpsat", "--time-limit", 20)
    (suite / "broken.csv").write_text("id,lower\n")
    inputs = (suite / "buffers.csv", suite / "broken.csv")
    first = cli("batch", *inputs, "-o", out, *options)
    assert (first.code, "finished before" in first.err) == (2, False)
    assert "1 of 2 solved" in first.out
    assert "broken.csv" in first.out
    again = cli("batch", *inputs, "-o", out, *options)
    assert again.err.count("finished before") == 1
    assert again.code == 2
    # Other settings are another run, and a plan that is gone must be found again.
    assert "finished before" not in cli("batch", *inputs, "-o", out, *options, "--seed", 1).err
    (out / "buffers.plan.json").unlink()
    assert "finished before" not in cli("batch", *inputs, "-o", out, *options, "--seed", 1).err
    assert (out / "buffers.plan.json").exists()
    assert "finished before" not in cli("batch", *inputs, "-o", out, *options, "--seed", 1, "--fresh").err


def test_one_target_is_recorded_as_before(cli: Cli, tmp_path: Path) -> None:
    """Records of earlier versions have one target as text: what they vouch for stays finished."""
    shutil.copy(EXAMPLES / "fir.dfg.json", tmp_path / "fir.dfg.json")
    options = ("--target", "se", "--candidates", "cpsat", "-q", "--deterministic")
    assert cli("batch", tmp_path / "fir.dfg.json", "-o", tmp_path, *options).code == 0
    assert record(tmp_path, "fir.dfg")["settings"]["target"] == "se"


def test_side_by_side(cli: Cli, suite: Path, tmp_path: Path) -> None:
    """Results in the order of the inputs, whatever comes first; one line of progress each, and one in the journal."""
    (suite / "broken.csv").write_text("id,lower\n")
    names = ["loop", "broken", "buffers"]
    inputs = [next(suite.glob(f"{name}.*")) for name in names]
    options = ("--target", "se", "--jobs", 2, *(word for word in BRIEF if word != "-q"), "--json")
    outcome = cli("batch", *inputs, "-o", tmp_path / "out", *options, "--set", f"jsonl={tmp_path / 'lines'}")
    assert outcome.code == 2
    found = json.loads(outcome.out)
    assert [each["name"] for each in found] == names
    assert "failed: " in next(line for line in outcome.err.splitlines() if "] broken: " in line)
    assert [line.partition(" ")[0] for line in outcome.err.splitlines()] == ["[1/3]", "[2/3]", "[3/3]"]
    lines = [json.loads(line) for line in (tmp_path / "lines").read_text().splitlines()]
    assert sorted(lines, key=lambda each: names.index(each["name"])) == found


def test_a_journal_that_is_no_journal(cli: Cli, suite: Path, tmp_path: Path) -> None:
    buffers = suite / "buffers.csv"
    assert "is an input of this command" in error_line(
        cli("batch", buffers, "-o", tmp_path, "--set", f"jsonl={buffers}", *BRIEF)
    )
    other = tmp_path / "other.txt"
    other.write_text("mine\n")
    refused = error_line(cli("batch", buffers, "-o", tmp_path, "--set", f"jsonl={other}", *BRIEF))
    assert "other.txt: line 1: " in refused
    assert "expected a result of 'stowplan batch'" in refused
    assert other.read_text() == "mine\n"


def test_sizes_have_units(cli: Cli, suite: Path, tmp_path: Path) -> None:
    buffers, out = suite / "buffers.csv", tmp_path / "out"
    assert cli("batch", buffers, "-o", out, "--set", "memory_limit=1.5 GiB", *BRIEF).code == 0
    assert record(out, "buffers")["settings"]["memory_limit"] == 3 << 29
    # Two workers, and the process that they belong to.
    assert cli("batch", buffers, "-o", out, "--set", "memory_budget=9000000000", *BRIEF).code == 0
    assert record(out, "buffers")["settings"]["memory_limit"] == 3_000_000_000
    for wrong in ("2", "GB", "2 XB", "-1GB", "0"):
        refused = cli("batch", buffers, "-o", out, "--set", "memory_budget=1GB", "--set", f"memory_limit={wrong}", *BRIEF)
        assert (refused.code, len(refused.err.splitlines())) == (0 if wrong == "2" else 2, 0 if wrong == "2" else 1)
