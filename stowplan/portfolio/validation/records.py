"""What a validation says, as plain data: the JSON of ``stowplan validate`` (``docs/guide/validate.md``)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

import msgspec

from stowplan import kinds
from stowplan.document import Document
from stowplan.portfolio.batch.records import Settings
from stowplan.portfolio.validation.decisions import DecisionReport
from stowplan.portfolio.validation.policies import Opened
from stowplan.portfolio.validation.statistics import Spread, spread

FORMAT = "stowplan.validation"
VERSION = 1


#: The note of a game that time cut short.
STOPPED = "stopped"


class Exact(msgspec.Struct, frozen=True, kw_only=True):
    """What the exact side came to."""

    objective: int | None
    """Of the best verified plan."""
    bound: int | None
    is_proven: bool
    """Whether the objective is the optimum."""
    candidate: str
    stop_reason: str
    seconds: float
    certified_bound: int | None = None
    """What a certificate shows of the bound."""
    proof: str = ""
    """Form of its proof; empty where the solver must be trusted."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """One plan of a policy, verified."""

    objective: int | None = None
    """None where there is no valid plan."""
    gap: float | None = None
    """To the optimum where that is proven, else to the bound."""
    least_gap: float | None = None
    """To the best plan that the exact side knows: the true gap is this or more, and ``gap`` or less."""
    second_gap: float | None = None
    """Of objectives of two numbers that of the second, where the first is the optimum's."""
    is_optimal: bool = False
    """Equal to a proven optimum, or to the bound; of objectives of two numbers both are."""
    note: str = ""
    """Why there is no plan: ``lost``, or the rule that it breaks; ``stopped`` where time was up before the game was over."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """A policy, or its control, on one problem."""

    likeliest: Outcome
    sampled: tuple[Outcome, ...] = ()
    best: Outcome = Outcome(note=STOPPED)
    """The best of the sampled ones."""
    searched: Outcome = Outcome(note=STOPPED)
    """With the agent's own search."""
    seconds: float = 0.0

    @property
    def is_played(self) -> bool:
        """Whether any game was over in time, with a valid plan or without one."""
        return any(outcome.note != STOPPED for outcome in (self.likeliest, *self.sampled, self.searched))


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """Value estimates beside true returns, over the positions of the sampled games."""

    correlation: float | None = None
    """Spearman's, over all positions; None where there is none, as of a constant."""
    at_equal_positions: float | None = None
    """The same within positions of equal number, pooled: what is not owed to how much of the game is left."""
    positions: int = 0
    games: int = 0
    note: str = ""
    """Why there are no estimates."""
    points: tuple[tuple[float, float], ...] = ()
    """(estimate, return) of some positions, evenly spread over all."""


class RewardCorrelation(msgspec.Struct, frozen=True, kw_only=True):
    """The game's reward beside a latency, of sampled games of policy and control."""

    measured: str
    """``simulated``, or ``compiled``: cycles by compiles of the program."""
    correlation: float | None
    """Pearson's; -1 where more reward always is less time, None where there is none."""
    count: int
    points: tuple[tuple[int, int], ...] = ()
    """(reward, latency)."""


class ProblemReport(msgspec.Struct, frozen=True, kw_only=True):
    """One problem of the suite."""

    name: str
    input: str
    exit_code: int = 0
    """What failed says so by its code; 0 otherwise."""
    error: str | None = None
    kind: str = ""
    unit: str = ""
    digest: str = ""
    exact: Exact | None = None
    baseline_name: str = ""
    baseline: Outcome | None = None
    policy: Side | None = None
    control: Side | None = None
    values: Values | None = None
    rewards: tuple[RewardCorrelation, ...] = ()
    decisions: DecisionReport | None = None
    decisions_note: str = ""
    """Why no decisions were looked at."""
    notes: tuple[str, ...] = ()


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """One way to plan, over all problems of a kind."""

    name: str
    gaps: Spread
    second_gaps: Spread | None = None
    """Of objectives of two numbers, where the first is the optimum's."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """All problems of one kind."""

    kind: str
    agent: str
    policy: str
    """Path of the policy file."""
    digest: str
    """sha256 of it."""
    problems: int
    proven: int
    """Problems whose optimum is proven: gaps of the others are to a bound, and may be less than they seem."""
    rows: tuple[Row, ...]
    second: str = ""
    """Name of the second number of objectives of two; gaps of it are of plans whose first is the optimum's."""
    correlation: float | None = None
    """Rank correlation of values with returns, pooled within problems."""
    at_equal_positions: float | None = None
    values_note: str = ""
    """Why there are no value estimates."""
    training: str = ""
    """How the policy was trained, by what its file says."""
    rewards: tuple[RewardCorrelation, ...] = ()
    """Means of the correlations of the problems."""


