"""Where output may go: not twice to one file, not over an input, but to devices, pipes and links."""

from __future__ import annotations

import contextlib
import json
import os
import stat
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from stowplan.cli.outputs import check_outputs
from stowplan.errors import UsageError
from stowplan.frontends.read import read_plan
from tests.cli.conftest import ALEXNET, BRIEF, Cli, Solved, error_line
from tests.paths import EXAMPLES, TARGETS

TARGET = TARGETS / "teaching.toml"


@pytest.fixture
def unsolved(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing may be read or solved."""

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("read before the outputs were looked at")

    for name in ("stowplan.kernel.solve.solve", "stowplan.frontends.read.open_input", "stowplan.frontends.read.read"):
        monkeypatch.setattr(name, refuse)


@pytest.fixture
def spellings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Ways to name ``out.json`` in the current folder, which is not there yet."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    Path("same").symlink_to(tmp_path)
    Path("link.json").symlink_to("out.json")
    return ["out.json", "./out.json", "folder/../out.json", str(tmp_path / "out.json"), "same/out.json", "link.json"]


@pytest.mark.usefixtures("unsolved")
@pytest.mark.parametrize("is_there", [False, True])
def test_two_outputs_in_one_file(cli: Cli, spellings: list[str], is_there: bool) -> None:
    if is_there:
        Path("out.json").write_text("precious")
    for other in spellings:
        for one, two in (("-o", "--report"), ("--report", "--png"), ("-o", "--certificate")):
            line = error_line(cli("solve", ALEXNET, "--target", "teaching", one, "out.json", two, other))
            assert line == f"stowplan: {Path(other)}: is to be written twice by this command, expected a file for each output"
    line = error_line(cli("solve", "program", "--png", "x.png", "--emit", "config=./x.png"))
    assert "x.png: is to be written twice" in line
    assert os.path.exists("out.json") == is_there
    check_outputs([Path("out.json"), Path("other.json"), None], [None])


@pytest.mark.usefixtures("unsolved")
def test_an_output_that_is_an_input(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("mine.toml", "program", "plan"):
        Path(name).write_text("precious")
    Path("link").symlink_to("mine.toml")
    for arguments in (
        ("solve", "program", "--target", "mine.toml", "-o", "link"),
        ("solve", "program", "--target", "link", "--report", "./mine.toml"),
        ("solve", "program", "--set", "fixed=mine.toml", "-o", "link"),
        ("convert", "program", "--target", "mine.toml", "-o", "link"),
        ("convert", "program", "--set", "fixed=mine.toml", "-o", "link"),
        ("convert", "program", "-o", "program"),
        ("show", "plan", "program", "--png", "plan"),
        ("show", "plan", "program", "--target", "link", "--png", "link"),
    ):
        assert "is an input of this command" in error_line(cli(*arguments)), arguments
    Path("model.mps").write_text("precious")
    line = error_line(cli("export", "program", "--target", "./model.mps", "-o", "model.mps"))
    assert "is an input of this command" in line
    assert {path.read_text() for path in tmp_path.iterdir()} == {"precious"}


def test_the_file_of_standard_output(tmp_path: Path) -> None:
    """As after ``> plan.json``: what is printed would go to a file without a name."""
    path, other = tmp_path / "plan.json", tmp_path / "other.json"
    before = os.dup(1)
    try:
        with path.open("wb") as stream:
            os.dup2(stream.fileno(), 1)
            with pytest.raises(UsageError, match="is where standard output goes"):
                check_outputs([path])
            check_outputs([other, Path("/dev/fd/1")])
    finally:
        os.dup2(before, 1)
        os.close(before)


def test_devices_and_pipes_may_be_written_to(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever may not write to their folder."""
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    null = Path(os.devnull)
    check_outputs([pipe, null, null], [null])
    monkeypatch.setattr(os, "access", lambda path, mode: not os.path.isdir(path))
    check_outputs([pipe, null, Path("/dev/fd/1")])
    with pytest.raises(UsageError, match="no permission to write in"):
        check_outputs([tmp_path / "file"])
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    with pytest.raises(UsageError, match="pipe: cannot write: no permission to write to it"):
        check_outputs([pipe])
    check_outputs([Path("/dev/fd/1")])


def test_outputs_that_lead_nowhere(tmp_path: Path) -> None:
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "lost").symlink_to("nowhere/file")
    (tmp_path / "folder").symlink_to(".")
    for path, expected in (
        (tmp_path / "loop", "Too many levels of symbolic links"),
        (tmp_path / "lost", "there is no folder .*nowhere"),
        (tmp_path / "folder", "it is a folder"),
        (Path("/dev/fd/987"), "Bad file descriptor"),
        (tmp_path / ("x" * 300) / "file", "there is no folder"),
    ):
        with pytest.raises(UsageError, match=expected):
            check_outputs([path])
    # A target with the longest of names is looked up, not looked for.
    check_outputs([tmp_path / "file"], [Path("x" * 300)])


