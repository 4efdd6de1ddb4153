"""``stowplan llm``: placements for llama.cpp, calibrated machines, and what is asked for wrongly."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stowplan.backends.llama.calibration import machine_text
from stowplan.backends.llama.planning import Summary
from tests.backends.llama.cases import DENSE, device, machine, write
from tests.cli.conftest import Cli, cli, error_line

__all__ = ["cli"]


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    """A model and a machine."""
    there = tmp_path / "machine.toml"
    there.write_text(machine_text(machine(device("CUDA0", 6, 100.0), device("CUDA1", 30, 800.0))))
    return write(DENSE, tmp_path), there


def test_a_plan_with_all_it_writes(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    model, there = files
    written = [tmp_path / name for name in ("plan.json", "run.sh", "models.ini", "llama.env", "plan.svg", "plan.html")]
    emitted = [word for path in written[1:4] for word in ("--emit", path)]
    found = cli(
        "llm", model, "--devices", there, "--ctx", 1024, "--prompt", 100, "--generate", 64, "-o", written[0], *emitted,
        "--png", written[4], "--report", written[5],
    )  # fmt: skip
    assert found.code == 0, found.err
    assert "-dev CUDA1" in found.out
    assert "proven to be the least by the measured speeds" in found.out
    assert all(path.stat().st_size > 0 for path in written)
    assert Summary.load(written[0]).recommended == "plan"
    assert json.loads(cli("llm", "plan", model, "--devices", there, "--json", "--ctx", 1024).out)["model"] == "model"


def test_a_machine_from_what_was_measured(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    model, there = files
    rows = [
        {"n_gpu_layers": layers, "n_prompt": prompt, "n_gen": 32 - prompt, "n_depth": depth, "avg_ts": rate, "devices": name}
        for layers, name, scale in ((0, "auto", 1.0), (13, "CUDA0", 8.0), (13, "CUDA1", 30.0))
        for prompt, depth, rate in ((0, 0, 10 * scale), (0, 900, 8 * scale), (32, 0, 200 * scale))
    ]
    bench, measured = tmp_path / "bench.json", tmp_path / "measured.toml"
    bench.write_text(json.dumps(rows))
    found = cli("llm", "calibrate", model, "--devices", there, "--read", bench, "-o", measured)
    assert found.code == 0, found.err
    assert found.out.strip() == measured.read_text().strip()
    assert "error = " in found.out
    planned = cli("llm", model, "--devices", measured, "--ctx", 1024)
    assert planned.code == 0, planned.err


def test_without_a_machine_it_says_how_to_get_one(cli: Cli, files: tuple[Path, Path]) -> None:
    for command in (["llm"], ["llm", "calibrate"]):
        found = cli(*command, files[0])
        assert found.code == 2
        assert found.err.startswith("stowplan: no machine is named\n    expected --devices machine.toml")
        assert 'name = "CUDA0"' in found.err


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (["--emit", "options.txt"], "--emit: found 'options.txt', expected a name that ends in .ini, .env, .sh"),
        (["--ctx", "64", "--prompt", "100"], "found a prompt of 100 and an answer of 256 tokens"),
        (["-ctk", "q9"], "found the cache type 'q9', expected one of f32"),
        (["--oracle", "no-such-program"], "found the oracle 'no-such-program', expected a program"),
        (["--png", "picture.bmp"], "picture format"),
        (["--time-limit", "0"], "0"),
    ],
)
def test_bad_input(cli: Cli, files: tuple[Path, Path], options: list[str], says: str) -> None:
    found = cli("llm", files[0], "--devices", files[1], *options)
    assert says in error_line(found)


def test_other_files_are_refused(cli: Cli, files: tuple[Path, Path], tmp_path: Path) -> None:
    model, there = files
    assert "expected b'GGUF'" in error_line(cli("llm", there, "--devices", there))
    assert "larger than the limit" in error_line(cli("llm", model, "--devices", model))
    bench = tmp_path / "bench.json"
    bench.write_text("{}")
    assert "expected what llama-bench -o json prints" in error_line(
        cli("llm", "calibrate", model, "--devices", there, "--read", bench)
    )
