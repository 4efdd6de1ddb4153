"""``stowplan solve --keep-close``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import stowplan
from stowplan.kernel.kind import kind_of
from stowplan.models.packing.plan import Plan as PackingPlan
from tests.cli.conftest import ALEXNET, BRIEF, Cli, cli, error_line
from tests.paths import EXAMPLES

__all__ = ["cli"]


class Yesterday:
    """Four buffers, and a plan of them that is no taller than it must be."""

    def __init__(self, folder: Path):
        self.source = folder / "buffers.csv"
        self.source.write_text("id,lower,upper,size\na,0,4,4\nb,2,6,3\nc,5,9,4\nd,0,9,2\n")
        problem = stowplan.read(self.source)
        plan = PackingPlan(problem=problem.digest, objective=9, offsets=(5, 2, 5, 0), buffers=problem.buffers)
        self.json, self.csv = folder / "plan.json", folder / "plan.csv"
        plan.save(self.json)
        plan.save(self.csv)
        self.today = folder / "today.csv"
        self.today.write_text("id,lower,upper,size\nc,5,9,4\na,0,4,4\nd,0,9,3\ne,4,5,7\n")


@pytest.fixture
def yesterday(tmp_path: Path) -> Yesterday:
    return Yesterday(tmp_path)


def test_the_same_input(cli: Cli, yesterday: Yesterday, tmp_path: Path) -> None:
    done = cli(
        "solve", yesterday.source, "--keep-close", yesterday.json, "-o", tmp_path / "new.json", "-q", "--time-limit", "2"
    )
    assert done.code == 0, done.err
    assert "changed    0 of 4 decisions of the earlier plan" in done.out
    assert "nothing moved" in cli("compare", yesterday.json, tmp_path / "new.json", yesterday.source).out


@pytest.mark.parametrize("form", ["json", "csv"])
def test_a_changed_input(cli: Cli, yesterday: Yesterday, form: str) -> None:
    done = cli("solve", yesterday.today, "--keep-close", getattr(yesterday, form), "--json", "-q", "--time-limit", "2")
    assert done.code == 0, done.err
    said = json.loads(done.out)["details"]["keep_close"]
    assert (said["changed"], said["of"], said["parts"]) == (0, 3, {"buffer": [0, 3]})


def test_with_the_earlier_program(cli: Cli, tmp_path: Path) -> None:
    """A plan of a program does not name its steps."""
    earlier = stowplan.read(ALEXNET, target="teaching")
    kind_of(earlier).initial(earlier)["all_slow"].save(tmp_path / "plan.json")
    lstm = EXAMPLES / "lstm_scan_inf_b32.hlo.txt.gz"
    command = ("solve", lstm, "--target", "teaching", "-q", "--keep-close", tmp_path / "plan.json", *BRIEF)
    assert "expected the earlier version with it (--set hint_program=FILE)" in error_line(cli(*command))
    done = cli(*command, "--set", f"hint_program={ALEXNET}", "--json")
    assert done.code == 0, done.err
    found = json.loads(done.out)
    assert found["details"]["keep_close"]["best_changed"] >= found["details"]["keep_close"]["changed"]
    assert "nothing of the earlier plan saves time in this version of the program" in found["warnings"]


def test_what_cannot_be_is_said_in_a_line(cli: Cli, yesterday: Yesterday, tmp_path: Path) -> None:
    solve = ("solve", yesterday.source, "-q", "-o", tmp_path / "new.json")
    assert "expected a plan: stowplan.packing.plan" in error_line(cli(*solve, "--keep-close", EXAMPLES / "banks.json"))
    assert "no --keep-close" in error_line(cli(*solve, "--set", "keep_close_within=1%"))
    for text in ("much", "-1%", "nan", "inf"):
        line = error_line(cli(*solve, "--keep-close", yesterday.json, "--set", f"keep_close_within={text}"))
        assert f"found '{text}', expected a part of the objective" in line
    assert "and there is neither" in error_line(cli(*solve, "--set", f"hint_program={yesterday.source}"))
    broken = tmp_path / "broken.json"
    broken.write_bytes(
        yesterday.json.read_bytes().replace(b"[5,2,5,0]", b"[0,0,0,0]").replace(b'"objective":9', b'"objective":4')
    )
    if b"[0,0,0,0]" in broken.read_bytes():
        assert "not valid for this problem" in error_line(cli(*solve, "--keep-close", broken))
    assert "no such file" in error_line(cli(*solve, "--keep-close", tmp_path / "none.json")).lower()
    assert not (tmp_path / "new.json").exists()


def test_a_loss_in_per_cent(cli: Cli, yesterday: Yesterday, tmp_path: Path) -> None:
    problem = stowplan.read(yesterday.source)
    plan = PackingPlan(problem=problem.digest, objective=10, offsets=(6, 2, 6, 0))
    plan.save(tmp_path / "tall.json")
    for text, objective in (("0", 9), ("12%", 10), ("0.12", 10)):
        found = cli(
            "solve", yesterday.source, "--keep-close", tmp_path / "tall.json", "--set", f"keep_close_within={text}",
            "--json", "-q", "--time-limit", "2",
        )  # fmt: skip
        assert json.loads(found.out)["objective"] == objective
