"""``stowplan frontier``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from stowplan.cli.frontier import _line
from stowplan.models.rematerialization.plan import Plan
from stowplan.portfolio.rematerialization import frontier
from stowplan.portfolio.rematerialization.frontier import Point
from tests.cli.conftest import Cli, cli
from tests.models.rematerialization.cases import training

__all__ = ["cli"]


def test_a_frontier_falls_and_is_written(cli: Cli, tmp_path: Path) -> None:
    problem = training(7)
    source, output, picture = (tmp_path / name for name in ("in.json", "out.json", "out.svg"))
    problem.save(source)
    found = cli("frontier", source, "--limits", 3, "--time-limit", 9, "-o", output, "--png", picture, "-q")
    assert found.code == 0
    assert found.out.count("\n") == 3
    points = json.loads(output.read_text())["points"]
    costs = [each["added_cost"] for each in points if each["fits"]]
    assert costs == sorted(costs, reverse=True)
    assert costs[-1] == 0
    assert picture.read_text().startswith("<")
    for each in points:
        if each["fits"]:
            assert each["peak"] <= each["limit"]
            assert each["bound"] <= each["added_cost"]
            assert set(each["sequence"]) == set(range(len(problem.ops)))


def test_bad_input_is_one_line(cli: Cli, tmp_path: Path) -> None:
    source = tmp_path / "in.json"
    training(7).save(source)
    for limits in ("x", "0", "1,y", ""):
        found = cli("frontier", source, "--limits", limits)
        assert (found.code, found.err.count("\n")) == (2, 1), limits
    table = tmp_path / "buffers.csv"
    table.write_text("id,lower,upper,size\na,0,1,2\n")
    assert "no problem of rematerialization" in cli("frontier", table).err
    for option, said in (
        ("--capacity", "No such option: --capacity"),
        ("--set", "found 'precision', expected one of"),
    ):
        found = cli("frontier", source, option, "precision=8")
        assert (found.code, said in found.err) == (2, True)


@pytest.mark.parametrize(("is_proven", "code"), [(True, 1), (False, 3)])
def test_a_frontier_of_no_plans_is_no_success(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_proven: bool, code: int
) -> None:
    source = tmp_path / "in.json"
    training(7).save(source)
    points = [
        Point(limit=limit, plan=None, peak=None, added_cost=None, bound=None, is_infeasible=is_proven) for limit in (1, 2)
    ]
    monkeypatch.setattr(frontier, "frontier", lambda *_, **__: points)
    assert cli("frontier", source, "--limits", "1,2", "-q").code == code


def test_equal_limits_share_the_time_limit_once(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = tmp_path / "in.json"
    training(7).save(source)
    calls: list[tuple[object, object, float]] = []

    def solved(problem: object, limits: object, *, host_limits: object, time_limit: float, **_: object) -> list[Point]:
        calls.append((limits, host_limits, time_limit))
        return []

    monkeypatch.setattr(frontier, "frontier", solved)
    cli("frontier", source, "--limits", "2GB,1GB,2000MB", "--host-limits", "4GB,4GB", "--time-limit", 1e6, "-q")
    ((limits, hosts, seconds),) = calls
    assert (limits, hosts) == ([2 * 10**9, 10**9], [4 * 10**9])
    assert 1e6 / 3 < seconds <= 1e6 / 2


def test_a_gap_is_a_part_of_the_added_cost() -> None:
    plan = Plan(problem="", sequence=(), objective=138, peak=21)
    assert _line(Point(22, 21, 138, 95, plan)).endswith("bound 95, gap 31.16%")
    assert _line(Point(22, 21, 138, 138, plan)).endswith("  proven")
    assert _line(Point(22, None, None, 0, None)).endswith("no plan found")
    assert _line(Point(22, None, None, None, None, is_infeasible=True)).endswith("no plan is within it")
