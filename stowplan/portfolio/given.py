"""What the name of a baseline and a hint that a call is given stand for.

The result is no worse than the baseline that is named, as ``-prod`` of Wang et al. 2023 (section 5, table 3): the better of a
search's plan and the compiler's.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from stowplan.errors import UsageError
from stowplan.models import hint as hints
from stowplan.models.hint import Hint
from stowplan.portfolio.kind import Candidate, Kind, describe_plan

#: Names the production baseline: the compiler's own plan where it is at hand, else what the kind compares with.
PRODUCTION = "prod"

#: Name of the plan that XLA itself made.
XLA = "xla"


def resolve(kind: Kind[Any, Any], baseline: str | None, at_hand: Iterable[str]) -> str | None:
    """The name of the baseline that a caller means, None where none was named.

    Parameters
    ----------
    kind
        Of the problem.
    baseline
        As given: a name, or :data:`PRODUCTION`.
    at_hand
        Names of the kind's initial plans and of those that the caller gave, be they valid or not.

    Raises
    ------
    UsageError
        There is no baseline of that name.
    """
    known = dict.fromkeys((*at_hand, *kind.baseline_sources, kind.baseline))
    if baseline == PRODUCTION and PRODUCTION not in known:
        return XLA if XLA in known else kind.baseline
    if baseline is not None and baseline not in known:
        raise UsageError(f"found baseline {baseline!r}, expected one of {', '.join((*known, PRODUCTION))}")
    return baseline


def with_maker(
    kind: Kind[Any, Any], problem: Any, baseline: str | None, starts: Iterable[str], chosen: Sequence[Candidate]
) -> list[Candidate]:
    """The candidates of a run, before them what makes the baseline that was named, where no plan of it is at hand."""
    if baseline is None or baseline in starts:
        return list(chosen)
    makers = [candidate for candidate in kind.makes_baselines(problem) if candidate.name == baseline]
    return [*makers, *(candidate for candidate in chosen if candidate.name != baseline)] if makers else list(chosen)


def left_out(name: str, why: str) -> str:
    """The warning that a baseline has no plan."""
    return f"the baseline {name} is left out: {why}"


#: Name of the plan that comes with a hint.
HINT = "hint"


def hinted_plan(kind: Kind[Any, Any], problem: Any, hint: Any) -> Any:
    """The plan of a hint, or that is given as one; None where there is none. It has not been verified.

    Raises
    ------
    UsageError
        It is neither a hint nor a plan of the kind, or has values that the kind does not take.
    InputError
        It is a hint for something else, or damaged.
    """
    if isinstance(hint, Hint):
        hints.check(problem, hint, kind.extras().hints)
        return hints.plan_of(hint)
    if hint is not None and not isinstance(hint, kind.plan):
        raise UsageError(
            f"found {describe_plan(hint)} as the hint, expected a stowplan.models.hint.Hint or a plan of {kind.name}"
        )
    return hint


def hinted_values(kind: Kind[Any, Any], problem: Any, hint: Any, plan: Any) -> list[Hint]:
    """The values of a hint without its plan, or those of the plan; nothing where the kind takes no values.

    Parameters
    ----------
    kind, problem
        What is to be solved.
    hint
        As it was given, checked.
    plan
        What :func:`hinted_plan` found in it, verified.
    """
    if isinstance(hint, Hint) and hint.values:
        return [msgspec.structs.replace(hint, plan=None)]
    known = None if plan is None else kind.extras().hints
    if known is None:
        return []
    return [msgspec.structs.replace(known.of_plan(problem, plan), plan=None)]
