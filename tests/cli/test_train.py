"""``stowplan train muzero``: files, limits, resuming, and errors in one line."""

from __future__ import annotations

import csv
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.patience import HANG, wait_until

pytest.importorskip("torch")

from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
from stowplan.learned_guidance.memory_mapping.muzero.play import Policy
from stowplan.learned_guidance.modulo_scheduling.ppo.config import PpoConfig
from stowplan.models.memory_mapping import plan as plan_files
from stowplan.models.memory_mapping.verify import verify
from tests.cli.conftest import EXAMPLES, Cli, Solved, error_line
from tests.learned_guidance.memory_mapping.muzero.programs import other_program, small_program

#: A network and a batch that are small, so that a step takes milliseconds.
SMALL = [
    argument
    for setting in (
        "games=2",
        "warm_start_moves=500",
        "local_search_moves=500",
        "warm_start_moves=1000",
        "batch_size=4",
        "moves_per_iteration=6",
        "updates_per_iteration=1",
        "search.simulations=2",
        "network.observation.map_rows=16",
        "network.observation.map_columns=16",
        "network.observation.profile_bins=16",
        "network.observation.supply_slots=4",
        "network.hidden=16",
    )
    for argument in ("--set", setting)
]


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    small_program().save(path)
    return path


@pytest.mark.slow
def test_training_writes_checkpoint_policy_curve_and_plans(cli: Cli, tmp_path: Path, problem: Path) -> None:
    other = tmp_path / "other.json"
    other_program().save(other)
    files = {name: tmp_path / name for name in ("checkpoint.pt", "policy.pt", "curve.csv")}
    done = cli(
        "train", "muzero", problem, other, "-o", files["checkpoint.pt"], "--policy", files["policy.pt"],
        "--curve", files["curve.csv"], "--plans", tmp_path / "plans", "--steps", 4, "--json", *SMALL,
    )  # fmt: skip
    assert done.code == 0, done
    printed = json.loads(done.out)
    assert printed["outcome"] == "steps_done"
    assert printed["training_steps"] == 4
    policy = Policy.load(files["policy.pt"])
    assert policy.file.digest == printed["policy_sha256"]
    with files["curve.csv"].open() as stream:
        rows = list(csv.DictReader(stream))
    assert rows[-1]["training_steps"] == "4"
    assert float(rows[-1]["loss"]) > 0
    for number, (program, row) in enumerate(zip((small_program(), other_program()), printed["programs"], strict=True)):
        plan = plan_files.Plan.load(tmp_path / "plans" / f"{number:03d}.plan.json")
        assert not verify(program, plan).violations
        assert program.all_slow_ps - plan.objective == row["return_ps"]
        assert row["normalised_return"] == pytest.approx(program.normalised_return(plan.objective))
    assert "steps" in done.err


def test_a_run_is_resumed_and_its_curve_goes_on(cli: Cli, tmp_path: Path, problem: Path) -> None:
    output, curve = tmp_path / "checkpoint.pt", tmp_path / "curve.csv"
    base = ("train", "muzero", problem, "-o", output, "--curve", curve, "-q")
    assert cli(*base, "--steps", 2, *SMALL).code == 0
    before = curve.read_text().splitlines()
    done = cli(*base, "--steps", 5, "--resume")
    assert done.code == 0, done
    assert done.out.startswith("5 training steps")
    assert done.err == ""
    after = curve.read_text().splitlines()
    assert after[: len(before)] == before
    assert len(after) > len(before)
    again = cli(*base, "--resume").out.splitlines()
    assert again[-2] == "  nothing was left to do: all 5 training steps are done; --resume with a larger --steps goes on"
    assert re.fullmatch(r"  [\d.]+ s in all: [\d.]+ s to read the input and get ready, [\d.]+ s to train, .*", again[-1])
    assert "exists" in error_line(cli(*base, *SMALL))
    assert cli(*base, "--steps", 1, "--overwrite", *SMALL).out.startswith("1 training steps")


def test_help_names_the_steps_of_all_presets(cli: Cli) -> None:
    own, paper = TrainingConfig.cpu().training_steps, TrainingConfig.paper().training_steps
    wanted = {
        "muzero": f"by default {own}, or {paper} with --preset paper.",
        "ppo": f"{PpoConfig.cpu().steps} by default.",
    }
    for agent, text in wanted.items():
        printed = " ".join(cli("train", agent, "--help").out.replace("│", " ").split())
        assert text in printed


@pytest.mark.parametrize("search", ["gumbel", "puct"])
def test_every_search_trains(cli: Cli, tmp_path: Path, problem: Path, search: str) -> None:
    done = cli(
        "train",
        "muzero",
        problem,
        "-o",
        tmp_path / "x.pt",
        "--set",
        f"search.method={search}",
        "--steps",
        2,
        "--seed",
        1,
        *SMALL,
    )
    assert done.code == 0, done
    assert "best R" in done.out


