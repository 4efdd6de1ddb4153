"""Files that ``solve`` does not take, and that another command may take: the line says what they are and what to type."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.cli.conftest import Cli, error_line
from tests.paths import EXAMPLES

COMMANDS = (("solve",), ("solve", "--target", "tpu-v4"), ("convert", "-o", "out.json"))


@pytest.mark.parametrize("name", ["model.gguf", "my model.bin"])
def test_a_language_model(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path(name).write_bytes(b"GGUF\x03\0\0\0")
    typed = name if " " not in name else f"'{name}'"
    for command, *options in COMMANDS:
        assert error_line(cli(command, name, *options)) == (
            f"stowplan: {name}: found a GGUF file, which holds a language model, expected another input: run 'stowplan llm "
            f"{typed} --devices machine.toml' to place the model on devices"
        )


def test_a_model_under_another_name(cli: Cli, tmp_path: Path) -> None:
    path = shutil.copy(EXAMPLES / "branches.tflite", tmp_path / "model.dat")
    assert error_line(cli("solve", path)).endswith("found a TensorFlow Lite model, expected a name that ends in .tflite")
    archive = tmp_path / "program.pth"
    archive.write_bytes(b"PK\x03\x04" + bytes(100))
    assert error_line(cli("solve", archive)).endswith("expected a name that ends in .pt2 if it is a program of torch.export")


def test_a_program_of_executorch(cli: Cli, tmp_path: Path) -> None:
    program = tmp_path / "model.pte"
    program.write_bytes(bytes(4) + b"ET12" + bytes(100))
    assert "found a program of ExecuTorch, expected the program before it is exported" in error_line(cli("solve", program))


def test_text_of_no_known_format(cli: Cli, tmp_path: Path) -> None:
    for name, ending in (
        ("notes.md", "(a file is read as HLO text if it is in none of the other formats that 'stowplan solve --help' lists)"),
        (
            "mine.toml",
            "(a TOML file is no input: --target takes target files, and 'stowplan llm --devices' takes machine files)",
        ),
        ("module.hlo.txt", "expected HloModule"),
    ):
        path = tmp_path / name
        path.write_text("x = 1\n")
        line = error_line(cli("solve", path))
        assert line.startswith(f"stowplan: {path}: line 1: found 'x = 1', expected HloModule")
        assert line.endswith(ending)


@pytest.mark.parametrize("name", ["model.onnx", "model.pt2", "model.tflite", "graph.json", "module.hlo.txt"])
def test_an_empty_file(cli: Cli, tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.touch()
    assert error_line(cli("solve", path)) == f"stowplan: {path}: found an empty file, expected an input with content"


@pytest.mark.parametrize(
    ("declared", "use"),
    [
        ("packing.plan", "a plan, which 'stowplan verify INPUT {file}' checks and 'stowplan show INPUT {file}' prints"),
        ("tflm", "a plan of 'stowplan tflm', which 'stowplan verify MODEL.tflite {file}' checks"),
        ("llama.plan", "a placement of 'stowplan llm', which 'stowplan verify MODEL.gguf {file}' checks"),
        ("certificate", "a proof of a bound, which 'stowplan verify INPUT PLAN --bound {file}' checks"),
        ("hint", "a hint, which 'stowplan solve INPUT --hint {file}' takes"),
        ("batch.result", "a result of 'stowplan batch', whose folder 'stowplan compare' reads"),
    ],
)
def test_other_files_of_the_package(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, declared: str, use: str) -> None:
    monkeypatch.chdir(tmp_path)
    Path("file.json").write_text(f'{{"format": "stowplan.{declared}", "version": 1}}')
    for command, *options in (*COMMANDS, ("solve", "--target", "arena")):
        line = error_line(cli(command, "file.json", *options))
        assert f"format: found format 'stowplan.{declared}', expected an input: this is {use.format(file='file.json')}" in line


def test_formats_are_spelt_as_where_they_are_defined() -> None:
    from stowplan import file_uses
    from stowplan.backends.llama import planning as llama
    from stowplan.backends.tflm import planning as tflm
    from stowplan.certificates import checker
    from stowplan.models import hint
    from stowplan.portfolio.batch import records

    formats = [tflm.FORMAT, llama.FORMAT, checker.FORMAT, hint.FORMAT, records.FORMAT]
    assert all(file_uses.use_of(each, "file") for each in formats)
    assert tuple(formats[:2]) == file_uses.OTHER_PLANS