@contextlib.contextmanager
def reading(path: Path) -> Iterator[list[bytes]]:
    """What comes through a named pipe, in one item, afterwards."""
    found: list[bytes] = []
    thread = threading.Thread(target=lambda: found.append(path.read_bytes()), daemon=True)
    thread.start()
    yield found
    thread.join(20)


def test_a_plan_through_a_pipe(cli: Cli, solved: Solved, tmp_path: Path) -> None:
    pipe, plan = tmp_path / "pipe", tmp_path / "plan.json"
    os.mkfifo(pipe)
    with reading(pipe) as found:
        assert cli("solve", solved.problem_file, *BRIEF, "-q", "-o", pipe).code == 0
    plan.write_bytes(found[0])
    assert read_plan(plan).problem == solved.problem.digest
    assert stat.S_ISFIFO(pipe.lstat().st_mode)


def test_a_plan_behind_a_link(cli: Cli, solved: Solved, tmp_path: Path) -> None:
    link = tmp_path / "latest.json"
    link.symlink_to("plan-1.json")
    assert cli("solve", solved.problem_file, *BRIEF, "-q", "-o", link).code == 0
    assert link.is_symlink()
    assert json.loads((tmp_path / "plan-1.json").read_text())["problem"] == solved.problem.digest


def test_a_plan_on_a_full_device(cli: Cli, solved: Solved) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("needs /dev/full")
    # Not by its name: whoever runs the tests as root shall keep the device, whatever happens.
    handle = os.open("/dev/full", os.O_WRONLY)
    try:
        path = f"/dev/fd/{handle}"
        line = error_line(cli("solve", solved.problem_file, *BRIEF, "-q", "-o", path))
        assert line == f"stowplan: {path}: cannot write: No space left on device"
    finally:
        os.close(handle)


# ---------------------------------------------------------------------------------------------- plans and their targets


@pytest.fixture
def own_target(tmp_path: Path) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(TARGET.read_text().replace('name = "teaching"', 'name = "mine"'))
    return path


def test_a_plan_for_an_own_target_file(cli: Cli, tmp_path: Path, own_target: Path) -> None:
    plan = tmp_path / "plan.json"
    assert cli("solve", ALEXNET, "--target", own_target, *BRIEF, "-q", "-o", plan).code == 0
    expected = f"stowplan: {plan}: was made for target 'mine', which does not come with stowplan: pass --target FILE"
    assert error_line(cli("verify", ALEXNET, plan)) == expected
    assert error_line(cli("show", plan, ALEXNET)) == expected
    assert cli("verify", ALEXNET, plan, "--target", own_target).code == 0
    assert cli("show", plan, ALEXNET, "--target", own_target).code == 0


def test_a_plan_for_an_own_target_of_a_known_name(cli: Cli, tmp_path: Path) -> None:
    plan, target = tmp_path / "plan.json", tmp_path / "own.toml"
    target.write_text(TARGET.read_text().replace('capacity = "1 MiB"', 'capacity = "3 MiB"'))
    assert cli("solve", ALEXNET, "--target", target, *BRIEF, "-q", "-o", plan).code == 0
    outcome = cli("verify", ALEXNET, plan)
    assert outcome.code == 4
    hint = "the input was read for the plan's own target 'teaching': pass --target FILE if that was a file of yours"
    assert hint in outcome.err
    assert hint in error_line(cli("show", plan, ALEXNET))
    outcome = cli("verify", ALEXNET, plan, "--target", "teaching")
    assert outcome.code == 4
    assert "pass --target" not in outcome.err


@pytest.mark.parametrize("target", ["arena", "order"])
def test_a_plan_of_a_kind_without_targets_says_what_its_input_is_read_for(cli: Cli, tmp_path: Path, target: str) -> None:
    source, plan = EXAMPLES / "attention.hlo.txt", tmp_path / "plan.json"
    assert cli("solve", source, "--target", target, "--candidates", "heuristic", "-q", "-o", plan).code == 0
    assert cli("verify", source, plan).code == 0
    assert cli("show", plan, source).code == 0


