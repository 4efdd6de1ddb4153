"""Helpers that candidates of several kinds share: the presolver for small problems, threads in the caller's process, reports.

A *candidate* is one method of a run of ``solve``, which finds plans or bounds. A kind's ``candidates`` module uses these
helpers to describe its candidates and to report what they find.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import Candidate
from stowplan.models.outcome import Outcome

#: The candidate that runs before all others on small problems, in a thread of the calling process, like the pre-solvers of
#: algorithm portfolios (Xu et al. 2008, SATzilla). If it proves its plan optimal, no other candidate is started, which saves
#: the start of a process. Otherwise the others run as usual. Deterministic runs have no presolver.
PRESOLVER = Candidate("presolve", "exact", share=0.25, place="thread", turn="presolver")

#: Seconds that a presolver may take.
PRESOLVE_SECONDS = 1.5


def in_caller(candidate: Candidate, options: Options) -> Candidate:
    """Returns the candidate, changed so that it runs in a thread of the calling process, up to the time limit.

    This suits candidates whose loops are machine code that releases the interpreter lock. If the options limit memory, the
    candidate is returned unchanged and has a process of its own, because such limits apply to processes.
    """
    return replace(candidate, place="compiled thread") if options.memory_limit is None else candidate


class Overload(Protocol):
    """A proof by counting that no plan exists. For example, more bytes are live at one moment than the memory has."""

    @property
    def reason(self) -> str:
        """The explanation for users, in one sentence."""


def presolve_seconds(context: Context) -> float:
    """Seconds that a presolver may still take: at most :data:`PRESOLVE_SECONDS`, and no more than the run has left."""
    return min(PRESOLVE_SECONDS, context.remaining())


def report_if_overloaded(context: Context, overload: Overload | None) -> bool:
    """Report that no plan exists, unless ``overload`` is None; returns whether it was reported."""
    if overload is not None:
        context.note(overload.reason)
        context.proven_infeasible("load")
    return overload is not None


def report_proof(context: Context, outcome: Outcome[Any], source: str) -> None:
    """Report, under the name ``source``, what an exact model has proven: a lower bound, or that no plan exists."""
    if outcome.status == "infeasible":
        context.proven_infeasible(source, {"explanation": outcome.reason} if outcome.reason else None)
    if outcome.bound is not None:
        context.bound(outcome.bound, source)


def includes_heuristics(context: Context) -> bool:
    """Whether the run includes heuristics, so that the presolver should compute the kind's baseline as well."""
    return "heuristic" in context.options.candidates
