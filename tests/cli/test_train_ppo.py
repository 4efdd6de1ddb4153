"""``stowplan train ppo``: files, limits, resuming, and errors in one line."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import pytest

pytest.importorskip("torch")
pytest.importorskip("sb3_contrib")

from stowplan.learned_guidance.modulo_scheduling.ppo.config import CHECKPOINT, POLICY
from stowplan.learned_guidance.training.checkpoint import load, load_policy
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.verify import verify
from tests.cli.conftest import Cli, error_line
from tests.learned_guidance.modulo_scheduling.graphs import butterflies, chain

#: Networks and rounds that are small.
SMALL = [
    argument
    for setting in ("hidden=8", "heads=2", "layers=1", "environments=4", "rollout_steps=16", "batch_size=32", "epochs=1")
    for argument in ("--set", setting)
]


@pytest.fixture
def problem(tmp_path: Path) -> Path:
    path = tmp_path / "problem.json"
    butterflies().save(path)
    return path


def test_training_writes_checkpoint_policy_curve_and_plans(cli: Cli, tmp_path: Path, problem: Path) -> None:
    other = tmp_path / "other.json"
    chain(3, back=1).save(other)
    done = cli(
        "train", "ppo", problem, other, "-o", tmp_path / "c.pt", "--policy", tmp_path / "p.pt", "--curve", tmp_path / "c.csv",
        "--plans", tmp_path / "plans", "--steps", 128, "--json", *SMALL,
    )  # fmt: skip
    assert done.code == 0, done
    printed = json.loads(done.out)
    assert (printed["outcome"], printed["steps"], len(printed["graphs"])) == ("steps_done", 128, 2)
    content, network = load_policy(tmp_path / "p.pt", POLICY)
    assert (content.digest, network.config.hidden) == (printed["policy_sha256"], 8)
    with (tmp_path / "c.csv").open() as stream:
        assert [row["steps"] for row in csv.DictReader(stream)] == ["64", "128"]
    plan = Plan.load(tmp_path / "plans" / "001.plan.json")
    assert not verify(chain(3, back=1), plan).violations
    # Going on, and from the policy.
    again = cli("train", "ppo", problem, other, "-o", tmp_path / "c.pt", "--resume", "--steps", 192, "--json")
    assert again.code == 0, again
    assert json.loads(again.out)["steps"] == 192
    assert load(tmp_path / "c.pt", CHECKPOINT).config.hidden == 8
    tuned = cli("train", "ppo", problem, "-o", tmp_path / "d.pt", "--from", tmp_path / "p.pt", "--steps", 64, *SMALL)
    assert tuned.code == 0, tuned
    assert "placements" in tuned.out
    assert "ended because all 64 placements are done; --resume with a larger --steps goes on" in tuned.out


def test_demonstrations_are_imitated(cli: Cli, tmp_path: Path, problem: Path) -> None:
    settings = ["--set", "imitation_steps=20", "--set", "imitation_batch=8", *SMALL]
    done = cli(
        "train", "ppo", problem, "-o", tmp_path / "c.pt", "--steps", 64, "--plans", tmp_path / "plans",
        "--set", "first=latency", "--set", "imitation_steps=0", *SMALL,
    )  # fmt: skip
    assert done.code == 0, done
    plan = tmp_path / "plans" / "000.plan.json"
    done = cli("train", "ppo", problem, "-o", tmp_path / "d.pt", "--demonstrations", plan, "--steps", 64, *settings)
    assert done.code == 0, done
    assert "20 steps of imitation" in done.out


def test_errors_are_one_line(cli: Cli, tmp_path: Path, problem: Path) -> None:
    out = tmp_path / "c.pt"
    assert "first" in error_line(cli("train", "ppo", problem, "-o", out, "--set", "first=size"))
    assert "--set: found 'hidden'" in error_line(cli("train", "ppo", problem, "-o", out, "--set", "hidden"))
    packing = tmp_path / "buffers.csv"
    packing.write_text("id,lower,upper,size\na,0,1,4\n")
    assert "expected modulo scheduling" in error_line(cli("train", "ppo", packing, "-o", out))
    assert not out.exists()
