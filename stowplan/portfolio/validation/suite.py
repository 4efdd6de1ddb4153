"""Validates learned policies over a suite of problems.

``stowplan validate`` calls :func:`validate`. A *policy* is a neural network that makes a plan decision by decision; making one
whole plan is a *game*, and the policy *plays* the problem. Its *control* is an untrained network of equal size.

Each problem has three *stages*: first heuristic and exact candidates solve it, then the policy and its control play it, and
finally the costs of the policy's decisions are computed. The *cost* of a decision is the amount by which it makes the best
possible objective worse. It is found by *completions*, which are exact solves with the first decisions of a game fixed. The
*most likely* game is the one in which every decision is the most likely one; *sampled* games draw their decisions from the
policy's probabilities.
"""

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

#: Families of the candidates that look for the optimum; learned ones are excluded.
EXACT_CANDIDATES = ("heuristic", "exact")

#: The first stage ends after the part EXACT_UNTIL of a problem's time limit, the second after GAMES_UNTIL. The third stage has
#: the rest.
EXACT_UNTIL, GAMES_UNTIL = 0.5, 0.75

#: Part of the time that is left after the games which one completion may take.
COMPLETION_SHARE = 0.25

#: Work that one completion may take in a deterministic run, in deterministic seconds of a solver for each second of the time
#: limit. The default number of 24 completions may then take as many deterministic seconds as the time limit has seconds.
COMPLETION_WORK = 1 / 24

#: Largest number of points in a plot of one problem.
MOST_POINTS = 300

#: A function of a problem. It returns a function from a plan to the cycles that the compiler reports for the plan, or None if
#: the program of the problem has not been compiled.
Compiled = Callable[[Any], Callable[[Any], int] | None]


class Cancelled(Exception):  # noqa: N818 (no error)
    """The run was cancelled; the current problem is left out."""


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
    """Validate policies on one problem after the other. An error in one problem goes to its report, and the others follow.

    Parameters
    ----------
    items
        The inputs of the suite.
    settings
        Settings as for :func:`stowplan.portfolio.batch.run.run_batch`, except that ``candidates`` is not used. The time limit
        is for reading and for all stages of a problem together; in deterministic runs, work is limited instead.
    policies
        The policies to validate.
    games
        Number of sampled games of the policy, and of its control, on each problem.
    solves
        Largest number of completions for the costs of decisions of one problem; with 0, costs are not computed.
    compiled
        Measures the cycles of plans, to correlate them with the rewards of games, which are larger for better plans. None if
        nothing is compiled.
    on_start
        Called with each input before it is read.
    on_stage
        Called with the name of each stage of a problem when it begins: ``exact``, ``games`` or ``decisions``.
    cancel
        Event that ends the run; the problem that is being validated then gets no report.

    Yields
    ------
    ProblemReport
        One report for each input, in order.

    Raises
    ------
    UsageError
        A setting, ``games`` or ``solves`` has a wrong type or is out of range, or two targets are for one sort of input.
    InputError
        A target, or a folder of ``settings.xla_plans``, does not exist.
    KeyboardInterrupt
        Ctrl-C came, unless a run of ``solve`` handled it.
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
    """The data that all problems of a run share. The fields are the arguments of :func:`validate`; ``stage`` is
    ``on_stage``."""

    settings: Settings
    policies: Policies
    games: int
    solves: int
    compiled: Compiled | None
    stage: Callable[[str], None]
    cancel: threading.Event

    def problem(self, problem: Any, name: str, source: str, began: float) -> ProblemReport:
        """Validate the policy on one problem.

        ``source`` is the path of the input, and ``began`` the time on the monotonic clock at which reading it began.

        Raises
        ------
        Cancelled
            The run is cancelled.
        InputError
            No policy plays the kind, or the policy cannot play this problem.
        TimeLimitError
            The time was over before the policy had played a game.
        """
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
        # The policy gets half of the time of this stage, so that the control gets at least as much.
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
        """Raise Cancelled if the run is cancelled."""
        if self.cancel.is_set():
            raise Cancelled

    def _solve(self, problem: Any, limit: float) -> Result:
        """Solve a problem with heuristic and exact candidates."""
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
        """Name and objective of the baseline, the latter None if it has no plan.

        It is the kind's own baseline, or the adapter's second one (:attr:`.adapter.Adapter.rival`) if that is better and the
        user named none.
        """
        rival = opened.adapter.rival
        if rival is None or result.baseline is None or self.settings.baseline is not None:
            return result.baseline_name, result.baseline
        name, objective = rival(problem, deadline.stopper())
        return (name, int(objective)) if objective < result.baseline else (result.baseline_name, result.baseline)

    def _play(
        self, player: Player, problem: Any, scorer: Scorer, deadline: Deadline
    ) -> tuple[Side, Game | None, Sequence[Game]]:
        """Play all games of a player.

        Returns the outcomes of the games, the most likely game (None if it was stopped), and the sampled games. Raises
        Cancelled if the run is cancelled, and InputError if the player cannot play this problem.
        """
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
        """The correlations of the reward with simulated and compiled latencies, over the ``sampled`` games."""
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
        """The costs of the decisions of the most likely game, or None and the reason why there is no such report."""
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
    """Rates the plans of one problem: computes their gaps to the best known plan and to the optimum or bound.

    Parameters
    ----------
    kind
        The kind of the problem.
    problem
        The problem.
    result
        The result of the heuristic and exact candidates.
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
        """The outcome of a game, whose plan is verified here; a game of None was stopped."""
        if game is None:
            return Outcome(note=STOPPED)
        if game.plan is None:
            return Outcome(note="lost")
        verification = check(self.kind, self.problem, game.plan)
        if not verification.ok or verification.objective is None:
            return Outcome(note=f"not valid: {'; '.join(verification.lines[:2])}")
        return self.outcome(verification.objective)

    def outcome(self, objective: int) -> Outcome:
        """The outcome of a valid plan with this objective. Without a known optimum or bound, it has no ``gap``."""
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
    """How well the value estimates of games match the actual returns.

    ``none`` is the reason why the policy makes no estimates; empty if it makes some.
    """
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
    shown = _spaced_indices(len(every))
    return Values(
        correlation=spearman(values, returns),
        at_equal_positions=within,
        positions=len(every),
        games=len(games),
        points=tuple((float(values[at]), float(returns[at])) for at in shown),
    )


def correlated(measured: str, pairs: Sequence[tuple[int, int]]) -> RewardCorrelation:
    """The correlation of (reward, latency) pairs; ``measured`` says how the latencies were measured.

    The correlation is None for fewer than two pairs, or if all rewards or all latencies are equal.
    """
    rewards, latencies = ([pair[part] for pair in pairs] for part in range(2))
    shown = tuple((int(pairs[at][0]), int(pairs[at][1])) for at in _spaced_indices(len(pairs)))
    return RewardCorrelation(measured=measured, correlation=pearson(rewards, latencies), count=len(pairs), points=shown)


def _spaced_indices(count: int) -> list[int]:
    """At most :data:`MOST_POINTS` of the numbers from 0 to ``count - 1``, evenly spaced."""
    return sorted({round(at) for at in np.linspace(0, count - 1, min(count, MOST_POINTS))}) if count else []
