"""The result of a validation as plain data: the JSON of ``stowplan validate`` (``docs/guide/validate.md``).

A *policy* is a neural network that makes a plan decision by decision; making one whole plan is a *game*. The *control* is an
untrained network of equal size. A *gap* is ``(objective - reference) / objective``, where the reference is the optimum or a
lower bound. Some objectives encode two numbers in one integer, such as the initiation interval and the latency of a loop; the
first number decides, and each number has a gap of its own. A *way to plan* is one of the compared methods, for example the most
likely game of the policy. Units of objectives are those of the kind of problem.
"""

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

#: Name and version of the file format.
FORMAT = "stowplan.validation"
VERSION = 1


#: The note on a game that did not end in time.
STOPPED = "stopped"


class Exact(msgspec.Struct, frozen=True, kw_only=True):
    """The result of the heuristic and exact candidates, with which policies are compared."""

    objective: int | None
    """Objective of the best verified plan; None if there is none."""
    bound: int | None
    """Proven lower bound of the objective; None if there is none."""
    is_proven: bool
    """Whether the objective is proven optimal."""
    candidate: str
    """Name of the candidate that found the plan; empty if there is no plan."""
    stop_reason: str
    """Why the run ended (:data:`stowplan.result.StopReason`)."""
    seconds: float
    """How many seconds the run took."""
    certified_bound: int | None = None
    """The bound that a certificate proves without trust in a solver; None if there is no such proof."""
    proof: str = ""
    """Form of the certificate's proof; empty if ``bound`` rests on trust in a solver."""


class Outcome(msgspec.Struct, frozen=True, kw_only=True):
    """The outcome of one game: the objective of its plan, or the reason why there is no valid plan."""

    objective: int | None = None
    """Objective of the plan; None if there is no valid plan."""
    gap: float | None = None
    """Gap to the optimum if that is proven, otherwise to the bound; None if neither is known."""
    least_gap: float | None = None
    """Gap to the best plan of the heuristic and exact candidates; None if they found none. The gap to the true optimum is
    between this number and ``gap``."""
    second_gap: float | None = None
    """For objectives that encode two numbers, the gap of the second number. It is None unless the first number equals that of
    the reference."""
    is_optimal: bool = False
    """Whether the objective is at most the proven optimum or, if there is none, the bound. If it encodes two numbers, both are
    optimal."""
    note: str = ""
    """Why there is no valid plan: ``lost`` if the game ended without a plan, ``stopped`` if it did not end in time, otherwise
    the rules that its plan breaks."""


class Side(msgspec.Struct, frozen=True, kw_only=True):
    """The outcomes of a policy, or of its control, on one problem."""

    likeliest: Outcome
    """Outcome of the game in which every decision is the most likely one."""
    sampled: tuple[Outcome, ...] = ()
    """Outcomes of games whose decisions are drawn from the policy's probabilities."""
    best: Outcome = Outcome(note=STOPPED)
    """The sampled outcome with the smallest objective; without one, its note says whether games were lost or stopped."""
    searched: Outcome = Outcome(note=STOPPED)
    """Outcome of the agent's own search, such as a tree search, with a fixed effort."""
    seconds: float = 0.0
    """Seconds that all games took together."""

    @property
    def is_played(self) -> bool:
        """Whether any game ended in time, with a valid plan or without one."""
        return any(outcome.note != STOPPED for outcome in (self.likeliest, *self.sampled, self.searched))


class Values(msgspec.Struct, frozen=True, kw_only=True):
    """How well the policy's value estimates match the actual returns, over the positions of the sampled games.

    A *position* is the state of a game between two decisions. The *return* from a position is the sum of the rewards that the
    game gives after it, and a *value estimate* is the policy's prediction of the return.
    """

    correlation: float | None = None
    """Spearman's rank correlation over all positions; None if it is undefined, as for constant values."""
    at_equal_positions: float | None = None
    """The rank correlation within groups of positions that are equally many decisions from the start, pooled over the groups.
    It is not affected by how much of the game is left."""
    positions: int = 0
    """Number of positions."""
    games: int = 0
    """Number of games."""
    note: str = ""
    """Why there are no estimates; empty if there are some."""
    points: tuple[tuple[float, float], ...] = ()
    """Pairs (estimate, return) of some of the positions, evenly spaced, for plots."""


