"""The decisions that cost most, of games whose costs are known."""

from __future__ import annotations

import math
from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from stowplan.deadline import Deadline
from stowplan.portfolio.validation.adapter import Completion, Effort
from stowplan.portfolio.validation.decisions import TOP, DecisionReport, dearest

EFFORT = Effort(math.inf, None, 0, 0, Deadline())


class Known:
    """A game of which f is known: ``values[k]`` with the first k decisions kept."""

    rest = "the rest"

    def __init__(self, values: Sequence[int], slack: int = 0):
        self.values, self.slack = values, slack
        self.names = [f"decision {number}" for number in range(len(values) - 1)]
        self.asked: list[int] = []

    def best(self, count: int, effort: Effort) -> Completion:
        self.asked.append(count)
        return Completion(self.values[count], self.values[count] - self.slack)


def found(known: Known, objective: int | None = None, solves: int = 10_000, effort: Effort = EFFORT) -> DecisionReport:
    first, last = known.values[0], known.values[-1]
    return dearest(known, Completion(first, first - known.slack), last if objective is None else objective, effort, solves)


def test_a_perfect_game_has_no_costly_decision() -> None:
    known = Known([100] * 9)
    report = found(known)
    assert report.costly == ()
    assert report.explained is None
    assert report.exact
    assert known.asked == []


def test_one_bad_decision_is_named_alone() -> None:
    known = Known([100] * 21 + [130] * 30)
    report = found(known)
    (only,) = report.costly
    assert (only.name, only.first, only.last, only.cost) == ("decision 20", 20, 20, 30)
    assert (only.before, only.after) == (100, 130)
    assert (report.explained, report.rest, report.exact) == (1.0, 0.0, True)
    assert report.solves <= 2 + math.ceil(math.log2(50))


def test_what_no_decision_explains() -> None:
    report = found(Known([100, 100, 110]), objective=120)
    (only,) = report.costly
    assert (only.name, only.share, report.explained, report.rest) == ("decision 1", 0.5, 0.5, 0.5)
    assert report.rest_name == "the rest"


def test_a_limit_leaves_decisions_together_and_says_so() -> None:
    report = found(Known([100] * 21 + [130] * 30), solves=3)
    (group,) = report.costly
    assert group.first <= 20 <= group.last
    assert group.last > group.first
    assert group.name == f"decision {group.first} ... decision {group.last}"
    assert not report.exact
    assert report.note == "stopped after 3 solves"


def test_without_time_nothing_is_claimed() -> None:
    report = found(Known([100] * 5 + [130] * 3), effort=EFFORT._replace(deadline=Deadline(0.0)))
    assert (report.solves, report.exact) == (0, False)
    assert report.note == "stopped before any decision was looked at"
    assert [(each.first, each.last) for each in report.costly] == [(0, 6)]


def test_without_proofs_it_is_not_exact() -> None:
    report = found(Known([100] * 21 + [130] * 30, slack=1))
    assert [each.exact for each in report.costly] == [False]
    assert not report.exact
    assert report.note == ""


def test_plans_that_keep_more_decisions_count_for_fewer() -> None:
    # A completion that came out worse than one with more decisions kept.
    report = found(Known([100, 140, 110, 110, 130]))
    assert [(each.name, each.cost) for each in report.costly] == [("decision 3", 20), ("decision 0", 10)]


@given(st.lists(st.integers(0, 9), min_size=1, max_size=40))
def test_the_dearest_are_found_and_costs_add_up(costs: list[int]) -> None:
    values = [100]
    for cost in costs:
        values.append(values[-1] + cost)
    report = found(Known(values))
    assert sorted((each.cost for each in report.costly), reverse=True) == sorted(filter(None, costs), reverse=True)[:TOP]
    assert all(costs[each.first] == each.cost and each.exact for each in report.costly)
    assert report.exact
