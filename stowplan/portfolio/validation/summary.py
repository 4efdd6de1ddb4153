"""What the problems of a suite come to together, kind by kind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from statistics import fmean

from stowplan.portfolio.validation.policies import Opened
from stowplan.portfolio.validation.records import Outcome, ProblemReport, RewardCorrelation, Row, Side, Summary, Values
from stowplan.portfolio.validation.statistics import Spread, spread
from stowplan.result import two_numbers

#: Outcomes that a way to plan has on one problem.
Outcomes = Callable[[ProblemReport], Iterable[Outcome]]


def summarize(problems: Sequence[ProblemReport], opened: Callable[[str], Opened]) -> tuple[Summary, ...]:
    """The problems that were validated, kind by kind in their order.

    Parameters
    ----------
    opened
        The policy of a kind by its name.
    """
    kinds = dict.fromkeys(each.kind for each in problems if each.error is None)
    return tuple(_summary(kind, [each for each in problems if each.kind == kind], opened(kind)) for kind in kinds)


def _summary(kind: str, problems: Sequence[ProblemReport], opened: Opened) -> Summary:
    unit = problems[0].unit
    baselines = dict.fromkeys(each.baseline_name for each in problems)
    rows = [
        *_of_side("policy", lambda each: each.policy),
        *_of_side("untrained", lambda each: each.control),
        (f"baseline {', '.join(baselines)}", lambda each: [each.baseline or Outcome(note="lost")]),
    ]
    measured = {reward.measured: None for each in problems for reward in each.rewards}
    pair = two_numbers(unit)
    values = [each.values for each in problems if each.values is not None]
    return Summary(
        kind=kind,
        agent=opened.adapter.agent,
        policy=opened.path,
        digest=opened.digest,
        problems=len(problems),
        proven=sum(each.exact is not None and each.exact.is_proven for each in problems),
        rows=tuple(_row(name, problems, outcomes, pair is not None) for name, outcomes in rows),
        second="" if pair is None else pair[2],
        correlation=_pooled(values, lambda each: each.correlation),
        at_equal_positions=_pooled(values, lambda each: each.at_equal_positions),
        values_note=opened.adapter.values,
        training=opened.training,
        rewards=tuple(_mean_reward(name, problems) for name in measured),
    )


def _of_side(name: str, side: Callable[[ProblemReport], Side | None]) -> list[tuple[str, Outcomes]]:
    def of(part: Callable[[Side], Iterable[Outcome]]) -> Outcomes:
        def outcomes(problem: ProblemReport) -> Iterable[Outcome]:
            found = side(problem)
            return () if found is None else part(found)

        return outcomes

    return [
        (f"{name}, likeliest", of(lambda found: (found.likeliest,))),
        (f"{name}, each sample", of(lambda found: found.sampled)),
        (f"{name}, best sample", of(lambda found: (found.best,) if found.sampled else ())),
    ]


def _row(name: str, problems: Sequence[ProblemReport], outcomes: Outcomes, has_second: bool) -> Row:
    # What time cut short says nothing of the policy.
    found = [each for problem in problems for each in outcomes(problem) if each.note != "stopped"]
    gaps = spread((each.gap for each in found), sum(each.is_optimal for each in found))
    second: Spread | None = None
    if has_second:
        equal = [each for each in found if each.second_gap is not None]
        second = spread((each.second_gap for each in equal), sum(each.is_optimal for each in equal))
    return Row(name=name, gaps=gaps, second_gaps=second)


def _pooled(values: Sequence[Values], part: Callable[[Values], float | None]) -> float | None:
    """Mean of the correlations of the problems, each as much as it has positions.

    That is the correlation of all positions together, with ranks of each problem by itself, brought to a mean of 0 and a
    deviation of 1.
    """
    found = [(correlation, each.positions) for each in values if (correlation := part(each)) is not None]
    total = sum(weight for _, weight in found)
    return sum(correlation * weight for correlation, weight in found) / total if total else None


def _mean_reward(measured: str, problems: Sequence[ProblemReport]) -> RewardCorrelation:
    found = [reward for each in problems for reward in each.rewards if reward.measured == measured]
    known = [each.correlation for each in found if each.correlation is not None]
    return RewardCorrelation(
        measured=measured, correlation=fmean(known) if known else None, count=sum(each.count for each in found)
    )
