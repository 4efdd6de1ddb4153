"""Results: what is derived from objective, bound and baselines, what is printed, and what becomes JSON."""

from __future__ import annotations

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowplan import files
from stowplan.models.packing.plan import Plan
from stowplan.result import (
    Assumption,
    CandidateReport,
    HistoryEntry,
    Provenance,
    Result,
    describe_gain,
)
from stowplan.result_text import format_gap, format_ratio
from stowplan.units import BYTES, Pair, Unit, format_apart, format_ps


def result(**changes: Any) -> Result:
    values: dict[str, Any] = {
        "kind": "memory_mapping",
        "plan": Plan(problem="digest", objective=80, offsets=()),
        "objective": 80,
        "bound": 60,
        "status": "feasible",
        "stop_reason": "time_limit",
        "verified": True,
        "baseline_name": "greedy",
        "baseline": 100,
        "baselines": {"all_slow": 200, "greedy": 100},
        "history": (HistoryEntry(0.0, "floor", None, 60), HistoryEntry(0.5, "search", 80, 60)),
        "candidates": (CandidateReport("search", 80, None, 1.5, "stopped", family="heuristic"),),
        "provenance": Provenance("search", 7, False, {"python": "3.11"}, "net", "tpu", "roofline", "abc", {"time_limit": 1.5}),
        "seconds": 1.52,
        "details": {"capacity": 5},
        "warnings": ("look out",),
        "assumptions": (Assumption("stalls", "forbidden", "--set stalls=allowed"),),
    }
    return Result(**values | changes)


@pytest.mark.parametrize(
    ("objective", "bound", "gap"),
    [(80, 60, 0.25), (80, 80, 0.0), (80, 0, 1.0), (0, 0, 0.0), (None, 60, None), (80, None, None), (None, None, None)],
)
def test_gap(objective: int | None, bound: int | None, gap: float | None) -> None:
    assert result(objective=objective, bound=bound).gap == gap


@pytest.mark.parametrize(
    ("baseline", "objective", "speedup"),
    [(100, 80, 1.25), (80, 80, 1.0), (None, 80, None), (100, None, None), (0, 0, 1.0), (100, 0, None), (None, None, None)],
)
def test_speedup(baseline: int | None, objective: int | None, speedup: float | None) -> None:
    found = result(baseline=baseline, objective=objective, baselines={} if baseline is None else {"greedy": baseline})
    assert found.speedup == speedup
    assert found.speedup_over("greedy") == speedup


@pytest.mark.parametrize(
    ("changes", "percent", "text"),
    [
        ({}, 20.0, "20.00 % better than greedy"),
        ({"objective": 100}, 0.0, "none over greedy: the plan is another of the same objective"),
        (
            {"baseline_name": "search", "objective": 100},
            0.0,
            "none over search: nothing better was found, and this is its plan",
        ),
        ({"baseline": None}, None, ""),
        ({"objective": None}, None, ""),
        ({"baseline": 10_000_000, "objective": 9_999_999}, 1e-5, "0.00001 % better than greedy"),
        ({"baseline": 0, "objective": 0}, 0.0, "none over greedy: the plan is another of the same objective"),
        (
            {"unit": Unit("clocks", Pair("II", 1000, "latency")), "baseline": 4020, "objective": 3024},
            None,
            "II 3, latency 24 in place of II 4, latency 20 of greedy",
        ),
    ],
)
def test_what_is_gained(changes: dict[str, Any], percent: float | None, text: str) -> None:
    found = result(**changes)
    assert found.gain_percent == (percent if percent is None else pytest.approx(percent))
    assert describe_gain(found) == text


def test_speedup_over_others() -> None:
    assert result().speedup_over("all_slow") == 2.5
    assert result().speedup_over("xla") is None


def test_it_is_shown_as_its_summary() -> None:
    found = result()
    assert repr(found) == f"<stowplan.Result\n{found.summary()}>"
    assert len(repr(found)) < 2_000


def test_the_plan_is_among_plain_values() -> None:
    plan = Plan(problem="digest", objective=3, offsets=(0, 2))
    values = json.loads(json.dumps(result(plan=plan).to_dict()))
    assert values["plan"] == json.loads(files.encode(plan))


