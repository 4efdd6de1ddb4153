"""The page about a validation: it stands by itself, escapes names, and draws what there is."""

from __future__ import annotations

import re

import msgspec

from stowplan.portfolio.batch.records import Settings
from stowplan.portfolio.validation.decisions import DecisionReport
from stowplan.portfolio.validation.records import (
    Exact,
    Outcome,
    ProblemReport,
    RewardCorrelation,
    Row,
    Side,
    Summary,
    Validation,
    Values,
)
from stowplan.portfolio.validation.statistics import Spread, spread
from stowplan.report.colours import PALETTE
from stowplan.report.validation import render_validation_report, scatter_plot

NAMES = [f"{side}, {what}" for side in ("policy", "untrained") for what in ("likeliest", "each sample", "best sample")]
HOSTILE = "<script>alert('1')</script>&\""
CLOCKS = "clocks (II x 1000000 + latency)"


def validation(*, gap: float = 0.1, unit: str = "ps", name: str = "a program") -> Validation:
    plan = Outcome(objective=3_000_030, gap=gap, second_gap=None if unit == "ps" else 0.2)
    side = Side(likeliest=plan, sampled=(plan, Outcome(note="lost")), best=plan)
    problem = ProblemReport(
        name=name,
        input="a.json",
        kind="memory_mapping",
        unit=unit,
        exact=Exact(
            objective=3_000_024, bound=3_000_000, is_proven=False, candidate="lns", stop_reason="time_limit", seconds=1.0
        ),
        baseline_name="greedy",
        baseline=plan,
        policy=side,
        control=side,
        values=Values(correlation=0.5, positions=2, games=1, points=((0.1, 1.0), (0.2, 2.0))),
        rewards=(RewardCorrelation(measured="simulated", correlation=None, count=2, points=((1, 2), (1, 2))),),
        decisions_note="not asked for",
    )
    gaps: Spread = spread([gap, gap], 0)
    rows = tuple(Row(name=each, gaps=gaps, second_gaps=None if unit == "ps" else gaps) for each in (*NAMES, "baseline greedy"))
    summary = Summary(
        kind="memory_mapping",
        agent="MMap-MuZero",
        policy="policy.pt",
        digest="0" * 64,
        problems=1,
        proven=0,
        rows=rows,
        second="" if unit == "ps" else "latency",
        rewards=problem.rewards,
    )
    return Validation(settings=Settings(), games=2, solves=0, problems=(problem,), summaries=(summary,), asked=2)


def test_it_loads_nothing_and_is_the_same_twice() -> None:
    text = render_validation_report(validation())
    assert text == render_validation_report(validation())
    assert not re.search(r"(?:src|href)=", text)
    assert text.count("<svg") == 3
    assert "1 of 2 problems were not finished" in text
    assert "no proven optimum" in text
    assert "nan" not in text.replace("name", "").lower().split("<style>")[0]


def test_names_of_files_are_text() -> None:
    text = render_validation_report(validation(name=HOSTILE))
    assert HOSTILE not in text
    assert "&lt;script&gt;alert(" in text


def test_without_gaps_there_is_no_plot_of_them() -> None:
    assert render_validation_report(validation(gap=0.0)).count("<svg") == 2


def test_two_numbers_have_two_plots() -> None:
    text = render_validation_report(validation(unit=CLOCKS))
    assert text.count("<svg") == 4
    assert "gap of the latency" in text
    assert "II 3, latency 30" in text


def test_problems_that_failed_are_named() -> None:
    failed = ProblemReport(name="b", input="b.json", exit_code=2, error="found nothing")
    found = validation()
    text = render_validation_report(msgspec.structs.replace(found, problems=(*found.problems, failed)))
    assert "b failed: found nothing" in text
    assert render_validation_report(msgspec.structs.replace(found, problems=(failed,), summaries=())).startswith("<!doctype")


def test_no_gap_of_the_first_number_is_not_called_the_optimum() -> None:
    """A worst gap of 0 % stands beside 0 % at the optimum where the second number is not the optimum's."""
    text = render_validation_report(validation(gap=0.0, unit=CLOCKS))
    assert "At the optimum, latency too" in text
    assert not re.search("At the optimum(?!, latency too)", text)
    assert "At the optimum, " not in render_validation_report(validation())


def test_notes_about_decisions_are_given_once() -> None:
    found = validation()

    def page(count: int, note: str) -> str:
        decisions = DecisionReport(
            count=count, costly=(), explained=0.0, rest=1.0, rest_name="other choices", solves=0, exact=False, note=note
        )
        problem = msgspec.structs.replace(found.problems[0], decisions=decisions, decisions_note="")
        return render_validation_report(msgspec.structs.replace(found, problems=(problem,)))

    without = page(0, "nothing to decide")
    assert without.count("nothing to decide") == 1
    assert "the search was" not in without
    stopped = page(9, "stopped after 3 solves")
    assert stopped.count("stopped after 3 solves") == stopped.count("the search was stopped after 3 solves") == 1


def test_problems_without_points_need_no_colour() -> None:
    series = [(f"problem {number}", [(0.0, 1.0), (1.0, 2.0)]) for number in range(len(PALETTE))]
    plot = scatter_plot([*series, ("empty", [])], "estimate", "return")
    assert plot is not None
    assert len(plot.legend) == len(PALETTE)
    plot = scatter_plot([*series, ("more", [(0.0, 1.0)])], "estimate", "return")
    assert plot is not None
    assert not plot.legend
