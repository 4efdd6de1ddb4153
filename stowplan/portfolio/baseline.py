"""The baseline of a run that is named: the result is no worse than its plan, as of the agent beside a production compiler.

That is ``-prod`` of Wang et al. 2023 (section 5, table 3): the better of a search's plan and the compiler's.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from stowplan.errors import UsageError
from stowplan.notes import cut
from stowplan.portfolio.kind import Candidate, Kind
from stowplan.portfolio.run_state import RunState
from stowplan.result import CandidateReport

#: Names the production baseline: the compiler's own plan where it is at hand, else what the kind compares with.
PRODUCTION = "prod"

#: Name of the plan that XLA itself made.
XLA = "xla"


def resolve(kind: Kind, baseline: str | None, starts: Mapping[str, Any], given: Iterable[str]) -> str | None:
    """The name of the baseline that a caller means, None where none was named.

    Parameters
    ----------
    kind
        Of the problem.
    baseline
        As given: a name, or :data:`PRODUCTION`.
    starts
        The kind's initial plans and those at hand, by name.
    given
        Names of the plans that the caller gave, those too that turned out not to be valid.

    Raises
    ------
    UsageError
        There is no baseline of that name.
    """
    known = dict.fromkeys((*starts, *given, *kind.baseline_sources, kind.baseline))
    if baseline == PRODUCTION and PRODUCTION not in known:
        return XLA if XLA in known else kind.baseline
    if baseline is not None and baseline not in known:
        raise UsageError(f"found baseline {baseline!r}, expected one of {', '.join((*known, PRODUCTION))}")
    return baseline


def with_maker(
    kind: Kind, problem: Any, baseline: str | None, starts: Mapping[str, Any], chosen: Sequence[Candidate]
) -> list[Candidate]:
    """The candidates of a run, before them what makes the baseline that was named, where no plan of it is at hand."""
    if baseline is None or baseline in starts:
        return list(chosen)
    makers = [each for each in kind.makes_baselines(problem) if each.name == baseline]
    return [*makers, *(each for each in chosen if each.name != baseline)] if makers else list(chosen)


def left_out(name: str, why: str) -> str:
    """The warning that a baseline has no plan."""
    return f"the baseline {name} is left out: {why}"


def warn_where_missing(state: RunState, reports: Sequence[CandidateReport]) -> None:
    """Say in one line that the baseline that was named has no plan, and that the result is compared with nothing."""
    name = state.baseline
    if name is None or name in state.sources or state.infeasible:
        return
    maker = next((each for each in reports if each.name == name), None)
    if maker is None:
        why = "it has no valid plan for this problem"
    elif maker.outcome in ("stopped", "skipped"):
        why = "it was not done within the limit"
    else:
        why = cut(maker.note) or "it has no valid plan for this problem"
    state.warnings.append(left_out(name, why))
