"""A stranger's first lines: what ``stowplan`` and ``stowplan solve FILE`` tell to type can be typed."""

from __future__ import annotations

import gzip
import shlex
import shutil
from pathlib import Path

import pytest

from stowplan.frontends.options import ReadOptions
from stowplan.frontends.read import NoTargetError, open_input
from tests.cli.conftest import Cli, error_line
from tests.paths import EXAMPLES

#: A target file and no input; JSON and CSV that are problems already.
NO_INPUT = {"dot_product.ops.toml"}
STAND_ALONE = {"banks.json", "buffers.csv", "cells.graph.json", "training.remat.json"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_every_example_says_what_can_be_done_with_it(cli: Cli, path: Path) -> None:
    if path.name in STAND_ALONE:
        assert open_input(path, ReadOptions()).problem
        return
    if path.name in NO_INPUT:
        assert "line 1: found" in error_line(cli("solve", path))
        return
    told = cli("solve", path)
    first, *lines = told.err.splitlines()
    assert (told.code, told.out) == (2, "")
    assert f"{path} is a" in first
    assert lines
    for line in lines:
        words = shlex.split(line, comments=True)
        assert words[:4] == ["stowplan", "solve", str(path), "--target"]
        assert line.partition("  # ")[2]
        # What the line reads; solving it is what other tests are for.
        assert open_input(path, ReadOptions(target=words[4])).problem


def test_other_commands_name_the_targets_in_one_line(cli: Cli, tmp_path: Path) -> None:
    path = EXAMPLES / "fir.dfg.json"
    assert "name a target such as se (tile and time" in error_line(cli("convert", path, "-o", tmp_path / "problem.json"))
    with pytest.raises(NoTargetError) as caught:
        open_input(path, ReadOptions())
    assert [each.example for each in caught.value.fitting] == ["se"]


def model(path: Path) -> None:
    """A model of one layer."""
    onnx = pytest.importorskip("onnx")
    make, kind = onnx.helper, onnx.TensorProto.FLOAT
    shape = [1, 8]
    values = [make.make_tensor_value_info(name, kind, shape) for name in ("x", "y")]
    graph = make.make_graph([make.make_node("Relu", ["x"], ["y"])], "model", values[:1], values[1:])
    onnx.save(make.make_model(graph), path)


def test_the_lines_of_a_bare_command_can_be_typed(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("models").mkdir()
    shutil.copy(EXAMPLES / "buffers.csv", "buffers.csv")
    shutil.copy(EXAMPLES / "resnet50.layers.json", "models")
    Path("module.hlo.txt").write_bytes(gzip.decompress((EXAMPLES / "alexnet_inf_b1.hlo.txt.gz").read_bytes()))
    model(Path("model.onnx"))
    told = cli()
    lines = [shlex.split(line) for line in (told.out + told.err).splitlines() if line.startswith("    stowplan ")]
    assert len(lines) == 5
    for _, command, *arguments in lines:
        brief = ["--time-limit", 1] if command in ("solve", "batch") else []
        done = cli(command, *arguments, *brief)
        assert done.code == 0, (command, arguments, done)
    assert {"model.h", "plan.html", "plan.csv", "results"} <= {path.name for path in tmp_path.iterdir()}
