"""What candidates of several kinds share: the presolver of small problems, heuristics up to the limit, what they tell."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import Candidate
from stowplan.models.outcome import Outcome

#: The candidate of small problems that comes before all others, as the pre-solvers of algorithm portfolios do (Xu et al. 2008,
#: SATzilla), in a thread of the calling process. Where it proves its plan the others are not started: a process takes longer to
#: start than the work takes. What it leaves open the others do as if it had not been there. Deterministic runs go without it.
PRESOLVER = Candidate("presolve", "exact", share=0.25, place="thread", turn="presolver")

#: A presolver takes no longer than so many seconds.
PRESOLVE_SECONDS = 1.5


def in_caller(candidate: Candidate, options: Options) -> Candidate:
    """The candidate in a thread of the calling process, to the limit: its loops are machine code, which others run beside.

    Where memory is limited it has a process, for the limit is of processes.
    """
    return replace(candidate, place="compiled thread") if options.memory_limit is None else candidate


class Overload(Protocol):
    """Why nothing fits, as the bounds of a kind find it."""

    @property
    def reason(self) -> str:
        """One sentence for people."""


def presolve_seconds(context: Context) -> float:
    """Seconds that a presolver may take."""
    return min(PRESOLVE_SECONDS, context.remaining())


def is_overloaded(context: Context, overload: Overload | None) -> bool:
    """Report an infeasibility that shows at once, where there is one."""
    if overload is not None:
        context.note(overload.reason)
        context.proven_infeasible("load")
    return overload is not None


def tell_proof(context: Context, outcome: Outcome[Any], source: str) -> None:
    """Report what an exact model has proven: that there is no plan, and its bound."""
    if outcome.status == "infeasible":
        context.proven_infeasible(source, {"explanation": outcome.reason} if outcome.reason else None)
    if outcome.bound is not None:
        context.bound(outcome.bound, source)


def asks_for_heuristics(context: Context) -> bool:
    """Whether heuristics are among what is asked for, so that a presolver makes the kind's baseline."""
    return "heuristic" in context.options.candidates