def test_as_plain_values() -> None:
    values = json.loads(json.dumps(result().to_dict("plan.json")))
    assert values == {
        "plan": "plan.json",
        "kind": "memory_mapping",
        "objective": 80,
        "bound": 60,
        "gap": 0.25,
        "status": "feasible",
        "stop_reason": "time_limit",
        "verified": True,
        "baseline_name": "greedy",
        "baseline": 100,
        "baselines": {"all_slow": 200, "greedy": 100},
        "speedup": 1.25,
        "gain_percent": 20.0,
        "is_baseline": False,
        "is_reproducible": True,
        "assumptions": [{"name": "stalls", "value": "forbidden", "instead": "--set stalls=allowed"}],
        "cut_short": False,
        "history": [
            {"seconds": 0.0, "source": "floor", "objective": None, "bound": 60},
            {"seconds": 0.5, "source": "search", "objective": 80, "bound": 60},
        ],
        "candidates": [
            {
                "name": "search",
                "objective": 80,
                "bound": None,
                "seconds": 1.5,
                "outcome": "stopped",
                "note": "",
                "family": "heuristic",
            }
        ],
        "provenance": {
            "candidate": "search",
            "seed": 7,
            "deterministic": False,
            "versions": {"python": "3.11"},
            "program": "net",
            "target": "tpu",
            "cost_model": "roofline",
            "problem_digest": "abc",
            "options": {"time_limit": 1.5},
            "checkpoint": None,
            "checkpoint_training": "",
            "guides": [],
            "family": "",
        },
        "seconds": 1.52,
        "seconds_before": 0.0,
        "stopped": "stopped at the time limit of 1.5 s",
        "unit": "ps",
        "details": {"capacity": 5},
        "warnings": ["look out"],
    }
    assert json.loads(json.dumps(result(plan=None, objective=None, baseline=None).to_dict()))["plan"] is None


def test_summary_of_a_plan() -> None:
    baselines, highlights = {"greedy": 100_000}, {"peak": "5 bytes", "host peak": "2 bytes"}
    text = result(objective=80_000, bound=60_000, baselines=baselines, baseline=100_000, highlights=highlights).summary()
    assert text.splitlines() == [
        "net on tpu (roofline)",
        "  objective  80 ns  (verified, by search)",
        "  bound      60 ns  gap 25.00%",
        "  status     feasible, stopped at the time limit of 1.5 s",
        "  peak       5 bytes",
        "  host peak  2 bytes",
        "  speedup    1.250 over greedy (100 ns)",
        "  warning    look out",
    ]


@pytest.mark.parametrize(
    ("limit", "before", "text"),
    [
        (5.0, 3.24, "stopped at the time limit of 5.0 s (3.2 s of it reading and start-up)"),
        (5.0, 0.0, "stopped at the time limit of 5.0 s"),
        (0.02, 0.0, "stopped at the time limit of 0.02 s"),
        (1.0, 1.37, "stopped at the time limit of 1.0 s (1.4 s for reading and start-up)"),
    ],
)
def test_the_limit_is_that_of_the_caller_and_what_reading_took_of_it_is_said(limit: float, before: float, text: str) -> None:
    found = result(seconds=1.8).within(limit, before)
    assert (found.stopped, found.to_dict()["stopped"], found.seconds_before) == (text, text, before)
    assert f"  status     feasible, {text}\n" in found.summary()
    assert text in found._repr_html_()


def test_other_ends_say_when_they_came() -> None:
    done = result(stop_reason="candidates_done", seconds=1.8).within(5.0, 3.2)
    assert done.stopped == "ended after 1.8 s: every candidate had finished"
    # Reading takes nothing of the limit of a deterministic run.
    provenance = msgspec.structs.replace(result().provenance, deterministic=True)
    assert result(provenance=provenance).within(5.0, 3.2).stopped == "stopped at twice the time limit of 5.0 s"
    # As of records of earlier versions.
    provenance = msgspec.structs.replace(result().provenance, options={})
    assert result(provenance=provenance).stopped == "ended after 1.5 s: the time was over"


def test_summary_without_a_plan() -> None:
    text = result(plan=None, objective=None, status="no_plan", verified=False, baseline=None, baselines={}).summary()
    assert "  no plan\n" in text
    assert "  status     no_plan, stopped at the time limit of 1.5 s\n" in text
    assert "  bound      60 ps" in text
    assert "gap" not in text


