"""Presenters: each kind has its own, a kind without one gets the generic one, and all keep one protocol."""

from __future__ import annotations

import inspect
import operator
import subprocess
import sys
from pathlib import Path

import msgspec
import pytest

from stowplan import kinds
from stowplan.errors import InputError, UsageError
from stowplan.kernel.kind import kind as named
from stowplan.models.packing.plan import Plan as Packing
from stowplan.models.packing.problem import Problem as PackingProblem
from stowplan.report.html import render_report
from stowplan.report.presenter import Presenter, check_picture, draw, merge_equal, presenter_for, presenter_of
from stowplan.units import Unit
from tests.cli.conftest import Cli, cli, error_line
from tests.cli.test_pictures import refuse_to_solve
from tests.report.test_report import HOSTILE, Page, result_for, stalled_copy
from tests.toys.conftest import toys
from tests.toys.sums.kind import plan_of
from tests.toys.sums.plan import Plan
from tests.toys.sums.problem import Problem

__all__ = ["cli", "toys"]


def saved(folder: Path) -> tuple[Problem, Plan, Path, Path]:
    """A problem of the toy kind and its best plan, and their files."""
    problem = Problem(numbers=(5, 4, 3, 2))
    plan = plan_of(problem, 2, 3)
    problem.save(folder / "problem.json")
    plan.save(folder / "plan.json")
    return problem, plan, folder / "problem.json", folder / "plan.json"


def test_every_kind_has_a_presenter_of_its_own() -> None:
    for kind in (named(each.name) for each in kinds.registered()):
        presenter = presenter_of(kind)
        assert type(presenter).__module__.removesuffix(".presenter") == f"stowplan.report.{kind.name}"
        for name, method in inspect.getmembers(Presenter, inspect.isfunction):
            if not name.startswith("_"):
                own = inspect.signature(getattr(type(presenter), name)).parameters
                assert list(own) == list(inspect.signature(method).parameters), f"{kind.name}: {name}"


def test_presenters_are_loaded_when_they_are_asked_for() -> None:
    code = (
        "import sys; from stowplan import kinds; from stowplan.kernel.kind import kind;"
        "[kind(each.name) for each in kinds.registered()];"
        "print([name for name in sys.modules if name.startswith('stowplan.report')])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.strip() == "[]"


@pytest.mark.usefixtures("toys")
def test_a_kind_without_a_presenter_has_text(cli: Cli, tmp_path: Path) -> None:
    _, _, problem_file, plan_file = saved(tmp_path)
    shown = cli("show", plan_file, problem_file)
    assert shown.code == 0
    lines = [" ".join(line.split()) for line in shown.out.splitlines()]
    assert lines[:3] == ["sums on paper (sum)", "objective 5 points", "first 9 points"]
    assert "numbers 4" in lines
    assert "plan.chosen: 2: 2, 3" in lines
    assert lines[4].endswith("10, 11, … and 8 more")
    assert "more" not in cli("show", plan_file, problem_file, "--all").out


@pytest.mark.usefixtures("toys")
def test_a_kind_without_a_presenter_is_not_drawn_and_says_so_before_solving(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem, plan, problem_file, plan_file = saved(tmp_path)
    refuse_to_solve(monkeypatch)
    expected = "--png: plans of the kind sums are not drawn"
    out = tmp_path / "out.json"
    assert expected in error_line(cli("solve", problem_file, "-q", "-o", out, "--png", tmp_path / "plan.png"))
    assert expected in error_line(cli("show", plan_file, problem_file, "--png", tmp_path / "plan.png"))
    assert not out.exists()
    with pytest.raises(UsageError, match="not drawn"):
        draw(problem, [("it", plan)], tmp_path / "plan.svg")


@pytest.mark.usefixtures("toys")
def test_a_kind_without_a_presenter_has_a_report(tmp_path: Path) -> None:
    problem, plan, _, _ = saved(tmp_path)
    memory_mapping = result_for(*stalled_copy())
    result = msgspec.structs.replace(
        memory_mapping,
        kind="sums",
        plan=plan,
        objective=5,
        bound=5,
        baselines={"first": 9},
        unit=Unit("points"),
        details={"numbers": 4},
    )
    words = " ".join(Page(render_report(problem, result)).words)
    for expected in ("5 points", "Baseline first", "9 points", "Candidates", "Convergence", "Details", "numbers"):
        assert expected in words


@pytest.mark.usefixtures("toys")
def test_a_plan_of_another_kind_or_problem_is_refused(tmp_path: Path) -> None:
    problem, plan, _, _ = saved(tmp_path)
    presenter = presenter_for(problem)
    presenter.check_fits(problem, plan)
    packing = PackingProblem(buffers=())
    with pytest.raises(InputError, match=r"of another kind \(stowplan.packing.plan\), expected stowplan.sums.plan"):
        presenter.check_fits(problem, Packing(problem=packing.digest, objective=0, offsets=()))
    with pytest.raises(InputError, match="another problem"):
        presenter.check_fits(problem, msgspec.structs.replace(plan, problem="0"))


def test_what_is_no_problem_gets_the_generic_presenter() -> None:
    assert type(presenter_for(object())) is Presenter
    assert presenter_for(object()).summarize(object(), "a plan") == "a plan"


def test_pictures_are_checked_by_kind_and_suffix(tmp_path: Path) -> None:
    problem, _ = stalled_copy()
    check_picture(problem, None)
    check_picture(problem, tmp_path / "plan.SVG")
    with pytest.raises(UsageError, match="picture format 'none'"):
        check_picture(problem, tmp_path / "plan")


def test_like_plans_are_drawn_once_under_all_their_names() -> None:
    plans = [("milp", 3), ("compiler", 3), ("compiler", 3), (HOSTILE, 4)]
    assert merge_equal(plans, operator.eq) == [("milp = compiler", 3), (HOSTILE, 4)]
