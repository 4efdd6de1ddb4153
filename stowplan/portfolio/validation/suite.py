"""Validating policies over a suite, problem by problem: the exact side first, then policy and control, then decisions."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, NamedTuple

import msgspec
import numpy as np

from stowplan import files
from stowplan.arguments import whole
from stowplan.deadline import Deadline, limit_after, read_within
from stowplan.errors import InputError, TimeLimitError
from stowplan.frontends.formats import check_targets
from stowplan.kernel.kind import Kind, check, kind_of
from stowplan.kernel.solve import solve
from stowplan.portfolio.batch.records import Settings, check_settings, describe_failure
from stowplan.portfolio.batch.task import Item, read_problem
from stowplan.portfolio.validation.adapter import Completion, Effort, Estimate, Game, Player
from stowplan.portfolio.validation.decisions import DecisionReport, dearest
from stowplan.portfolio.validation.policies import Opened, Policies
from stowplan.portfolio.validation.records import STOPPED, Exact, Outcome, ProblemReport, RewardCorrelation, Side, Values
from stowplan.portfolio.validation.statistics import gap_to, pearson, second_gap_to, spearman, spearman_within
from stowplan.result import Result

#: Who finds the optimum: no policy has a part in it.
EXACT_CANDIDATES = ("heuristic", "exact")

#: Parts of the time of a problem after which the exact side, and the games, are over; decisions have the rest.
EXACT_UNTIL, GAMES_UNTIL = 0.5, 0.75

#: Part of the time that is left which one completion may take.
COMPLETION_SHARE = 0.25

#: Deterministic seconds of a completion, for each second of the limit.
COMPLETION_WORK = 1 / 24

#: Positions, and games, that the plots of one problem have at most.
MOST_POINTS = 300

#: (problem) to what says of a plan how many cycles it takes by compiles of the same program; None where there are none.
Compiled = Callable[[Any], Callable[[Any], int] | None]


class Cancelled(Exception):  # noqa: N818 (no error)
    """The run was told to stop; the problem at hand is left out."""


def validate(
    items: Sequence[Item],
    settings: Settings,
    policies: Policies,
    *,
    games: int = 16,
    solves: int = 24,
    compiled: Compiled | None = None,
    on_start: Callable[[Item], None] | None = None,
    on_stage: Callable[[str], None] | None = None,
    cancel: threading.Event | None = None,
) -> Iterator[ProblemReport]:
    """Validate problems one after the other; one that fails is reported as such, and the next one's turn comes.

    Parameters
    ----------
    settings
        As of :func:`stowplan.portfolio.batch.run.run_batch`; the time limit is for each problem, all its stages together. In
        deterministic runs work is limited instead.
    games
        Sampled games of the policy, and of its control.
    solves
        Completions that the search for costly decisions may take.
    compiled
        Says how many cycles plans take, to correlate the reward with.
    on_start, on_stage
        Called with each input before it is read, and with a word on each of its stages.
    cancel
        Setting it ends the run; problems that are finished by then have been yielded.

    Yields
    ------
    ProblemReport
        One for each input.

    Raises
    ------
    UsageError
        A setting of a wrong type or out of range, or two targets for inputs of one kind.
    """
    settings = check_settings(msgspec.structs.replace(settings, candidates=EXACT_CANDIDATES))
    targets = check_targets(settings.targets)
    run = _Run(
        settings,
        policies,
        whole("{} games", games, 0),
        whole("{} solves", solves, 0),
        compiled,
        on_stage or (lambda stage: None),
        cancel or threading.Event(),
    )
    for item in items:
        if run.cancel.is_set():
            return
        if on_start is not None:
            on_start(item)
        name, source = files.printable(item.name), files.printable(item.path)
        began = time.monotonic()
        try:
            limit = None if settings.deterministic else settings.time_limit
            problem = read_within(limit, partial(read_problem, item.path, settings, targets), began)
            yield run.problem(problem, name, source, began)
        except Cancelled:
            return
        except Exception as error:
            code, text = describe_failure(error)
            yield ProblemReport(name=name, input=source, exit_code=code, error=text)


class _Run(NamedTuple):
    """What all problems of a run share."""

    settings: Settings
    policies: Policies
    games: int
    solves: int
    compiled: Compiled | None
    stage: Callable[[str], None]
    cancel: threading.Event

    def problem(self, problem: Any, name: str, source: str, began: float) -> ProblemReport:
        settings, kind = self.settings, kind_of(problem)
        try:
            opened = self.policies.of(kind)
        except InputError as error:
            raise error.within(source) from None
        limit = math.inf if settings.deterministic else limit_after(began, settings.time_limit)
        deadline = Deadline(limit, self.cancel)
        self.stage("exact")
        result = self._solve(problem, limit)
        if result.stop_reason == "cancelled":
            raise Cancelled
        scorer = Scorer(kind, problem, result)
        baseline_name, baseline = self._baseline(opened, problem, result, deadline)
        self.stage("games")
        seconds = max(0.2, deadline.remaining - (1 - GAMES_UNTIL) * limit) if limit < math.inf else limit
        games_until = deadline.within(seconds)
        # As much for either.
        policy, likeliest, sampled = self._play(opened.policy, problem, scorer, deadline.within(seconds / 2))
        if not policy.is_played:
            raise TimeLimitError(f"the time limit of {settings.time_limit:g} s was over before the policy had played a game")
        control, _, drawn = self._play(opened.control, problem, scorer, games_until)
        rewards = self._rewards(opened, problem, [*sampled, *drawn])
        self.stage("decisions")
        decisions, note = self._decisions(opened, scorer, likeliest, policy.likeliest, deadline)
        self._check_cancel()
        return ProblemReport(
            name=name,
            input=source,
            kind=kind.name,
            unit=kind.unit.name,
            digest=kind.identity(problem)["digest"],
            exact=scorer.exact,
            baseline_name=baseline_name,
            baseline=None if baseline is None else scorer.outcome(baseline),
            policy=policy,
            control=control,
            values=values_of(sampled, opened.adapter.values),
            rewards=rewards,
            decisions=decisions,
            decisions_note=note,
            notes=result.warnings,
        )

    def _check_cancel(self) -> None:
        if self.cancel.is_set():
            raise Cancelled

    def _solve(self, problem: Any, limit: float) -> Result:
        settings = self.settings
        return solve(
            problem,
            time_limit=settings.time_limit if settings.deterministic else max(0.1, EXACT_UNTIL * limit),
            candidates=EXACT_CANDIDATES,
            seed=settings.seed,
            workers=settings.workers,
            deterministic=settings.deterministic,
            gap=settings.gap,
            baseline=settings.baseline,
            cancel=self.cancel,
            certify=True,
        )

    def _baseline(self, opened: Opened, problem: Any, result: Result, deadline: Deadline) -> tuple[str, int | None]:
        """Name and objective of the stronger baseline, where the kind's own is the one to compare with."""
        rival = opened.adapter.rival
        if rival is None or result.baseline is None or self.settings.baseline is not None:
            return result.baseline_name, result.baseline
        name, objective = rival(problem, deadline.stopper())
        return (name, int(objective)) if objective < result.baseline else (result.baseline_name, result.baseline)

    def _play(
        self, player: Player, problem: Any, scorer: Scorer, deadline: Deadline
    ) -> tuple[Side, Game | None, Sequence[Game]]:
        began, stop = time.monotonic(), deadline.stopper()
        likeliest = player.likeliest(problem, stop)
        sampled = player.sampled(problem, self.games, self.settings.seed, stop) if self.games else []
        searched = player.searched(problem, self.settings.seed, stop)
        self._check_cancel()
        outcomes = tuple(scorer.game(game) for game in sampled)
        side = Side(
            likeliest=scorer.game(likeliest),
            sampled=outcomes + (Outcome(note=STOPPED),) * (self.games - len(outcomes)),
            best=min(
                (outcome for outcome in outcomes if outcome.objective is not None),
                key=lambda outcome: outcome.objective or 0,
                default=Outcome(note="lost" if len(outcomes) == self.games else STOPPED),
            ),
            searched=scorer.game(searched),
            seconds=round(time.monotonic() - began, 3),
        )
        return side, likeliest, sampled

    def _rewards(self, opened: Opened, problem: Any, sampled: Sequence[Game]) -> tuple[RewardCorrelation, ...]:
        simulated = opened.adapter.simulated
        if simulated is None:
            return ()
        ways = {"simulated": partial(simulated, problem), "compiled": self.compiled and self.compiled(problem)}
        valid = [game for game in sampled if game.reward is not None and game.plan]
        return tuple(
            correlated(name, [(game.reward or 0, latency(game.plan)) for game in valid])
            for name, latency in ways.items()
            if latency is not None
        )

    def _decisions(
        self, opened: Opened, scorer: Scorer, game: Game | None, outcome: Outcome, deadline: Deadline
    ) -> tuple[DecisionReport | None, str]:
        """What the likeliest game's decisions cost, or why that is not known."""
        exact = scorer.exact
        if not self.solves:
            return None, "not asked for"
        if game is None or outcome.objective is None or exact.objective is None:
            return None, "there is no valid plan of the likeliest game" if exact.objective is not None else "no plan is known"
        decisions = opened.adapter.decisions(scorer.problem, game, scorer.result.plan)
        if decisions is None:
            return None, "the game has no decisions at the interval of the best plan known"
        bound = exact.bound if exact.bound is not None else scorer.kind.bound(scorer.problem)
        settings, is_deterministic = self.settings, self.settings.deterministic
        effort = Effort(
            seconds=math.inf if is_deterministic else max(0.1, COMPLETION_SHARE * deadline.remaining),
            work=COMPLETION_WORK * settings.time_limit if is_deterministic else None,
            seed=settings.seed,
            bound=bound,
            deadline=deadline,
        )
        return dearest(decisions, Completion(exact.objective, bound), outcome.objective, effort, self.solves), ""