class Validation(Document, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A whole run."""

    settings: Settings
    games: int
    solves: int
    problems: tuple[ProblemReport, ...]
    summaries: tuple[Summary, ...]
    asked: int
    """Problems of the suite; fewer were finished where the run was interrupted."""
    interrupted: bool = False
    format: str = FORMAT
    version: int = VERSION


def summarize(problems: Sequence[ProblemReport], opened: Callable[[str], Opened]) -> tuple[Summary, ...]:
    """The problems that were validated, kind by kind in their order.

    Parameters
    ----------
    opened
        The policy of a kind by its name.
    """
    names = dict.fromkeys(problem.kind for problem in problems if problem.error is None)
    return tuple(_summary(kind, [problem for problem in problems if problem.kind == kind], opened(kind)) for kind in names)


def _summary(kind: str, problems: Sequence[ProblemReport], opened: Opened) -> Summary:
    measured = {reward.measured: None for problem in problems for reward in problem.rewards}
    pair = kinds.unit(problems[0].unit).pair
    values = [problem.values for problem in problems if problem.values is not None]
    return Summary(
        kind=kind,
        agent=opened.adapter.agent,
        policy=opened.path,
        digest=opened.digest,
        problems=len(problems),
        proven=sum(problem.exact is not None and problem.exact.is_proven for problem in problems),
        rows=tuple(
            _row(name, [outcome for _, outcome in outcomes], pair is not None)
            for name, outcomes in outcomes_of(problems).items()
        ),
        second="" if pair is None else pair.second,
        correlation=_pooled(values, lambda value: value.correlation),
        at_equal_positions=_pooled(values, lambda value: value.at_equal_positions),
        values_note=opened.adapter.values,
        training=opened.training,
        rewards=tuple(_mean_reward(name, problems) for name in measured),
    )


def outcomes_of(problems: Sequence[ProblemReport]) -> dict[str, list[tuple[str, Outcome]]]:
    """(problem, outcome) of each way to plan, by its name, of validated problems of one kind."""
    outcomes_by_way: dict[str, list[tuple[str, Outcome]]] = {}
    for name, part in (("policy", "policy"), ("untrained", "control")):
        for problem in problems:
            side: Side = getattr(problem, part)
            ways = {
                "likeliest": (side.likeliest,),
                "each sample": side.sampled,
                "best sample": (side.best,) if side.sampled else (),
                "with search": (side.searched,),
            }
            for way, outcomes in ways.items():
                outcomes_by_way.setdefault(f"{name}, {way}", []).extend((problem.name, outcome) for outcome in outcomes)
    baselines = dict.fromkeys(problem.baseline_name for problem in problems)
    lost = Outcome(note="lost")
    return outcomes_by_way | {
        f"baseline {', '.join(baselines)}": [(problem.name, problem.baseline or lost) for problem in problems]
    }


def _row(name: str, outcomes: Iterable[Outcome], has_second: bool) -> Row:
    # What time cut short says nothing of the policy.
    complete = [outcome for outcome in outcomes if outcome.note != STOPPED]
    gaps = spread((outcome.gap for outcome in complete), sum(outcome.is_optimal for outcome in complete))
    second: Spread | None = None
    if has_second:
        equal = [outcome for outcome in complete if outcome.second_gap is not None]
        second = spread((outcome.second_gap for outcome in equal), sum(outcome.is_optimal for outcome in equal))
    return Row(name=name, gaps=gaps, second_gaps=second)


def _pooled(values: Sequence[Values], part: Callable[[Values], float | None]) -> float | None:
    """Mean of the correlations of the problems, each as much as it has positions.

    That is the correlation of all positions together, with ranks of each problem by itself, brought to a mean of 0 and a
    deviation of 1.
    """
    weighted = [(correlation, value.positions) for value in values if (correlation := part(value)) is not None]
    total = sum(weight for _, weight in weighted)
    return sum(correlation * weight for correlation, weight in weighted) / total if total else None


def _mean_reward(measured: str, problems: Sequence[ProblemReport]) -> RewardCorrelation:
    rewards = [reward for problem in problems for reward in problem.rewards if reward.measured == measured]
    known = [reward.correlation for reward in rewards if reward.correlation is not None]
    return RewardCorrelation(
        measured=measured, correlation=fmean(known) if known else None, count=sum(reward.count for reward in rewards)
    )