def test_it_learns_from_plans_and_from_a_policy(cli: Cli, tmp_path: Path, solved: Solved) -> None:
    output, policy = tmp_path / "x.pt", tmp_path / "policy.pt"
    # Without a warm start, so that the demonstration is the only game.
    arguments = (
        "train",
        "muzero",
        solved.problem_file,
        "-o",
        output,
        "--steps",
        1,
        "--json",
        *SMALL,
        "--set",
        "warm_start_moves=0",
    )
    done = cli(*arguments, "--demonstrations", solved.plan_file, "--policy", policy)
    assert done.code == 0, done
    row = json.loads(done.out)["programs"][0]
    assert row["games"] == 0
    assert row["normalised_return"] > 0
    assert cli(*arguments, "--overwrite", "--from", policy, "--demonstrate", 0.3).code == 0


def test_windows_stand_in_for_long_programs(cli: Cli, tmp_path: Path) -> None:
    done = cli(
        "train", "muzero", EXAMPLES / "alexnet_inf_b1.hlo.txt.gz", "--target", "teaching", "-o", tmp_path / "x.pt",
        "--windows", 2, "--window-moves", 10, "--steps", 1, "--json", *SMALL,
    )  # fmt: skip
    assert done.code == 0, done
    programs = json.loads(done.out)["programs"]
    assert len(programs) == 2
    assert all(row["moves"] <= 15 for row in programs)


def test_a_time_limit_ends_training(cli: Cli, tmp_path: Path, problem: Path) -> None:
    done = cli("train", "muzero", problem, "-o", tmp_path / "x.pt", "--time-limit", 0.5, "--json", *SMALL)
    assert done.code == 0
    assert json.loads(done.out)["outcome"] == "time_limit"
    assert (tmp_path / "x.pt").exists()


BAD = [
    (["--preset", "gpu"], "--preset"),
    (["--set", "search.method=alpha"], "--set"),
    (["--device", "tpu"], "--device"),
    (["--set", "x=1"], "--set"),
    (["--set", "batch_size=0"], "batch_size"),
    (["--set", "network.map_patch=3"], "map_rows"),
    (["--set", "search.simulations=0"], "simulations"),
    (["--resume"], "no checkpoint"),
    (["--time-limit", "-1"], "--time-limit"),
    (["--windows", "0"], "--windows"),
    (["--plans", "problem.json"], "is no folder"),
    (["--policy", "nowhere/policy.pt"], "no folder"),
    (["--from", "missing.pt"], "missing.pt"),
    (["--demonstrations", "missing.json"], "missing.json"),
]


@pytest.mark.parametrize(("arguments", "expected"), BAD)
def test_bad_usage_is_one_line(
    cli: Cli, tmp_path: Path, problem: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    assert expected in error_line(cli("train", "muzero", problem, "-o", "x.pt", "--steps", 1, *arguments))
    assert not Path("x.pt").exists()


def test_what_was_decided_cannot_be_changed_on_resuming(cli: Cli, tmp_path: Path, problem: Path) -> None:
    output = tmp_path / "x.pt"
    base = ("train", "muzero", problem, "-o", output)
    assert cli(*base, "--steps", 1, "-q", *SMALL).code == 0
    assert "--seed cannot be changed" in error_line(cli(*base, "--resume", "--seed", 3))
    assert "contradict" in error_line(cli(*base, "--resume", "--overwrite"))
    output.write_bytes(output.read_bytes()[:1000])
    assert "x.pt" in error_line(cli(*base, "--resume"))


def test_other_kinds_of_problem_are_refused(cli: Cli, tmp_path: Path) -> None:
    source = tmp_path / "buffers.csv"
    source.write_text("id,lower,upper,size\na,0,3,4\n")
    assert "memory mapping" in error_line(cli("train", "muzero", source, "--capacity", 10, "-o", tmp_path / "x.pt"))


def test_a_plan_of_another_program_is_no_demonstration(cli: Cli, tmp_path: Path, problem: Path, solved: Solved) -> None:
    found = cli("train", "muzero", problem, "-o", tmp_path / "x.pt", "--demonstrations", solved.plan_file)
    assert "another problem" in error_line(found)


def test_without_torch_the_extra_is_named(cli: Cli, tmp_path: Path, problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert ".[learned]" in error_line(cli("train", "muzero", problem, "-o", tmp_path / "x.pt"))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("number", "code"),
    [
        (signal.SIGINT, 130),
        pytest.param(signal.SIGTERM, 143, marks=pytest.mark.slow),
        pytest.param(signal.SIGHUP, 129, marks=pytest.mark.slow),
    ],
)
def test_an_interrupt_writes_the_checkpoint(tmp_path: Path, problem: Path, number: signal.Signals, code: int) -> None:
    output, curve = tmp_path / "x.pt", tmp_path / "curve.csv"
    command = [sys.executable, "-c", "from stowplan.cli import main; main()", "train", "muzero", str(problem)]
    command += ["-o", str(output), "--curve", str(curve), *SMALL]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) as process:
        wait_until(lambda: (curve.exists() and len(curve.read_text().splitlines()) >= 3) or process.poll() is not None)
        process.send_signal(number)
        out, err = process.communicate(timeout=HANG)
    assert process.returncode == code, err
    assert "(stopped)" in out
    assert "Traceback" not in err
    assert output.exists()
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]
