"""``stowplan validate``: tables, JSON and a report; what it refuses in one line."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from stowplan.cli import validate as command
from stowplan.kernel.context import Options
from stowplan.portfolio.validation import policies, suite
from stowplan.portfolio.validation.records import Validation
from tests.cli.conftest import Cli, error_line
from tests.portfolio.validation.players import BEST, ONE_BAD, Fixed, Idle, Scripted, four_reads, solved

ARGUMENTS = ("--set", "games=3", "--time-limit", 60, "--deterministic")


@pytest.fixture
def scripted(monkeypatch: pytest.MonkeyPatch) -> None:
    """A policy that errs once, and the exact side in this process."""
    monkeypatch.setattr(suite, "solve", lambda problem, **rest: solved(problem))
    monkeypatch.setattr(policies, "Policies", lambda paths, seed: Fixed(Scripted(ONE_BAD)))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A suite of two."""
    found = tmp_path / "suite"
    found.mkdir()
    for name in ("one", "two"):
        four_reads().save(found / f"{name}.json")
    return found


def test_tables(cli: Cli, scripted: None, folder: Path) -> None:
    outcome = cli("validate", folder, *ARGUMENTS)
    assert outcome.code == 0, outcome.err
    assert "MMap-MuZero on memory mapping: 2 problems, 2 proven optima" in outcome.out
    assert outcome.out.count("100.0%  3: drop t2 for read 2") == 2
    assert "reward and simulated latency, Pearson: -1.000 (12 plans)" in outcome.out
    # First what does not come of how much of the game is left.
    assert re.search("values and returns, rank correlation at equal positions: .*; over all positions ", outcome.out)
    assert outcome.out.splitlines()[-1] == "2 of 2 validated"
    assert "[1/2] one" in outcome.err
    assert "nan" not in outcome.out.lower()


def test_a_gap_to_an_optimum_that_is_not_proven_is_a_range(
    cli: Cli, scripted: None, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "solve", lambda problem, **rest: solved(problem, proven=False))
    lines = cli("validate", folder, *ARGUMENTS).out.splitlines()
    assert re.search(r"% to [\d.]+%", next(line for line in lines if line.startswith("one ")))
    range_of = "from the gap to the best known plan to the gap to the bound."
    assert f"* The optimum was not proven within the limit, so that the gap is a range: {range_of}" in lines


def test_json_and_a_report(cli: Cli, scripted: None, folder: Path, tmp_path: Path) -> None:
    out, page = tmp_path / "out.json", tmp_path / "report.html"
    outcome = cli("validate", folder, *ARGUMENTS, "--json", "-q", "-o", out, "--report", page)
    assert (outcome.code, outcome.err) == (0, "")
    printed = json.loads(outcome.out)
    assert printed == json.loads(out.read_text())
    found = Validation.load(out)
    assert [each.name for each in found.problems] == ["one", "two"]
    assert found.summaries[0].rows[0].gaps.lost == 0
    text = page.read_text()
    assert text.startswith("<!doctype html>")
    assert "drop t2 for read 2" in text


