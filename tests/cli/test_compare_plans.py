"""``stowplan compare PLAN PLAN INPUT``."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
import pytest

import stowplan
from stowplan.kernel.kind import registered
from stowplan.models.packing.plan import Plan as PackingPlan
from tests.cli.conftest import ALEXNET, Cli, Solved, cli, error_line

__all__ = ["cli"]


class Packings:
    """Two packings of two buffers that live apart, and one that is none."""

    def __init__(self, folder: Path):
        self.source = folder / "buffers.csv"
        self.source.write_text("id,lower,upper,size\na,0,5,40\nb,5,9,10\nc,2,9,30\n")
        self.problem = stowplan.read(self.source)
        self.low = self._save(folder / "low.json", 0, 0, 40)
        self.high = self._save(folder / "high.json", 0, 5, 50)
        self.wrong = self._save(folder / "wrong.json", 0, 0, 0)

    def _save(self, path: Path, *offsets: int) -> Path:
        sizes = (40, 10, 30)
        top = max(offset + size for offset, size in zip(offsets, sizes, strict=True))
        PackingPlan(problem=self.problem.digest, objective=top, offsets=offsets).save(path)
        return path


@pytest.fixture
def packings(tmp_path: Path) -> Packings:
    return Packings(tmp_path)


def test_says_what_moved_and_what_it_costs(cli: Cli, packings: Packings) -> None:
    outcome = cli("compare", packings.low, packings.high, packings.source)
    assert outcome.code == 0, outcome.err
    lines = [" ".join(line.split()) for line in outcome.out.splitlines()]
    assert "objective 70 bytes 80 bytes 10 bytes more (+14.3 %)" in lines
    assert "buffer 3 2 0 0" in lines
    assert "b moved offset 0 offset 5" in lines
    assert "c moved offset 40 offset 50" in lines


def test_as_json(cli: Cli, packings: Packings) -> None:
    found = json.loads(cli("compare", packings.high, packings.low, packings.source, "--json").out)
    assert (found["kind"], found["unit"], found["first"], found["second"]) == ("packing", "bytes", 80, 70)
    assert (found["difference"], found["percent"]) == (-10, -12.5)
    assert found["parts"] == [
        {
            "what": "buffer",
            "total": 3,
            "changes": [
                {"name": "b", "change": "moved", "before": {"offset": 5}, "after": {"offset": 0}},
                {"name": "c", "change": "moved", "before": {"offset": 50}, "after": {"offset": 40}},
            ],
        }
    ]


def test_a_plan_beside_itself(cli: Cli, packings: Packings) -> None:
    out = cli("compare", packings.low, packings.low, packings.source).out
    assert "the same" in out
    assert out.endswith("nothing moved\n")


def test_long_lists_are_cut(cli: Cli, tmp_path: Path) -> None:
    source = tmp_path / "many.csv"
    source.write_text("id,lower,upper,size\n" + "".join(f"b{at},{at},{at + 1},1\n" for at in range(50)))
    digest = stowplan.read(source).digest
    for name, offset in (("one", 0), ("two", 1)):
        PackingPlan(problem=digest, objective=1 + offset, offsets=(offset,) * 50).save(tmp_path / f"{name}.json")
    command = ("compare", tmp_path / "one.json", tmp_path / "two.json", source)
    assert "... and 10 more (--all lists them)" in cli(*command).out
    assert "b49 " in cli(*command, "--all").out


def test_the_plans_own_target_is_taken(cli: Cli, solved: Solved, tmp_path: Path) -> None:
    from stowplan.portfolio.memory_mapping.kind import KIND

    slow = tmp_path / "slow.json"
    KIND.initial(solved.problem)["all_slow"].save(slow)
    outcome = cli("compare", solved.plan_file, slow, ALEXNET)
    assert outcome.code == 0, outcome.err
    dropped = len(solved.plan.fast_uses)
    assert f"fast use {dropped} 0 0 {dropped}" in [" ".join(line.split()) for line in outcome.out.splitlines()]


@pytest.mark.parametrize(
    ("second", "expected"),
    [
        ("wrong", "wrong.json: not a valid plan: "),
        ("other", "other.json: the plan is for another problem, expected two plans of the same input"),
        ("kind", "kind.json: found a plan of memory_mapping, expected a plan of packing"),
        ("none", "none.json"),
    ],
)
@pytest.mark.parametrize("order", [1, -1])
def test_bad_plans_are_one_line(
    cli: Cli, packings: Packings, solved: Solved, tmp_path: Path, second: str, expected: str, order: int
) -> None:
    msgspec.structs.replace(PackingPlan.load(packings.low), problem="0" * 64).save(tmp_path / "other.json")
    solved.plan.save(tmp_path / "kind.json")
    plans = (packings.low, tmp_path / f"{second}.json")[::order]
    assert expected in error_line(cli("compare", *plans, packings.source))


def test_the_two_forms_are_told_apart(cli: Cli, packings: Packings, tmp_path: Path) -> None:
    folder = tmp_path / "results"
    folder.mkdir()
    assert "expected folders of results, or two plans and their input" in error_line(cli("compare", packings.low))
    assert "PLAN PLAN2 INPUT" in error_line(cli("compare", packings.low, packings.high))
    assert "is a folder, expected a plan" in error_line(cli("compare", folder, packings.low, packings.source))
    assert error_line(cli("compare", folder, "--target", "tpu-v4")).startswith("stowplan: --target: for two plans")
    assert error_line(cli("compare", folder, "--all")).startswith("stowplan: --all: for two plans")
    assert error_line(cli("compare", folder, folder, "--capacity", 5)).startswith("stowplan: --capacity: for two plans")


def test_help_names_both_forms(cli: Cli) -> None:
    out = cli("compare", "--help").out
    assert "RESULTS|PLAN" in out
    assert "INPUT" in out


def test_every_kind_of_the_package_has_a_diff() -> None:
    for each in registered():
        assert each.decisions, each.name