class RewardCorrelation(msgspec.Struct, frozen=True, kw_only=True):
    """The correlation of a game's reward with a latency, over sampled games of policy and control.

    The *reward* of a game is the sum of the numbers that the agent gets during the game, larger ones for better plans.
    """

    measured: str
    """How the latency is measured: ``simulated``, in the unit of the objective; or ``compiled``, in cycles of the compiled
    program."""
    correlation: float | None
    """Pearson's correlation: -1 if a larger reward always means less time; None if it is undefined."""
    count: int
    """Number of games."""
    points: tuple[tuple[int, int], ...] = ()
    """Pairs (reward, latency) of some of the games, for plots."""


class ProblemReport(msgspec.Struct, frozen=True, kw_only=True):
    """The result for one problem of the suite, that is, of the list of inputs. If the problem failed, only the first four
    fields are set."""

    name: str
    """Name of the input, which is its path below the suite's folder without suffix."""
    input: str
    """Path of the input."""
    exit_code: int = 0
    """Exit code of the error if the problem failed, otherwise 0."""
    error: str | None = None
    """Message of the error if the problem failed."""
    kind: str = ""
    """Name of the kind of problem."""
    unit: str = ""
    """Name of the unit of the objectives."""
    digest: str = ""
    """Digest of the problem."""
    exact: Exact | None = None
    """The result of the heuristic and exact candidates."""
    baseline_name: str = ""
    """Name of the baseline."""
    baseline: Outcome | None = None
    """The outcome of the baseline; None if it has no plan."""
    policy: Side | None = None
    """The outcomes of the policy."""
    control: Side | None = None
    """The outcomes of the control."""
    values: Values | None = None
    """How well the policy's value estimates match the actual returns."""
    rewards: tuple[RewardCorrelation, ...] = ()
    """The correlations of the reward with latencies, for kinds that measure one."""
    decisions: DecisionReport | None = None
    """The costs of the decisions of the policy's most likely game; None if they were not examined."""
    decisions_note: str = ""
    """Why no decisions were examined; empty if some were."""
    notes: tuple[str, ...] = ()
    """The warnings of the exact run."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """The gaps of one way to plan, such as the most likely game of the policy, over all problems of a kind."""

    name: str
    """Name of the way to plan, such as ``policy, best sample``."""
    gaps: Spread
    """The distribution of the gaps; for objectives that encode two numbers, of the gaps of the first number."""
    second_gaps: Spread | None = None
    """For objectives that encode two numbers, the gaps of the second number, over plans whose first number equals that of the
    reference."""


class Summary(msgspec.Struct, frozen=True, kw_only=True):
    """The summary of all problems of one kind."""

    kind: str
    """Name of the kind of problem."""
    agent: str
    """Name of the agent that trains and uses the policy."""
    policy: str
    """Path of the policy file."""
    digest: str
    """SHA-256 hash of the policy file."""
    problems: int
    """Number of problems."""
    proven: int
    """Number of problems whose optimum is proven. For the remaining problems, gaps refer to a bound, and true gaps may be
    smaller."""
    rows: tuple[Row, ...]
    """One row for each way to plan."""
    second: str = ""
    """Name of the second number of the objective; empty if the objective is a single number."""
    correlation: float | None = None
    """Mean over the problems of :attr:`Values.correlation`, weighted by their numbers of positions; None if no problem has a
    correlation."""
    at_equal_positions: float | None = None
    """Mean over the problems of :attr:`Values.at_equal_positions`, weighted in the same way; None if no problem has one."""
    values_note: str = ""
    """Why there are no value estimates; empty if there are some."""
    training: str = ""
    """How the policy was trained, according to its file."""
    rewards: tuple[RewardCorrelation, ...] = ()
    """Means of the reward correlations of the problems."""


class Validation(Document, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The result of a validation run."""

    settings: Settings
    """How every problem was read and solved."""
    games: int
    """Number of sampled games of each policy, and of its control, on each problem."""
    solves: int
    """Largest number of exact solves for the costs of decisions, on each problem."""
    problems: tuple[ProblemReport, ...]
    """The results for the problems that were validated or failed, in the order of the suite."""
    summaries: tuple[Summary, ...]
    """One summary for each kind of problem."""
    asked: int
    """Number of inputs of the suite; ``problems`` has fewer entries if the run was interrupted."""
    interrupted: bool = False
    """Whether the run was cancelled before its end."""
    format: str = FORMAT
    """Name of the file format."""
    version: int = VERSION
    """Version of the file format."""