def test_ctrl_c_keeps_what_is_finished(
    cli: Cli, scripted: None, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real = suite.validate

    def interrupted(items: Any, *rest: Any, cancel: Any, **options: Any) -> Any:
        for problem in real(items, *rest, cancel=cancel, **options):
            yield problem
            cancel.set()

    monkeypatch.setattr(suite, "validate", interrupted)
    out = tmp_path / "out.json"
    outcome = cli("validate", folder, *ARGUMENTS, "-q", "-o", out)
    assert outcome.code == 130
    assert outcome.out.splitlines()[-1] == "1 of 2 validated, 1 not finished"
    found = Validation.load(out)
    assert (found.interrupted, found.asked, len(found.problems)) == (True, 2, 1)


@pytest.mark.parametrize("name", ["one.json", ""])
def test_nothing_played_is_not_validated(cli: Cli, monkeypatch: pytest.MonkeyPatch, folder: Path, name: str) -> None:
    monkeypatch.setattr(suite, "solve", lambda problem, **rest: solved(problem))
    monkeypatch.setattr(policies, "Policies", lambda paths, seed: Fixed(Idle()))
    outcome = cli("validate", folder / name, *ARGUMENTS, "-q")
    assert outcome.code == 3
    said = "the time limit of 60 s was over before the policy had played a game"
    if name:
        assert (outcome.out, outcome.err) == ("", f"stowplan: {said}\n")
    else:
        assert outcome.out.count(said) == 2
        assert outcome.out.splitlines()[-1] == "0 of 2 validated"


def test_an_input_that_fails_among_others(cli: Cli, scripted: None, folder: Path) -> None:
    (folder / "three.csv").write_text("id,lower,upper,size\na,0,x,5\n")
    outcome = cli("validate", folder, *ARGUMENTS, "-q")
    assert outcome.code == 2
    assert "failed (exit code 2): three: " in outcome.out
    assert outcome.out.splitlines()[-1] == "2 of 3 validated"


def test_the_column_of_values_is_that_at_equal_positions(cli: Cli, monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    # Right about how much of the game is left; where that is the same, it ranks the wrong way round.
    knows_the_length = Scripted(sampled=(ONE_BAD, BEST), estimate=lambda so_far, to_come: round(to_come, -1) * 10 - to_come)
    monkeypatch.setattr(suite, "solve", lambda problem, **rest: solved(problem))
    monkeypatch.setattr(policies, "Policies", lambda paths, seed: Fixed(knows_the_length))
    outcome = cli("validate", folder, *ARGUMENTS, "--json")
    values = json.loads(outcome.out)["problems"][0]["values"]
    assert values["correlation"] > 0 > values["at_equal_positions"]
    row = next(line for line in cli("validate", folder, *ARGUMENTS).out.splitlines() if line.startswith("one "))
    assert row.split()[-1] == f"{values['at_equal_positions']:.3f}"


def test_policies_are_called_what_their_files_say(cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(suite, "solve", lambda problem, **rest: solved(problem))
    path = tmp_path / "four.json"
    four_reads().save(path)
    monkeypatch.delenv("STOWPLAN_POLICY", raising=False)
    assert ": trained by imitation alone, no games of its own\n" in cli("validate", path, *ARGUMENTS, "-q").out


@pytest.mark.parametrize(
    ("name", "claim"),
    [
        ("memory_mapping", "trained by imitation alone, no games of its own"),
        ("tier_placement", "trained by imitation alone, no evaluations of its own"),
        ("modulo_scheduling", "trained on 6,799 mappings of its own"),
    ],
)
def test_what_candidates_say_of_the_shipped_policies_is_what_the_files_say(
    name: str, claim: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("torch")
    adapter = policies.kind(name).extras().adapter
    assert adapter is not None
    monkeypatch.delenv(adapter.source.variable, raising=False)
    opened = policies.Policies().of(policies.kind(name))
    assert opened.training == claim
    # The source's words say more, but nothing else.
    assert (f"no {adapter.episodes} of its own" in adapter.source.training) == (f"no {adapter.episodes} of its own" in claim)
    assert adapter.source.candidate("m:q", Options(), 0, seconds=0.0).training == adapter.source.training
    monkeypatch.setenv(adapter.source.variable, str(adapter.source.path))
    assert adapter.source.candidate("m:q", Options(), 0, seconds=0.0).training == ""


def test_the_shipped_policy_by_seed(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.setattr(suite, "solve", lambda problem, **rest: solved(problem))
    path = tmp_path / "four.json"
    four_reads().save(path)

    def run(seed: int) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(cli("validate", path, *ARGUMENTS, "-q", "--json", "--seed", seed).out)
        for side in ("policy", "control"):
            del found["problems"][0][side]["seconds"]
        return found

    one, other = run(1), run(2)
    assert one == run(1)
    assert one["problems"] != other["problems"]


# What it refuses


def test_an_empty_suite(cli: Cli, tmp_path: Path) -> None:
    assert "found no input there" in error_line(cli("validate", tmp_path))


def test_a_policy_of_another_kind(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "four.json"
    four_reads().save(path)
    adapter = policies.kind("modulo_scheduling").extras().adapter
    assert adapter is not None
    policy = adapter.source.path
    outcome = cli("validate", path, "--policy", policy, "-q", "--set", "games=1", "--set", "solves=0")
    assert outcome.code == 2
    assert "mmap_muzero.pt" in outcome.out
    assert outcome.err.endswith("ppo.pt: found a policy of modulo scheduling, and no problem for it in the suite\n")


def test_a_damaged_policy(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path, policy = tmp_path / "four.json", tmp_path / "policy.pt"
    four_reads().save(path)
    policy.write_bytes(b"\x80nothing")
    assert "policy.pt: not a policy, or a damaged one" in error_line(cli("validate", path, "--policy", policy))


def test_a_kind_without_policies(cli: Cli, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "buffers.csv"
    path.write_text("id,lower,upper,size\na,0,2,5\n")
    assert f"{path}: found a problem of packing, expected one of memory mapping" in error_line(cli("validate", path, "-q"))


def test_without_torch(cli: Cli, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(policies, "find_spec", lambda name: None)
    assert "pip install '.[learned]'" in error_line(cli("validate", folder))


def test_a_folder_without_compiled_results(cli: Cli, folder: Path, tmp_path: Path) -> None:
    assert "found no compiled result" in error_line(cli("validate", folder, "--set", f"compiled={tmp_path}"))


@pytest.mark.parametrize(
    ("option", "value"), [("--set", "games=-1"), ("--set", "solves=-1"), ("--time-limit", 0), ("--workers", 0)]
)
def test_numbers_out_of_range(cli: Cli, scripted: None, folder: Path, option: str, value: int) -> None:
    assert "expected" in error_line(cli("validate", folder, "-q", option, value))


def test_correlations_are_never_nan() -> None:
    assert (command.as_correlation(None), command.as_correlation(-0.5)) == ("none", "-0.500")
