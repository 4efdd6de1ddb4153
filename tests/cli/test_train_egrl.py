"""``stowplan train egrl``: files, limits, resuming, and errors in one line."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

import stowplan
from tests.patience import HANG, wait_until

pytest.importorskip("torch")

from stowplan.hardware.nnp_i.chip import Chip
from stowplan.learned_guidance.tier_placement.egrl.checkpoint import CHECKPOINT, POLICY
from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
from stowplan.learned_guidance.training.checkpoint import load, load_policy
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.verify import verify
from tests.cli.conftest import EXAMPLES, Cli, error_line
from tests.learned_guidance.tier_placement.egrl.networks import small_network

#: Networks and batches that are small, so that a step takes milliseconds.
SMALL = [
    argument
    for setting in ("hidden=8", "heads=2", "depth=2", "population=4", "batch_size=2", "updates_per_evaluation=0.25")
    for argument in ("--set", setting)
]


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    small_network(4).save(path)
    return path


def test_training_writes_checkpoint_policy_curve_and_plans(cli: Cli, tmp_path: Path, problem: Path) -> None:
    other = tmp_path / "other.json"
    small_network(3, seed=1).save(other)
    files = {name: tmp_path / name for name in ("checkpoint.pt", "policy.pt", "curve.csv")}
    done = cli(
        "train", "egrl", problem, other, "-o", files["checkpoint.pt"], "--policy", files["policy.pt"], "--set", "noise=0.05",
        "--curve", files["curve.csv"], "--plans", tmp_path / "made" / "plans", "--evaluations", 20, "--json", *SMALL,
    )  # fmt: skip
    assert done.code == 0, done
    printed = json.loads(done.out)
    assert (printed["outcome"], printed["evaluations"]) == ("steps_done", 20)
    content, _ = load_policy(files["policy.pt"], POLICY)
    assert content.digest == printed["policy_sha256"]
    assert load(files["checkpoint.pt"], CHECKPOINT).config.noise == 0.05
    with files["curve.csv"].open() as stream:
        rows = list(csv.DictReader(stream))
    assert rows[-1]["evaluations"] == "20"
    assert [row["generation"] for row in rows] == [str(number + 1) for number in range(len(rows))]
    assert any(row["critic_loss"] for row in rows)
    assert sum(row["evaluations"] for row in printed["networks"]) == 20
    for number, (network, row) in enumerate(
        zip((small_network(4), small_network(3, seed=1)), printed["networks"], strict=True)
    ):
        plan = Plan.load(tmp_path / "made" / "plans" / f"{number:03d}.plan.json")
        assert not verify(network, plan).violations
        assert plan.objective == row["latency_ps"]
        assert row["speedup"] == pytest.approx(row["compiler_ps"] / row["latency_ps"])
        assert row["measured_speedup"] != row["speedup"]
    assert "best speedup" in done.err


def test_a_run_is_resumed_and_its_curve_goes_on(cli: Cli, tmp_path: Path, problem: Path) -> None:
    output, curve = tmp_path / "checkpoint.pt", tmp_path / "curve.csv"
    base = ("train", "egrl", problem, "-o", output, "--curve", curve, "-q")
    assert cli(*base, "--evaluations", 14, *SMALL).code == 0
    before = curve.read_text().splitlines()
    done = cli(*base, "--evaluations", 30, "--resume")
    assert done.code == 0, done
    assert done.out.startswith("30 evaluations")
    # But for warnings of torch.
    assert "stowplan" not in done.err.replace("/stowplan/", "")
    after = curve.read_text().splitlines()
    assert after[: len(before) - 1] == before[:-1]
    assert len(after) > len(before)
    assert "exists" in error_line(cli(*base, *SMALL))
    assert cli(*base, "--evaluations", 5, "--overwrite", *SMALL).out.startswith("5 evaluations")


def test_who_ends_by_evaluations_is_told_so(cli: Cli, tmp_path: Path, problem: Path) -> None:
    output = tmp_path / "checkpoint.pt"
    base = ("train", "egrl", problem, "-o", output, "-q")
    done = cli(*base, "--evaluations", 7, "--time-limit", 600, *SMALL)
    assert "ended because all 7 evaluations are done; --resume with a larger --evaluations goes on" in done.out
    again = cli(*base, "--resume", "--time-limit", 600)
    assert again.code == 0, again
    assert "nothing was left to do: all 7 evaluations are done; --resume with a larger --evaluations goes on" in again.out
    assert load(output, CHECKPOINT).values["counters"][0] == 7
    # A generation that is cut is done again, whole.
    cut = cli(*base, "--resume", "--evaluations", 9, "--json")
    assert json.loads(cut.out)["evaluations"] == 9
    assert load(output, CHECKPOINT).values["counters"][0] == 7
    more = cli(*base, "--resume", "--evaluations", 20, "--json")
    assert (json.loads(more.out)["evaluations"], json.loads(more.out)["most_evaluations"]) == (20, 20)


def test_help_names_the_evaluations_of_both_presets(cli: Cli) -> None:
    printed = " ".join(cli("train", "egrl", "--help").out.replace("│", " ").split())
    for preset in (EgrlConfig.cpu(), EgrlConfig.paper()):
        assert f"{preset.evaluations} by default, for all networks" in printed


@pytest.mark.parametrize("method", ["egrl", "ea", "pg"])
def test_every_method_trains(cli: Cli, tmp_path: Path, problem: Path, method: str) -> None:
    done = cli(
        "train", "egrl", problem, "-o", tmp_path / "x.pt", "--method", method, "--evaluations", 12, "--seed", 1,
        "--policy", tmp_path / "policy.pt", "--json", *(SMALL if method != "pg" else SMALL[:6] + SMALL[8:]),
    )  # fmt: skip
    assert done.code == 0, done
    printed = json.loads(done.out)
    assert (printed["training_steps"] > 0) == (method != "ea")
    assert (load(tmp_path / "x.pt", CHECKPOINT).config.population > 0) == (method != "pg")
    load_policy(tmp_path / "policy.pt", POLICY)


def test_layer_files_are_read_as_solve_reads_them(cli: Cli, tmp_path: Path) -> None:
    done = cli(
        "train", "egrl", EXAMPLES / "resnet50.layers.json", "--target", "nnp-i", "--set", "precision=fp16",
        "--capacity", 1 << 20, "-o", tmp_path / "x.pt", "--evaluations", 3, "--json", "--preset", "paper", *SMALL,
    )  # fmt: skip
    assert done.code == 0, done
    row = json.loads(done.out)["networks"][0]
    problem = stowplan.read(EXAMPLES / "resnet50.layers.json", target="nnp-i", precision="fp16", capacity=1 << 20)
    assert (row["network"], row["layers"], row["problem"]) == ("resnet50", 57, problem.digest)
    assert load(tmp_path / "x.pt", CHECKPOINT).config.features == "paper"


def test_it_learns_from_plans_and_from_a_policy(cli: Cli, tmp_path: Path, problem: Path) -> None:
    plan, policy, output = tmp_path / "plan.json", tmp_path / "policy.pt", tmp_path / "x.pt"
    chip = Chip(small_network(4))
    chip.plan(chip.compiler).save(plan)
    base = ("train", "egrl", problem, "-o", output, "--evaluations", 8, "--json")
    done = cli(*base, "--demonstrations", plan, "--policy", policy, *SMALL)
    assert done.code == 0, done
    saved = load(output, CHECKPOINT)
    assert saved.config.imitation == 1.0
    assert [each.tolist() for each in saved.values["networks"][0]["shown"]] == [
        [list(pair) for pair in zip(*chip.compiler[:2], strict=True)]
    ]
    # The policy's network replaces the preset's.
    done = cli(*base, "--overwrite", "--from", policy, "--demonstrate", 0.3, "--set", "imitation=0.5", "--set", "population=4")
    assert done.code == 0, done
    saved = load(output, CHECKPOINT)
    assert (saved.config.hidden, saved.config.imitation) == (8, 0.5)
    assert len(saved.values["networks"][0]["shown"]) == 1


def test_a_time_limit_ends_training(cli: Cli, tmp_path: Path, problem: Path) -> None:
    done = cli("train", "egrl", problem, "-o", tmp_path / "x.pt", "--time-limit", 0.5, "--json", *SMALL)
    assert done.code == 0
    assert json.loads(done.out)["outcome"] == "time_limit"
    assert (tmp_path / "x.pt").exists()


BAD = [
    (["--preset", "gpu"], "--preset"),
    (["--method", "sac"], "--method"),
    (["--set", "noise=1.5"], "noise"),
    (["--set", "x=1"], "--set"),
    (["--set", "batch_size=0"], "batch_size"),
    (["--set", "batch_size=many"], "batch_size"),
    (["--set", "temperatures=[1]"], "temperatures"),
    (["--set", "hidden=9"], "hidden"),
    (["--evaluations", "0"], "evaluations"),
    (["--resume"], "no checkpoint"),
    (["--time-limit", "-1"], "--time-limit"),
    (["--plans", "problem.json"], "is no folder"),
    (["--policy", "nowhere/policy.pt"], "no folder"),
    (["--policy", "p.pt", "--method", "ea", "--set", "boltzmann_fraction=1"], "--policy"),
    (["--from", "missing.pt"], "missing.pt"),
    (["--demonstrations", "missing.json"], "missing.json"),
    (["--demonstrate", "1", "--method", "ea"], "--demonstrate"),
    (["--demonstrate", "0"], "--demonstrate"),
    (["--target", "nnp-i"], "--target"),
    (["--policy", "x.pt"], "written twice"),
]


@pytest.mark.parametrize(("arguments", "expected"), BAD)
def test_bad_usage_is_one_line(
    cli: Cli, tmp_path: Path, problem: Path, monkeypatch: pytest.MonkeyPatch, arguments: list[str], expected: str
) -> None:
    monkeypatch.chdir(tmp_path)
    steps = () if "--evaluations" in arguments else ("--evaluations", 3)
    assert expected in error_line(cli("train", "egrl", problem, "-o", "x.pt", *steps, *arguments))
    assert [path.name for path in tmp_path.iterdir()] == ["problem.json"]


def test_networks_that_cannot_be_trained_on_are_named(cli: Cli, tmp_path: Path, problem: Path) -> None:
    def refused(*networks: Path) -> str:
        found = error_line(cli("train", "egrl", *networks, "-o", tmp_path / "x.pt", "--evaluations", 3))
        assert not (tmp_path / "x.pt").exists()
        return found

    plain, two, full = tmp_path / "plain.json", tmp_path / "two.json", tmp_path / "full.json"
    network = small_network(4)
    msgspec.structs.replace(network, features=()).save(plain)
    small_network(4, tiers=2).save(two)
    msgspec.structs.replace(network, tiers=tuple(msgspec.structs.replace(tier, capacity=3) for tier in network.tiers)).save(
        full
    )
    assert "plain.json: features: found no node features" in refused(problem, plain)
    assert "two.json: tiers: found a chip of 2 tiers, expected 3 as of " in refused(problem, two)
    assert "full.json: " in refused(full)
    other = tmp_path / "buffers.json"
    source = tmp_path / "buffers.csv"
    source.write_text("id,lower,upper,size\na,0,3,4\n")
    stowplan.read(source, capacity=10).save(other)
    assert "buffers.json: found another kind of problem, expected tier placement" in refused(other)
    assert "missing.json" in refused(tmp_path / "missing.json")


def test_what_was_decided_cannot_be_changed_on_resuming(cli: Cli, tmp_path: Path, problem: Path) -> None:
    output, other = tmp_path / "x.pt", tmp_path / "other.json"
    small_network(3).save(other)
    base = ("train", "egrl", problem, "-o", output)
    assert cli(*base, "--evaluations", 5, "-q", *SMALL).code == 0
    for option, value in (("--seed", 3), ("--method", "ea"), ("--preset", "cpu"), ("--set", "depth=2")):
        assert f"{option} cannot be changed" in error_line(cli(*base, "--resume", option, value))
    assert "--demonstrate cannot be changed" in error_line(cli(*base, "--resume", "--demonstrate", 1))
    assert "contradict" in error_line(cli(*base, "--resume", "--overwrite"))
    before = output.read_bytes()
    assert "x.pt: made with other problems" in error_line(cli("train", "egrl", other, "-o", output, "--resume"))
    assert output.read_bytes() == before
    output.write_bytes(before[:1000])
    assert "x.pt" in error_line(cli(*base, "--resume"))


def test_plans_that_do_not_fit_are_no_demonstrations(cli: Cli, tmp_path: Path, problem: Path) -> None:
    plan = tmp_path / "plan.json"
    digest = small_network(4).digest
    for fields, message in (
        ({"problem": "x"}, "plan.json: is a plan of another problem"),
        ({"output_tiers": (2,) * 4}, "plan.json: cannot be executed as it is"),
        ({"output_tiers": (7,) * 4}, "plan.json: found tiers 0 to 7, expected 0 to 2"),
        ({"weight_tiers": (0,)}, "plan.json: has not a tier for"),
    ):
        known = {"problem": digest, "objective": 1, "weight_tiers": (0,) * 4, "output_tiers": (0,) * 4}
        Plan(**{**known, **fields}).save(plan)
        assert message in error_line(cli("train", "egrl", problem, "-o", tmp_path / "x.pt", "--demonstrations", plan, *SMALL))
        assert not (tmp_path / "x.pt").exists()


def test_a_policy_for_other_chips_is_refused(cli: Cli, tmp_path: Path, problem: Path) -> None:
    two, policy = tmp_path / "two.json", tmp_path / "policy.pt"
    small_network(4, tiers=2).save(two)
    assert cli("train", "egrl", two, "-o", tmp_path / "x.pt", "--evaluations", 2, "--policy", policy, *SMALL).code == 0
    assert "policy.pt: " in error_line(cli("train", "egrl", problem, "-o", tmp_path / "y.pt", "--from", policy, *SMALL))
    assert not (tmp_path / "y.pt").exists()


def test_without_torch_the_extra_is_named(cli: Cli, tmp_path: Path, problem: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    assert ".[learned]" in error_line(cli("train", "egrl", problem, "-o", tmp_path / "x.pt"))


@pytest.mark.slow
def test_an_interrupt_writes_the_checkpoint(tmp_path: Path, problem: Path) -> None:
    output, curve = tmp_path / "x.pt", tmp_path / "curve.csv"
    command = [sys.executable, "-c", "from stowplan.cli import main; main()", "train", "egrl", str(problem)]
    command += ["-o", str(output), "--curve", str(curve), "--evaluations", "1000000", *SMALL]
    with subprocess.Popen(command, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=os.environ) as process:
        wait_until(lambda: (curve.exists() and len(curve.read_text().splitlines()) >= 3) or process.poll() is not None)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=HANG)
    assert process.returncode == 130, err
    assert "(stopped)" in out
    assert "Traceback" not in err
    assert output.exists()
    assert not [path for path in tmp_path.iterdir() if path.name.endswith(".tmp")]
