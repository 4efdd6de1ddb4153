"""The kind ``packing``: how its plans are read, verified and described, and which candidates and baselines it has.

A problem is a set of buffers, each with a size and a live range; a plan gives every buffer an offset in one arena. A problem
without a capacity asks for the smallest arena, and one with a capacity for any plan within it. Three features of a problem
decide which candidates run. *Gaps* are times within a live range in which the buffer takes no bytes. *Overlaps* permit a buffer
to share bytes with one that is still live. *Reuse penalties* are costs of pairs of buffers that share bytes one after the
other; then the problem asks for the least sum of costs within the capacity. A problem is *plain* if it has neither gaps nor
fixed offsets. :class:`stowplan.kernel.kind.Kind` explains the fields of :data:`KIND`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import msgspec

from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import Baseline, Candidate, Extras, Kind, identify
from stowplan.kinds import Prover
from stowplan.models.packing.bounds import find_overload, load_bound, peak_load, reuse_bound
from stowplan.models.packing.csv_files import read_described_plan, read_plan
from stowplan.models.packing.overlaps import shared_bytes
from stowplan.models.packing.plan import DECISIONS, Plan, height, make_plan, offset_table
from stowplan.models.packing.problem import Problem
from stowplan.models.packing.verify import verify
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.presolve import PRESOLVER, in_caller
from stowplan.units import BYTES, COST
from stowplan.verification import Verification


class StartParameters(Parameters, frozen=True):
    """Parameters that decide which candidates run, and whether in a thread or a process."""

    exact_buffers: int = 1500
    """Number of buffers up to which exact searches run. They have tables of all pairs of buffers, and with more buffers they
    prove nothing within minutes."""
    few_penalties: int = 1000
    """Number of reuse penalties up to which a problem of at most ``few_buffers`` buffers counts as easy. Then the presolver
    runs, and exact methods get most of the time."""
    few_buffers: int = 300
    """Number of buffers up to which the greedy baseline takes only milliseconds, so that it runs in a thread of the caller's
    process."""


PARAMS = parameters(StartParameters, __name__)


def _plan_of_hints(problem: Problem) -> Plan | None:
    """The plan in which every buffer is at the offset of its hint (``Buffer.hint``).

    It is None if a buffer has no hint, if there are no buffers, or if the plan is not valid.
    """
    offsets = tuple(buffer.hint for buffer in problem.buffers if buffer.hint is not None)
    if not offsets or len(offsets) < len(problem.buffers):
        return None
    plan = make_plan(problem, offsets)
    return plan if verify(problem, plan).ok else None


def _stacked_plan(problem: Problem) -> Plan | None:
    """The plan that puts the buffers one above the other without any reuse of bytes.

    It is None if the plan exceeds the capacity, or if a buffer has a fixed offset.
    """
    if any(buffer.offset is not None for buffer in problem.buffers):
        return None
    offsets: list[int] = []
    top = 0
    for buffer in problem.buffers:
        offsets.append(top + -top % buffer.alignment)
        top = offsets[-1] + buffer.size
    if problem.capacity is not None and height(problem, offsets) > problem.capacity:
        return None
    return make_plan(problem, offsets)


def _candidates(problem: Problem, options: Options) -> list[Candidate]:
    """All candidates for the problem, most useful first."""
    small = len(problem.buffers) <= PARAMS.exact_buffers
    if problem.penalties:
        is_easy = len(problem.buffers) <= PARAMS.few_buffers and len(problem.penalties) <= PARAMS.few_penalties
        share = 0.15 if is_easy else 0.9 if small else 1.0
        anneal = in_caller(Candidate("anneal", "heuristic", share=share), options)
        exact = [Candidate("components", "exact", share=1 - share)] if small else []
        return [*([PRESOLVER] if is_easy else []), anneal, *exact]
    # If there is a capacity, placing in simple orders finds a plan soon or never, but the beam search that follows needs
    # longer.
    is_plain = not any(buffer.gaps or buffer.offset is not None for buffer in problem.buffers)
    fit = problem.capacity is not None
    share = 0.6 if not small or (is_plain and fit) else 1.0 if is_plain else 0.1 if fit else 0.25
    candidates = [in_caller(Candidate("search", "heuristic", share=share), options)]
    if small:
        canonical = Candidate("canonical", "exact", share=0.4 if is_plain and not fit else 0.6)
        candidates.append(in_caller(canonical, options))
        if is_plain and not fit:
            candidates.append(Candidate("beam2", "heuristic", share=0.6))
        else:
            candidates.append(Candidate("canonical2", "exact", share=0.5))
        candidates.append(Candidate("cpsat", "exact", share=0.4))
    else:
        candidates.append(Candidate("climb", "heuristic", share=0.6))
    return _with_overlaps(problem, options, candidates) if problem.overlaps else candidates


def _with_overlaps(problem: Problem, options: Options, without_overlaps: Sequence[Candidate]) -> list[Candidate]:
    """The candidates of a problem with overlaps: a search and a model that use the overlaps, and candidates that do not.

    The latter solve the problem as if no buffers could share bytes, and then improve their best plan with overlaps. Bounds that
    they prove do not hold for the original problem, so their family is ``heuristic``.
    """
    is_small = len(problem.buffers) <= PARAMS.few_buffers
    search = in_caller(Candidate("search", "heuristic", share=0.4), options)
    apart = in_caller(Candidate("apart", "heuristic", share=0.6), options)
    others = [replace(other, family="heuristic") for other in without_overlaps[1:] if other.name != "cpsat"]
    if len(problem.buffers) > PARAMS.exact_buffers:
        return [search, apart, *others]
    cpsat = Candidate("cpsat", "exact", share=1.0 if is_small else 0.4)
    presolvers = [PRESOLVER] if is_small else []
    return [*presolvers, search, others[0], cpsat, apart, *others[1:]]


def _greedy_candidate(problem: Problem) -> Candidate:
    """The candidate that makes the plan of the baseline ``greedy``."""
    # A process takes longer to start than the placement of a few buffers.
    is_small = len(problem.buffers) <= PARAMS.few_buffers and not any(buffer.gaps for buffer in problem.buffers)
    return Candidate("greedy", "baseline", place="thread" if is_small else "process")


def _function(name: str) -> Callable[[Problem, Context], None]:
    """The function of the candidate of this name; raises KeyError for other names."""
    from stowplan.portfolio.packing import candidates, penalties, quick

    return {
        "presolve": penalties.presolve,
        "search": candidates.search,
        "apart": candidates.apart,
        "anneal": penalties.anneal,
        "components": penalties.components,
        "canonical": candidates.exact,
        "canonical2": candidates.canonical2,
        "beam2": candidates.beam2,
        "cpsat": candidates.cpsat,
        "climb": candidates.climb,
        "greedy": quick.greedy,
    }[name]


def _facts(problem: Problem, plan: Plan | None, check: Verification[Any] | None) -> dict[str, Any]:
    """Details for the result: sizes and the load in bytes, penalties, and with a plan the bytes that overlaps share.

    Without a plan, they explain why none exists, if counting bytes proves it.
    """
    facts: dict[str, Any] = {
        "buffers": len(problem.buffers),
        "capacity": problem.capacity,
        "load": load_bound(problem),
        "bytes": sum(buffer.size for buffer in problem.buffers),
    }
    if problem.penalties:
        facts["penalties"] = len(problem.penalties)
        facts["costs"] = sum(problem.penalty_of.values())
    if problem.overlaps and plan is not None:
        facts["shared"] = sum(shared_bytes(problem, plan.offsets).values())
    overload = find_overload(problem) if plan is None else None
    if overload is not None:
        facts["explanation"] = overload.reason
        facts["conflict"] = {
            "proof": "load",
            "span": [overload.start, overload.end],
            "load": overload.load,
            "buffers": [problem.buffers[number].id for number in overload.buffers],
            "irreducible": True,
        }
    return facts


def _helpless(problem: Problem) -> tuple[str, ...]:
    """Returns the rules, as names in ``KIND.assumptions``, whose change alone would not make a plan possible.

    A rule is among them only if that can be seen without a search.
    """
    is_overloaded = problem.capacity is not None and peak_load(problem) > problem.capacity
    enough = None if problem.capacity is None else max(problem.capacity, load_bound(problem))
    is_clash = find_overload(msgspec.structs.replace(problem, capacity=enough)) is not None
    if is_overloaded or is_clash:
        # Sizes and live ranges alone need more than the capacity, or fixed buffers overlap; each has one remedy.
        return ("buffers.alignment", *(() if is_overloaded else ("capacity",)), *(() if is_clash else ("buffers.offset",)))
    # What remains without a search is a fixed buffer that ends beyond the capacity.
    return () if find_overload(problem) is None else ("buffers.alignment",)


def _identity(problem: Problem) -> dict[str, str]:
    goal = "least height" if problem.capacity is None else f"{problem.capacity} bytes"
    return identify(problem, "packing with reuse penalties" if problem.penalties else "packing", goal)


def _extras() -> Extras[Problem, Plan]:
    from stowplan.portfolio.packing.keep_close import Changes

    return Extras(changes=Changes)


def _prover() -> Prover:
    from stowplan.certificates.maker.loads import packing

    return packing


KIND = Kind(
    name="packing",
    problem=Problem,
    plan=Plan,
    read_plan=read_plan,
    read_described_plan=read_described_plan,
    amends=("capacity",),
    verify=verify,
    labels=lambda problem, plan: {name: getattr(problem, name) for name in ("name", "buffers", "parts", "results")},
    bound=lambda problem: reuse_bound(problem) if problem.penalties else load_bound(problem),
    candidates=_candidates,
    function=_function,
    baselines=(
        # With many buffers the greedy baseline takes long. A run that has proven its plan optimal then does not wait for it.
        Baseline(
            name="greedy", maker=_greedy_candidate, is_awaited=lambda problem: len(problem.buffers) <= PARAMS.exact_buffers
        ),
        Baseline(name="hint", plan=_plan_of_hints),
        Baseline(name="stack", plan=_stacked_plan),
    ),
    assumptions=("capacity", "buffers.alignment=1", "buffers.offset"),
    helpless=_helpless,
    least_capacity=load_bound,
    facts=_facts,
    counts=("buffers",),
    identity=_identity,
    unit=BYTES,
    unit_of=lambda problem: COST if problem.penalties else BYTES,
    asks_for_any=lambda problem: problem.capacity is not None and not problem.penalties,
    decisions=DECISIONS,
    offset_table=offset_table,
    extras=_extras,
    certificate=_prover,
)