def summarize(problems: Sequence[ProblemReport], opened: Callable[[str], Opened]) -> tuple[Summary, ...]:
    """Summarize the problems that were validated, kind by kind, in the order in which kinds occur.

    Parameters
    ----------
    problems
        The reports of all problems. Failed problems are left out.
    opened
        Function from the name of a kind to its policy. Its errors are passed on.
    """
    names = dict.fromkeys(problem.kind for problem in problems if problem.error is None)
    return tuple(_summary(kind, [problem for problem in problems if problem.kind == kind], opened(kind)) for kind in names)


def _summary(kind: str, problems: Sequence[ProblemReport], opened: Opened) -> Summary:
    """The summary of the problems of one kind."""
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
        correlation=_pool(values, lambda value: value.correlation),
        at_equal_positions=_pool(values, lambda value: value.at_equal_positions),
        values_note=opened.adapter.values,
        training=opened.training,
        rewards=tuple(_mean_reward(name, problems) for name in measured),
    )


def outcomes_of(problems: Sequence[ProblemReport]) -> dict[str, list[tuple[str, Outcome]]]:
    """Pairs (name of the problem, outcome) of validated problems of one kind, by the name of the way to plan.

    A problem without a plan of the baseline counts as lost there. Raises AttributeError for a report of a failed problem, which
    has no outcomes.
    """
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
    """The distribution of the gaps of one way to plan; ``has_second`` says whether objectives encode two numbers."""
    # Games that did not end in time say nothing about the policy.
    complete = [outcome for outcome in outcomes if outcome.note != STOPPED]
    gaps = spread((outcome.gap for outcome in complete), sum(outcome.is_optimal for outcome in complete))
    second: Spread | None = None
    if has_second:
        equal = [outcome for outcome in complete if outcome.second_gap is not None]
        second = spread((outcome.second_gap for outcome in equal), sum(outcome.is_optimal for outcome in equal))
    return Row(name=name, gaps=gaps, second_gaps=second)


def _pool(values: Sequence[Values], part: Callable[[Values], float | None]) -> float | None:
    """The mean of the problems' correlations, weighted by their numbers of positions; None if no problem has a correlation.

    It equals the correlation over all positions of all problems, if values and returns are ranked within each problem and then
    standardized to mean 0 and deviation 1.
    """
    weighted = [(correlation, value.positions) for value in values if (correlation := part(value)) is not None]
    total = sum(weight for _, weight in weighted)
    return sum(correlation * weight for correlation, weight in weighted) / total if total else None


def _mean_reward(measured: str, problems: Sequence[ProblemReport]) -> RewardCorrelation:
    """The mean of the problems' correlations of the reward with the latency that is ``measured`` in one way."""
    rewards = [reward for problem in problems for reward in problem.rewards if reward.measured == measured]
    known = [reward.correlation for reward in rewards if reward.correlation is not None]
    return RewardCorrelation(
        measured=measured, correlation=fmean(known) if known else None, count=sum(reward.count for reward in rewards)
    )
