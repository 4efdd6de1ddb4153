"""A stranger's first lines: what ``stowplan`` and ``stowplan solve FILE`` tell to type can be typed."""

from __future__ import annotations

import gzip
import importlib
import json
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from importlib import metadata
from pathlib import Path

import pytest

import stowplan
from stowplan.arguments import size, whole
from stowplan.errors import UsageError
from stowplan.frontends.options import ReadOptions
from stowplan.frontends.read import NoTargetError, open_input
from tests.cli.conftest import Cli, error_line
from tests.paths import EXAMPLES, ROOT
from tests.patience import HANG

#: A target file and no input; JSON and CSV that are problems already.
NO_INPUT = {"dot_product.ops.toml"}
STAND_ALONE = {
    "banks.json", "buffers.csv", "cells.graph.json", "changing_batches.pickle.gz", "llm.json", "training.remat.json",
}  # fmt: skip
#: Inputs that are meant for one target, unless another is named, and it.
ONE_TARGET = {"branches.tflite": "arena", "resnet50.layers.json": "nnp-i"}


@pytest.mark.parametrize("path", sorted(EXAMPLES.iterdir()), ids=lambda path: path.name)
def test_every_example_says_what_can_be_done_with_it(cli: Cli, path: Path) -> None:
    if path.name in STAND_ALONE:
        assert open_input(path, ReadOptions()).problem
        return
    if path.name in NO_INPUT:
        assert "line 1: found" in error_line(cli("solve", path))
        return
    if path.name in ONE_TARGET or path.name.endswith(".layers.json"):
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


@pytest.mark.parametrize("name", ONE_TARGET)
def test_the_target_that_an_input_is_meant_for_is_taken(cli: Cli, name: str) -> None:
    told = cli("solve", EXAMPLES / name, "--time-limit", 2, "-q")
    assert told.code == 0
    assert f"no target is named, solved for {ONE_TARGET[name]} (" in told.err


def test_other_commands_name_the_targets_in_one_line(cli: Cli, tmp_path: Path) -> None:
    path = EXAMPLES / "fir.dfg.json"
    assert "name a target such as se (a tile and a time" in error_line(cli("convert", path, "-o", tmp_path / "problem.json"))
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


def test_as_a_module() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "stowplan", "--version"], text=True, capture_output=True, timeout=HANG, check=True
    )
    assert done.stdout == f"stowplan {stowplan.__version__}\n"


@pytest.mark.parametrize(
    "package", ["stowplan", "stowplan.backends.xla", "stowplan.backends.torch", "stowplan.backends.executorch"]
)
def test_what_a_package_offers_is_listed(package: str) -> None:
    module = importlib.import_module(package)
    offered = {name for name in dir(module) if not name.startswith("__")}
    assert offered == {*module.__all__}
    assert {"__doc__", "__version__"} & {*dir(module)} == {"__doc__", "__version__"} & {*vars(module)}


def test_versions_for_a_report(cli: Cli) -> None:
    text = cli("show-versions")
    assert (text.code, text.err) == (0, "")
    found = json.loads(cli("show-versions", "--json").out)
    assert [" ".join(line.split()) for line in text.out.splitlines()] == [f"{name} {value}" for name, value in found.items()]
    assert found["stowplan"] == stowplan.__version__
    assert found["numpy"] == metadata.version("numpy")
    assert found["processor cores"] >= 1
    # Whatever an extra brings is named, installed or not.
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = [
        text
        for name, texts in project["optional-dependencies"].items()
        if name not in ("docs", "dev", "release")
        for text in texts
    ]
    names = {re.match(r"[\w-]+", text)[0] for text in (*project["dependencies"], *extras)}  # type: ignore[index]
    assert names - {"cloudpickle", "flatbuffers"} <= {*found}


def test_a_shell_completes(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    # As '--show-completion' prints it, which asks the processes above this one for the shell.
    monkeypatch.setenv("_STOWPLAN_COMPLETE", "source_bash")
    assert "_STOWPLAN_COMPLETE=complete_bash" in cli().out
    for words, expected in (("stowplan sol", "solve"), ("stowplan solve --ta", "--target"), ("stowplan train mu", "muzero")):
        monkeypatch.setenv("_STOWPLAN_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", words)
        monkeypatch.setenv("COMP_CWORD", str(words.count(" ")))
        assert cli().out.split() == [expected]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        *(("0", 0), ("1200", 1200), (" 1e6 ", 10**6), ("2.5e3 B", 2500), ("1200KB", 1_200_000), ("1200kB", 1_200_000)),
        *(("1.5MiB", 3 << 19), ("2 GiB", 2 << 30), ("0.1 GB", 10**8), ("64 kib", 1 << 16), ("1TiB", 1 << 40)),
    ],
)
def test_sizes(text: str, expected: int) -> None:
    assert size("{}", text) == expected


@pytest.mark.parametrize(
    "text", ["", "1.5", "1.5 B", "-1", "KB", "1 XB", "1M", "1 Gi", "0x10", "1e999", "1e-3", "nan", "1,5 MB", "1 2", "1 MB/s"]
)
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(UsageError, match=r"^found '.*', expected bytes, or a number with kB, MB, GB \(powers of 1000\) or KiB"):
        size("{}", text)


@pytest.mark.parametrize(
    ("text", "bytes_"), [("1e30", 10**30), ("9" * 30, 10**30 - 1), ("1e28 kB", 10**31), ("1.5 PiB", 3 << 49)]
)
def test_large_sizes_are_exact(text: str, bytes_: int) -> None:
    assert size("{}", text) == bytes_


def test_a_capacity_that_is_too_large(cli: Cli) -> None:
    """The problem, not the text, says how large a size may be."""
    line = error_line(cli("solve", EXAMPLES / "buffers.csv", "--capacity", "1e30"))
    assert "capacity: found 1000000000000000000000000000000, expected 0 to " in line


def test_numbers_with_thousands_of_digits_are_shown_in_hexadecimal() -> None:
    with pytest.raises(UsageError, match=r"^found 0x[0-9a-f]{55}\.\.\., expected 1 to 2, a whole number$"):
        whole("{}", 10**5000, 1, 2)
    with pytest.raises(UsageError, match=r"^found a list that cannot be shown, expected a whole number$"):
        whole("{}", [10**5000])


def test_an_unknown_target_is_never_another(cli: Cli) -> None:
    """Whatever the file is, also where its format would take any."""
    for path in EXAMPLES.iterdir():
        if path.name not in STAND_ALONE | NO_INPUT:
            line = error_line(cli("solve", path, "--target", "ordr"))
            assert line.startswith("stowplan: found target 'ordr', expected one of teaching, "), path
            assert line.endswith("; perhaps order"), path