# -------------------------------------------------------------------------------------------------- plans of other kinds


@pytest.fixture
def packing_plan(tmp_path: Path, cli: Cli) -> Path:
    source, plan = tmp_path / "two.csv", tmp_path / "two.json"
    source.write_text("id,lower,upper,size\na,0,2,8\nb,1,3,8\n")
    assert cli("solve", source, "--candidates", "canonical", "--time-limit", "5", "-q", "-o", plan).code == 0
    return plan


INPUTS = {
    "memory_mapping": (ALEXNET, "teaching"),
    "modulo_scheduling": (ALEXNET.with_name("fir.dfg.json"), "se"),
    "tier_placement": (ALEXNET.with_name("resnet50.layers.json"), "nnp-i"),
}


def test_a_plan_of_another_kind(cli: Cli, packing_plan: Path, solved: Solved, tmp_path: Path) -> None:
    for kind, (source, target) in INPUTS.items():
        outcome = cli("verify", source, packing_plan, "--target", target)
        assert outcome.code == 4
        assert outcome.out == f"wrong_kind: found a plan of packing, expected a plan of {kind}\n"
        assert outcome.err == f"stowplan: {packing_plan}: not a valid plan: found 1 violation, expected none\n"
        line = error_line(cli("show", packing_plan, source, "--target", target))
        assert line == f"stowplan: {packing_plan}: found a plan of packing, expected a plan of {kind}"
    outcome = cli("verify", solved.problem_file, packing_plan, "--json")
    assert outcome.code == 4
    assert json.loads(outcome.out)["ok"] is False
    outcome = cli("verify", packing_plan.with_suffix(".csv"), solved.plan_file)
    assert (outcome.code, outcome.out) == (4, "wrong_kind: found a plan of memory_mapping, expected a plan of packing\n")


def test_a_fractional_capacity(cli: Cli, tmp_path: Path) -> None:
    for value in ("1.5", "1e-6", "nan"):
        line = error_line(cli("solve", ALEXNET, "--target", "teaching", "--capacity", value, "-o", tmp_path / "out.json"))
        assert "'--capacity'" in line
        assert f"found '{value}', expected bytes, or a number with kB" in line


@pytest.mark.usefixtures("unsolved")
@pytest.mark.parametrize(
    ("name", "other"),
    [
        ("plan.pdf", "--png plan.pdf, which draws the plan"),
        ("plan.PNG", "--png plan.PNG, which draws the plan"),
        ("plan.svg", "--png plan.svg, which draws the plan"),
        ("plan.html", "--report plan.html, which describes the result"),
        ("plan.h", "--emit c-header=plan.h, which writes offsets for C"),
        ("plan.tflite", "--emit tflite=plan.tflite, which writes offsets into a TensorFlow Lite model"),
    ],
)
def test_a_plan_is_not_written_under_the_name_of_another_format(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, other: str
) -> None:
    monkeypatch.chdir(tmp_path)
    expected = f"stowplan: {name}: -o writes the plan as JSON, expected a name such as plan.json, or {other}"
    assert error_line(cli("solve", "program", "-o", name)) == expected
    assert not any(tmp_path.iterdir())


def test_csv_is_for_plans_of_packing(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    line = error_line(cli("solve", EXAMPLES / "banks.json", "-o", "plan.csv"))
    assert line.endswith("expected a name such as plan.json, or --emit csv=plan.csv, which writes offsets")
    line = error_line(cli("solve", EXAMPLES / "training.remat.json", "--capacity", "40MB", "-o", "plan.csv"))
    assert line.endswith("plan.csv: -o writes the plan as JSON, expected a name such as plan.json")
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("name", ["plan", "plan.json", "plan.json.gz", "plan.txt", "packing.plan"])
def test_any_other_name_is_taken_for_a_plan(cli: Cli, tmp_path: Path, name: str) -> None:
    buffers = tmp_path / "two.csv"
    buffers.write_text("id,lower,upper,size\na,0,3,64\n")
    assert cli("solve", buffers, "-o", tmp_path / name, "-q", "--time-limit", 60).code == 0
    assert cli("verify", buffers, tmp_path / name).code == 0
