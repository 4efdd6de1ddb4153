"""The command line as a user meets it: bad input ends in one clear line and exit code 2, and nothing half-written."""

from __future__ import annotations

import gzip
import itertools
import json
import random
import re
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stowplan.hardware.targets.toml_files import template_kinds
from stowplan.result import Result
from tests.cli.conftest import Cli, cli
from tests.paths import EXAMPLES

#: A fixture for the tests here.
__all__ = ["cli"]

MODULE = EXAMPLES / "alexnet_train_b32.hlo.txt.gz"
TEACHING = ["--target", "teaching"]


@pytest.fixture(scope="module")
def solved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A problem file and a verified plan for it with residencies and copies."""
    import stowplan
    from stowplan.portfolio.memory_mapping import heuristics
    from stowplan.portfolio.memory_mapping.arrays import build
    from stowplan.portfolio.memory_mapping.convert import export_plan

    folder = tmp_path_factory.mktemp("solved")
    problem = stowplan.read(MODULE, target="tpu-v4")
    data = build(problem)
    state, _ = heuristics.run(heuristics.production_greedy(data), lambda: False)
    problem.save(folder / "problem.json")
    export_plan(problem, data, state).save(folder / "plan.json")
    return folder / "problem.json", folder / "plan.json"


def is_one_line(text: str, *parts: str) -> bool:
    """Whether an error is one line with all the parts in it."""
    return text.startswith("stowplan: ") and text.count("\n") == 1 and all(part in text for part in parts)


def packed(path: Path, text: str) -> Path:
    path.write_bytes(gzip.compress(text.encode()))
    return path


def text_of(path: Path) -> str:
    return gzip.decompress(path.read_bytes()).decode()


# ------------------------------------------------------------------------------------------------------------- bad input


def bad_modules(folder: Path) -> dict[str, tuple[Path, tuple[str, ...]]]:
    text = text_of(MODULE)
    truncated = folder / "truncated.hlo.gz"
    truncated.write_bytes(MODULE.read_bytes()[:5000])
    lines = text.splitlines()
    entry = next(number for number, line in enumerate(lines) if line.startswith("ENTRY"))
    root = next(number for number in range(entry, len(lines)) if "ROOT" in lines[number])
    where = next(number for number in range(entry, len(lines)) if re.search(r" fusion\(%", lines[number]))
    operand = re.search(r" fusion\((%[\w.\-]+)", lines[where])[1]  # type: ignore[index]
    unknown = [*lines]
    unknown[where] = unknown[where].replace(operand, "%nobody", 1)
    dtype = [*lines]
    dtype[where] = re.sub(r"= (\(?)\w+\[", r"= \1f99[", dtype[where], count=1)
    return {
        "truncated": (truncated, ("truncated.hlo.gz", "truncated gzip")),
        "cut": (packed(folder / "cut.gz", "\n".join(lines[:root])[:-7]), ("cut.gz", "line ")),
        "operand": (packed(folder / "operand.gz", "\n".join(unknown)), (f"line {where + 1}", "nobody")),
        "dtype": (packed(folder / "dtype.gz", "\n".join(dtype)), (f"line {where + 1}", "f99")),
        "unscheduled": (packed(folder / "loose.gz", text.replace("is_scheduled=true", "x=1", 1)), ("loose.gz", "scheduled")),
        "empty": (packed(folder / "empty.gz", ""), ("empty.gz",)),
    }


@pytest.mark.parametrize("case", ["truncated", "cut", "operand", "dtype", "unscheduled", "empty"])
def test_bad_module(case: str, tmp_path: Path, cli: Cli) -> None:
    path, parts = bad_modules(tmp_path)[case]
    out = tmp_path / "out"
    out.mkdir()
    code, printed, error = cli("solve", path, *TEACHING, "-o", out / "plan.json", "--report", out / "report.html")
    assert code == 2
    assert printed == ""
    assert is_one_line(error, *parts), error
    assert list(out.iterdir()) == []


@pytest.mark.parametrize("binary", [True, False])
def test_noise(binary: bool, tmp_path: Path, cli: Cli) -> None:
    path = tmp_path / "noise"
    chance = random.Random(1)
    block = chance.randbytes(1 << 20) if binary else bytes(chance.choices(b"abcdefgh {}()%=\n", k=1 << 20))
    path.write_bytes(block * 100)
    code, _, error = cli("solve", path, *TEACHING)
    assert code == 2
    assert is_one_line(error, "noise"), error


def test_bad_targets(tmp_path: Path, cli: Cli) -> None:
    from importlib import resources

    text = resources.files("stowplan.hardware.targets").joinpath("teaching.toml").read_text()
    line = next(line for line in text.splitlines() if "in_bandwidth" in line)
    negative = tmp_path / "mine.toml"
    negative.write_text(text.replace(line, 'in_bandwidth = "-5 GB/s"'))
    for target, parts in [(negative, ("mine.toml", "in_bandwidth")), ("tpu-v9", ("tpu-v9", "tpu-v4"))]:
        code, _, error = cli("solve", MODULE, "--target", target)
        assert code == 2
        assert is_one_line(error, *parts), error


@pytest.mark.parametrize(
    "arguments",
    [
        ("--capacity", "0"),
        ("--capacity", "-1"),
        ("--time-limit", "0"),
        ("--time-limit", "nan"),
        ("--workers", "0"),
        ("--gap", "2"),
        ("--candidates", "oracle"),
        ("--set", "stalls=perhaps"),
        ("--set", "cost_model=guess"),
        ("--seed", "one"),
        ("--no-such-option",),
        ("-o", "/no/such/folder/plan.json"),
    ],
    ids=lambda arguments: arguments[0].strip("-"),
)
def test_bad_arguments(arguments: tuple[str, ...], cli: Cli) -> None:
    code, printed, error = cli("solve", MODULE, *TEACHING, *arguments)
    assert code == 2
    assert printed == ""
    assert is_one_line(error), error


def test_compiled_program_needs_a_target_and_a_problem_file_none(solved: tuple[Path, Path], cli: Cli) -> None:
    assert cli("solve", MODULE)[0] == 2
    code, _, error = cli("solve", solved[0], "--target", "teaching")
    assert code == 2
    assert is_one_line(error, "problem.json")


# ---------------------------------------------------------------------------------------------------------------- solve


def test_solve_writes_what_it_says(tmp_path: Path, cli: Cli) -> None:
    plan, report = tmp_path / "plan.json", tmp_path / "report.html"
    code, out, error = cli(
        "solve", MODULE, *TEACHING, "--capacity", 1 << 26, "--time-limit", 2, "--candidates", "exact",
        "-o", plan, "--report", report, "--json",
    )  # fmt: skip
    assert code == 0
    values = json.loads(out)
    for name in {*Result.__struct_fields__, "gap", "speedup"} - {"highlights", "problem", "certificate"}:
        assert name in values
    assert values["plan_file"] == str(plan)
    assert values["plan"] == json.loads(plan.read_bytes())
    assert values["verified"] is True
    assert values["bound"] <= values["objective"] <= values["baselines"]["all_slow"]
    assert "bound" in error
    assert report.read_text().lower().startswith("<!doctype html>")
    code, out, _ = cli("verify", MODULE, plan, *TEACHING, "--capacity", 1 << 26)
    assert code == 0
    assert str(values["objective"]) in out
    assert sorted(path.name for path in tmp_path.iterdir()) == ["plan.json", "report.html"]


def test_quiet_is_quiet(cli: Cli) -> None:
    code, out, error = cli("solve", MODULE, *TEACHING, "--time-limit", "0.3", "--candidates", "exact", "-q")
    assert (code, error) == (0, "")
    assert "verified" in out


def test_converted_problem_is_the_same_problem(tmp_path: Path, cli: Cli) -> None:
    import stowplan

    assert cli("convert", MODULE, "-o", tmp_path / "problem.json", *TEACHING)[0] == 0
    assert stowplan.read(tmp_path / "problem.json").digest == stowplan.read(MODULE, target="teaching").digest


# --------------------------------------------------------------------------------------------------------------- verify


def test_plan_for_another_program(solved: tuple[Path, Path], cli: Cli) -> None:
    other = MODULE.with_name("resnet50_inf_b1.hlo.txt.gz")
    code, out, _ = cli("verify", other, solved[1], "--target", "tpu-v4")
    assert code == 4
    assert "wrong_problem" in out


@pytest.mark.parametrize("each", [7, pytest.param(1, marks=pytest.mark.slow)])
def test_every_spoilt_number_is_rejected(solved: tuple[Path, Path], each: int) -> None:
    """Change numbers of a real plan by one: the plan is rejected, unless it means the same or is valid all the same.

    Harmless changes exist: a residency may end later where its place stays free, a copy may be queued earlier or be due later
    where the channel is idle. Those must verify with the same objective; everything else must be refused.
    """
    from stowplan.models.memory_mapping import plan as plans
    from stowplan.models.memory_mapping import problem as problems
    from stowplan.models.memory_mapping.verify import verify

    problem = problems.Problem.load(solved[0])
    raw = json.loads(solved[1].read_bytes())
    assert verify(problem, plans.Plan.load(solved[1])).ok
    assert len(raw["residencies"]) > 20
    assert len(raw["copies"]) > 5
    harmless: dict[str, int] = {}
    refused: dict[str, int] = {}

    tried = itertools.count()

    def try_change(kind: str) -> None:
        if next(tried) % each:
            return
        checked = verify(problem, plans.Plan.decode(json.dumps(raw).encode()))
        if checked.ok:
            assert checked.objective == raw["objective_ps"]
        tally = harmless if checked.ok else refused
        tally[kind] = tally.get(kind, 0) + 1

    for table in ("residencies", "copies"):
        for row in raw[table]:
            for field, value in row.items():
                if isinstance(value, int) and not isinstance(value, bool):
                    for change in (-1, 1):
                        row[field] = value + change
                        try_change(f"{table}.{field}")
                    row[field] = value
    for position, value in enumerate(raw["fast_uses"]):
        for change in (-1, 1):
            raw["fast_uses"][position] = value + change
            try_change("fast_uses")
        raw["fast_uses"][position] = value
    tried = itertools.count()
    raw["objective_ps"] += 1
    try_change("objective_ps")
    # An offset, a fast use or the objective cannot be off by one and mean the same; times may, where nothing happens, and so
    # may the tensor of a copy out that nobody needs (the greedy copies out early, then keeps the tensor to its last use).
    assert set(harmless) <= {"residencies.start", "residencies.end", "copies.start", "copies.end", "copies.tensor"}
    assert set(refused) >= {"residencies.tensor", "residencies.offset", "copies.tensor", "fast_uses", "objective_ps"}
    assert sum(harmless.values()) < sum(refused.values()) / 4


def test_verify_refuses_an_overlap(solved: tuple[Path, Path], tmp_path: Path, cli: Cli) -> None:
    raw = json.loads(solved[1].read_bytes())
    for row in raw["residencies"]:
        row["offset"] = 0
    (tmp_path / "plan.json").write_text(json.dumps(raw))
    code, out, error = cli("verify", solved[0], tmp_path / "plan.json")
    assert code == 4
    # The findings are what the command is for; the error itself is one line.
    assert "overlap: residency" in out
    assert is_one_line(error, "plan.json")


@pytest.mark.parametrize(
    ("change", "part"),
    [
        (lambda raw: raw.update(format="something"), "format"),
        (lambda raw: raw.update(version=99), "version"),
        (lambda raw: raw.update(colour="red"), "colour"),
        (lambda raw: raw.pop("objective_ps"), "objective_ps"),
        (lambda raw: raw["residencies"][0].update(start="soon"), "residencies[0].start"),
    ],
)
def test_bad_plan_file(
    change: Callable[[dict[str, object]], object], part: str, solved: tuple[Path, Path], tmp_path: Path, cli: Cli
) -> None:
    raw = json.loads(solved[1].read_bytes())
    change(raw)
    (tmp_path / "plan.json").write_text(json.dumps(raw))
    code, _, error = cli("verify", solved[0], tmp_path / "plan.json")
    assert code == 2
    assert is_one_line(error, "plan.json", part), error


# ----------------------------------------------------------------------------------------------------------------- show


def test_show(solved: tuple[Path, Path], tmp_path: Path, cli: Cli) -> None:
    code, out, _ = cli("show", solved[1], solved[0])
    assert code == 0
    assert "residencies" in out
    pytest.importorskip("matplotlib")
    code, _, _ = cli("show", solved[1], solved[0], "--png", tmp_path / "plan.png", "--compare", solved[1])
    assert code == 0
    assert (tmp_path / "plan.png").read_bytes().startswith(b"\x89PNG")


def test_without_arguments_it_says_what_to_type(cli: Cli) -> None:
    told = cli().out + cli().err
    lines = [line.split() for line in told.splitlines() if line.startswith("    stowplan ")]
    assert len(lines) == 5
    assert {line[1] for line in lines} == {"solve", "verify", "batch"}


def test_every_option_of_solve_stands_under_a_heading(cli: Cli) -> None:
    printed = cli("solve", "--help").out
    sections = {part.partition(":")[0]: part for part in re.split(r"\n(?=\S)", printed)}
    assert re.findall(r"^  (-\S+)", sections["Options"], re.M) == ["-h,", "--set"]
    # However they are counted: by lines, or by names.
    assert len(re.findall(r"^ +-", printed, re.M)) <= 26
    assert len({*re.findall(r"--[a-z-]+", printed)}) <= 26
    assert max(part.count("\n  -") for part in sections.values()) <= 10


def test_help_and_targets(cli: Cli) -> None:
    assert "tpu-v4" in cli("targets")[1]
    for command in ("solve", "verify", "convert", "show", "targets"):
        code, out, _ = cli(command, "--help")
        assert code == 0
        assert all(len(line) <= 80 for line in out.splitlines()), sys.stdout
    assert cli("frobnicate")[0] == 2


def test_the_help_of_templates_names_every_kind_that_has_one(cli: Cli) -> None:
    shown = " ".join(cli("targets", "--help").out.replace("-\n", "-").split())
    listed = cli("targets").out
    for kind in template_kinds():
        assert kind in shown.replace("- ", "-")
        assert f"({kind.replace('-', ' ')})" in listed
        assert cli("targets", "--template", kind).code == 0