def test_a_proof_that_there_is_no_plan_says_what_it_rests_on() -> None:
    assumptions = (Assumption("capacity", "7", "a larger --capacity"), Assumption("gap", "1"))
    text = result(plan=None, objective=None, status="infeasible", assumptions=assumptions).summary()
    assert "  assuming   capacity=7 (try a larger --capacity)\n  assuming   gap=1\n" in text
    # A run without a plan and without a proof has no verdict.
    assert "assuming" not in result(plan=None, objective=None, status="no_plan", assumptions=assumptions).summary()


def test_whether_it_can_be_repeated_is_no_matter_of_words() -> None:
    said = ("a deterministic run was ended before its work was done: another run may differ",)
    provenance = msgspec.structs.replace(result().provenance, deterministic=True)
    assert result(warnings=said, provenance=provenance).is_reproducible
    assert not result(warnings=(), cut_short=True).is_reproducible
    assert not result(stop_reason="cancelled").is_reproducible
    assert not result(candidates=(CandidateReport("search", None, None, 1.5, "failed"),)).is_reproducible


def test_summary_with_objective_nothing() -> None:
    text = result(objective=0, bound=0).summary()
    assert "0 ps" in text


@pytest.mark.parametrize(
    ("picoseconds", "text"),
    [
        (0, "0 ps"),
        (999, "999 ps"),
        (1000, "1 ns"),
        (1_234_567, "1.235 us"),
        (9_233_729_937, "9.234 ms"),
        (-2_500_000_000_000, "-2.5 s"),
        (12_345_000_000_000, "12.35 s"),
    ],
)
def test_durations_for_people(picoseconds: int, text: str) -> None:
    assert format_ps(picoseconds) == text


def test_one_byte_is_no_bytes() -> None:
    assert [BYTES.write(value) for value in (0, 1, 1000)] == ["0 bytes", "1 byte", "1,000 bytes"]


@given(st.integers(0, 10**15))
def test_durations_keep_four_digits(picoseconds: int) -> None:
    number, unit = format_ps(picoseconds).split()
    scale = {"ps": 1, "ns": 10**3, "us": 10**6, "ms": 10**9, "s": 10**12}[unit]
    assert float(number) * scale == pytest.approx(picoseconds, rel=6e-4)


# --- numbers for people --------------------------------------------------------------------------------------------------


def test_unlike_values_look_unlike() -> None:
    text = result(
        objective=28_350_000_002, bound=28_350_000_001, baselines={"greedy": 28_350_000_003, "all_slow": 32_940_000_000}
    ).summary()
    for expected in (
        "objective  28.350000002 ms  (",
        "bound      28.350000001 ms  gap < 0.01%",
        "over greedy (28.350000003 ms)",
        "1.162 over all_slow (32.94 ms)",
    ):
        assert expected in text, text
    alike = result(objective=28_350_000_000, bound=28_350_000_000, baselines={"greedy": 28_350_000_000}).summary()
    assert "objective  28.35 ms" in alike
    assert "gap 0.00%" in alike
    assert "1.000 over greedy" in alike


@given(st.lists(st.one_of(st.none(), st.integers(0, 1 << 61)), max_size=6))
def test_texts_differ_wherever_values_do(values: list[int | None]) -> None:
    texts = format_apart(values, format_ps)
    assert set(texts) == {value for value in values if value is not None}
    close = {value for value in texts if value >= 1 << 53}
    assert len({text for value, text in texts.items() if value not in close}) == len(texts) - len(close)


@pytest.mark.parametrize(
    ("gap", "text"),
    [(0.0, "0.00%"), (1e-12, "< 0.01%"), (0.00009, "< 0.01%"), (0.0001, "0.01%"), (0.0066, "0.66%"), (1.0, "100.00%")],
)
def test_only_a_closed_gap_is_nought(gap: float, text: str) -> None:
    assert format_gap(gap) == text


@pytest.mark.parametrize(
    ("ratio", "text"), [(1.0, "1.000"), (1.00004, "1.00004"), (0.99996, "0.99996"), (1.5, "1.500"), (1 + 1e-12, "1.000")]
)
def test_only_equal_values_have_the_ratio_one(ratio: float, text: str) -> None:
    assert format_ratio(ratio) == text
