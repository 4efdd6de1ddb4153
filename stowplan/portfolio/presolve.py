"""Helpers for candidates of several kinds: the presolver of small problems, threads in the caller's process, and reports."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import Candidate
from stowplan.models.outcome import Outcome

#: The candidate that runs before all others on small problems, in a thread of the calling process, like the pre-solvers of
#: algorithm portfolios (Xu et al. 2008, SATzilla). If it proves its plan optimal, the others are never started, because
#: starting a process would take longer than the work. Otherwise the others run as usual. Deterministic runs have no presolver.
PRESOLVER = Candidate("presolve", "exact", share=0.25, place="thread", turn="presolver")

#: Seconds that a presolver may take.
PRESOLVE_SECONDS = 1.5


def in_caller(candidate: Candidate, options: Options) -> Candidate:
    """The candidate, run in a thread of the calling process up to the time limit.

    This suits candidates whose loops are machine code that releases the interpreter lock. If the options limit memory, the
    candidate keeps its own process, because such limits apply to processes.
    """
    return replace(candidate, place="compiled thread") if options.memory_limit is None else candidate


class Overload(Protocol):
    """A proof by simple counting that no plan exists, as the bounds of a kind find it."""

    @property
    def reason(self) -> str:
        """The explanation for users, in one sentence."""


def presolve_seconds(context: Context) -> float:
    """Seconds that a presolver may take."""
    return min(PRESOLVE_SECONDS, context.remaining())


def report_if_overloaded(context: Context, overload: Overload | None) -> bool:
    """Report that no plan exists if ``overload`` proves so; returns whether it does."""
    if overload is not None:
        context.note(overload.reason)
        context.proven_infeasible("load")
    return overload is not None


def report_proof(context: Context, outcome: Outcome[Any], source: str) -> None:
    """Report what an exact model has proven: its lower bound, or that no plan exists."""
    if outcome.status == "infeasible":
        context.proven_infeasible(source, {"explanation": outcome.reason} if outcome.reason else None)
    if outcome.bound is not None:
        context.bound(outcome.bound, source)


def includes_heuristics(context: Context) -> bool:
    """Whether the run includes heuristics, so that the presolver should compute the kind's baseline as well."""
    return "heuristic" in context.options.candidates
