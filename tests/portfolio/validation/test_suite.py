"""Policies that are known, on a problem whose optimum is known."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stowplan.kernel.kind import kind_of
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.batch.records import Settings
from stowplan.portfolio.batch.task import Item
from stowplan.portfolio.validation import suite
from stowplan.portfolio.validation.adapter import Game
from stowplan.portfolio.validation.records import ProblemReport, Validation, summarize
from stowplan.portfolio.validation.suite import validate
from tests.patience import HANG
from tests.portfolio.validation.players import (
    ALL_SLOW,
    BEST,
    COPY,
    DROP,
    ONE_BAD,
    ONE_BAD_COST,
    OPTIMUM,
    Fixed,
    Idle,
    Scripted,
    four_reads,
    solved,
)

#: Games of unlike returns.
SAMPLED = (BEST, ONE_BAD, (DROP, COPY, COPY, COPY), (COPY, DROP, DROP, DROP))


@pytest.fixture
def item(tmp_path: Path) -> Item:
    four_reads().save(tmp_path / "four.json")
    return Item(tmp_path / "four.json", "four")


@pytest.fixture
def report(item: Item, monkeypatch: pytest.MonkeyPatch) -> Callable[..., ProblemReport]:
    """Validates the four reads in this process."""

    def run(policy: Any, *, proven: bool = True, **options: Any) -> ProblemReport:
        monkeypatch.setattr(suite, "solve", lambda problem, **rest: solved(problem, proven=proven))
        settings = Settings(time_limit=HANG, seed=options.pop("seed", 0), deterministic=options.pop("deterministic", True))
        (found,) = validate([item], settings, Fixed(policy), **{"games": 4, **options})
        assert found.error is None, found.error
        return found

    return run


def test_the_optimum_is_what_the_players_take_it_for() -> None:
    assert verify(four_reads(), Scripted()._play(four_reads(), BEST).plan).ok
    assert solved(four_reads()).objective == OPTIMUM


def test_a_perfect_policy_has_no_gap_and_no_costly_decision(report: Callable[..., ProblemReport]) -> None:
    found = report(Scripted())
    assert found.exact is not None
    assert found.exact.is_proven
    assert found.policy is not None
    assert found.decisions is not None
    for each in (found.policy.likeliest, found.policy.best, *found.policy.sampled):
        assert (each.objective, each.gap, each.is_optimal) == (OPTIMUM, 0.0, True)
    assert found.decisions.costly == ()
    assert found.decisions.explained is None
    assert found.control is not None
    assert found.control.likeliest.gap == pytest.approx((ALL_SLOW - OPTIMUM) / ALL_SLOW)
    assert found.baseline is not None
    # The portfolio's, of these players, is all slow; the greedy without stalls is better, and counts.
    assert (found.baseline_name, found.baseline.objective) == ("greedy, no stalls", OPTIMUM)


def test_search_has_a_row_of_its_own(report: Callable[..., ProblemReport]) -> None:
    class Searching(Scripted):
        def searched(self, problem: Any, seed: int, stop: Any) -> Game | None:
            return self._play(problem, BEST)

    found = report(Searching(ONE_BAD))
    (summary,) = summarize([found], lambda name: Fixed(Scripted()).of(None))  # type: ignore[arg-type]
    rows = {row.name: row.gaps for row in summary.rows}
    assert rows["policy, with search"].optimal == 1.0
    assert rows["policy, likeliest"].optimal == 0.0
    assert rows["untrained, with search"].mean == rows["untrained, likeliest"].mean


def test_a_plan_at_the_bound_is_optimal_whatever_the_exact_side_proves() -> None:
    scorer = suite.Scorer(kind_of(four_reads()), four_reads(), solved(four_reads(), proven=False))
    assert scorer.exact.bound is not None
    assert (scorer.outcome(scorer.exact.bound).gap, scorer.outcome(scorer.exact.bound).is_optimal) == (0.0, True)
    assert not scorer.outcome(scorer.exact.bound + 1).is_optimal


def test_one_bad_decision_is_named_and_no_other(report: Callable[..., ProblemReport]) -> None:
    found = report(Scripted(ONE_BAD))
    assert found.policy is not None
    assert found.decisions is not None
    assert found.policy.likeliest.objective == OPTIMUM + ONE_BAD_COST
    assert not found.policy.likeliest.is_optimal
    (only,) = found.decisions.costly
    assert (only.name, only.cost, only.exact) == ("drop t2 for read 2", ONE_BAD_COST, True)
    assert (found.decisions.explained, found.decisions.rest, found.decisions.exact) == (1.0, 0.0, True)


def test_where_the_optimum_is_not_proven_the_gap_is_to_the_bound(report: Callable[..., ProblemReport]) -> None:
    found = report(Scripted(), proven=False)
    assert found.policy is not None
    assert found.policy.likeliest.gap == pytest.approx(100 / OPTIMUM)
    assert found.policy.likeliest.least_gap == 0.0
    assert not found.policy.likeliest.is_optimal
    (summary,) = summarize([found], lambda name: Fixed(Scripted()).of(None))  # type: ignore[arg-type]
    assert (summary.problems, summary.proven) == (1, 0)
    assert summary.rows[0].gaps.optimal == 0.0


def test_values_that_are_true_correlate_and_constant_ones_say_nothing(report: Callable[..., ProblemReport]) -> None:
    true = report(Scripted(BEST, SAMPLED)).values
    assert true is not None
    assert (true.correlation, true.positions, true.games) == (pytest.approx(1.0), 16, 4)
    assert true.at_equal_positions == pytest.approx(1.0)
    constant = report(Scripted(BEST, SAMPLED, lambda so_far, to_come: 3.0)).values
    assert constant is not None
    assert constant.correlation is None
    assert constant.at_equal_positions is None
    # What only counts the moves that are left ranks all positions well, and none of those at equal numbers.
    moves = report(Scripted(BEST, (BEST,), lambda so_far, to_come: -so_far)).values
    assert moves is not None
    assert moves.correlation == pytest.approx(1.0)
    assert moves.at_equal_positions is None


def test_more_reward_is_less_simulated_latency(report: Callable[..., ProblemReport]) -> None:
    (simulated,) = report(Scripted(BEST, SAMPLED)).rewards
    assert (simulated.measured, simulated.correlation, simulated.count) == ("simulated", pytest.approx(-1.0), 8)
    assert report(Scripted((DROP,) * 4)).rewards[0].correlation is None
    _, compiled = report(Scripted(BEST, SAMPLED), compiled=lambda problem: lambda plan: 2 * plan.objective).rewards
    assert (compiled.measured, compiled.correlation, compiled.count) == ("compiled", pytest.approx(-1.0), 8)
    assert len(report(Scripted(), compiled=lambda problem: None).rewards) == 1


def test_plans_are_verified_and_lost_games_counted(report: Callable[..., ProblemReport]) -> None:
    class Liar(Scripted):
        def likeliest(self, problem: Any, stop: Any) -> Game | None:
            game = super().likeliest(problem, stop)
            assert game is not None
            return Game(msgspec.structs.replace(game.plan, objective=1))

        def sampled(self, problem: Any, count: int, seed: int, stop: Any) -> list[Game]:
            return [Game(None)] * count

    found = report(Liar())
    assert found.policy is not None
    assert found.policy.likeliest.objective is None
    assert found.policy.likeliest.note.startswith("not valid: ")
    assert {each.note for each in found.policy.sampled} == {"lost"}
    assert found.decisions is None
    assert found.decisions_note == "there is no valid plan of the likeliest game"
    (summary,) = summarize([found], lambda name: Fixed(Liar()).of(None))  # type: ignore[arg-type]
    assert [(row.gaps.count, row.gaps.lost) for row in summary.rows[:3]] == [(1, 1), (4, 4), (1, 1)]


def test_games_that_time_cut_short_are_no_lost_ones(report: Callable[..., ProblemReport]) -> None:
    class Slow(Scripted):
        def sampled(self, problem: Any, count: int, seed: int, stop: Any) -> list[Game]:
            return []

    found = report(Slow())
    assert found.policy is not None
    assert {each.note for each in found.policy.sampled} == {"stopped"}
    (summary,) = summarize([found], lambda name: Fixed(Slow()).of(None))  # type: ignore[arg-type]
    assert [row.gaps.count for row in summary.rows[:3]] == [1, 0, 0]


def test_a_policy_that_played_nothing_is_not_validated(item: Item, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "solve", lambda problem, **rest: solved(problem))
    (found,) = validate([item], Settings(time_limit=60), Fixed(Idle()))
    assert (found.exit_code, found.policy) == (3, None)
    assert found.error == "the time limit of 60 s was over before the policy had played a game"


def test_the_seed_decides(report: Callable[..., ProblemReport]) -> None:
    def timeless(found: ProblemReport) -> Any:
        assert found.policy is not None
        assert found.control is not None
        replace = msgspec.structs.replace
        return replace(found, policy=replace(found.policy, seconds=0.0), control=replace(found.control, seconds=0.0))

    one, again, other = (timeless(report(Scripted(ONE_BAD, SAMPLED), seed=seed)) for seed in (0, 0, 1))
    assert one == again
    assert one != other


def test_a_cancelled_run_keeps_what_is_finished(item: Item, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(suite, "solve", lambda problem, **rest: solved(problem))
    cancel = threading.Event()
    found = []
    for problem in validate([item, item, item], Settings(time_limit=HANG), Fixed(Scripted()), cancel=cancel):
        found.append(problem)
        cancel.set()
    assert len(found) == 1


def test_an_input_that_fails_is_named_and_the_next_has_its_turn(
    item: Item, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(suite, "solve", lambda problem, **rest: solved(problem))
    (tmp_path / "bad.json").write_text('{"format": "stowplan.memory_mapping.problem"')
    bad, good = validate([Item(tmp_path / "bad.json", "bad"), item], Settings(time_limit=HANG), Fixed(Scripted()), games=0)
    assert (bad.exit_code, bad.kind) == (2, "")
    assert bad.error is not None
    assert "bad.json" in bad.error
    assert good.error is None
    assert good.values is not None
    assert good.values.note == "no game was finished"


def test_a_validation_is_a_document(report: Callable[..., ProblemReport], tmp_path: Path) -> None:
    found = report(Scripted(ONE_BAD, SAMPLED))
    summaries = summarize([found], lambda name: Fixed(Scripted()).of(None))  # type: ignore[arg-type]
    validation = Validation(settings=Settings(), games=4, solves=24, problems=(found,), summaries=summaries, asked=1)
    validation.save(tmp_path / "validation.json")
    assert Validation.load(tmp_path / "validation.json") == validation