class Scorer:
    """Says of plans of one problem how good they are.

    Parameters
    ----------
    result
        Of the exact side.
    """

    def __init__(self, kind: Kind[Any, Any], problem: Any, result: Result):
        self.kind, self.problem, self.result = kind, problem, result
        self.exact = Exact(
            objective=result.objective,
            bound=result.bound,
            is_proven=result.status == "optimal",
            candidate=result.provenance.candidate,
            stop_reason=result.stop_reason,
            seconds=result.seconds,
            certified_bound=result.certified_bound,
            proof=result.proof,
        )

    def game(self, game: Game | None) -> Outcome:
        """Of a game, its plan verified."""
        if game is None:
            return Outcome(note=STOPPED)
        if game.plan is None:
            return Outcome(note="lost")
        verification = check(self.kind, self.problem, game.plan)
        if not verification.ok or verification.objective is None:
            return Outcome(note=f"not valid: {'; '.join(verification.lines[:2])}")
        return self.outcome(verification.objective)

    def outcome(self, objective: int) -> Outcome:
        """Of a valid plan's objective."""
        exact, unit = self.exact, self.kind.unit
        reference = exact.objective if exact.is_proven else exact.bound
        least = None if exact.objective is None else gap_to(objective, exact.objective, unit)
        if reference is None:
            return Outcome(objective=objective, least_gap=least)
        return Outcome(
            objective=objective,
            least_gap=least,
            gap=gap_to(objective, reference, unit),
            second_gap=second_gap_to(objective, reference, unit),
            is_optimal=objective <= reference,
        )


