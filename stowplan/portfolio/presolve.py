"""Helpers that candidates of several kinds share: the presolver for small problems, threads in the caller's process, reports.

A *candidate* is one method of a run of ``solve``. It looks for plans or bounds and reports them to its
:class:`~stowplan.kernel.context.Context`. A kind's modules ``kind`` and ``candidates`` use these helpers to describe its
candidates and to report their findings. None of the functions raises an error.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any, Protocol

from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import Candidate
from stowplan.models.outcome import Outcome

#: The candidate that runs before all others on small problems, in a thread of the calling process, like the pre-solvers of
#: algorithm portfolios (Xu et al. 2008, SATzilla). If it proves its plan optimal, no other candidate is started, which saves
#: the start of a process. Otherwise the others run as usual. Deterministic runs have no presolver. It takes at most a quarter
#: of the time limit.
PRESOLVER = Candidate("presolve", "exact", share=0.25, place="thread", turn="presolver")

#: Seconds that an exact model of a presolver may take at most.
PRESOLVE_SECONDS = 1.5


def in_caller(candidate: Candidate, options: Options) -> Candidate:
    """Returns the candidate, changed so that it runs in a thread of the calling process, up to the time limit.

    This suits candidates whose loops are machine code that releases the interpreter lock. If ``options`` limit the memory, the
    candidate is returned unchanged and has a process of its own, because a memory limit applies to a process.
    """
    return replace(candidate, place="compiled thread") if options.memory_limit is None else candidate


class Overload(Protocol):
    """A proof by counting that no plan exists. For example, more bytes are live at one moment than the memory has.

    Several kinds have a class of their own with this attribute.
    """

    @property
    def reason(self) -> str:
        """The explanation for users, in one sentence."""


def presolve_seconds(context: Context) -> float:
    """Seconds that a presolver may still take: at most :data:`PRESOLVE_SECONDS`, and no more than the run has left."""
    return min(PRESOLVE_SECONDS, context.remaining())


def report_if_overloaded(context: Context, overload: Overload | None) -> bool:
    """Report that no plan exists, unless ``overload`` is None; returns whether it was reported.

    The reason becomes a remark on the candidate, and the proof gets the source ``load``.
    """
    if overload is not None:
        context.note(overload.reason)
        context.proven_infeasible("load")
    return overload is not None


def report_proof(context: Context, outcome: Outcome[Any], source: str) -> None:
    """Report, under the name ``source``, what the outcome of an exact model proves: a lower bound, or that no plan exists.

    If it proves neither, nothing is reported. Its plan is never reported, because models report plans while they run.
    """
    if outcome.status == "infeasible":
        context.proven_infeasible(source, {"explanation": outcome.reason} if outcome.reason else None)
    if outcome.bound is not None:
        context.bound(outcome.bound, source)


def includes_heuristics(context: Context) -> bool:
    """Whether the run includes heuristics, so that the presolver should compute the kind's baseline as well."""
    return "heuristic" in context.options.candidates
