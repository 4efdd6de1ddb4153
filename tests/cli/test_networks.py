"""Networks on the command line: solve, verify, show, convert, batch, and bad input in one line with exit code 2."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli.conftest import Cli
from tests.paths import EXAMPLES

NETWORK = EXAMPLES / "resnet50.layers.json"
NNP = ["--target", "nnp-i"]


def small(path: Path, **changes: Any) -> Path:
    """A file with two layers."""
    one = {"op": "fc", "ofm": [1, 1, 64], "ofm_elems": 64, "ifm_elems": 64, "weight_elems": 4096, "macs": 4096}
    nodes = [{"id": 0, "name": "a", **one}, {"id": 1, "name": "b", **one}]
    path.write_text(json.dumps({"nodes": nodes, "edges": [[0, 1]], **changes}))
    return path


def test_from_a_network_to_a_picture(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("matplotlib", reason="needs matplotlib: pip install '.[viz]'")
    network, plan, report = small(tmp_path / "small.json"), tmp_path / "plan.json", tmp_path / "report.html"
    code, out, _ = cli("solve", network, *NNP, "-o", plan, "--time-limit", 20, "--json", "-q", "--report", report)
    result = json.loads(out)
    assert (code, result["status"], result["kind"]) == (0, "optimal", "tier_placement")
    assert (result["baseline_name"], result["provenance"]["cost_model"]) == ("compiler", "roofline int8")
    assert "Memory map" in report.read_text()
    # The plan names its target; nothing else need be said.
    code, out, _ = cli("verify", network, plan)
    assert (code, out) == (0, f"valid: {result['objective'] / 1e3:.4g} ns ({result['objective']} ps)\n")
    code, out, _ = cli("show", plan, network)
    assert code == 0
    assert out.startswith("small on nnp-i (roofline int8): ")
    code, _, err = cli("show", plan, network, "--png", tmp_path / "map.png")
    assert (code, err) == (0, f"{tmp_path / 'map.png'}\n")
    assert (tmp_path / "map.png").read_bytes().startswith(b"\x89PNG")
    # In another precision it is a plan for another problem.
    code, out, _ = cli("verify", network, plan, "--set", "precision=fp16")
    assert code == 4
    assert "wrong_problem" in out
    code, _, err = cli("show", plan, network, "--set", "precision=fp16")
    assert (code, err.count("\n")) == (2, 1)
    assert f"{plan}: the plan is for another problem" in err


def test_convert_takes_all_options(cli: Cli, tmp_path: Path) -> None:
    problem = tmp_path / "problem.json"
    options = ["--set", "precision=fp16", "--set", "address_spaces=yes", "--capacity", 1 << 20]
    code, _, err = cli("convert", NETWORK, *NNP, *options, "-o", problem)
    assert (code, err) == (0, f"{problem}: 57 layers, 111 tensors\n")
    written = json.loads(problem.read_text())
    assert written["format"] == "stowplan.tier_placement.problem"
    assert written["address_spaces"] is True
    assert written["tiers"][-1]["capacity"] == 1 << 20
    assert written["layers"][0]["weight_bytes"] == 2 * 9472
    assert len(written["features"][0]) == 19
    code, _, err = cli("solve", problem, *NNP)
    assert code == 2
    assert "is a problem already" in err


def test_targets(cli: Cli) -> None:
    code, out, _ = cli("targets")
    assert code == 0
    assert "nnp-i         DRAM 32768 MiB, LLC 24 MiB, SRAM 4 MiB" in out


def test_batch(cli: Cli, tmp_path: Path) -> None:
    small(tmp_path / "one.json")
    code, _, err = cli("batch", tmp_path, "-o", tmp_path / "out", *NNP, "--set", "precision=fp16", "--candidates", "milp", "-q")
    assert code == 0, err
    record = json.loads((tmp_path / "out" / "one.result.json").read_text())
    assert record["result"]["provenance"]["cost_model"] == "roofline fp16"


BAD = {
    "a program's target": (["solve", NETWORK, "--target", "tpu-v4"], "found target 'tpu-v4', expected one of nnp-i"),
    "precision": (["solve", NETWORK, *NNP, "--set", "precision=int3"], "found precision 'int3', expected one of int8, fp16"),
    "granularity": (["solve", NETWORK, *NNP, "--set", "granularity=fine"], "but not --set granularity"),
    "stalls": (
        ["solve", NETWORK, *NNP, "--set", "stalls=allowed"],
        "--set precision, address_spaces, but not --set stalls",
    ),
    "capacity": (["solve", NETWORK, *NNP, "--capacity", -1], "found '-1', expected bytes"),
    "candidate": (["solve", NETWORK, *NNP, "--candidates", "egr"], "found candidate 'egr'"),
}


@pytest.mark.parametrize("case", BAD)
def test_bad_options(cli: Cli, case: str) -> None:
    arguments, expected = BAD[case]
    code, out, err = cli(*arguments)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith("stowplan: ")
    assert expected in err


def test_precision_is_for_networks_only(cli: Cli, tmp_path: Path) -> None:
    path = tmp_path / "buffers.csv"
    path.write_text("id,lower,upper,size\na,0,1,5\n")
    code, _, err = cli("solve", path, "--set", "precision=fp16")
    assert (code, err.count("\n")) == (2, 1)
    assert f"{path} is a list of buffers to pack: it takes --capacity, but not --set precision" in err


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"edges": [[0, 1], [1, 0]]}, "edges: found a cycle: 0 (a) -> 1 (b) -> 0 (a)"),
        ({"edges": [[0, 7]]}, "edges[0]: found an edge to or from 7"),
        ({"nodes": [{"id": 0, "op": "fc", "name": "a", "ofm": [1, 1, 1], "ofm_elems": "1"}]}, "nodes[0].ofm_elems: Expected"),
        ({"nodes": 3}, "nodes: Expected `array`, got `int`"),
    ],
)
def test_bad_files_name_file_and_place(cli: Cli, tmp_path: Path, changes: dict[str, Any], expected: str) -> None:
    path = small(tmp_path / "bad.json", **changes)
    code, out, err = cli("solve", path, *NNP)
    assert (code, out, err.count("\n")) == (2, "", 1)
    assert err.startswith(f"stowplan: {path}: {expected}")


def test_a_network_that_fits_nowhere(cli: Cli, tmp_path: Path) -> None:
    path = small(tmp_path / "huge.json")
    value = json.loads(path.read_text())
    value["nodes"][1]["weight_elems"] = 1 << 40
    path.write_text(json.dumps(value))
    code, out, _ = cli("solve", path, *NNP, "-q")
    assert code == 1
    assert "because    the weights of layer b have 1099511627776 bytes, the largest tier has 34359738368" in out