def values_of(games: Sequence[Game], none: str) -> Values:
    """Estimates beside returns; ``none`` says why there are none."""
    every: list[Estimate] = [estimate for game in games for estimate in game.estimates]
    if none or not every:
        return Values(games=len(games), note=none or "no game was finished")
    values, returns = np.array([estimate.value for estimate in every]), np.array([estimate.returned for estimate in every])
    groups: dict[int, list[Estimate]] = {}
    for estimate in every:
        groups.setdefault(estimate.position, []).append(estimate)
    within = spearman_within(
        ([estimate.value for estimate in group], [estimate.returned for estimate in group]) for group in groups.values()
    )
    shown = _spaced(len(every))
    return Values(
        correlation=spearman(values, returns),
        at_equal_positions=within,
        positions=len(every),
        games=len(games),
        points=tuple((float(values[at]), float(returns[at])) for at in shown),
    )


def correlated(measured: str, pairs: Sequence[tuple[int, int]]) -> RewardCorrelation:
    """Rewards beside latencies."""
    rewards, latencies = ([pair[part] for pair in pairs] for part in range(2))
    shown = tuple((int(pairs[at][0]), int(pairs[at][1])) for at in _spaced(len(pairs)))
    return RewardCorrelation(measured=measured, correlation=pearson(rewards, latencies), count=len(pairs), points=shown)


def _spaced(count: int) -> list[int]:
    """At most :data:`MOST_POINTS` numbers, evenly spread."""
    return sorted({round(at) for at in np.linspace(0, count - 1, min(count, MOST_POINTS))}) if count else []
