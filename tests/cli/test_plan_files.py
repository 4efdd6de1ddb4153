"""``verify`` and ``show`` take input and plan in either order, and plans of ``stowplan tflm`` and ``stowplan llm`` as well."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from stowplan.backends.llama.calibration import machine_text
from tests.backends.llama.cases import DENSE, device, machine, write
from tests.cli.conftest import Cli, error_line
from tests.paths import EXAMPLES

BUFFERS = "id,lower,upper,size\na,0,3,64\nb,2,5,32\n"
PLACED = "id,lower,upper,size,offset\na,0,3,64,0\nb,2,5,32,64\n"
QUICK = ("--deterministic", "--time-limit", "1", "-q")


@pytest.fixture
def packed(cli: Cli, tmp_path: Path) -> tuple[Path, Path, Path]:
    """A list of buffers, and its plan as JSON and as CSV."""
    buffers, plan, table = (tmp_path / name for name in ("two.csv", "plan.json", "placed.csv"))
    buffers.write_text(BUFFERS)
    table.write_text(PLACED)
    assert cli("solve", buffers, "-o", plan, *QUICK).code == 0
    return buffers, plan, table


@pytest.fixture
def placed(cli: Cli, tmp_path: Path) -> tuple[Path, Path]:
    """A language model and its placement."""
    devices, plan = tmp_path / "machine.toml", tmp_path / "placement.json"
    devices.write_text(machine_text(machine(device("CUDA0", 6, 100.0), device("CUDA1", 30, 800.0))))
    model = write(DENSE, tmp_path)
    request = ("--ctx", 1024, "--prompt", 100, "--generate", 64)
    assert cli("llm", model, "--devices", devices, *request, "-o", plan, "--deterministic", "-q").code == 0
    return model, plan


def test_input_and_plan_may_change_places(cli: Cli, packed: tuple[Path, Path, Path]) -> None:
    buffers, *plans = packed
    for plan in plans:
        for command in ("verify", "show"):
            first, second = cli(command, buffers, plan), cli(command, plan, buffers)
            assert first == second
            assert first.code == 0, first
            assert "96 bytes" in first.out


def test_the_documented_order_decides_between_two_tables_of_offsets(cli: Cli, tmp_path: Path, packed: tuple[Path, ...]) -> None:
    """A list of buffers may fix some offsets, so that a column of offsets makes no plan of it."""
    fixed = tmp_path / "fixed.csv"
    fixed.write_text(PLACED.replace("64,0", "64,"))
    assert cli("verify", fixed, packed[2]).code == 0
    assert "found no offset for buffer 'a'" in error_line(cli("verify", packed[2], fixed))
    # A plan in JSON says that it is one.
    assert cli("verify", packed[2], packed[1]) == cli("verify", packed[1], packed[2])


def test_two_files_of_a_kind_are_refused(cli: Cli, packed: tuple[Path, Path, Path]) -> None:
    buffers, plan, _ = packed
    assert f"{plan}: format: found format 'stowplan.packing.plan', expected an input: this is a plan" in error_line(
        cli("show", plan, plan)
    )
    assert "found no offset for buffer 'a'" in error_line(cli("verify", buffers, buffers))


def test_the_usage_names_the_input_first(cli: Cli) -> None:
    for command in ("verify", "show"):
        assert f"stowplan {command} [OPTIONS] INPUT PLAN" in cli(command, "--help").out


def test_a_plan_of_tflm_in_either_order(cli: Cli, tmp_path: Path) -> None:
    model, plan = EXAMPLES / "branches.tflite", tmp_path / "arena.json"
    assert cli("tflm", model, "--no-run", "-o", plan, *QUICK[:1], "-q").code == 0
    assert cli("verify", plan, model) == cli("verify", model, plan) == (0, "valid: the head takes 1,152 bytes\n", "")
    assert "--emit does not apply to plans that 'stowplan tflm' wrote" in error_line(
        cli("verify", model, plan, "--emit", f"json={tmp_path / 'x.json'}")
    )
    assert f"'stowplan verify MODEL.tflite {plan}' checks" in error_line(cli("show", model, plan))


def test_a_placement_of_a_language_model(cli: Cli, placed: tuple[Path, Path], tmp_path: Path) -> None:
    model, plan = placed
    found = cli("verify", model, plan)
    assert found.out.startswith("valid: the options place 13 layers as the file says, and every device has room for them")
    assert "is not checked, because the file does not contain the speeds of the machine" in found.out
    assert (found.code, found.err) == (0, "")
    assert found == cli("verify", plan, model)
    assert json.loads(cli("verify", model, plan, "--json").out)["ok"] is True
    for arguments in ((model, plan), (plan, model)):
        assert re.match(r"llm model \(llama\) on .*\n  options    -c 1024 ", cli("show", *arguments).out)
    other = tmp_path / "buffers.csv"
    other.write_text(BUFFERS)
    for command in ("verify", "show"):
        line = error_line(cli(command, other, plan))
        assert line == f"stowplan: {other}: found no GGUF file, expected the model for which 'stowplan llm' wrote {plan}"
    assert "--png does not apply to plans that 'stowplan llm' wrote" in error_line(
        cli("show", model, plan, "--png", tmp_path / "x.svg")
    )


@pytest.mark.parametrize(
    ("old", "new", "expected"),
    [
        ("CUDA1", "CUDA0", "the options put 13 layers"),
        ("-ngl", "-ncmoe", "the options cannot be read: found -ncmoe"),
        ("1024", "2048", "the options ask for 2048 tokens in 1 slots, and the file is about 1024 tokens"),
    ],
)
def test_a_changed_placement_is_not_valid(cli: Cli, placed: tuple[Path, Path], old: str, new: str, expected: str) -> None:
    model, plan = placed
    values = json.loads(plan.read_text())
    values["command"] = [new if word == old else word for word in values["command"]]
    plan.write_text(json.dumps(values))
    found = cli("verify", model, plan)
    assert found.code == 4
    assert expected in found.out
    assert cli("show", model, plan).code == 4


def test_a_placement_that_has_no_room_is_not_valid(cli: Cli, placed: tuple[Path, Path]) -> None:
    model, plan = placed
    values = json.loads(plan.read_text())
    values["devices"][2]["free"] = -5
    plan.write_text(json.dumps(values))
    assert "CUDA1 would hold 5 bytes more than its memory" in cli("verify", model, plan).out


def test_a_placement_that_is_left_to_llama_cpp(cli: Cli, tmp_path: Path) -> None:
    model, devices, plan = write(DENSE, tmp_path), tmp_path / "memories.toml", tmp_path / "placement.json"
    devices.write_text('[host]\nfree_mib = 1000\n[[device]]\nname = "CUDA0"\nfree_mib = 1200\n')
    assert cli("llm", model, "--devices", devices, "--ctx", 1024, "-o", plan, "-q").code == 0
    assert cli("verify", model, plan).out == "valid: 13 layers; the options leave their placement to --fit of llama.cpp\n"
    values = json.loads(plan.read_text())
    values["devices"][1]["cache"] += 1
    plan.write_text(json.dumps(values))
    assert "the model has 13 layers, " in cli("verify", model, plan).out
