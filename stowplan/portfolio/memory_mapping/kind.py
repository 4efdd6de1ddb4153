"""The kind ``memory_mapping``: how its plans are verified and described, and which candidates and baselines it has.

A plan says when which tensor of a compiled program is in fast memory, at which offset, and which copies bring it there. A *use*
is the read or write of one tensor by one step of the program; the number of uses measures the size of a problem. The
*relaxation* is a MILP without integrality. It gives a bound, and a hint that says how likely each tensor is in fast memory.
:class:`stowplan.kernel.kind.Kind` explains the fields of :data:`KIND`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import Baseline, Candidate, Extras, Kind, identify
from stowplan.kinds import Prover
from stowplan.models.memory_mapping.plan import DECISIONS, Plan, offset_table
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.memory_mapping import learned
from stowplan.portfolio.memory_mapping.pace import PARAMS as PACE
from stowplan.portfolio.memory_mapping.pace import is_large
from stowplan.portfolio.memory_mapping.priced import first_bounds
from stowplan.portfolio.presolve import PRESOLVER, in_caller
from stowplan.verification import Verification


class StartParameters(Parameters, frozen=True):
    """Parameters that decide which candidates run, and for how long."""

    small_uses: int = 128
    """Number of uses of a problem up to which the presolver, a short exact search before all other candidates, runs."""
    relaxation_seconds: float = 9e-4
    """Seconds for each use of the problem during which the bound of the candidate ``relaxation`` grows quickly. The candidate
    gets this time if others wait for its worker."""
    relaxation_share: tuple[float, float] = (0.4, 0.6)
    """Least and largest part of the time limit that the candidate ``relaxation`` gets. More would not pay: in the remaining
    time, other candidates improve the plan of a large problem more than this candidate would improve the bound
    (docs/results/guidance.md).
    """
    plain_seconds: float = 1e-4
    """Seconds that the linear relaxation of the whole problem needs for each use of the problem."""
    plain_share: float = 0.5
    """Part of the time limit that the linear relaxation of the whole problem may take. If it takes longer, there is no time to
    use its result, and the candidate ``relaxation`` runs only if it is named."""
    least_seconds: float = 0.5
    """Seconds of time limit below which only the search runs, if the relaxation would take too long."""
    short_seconds: float = 3.0
    """Seconds of time limit up to which a single worker mostly runs the search."""
    short_share: float = 0.25
    """Part of the time limit for the other candidates, if there is one worker and the limit is at most ``short_seconds``."""


PARAMS = parameters(StartParameters, __name__)


def _labels(problem: Problem, plan: Plan) -> dict[str, Any]:
    """The fields of a plan that repeat facts of the problem: program, target, and the names of tensors in fast memory."""
    placed = sorted({residency.tensor for residency in plan.residencies})
    names = {tensor: problem.tensors[tensor].name for tensor in placed}
    return {"program": problem.name, "target": problem.target, "names": names}


def _all_slow(problem: Problem) -> Plan:
    """The plan in which no tensor is ever in fast memory."""
    return Plan(problem=problem.digest, objective=problem.all_slow_ps, program=problem.name, target=problem.target)


def _candidates(problem: Problem, options: Options) -> list[Candidate]:
    """All candidates of the problem, most useful first.

    The search has a worker of its own. The exact candidates share another one. The learned candidate, ``policy``, shares it as
    well if no worker is free.
    """
    is_small = problem.use_count <= PACE.complete_model_uses
    search = [in_caller(Candidate("search", "heuristic"), options)]
    relaxation = Candidate("relaxation", "exact", proves_only=True)
    # These candidates improve plans of the others.
    improving = [Candidate("cpsat", "exact")] if is_small else []
    improving += [Candidate("lns", "exact")] if problem.use_count else []
    milp = Candidate("milp", "exact", share=0.4, proves_only=True, by_name_only=True)

    requested_names = {*options.candidates}
    requested = [
        candidate for candidate in (*search, relaxation, *improving) if {candidate.name, candidate.family} & requested_names
    ]
    policy = learned.candidate(problem, options, len(requested))
    has_free_worker = len(requested) < options.workers
    share_left = 1.0 - (0.0 if has_free_worker or policy.by_name_only or policy.unavailable else policy.share)
    if options.workers == 1 and options.time_limit <= PARAMS.short_seconds:
        share_left = PARAMS.short_share
    least, most = PARAMS.relaxation_share
    proving_share = min(most * share_left, max(least, PARAMS.relaxation_seconds * problem.use_count / options.time_limit))
    takes_too_long = PARAMS.plain_seconds * problem.use_count > PARAMS.plain_share * options.time_limit
    takes_too_long &= not options.deterministic and search[0] in requested
    relaxation = replace(relaxation, share=proving_share, by_name_only=takes_too_long)
    if takes_too_long and "relaxation" not in options.candidates:
        proving_share = 0.0
    only_search_helps = takes_too_long and options.time_limit < PARAMS.least_seconds
    improving = [
        replace(candidate, share=(share_left - proving_share) / len(improving), by_name_only=only_search_helps)
        for candidate in improving
    ]

    candidates = [*search, relaxation]
    candidates += [*improving, milp, policy] if has_free_worker else [policy, *improving, milp]
    if 0 < problem.use_count <= PARAMS.small_uses:
        candidates.insert(0, PRESOLVER)
    if is_large(problem, options):
        candidates.append(Candidate("lns2", "exact", turn="reserve", by_name_only=only_search_helps))
    return candidates


def _function(name: str) -> Callable[[Problem, Context], None]:
    """The function of the candidate of this name; raises KeyError for other names."""
    if name in ("lns", "lns2"):
        # This module is imported only when it is needed, because it imports ortools.
        from stowplan.portfolio.memory_mapping import lns

        return {"lns": lns.lns, "lns2": lns.lns2}[name]
    from stowplan.portfolio.memory_mapping import candidates

    return {
        "presolve": candidates.presolve,
        "search": candidates.search,
        "relaxation": candidates.relaxation,
        "cpsat": candidates.complete,
        "milp": candidates.milp,
        "policy": learned.policy,
        "greedy": candidates.greedy,
    }[name]


def _facts(problem: Problem, plan: Plan | None, check: Verification[Any] | None) -> dict[str, Any]:
    """Details for the result: the size of the problem, its capacity in bytes, and figures of the plan if there is one.

    ``all_fast`` is the latency in ps if all uses were fast. ``fast_traffic`` is the fraction of all bytes read and written that
    fast memory serves. ``stall`` is the time in ps that the program waits for copies.
    """
    facts: dict[str, Any] = {
        "steps": problem.horizon,
        "tensors": len(problem.tensors),
        "uses": problem.use_count,
        "capacity": problem.capacity,
        "stalls": problem.stalls,
        "all_fast": problem.all_fast_ps,
    }
    if plan is not None and check is not None:
        fast = set(plan.fast_uses)
        moved = [use.bytes for step in problem.steps for use in step.uses]
        weights = [step.weight for step in problem.steps for _ in step.uses]
        traffic = sum(size * weight for size, weight in zip(moved, weights, strict=True))
        served = sum(size * weight for use, (size, weight) in enumerate(zip(moved, weights, strict=True)) if use in fast)
        facts |= {
            "normalised_return": problem.normalised_return(plan.objective),
            "stall": check.figures.get("stall_ps"),
            "fast_traffic": served / traffic if traffic else 0.0,
            "residencies": len(plan.residencies),
            "copies": len(plan.copies),
            "preloads": [problem.tensors[residency.tensor].name for residency in plan.residencies if residency.preloaded],
        }
    return facts


def _extras() -> Extras[Problem, Plan]:
    from stowplan.models.memory_mapping.hint import VALUES
    from stowplan.portfolio.memory_mapping.keep_close import Changes
    from stowplan.portfolio.memory_mapping.validation import ADAPTER

    return Extras(hints=VALUES, changes=Changes, adapter=ADAPTER)


def _prover() -> Prover:
    from stowplan.certificates.maker.mapping import mapping

    return mapping


KIND = Kind(
    name="memory_mapping",
    problem=Problem,
    plan=Plan,
    amends=("capacity", "stalls"),
    verify=verify,
    labels=_labels,
    bound=lambda problem: problem.floor_ps,
    first_bounds=first_bounds,
    candidates=_candidates,
    function=_function,
    baselines=(
        Baseline(name="greedy", maker=lambda problem: Candidate("greedy", "baseline"), is_awaited=lambda problem: True),
        Baseline(name="all_slow", plan=_all_slow),
    ),
    assumptions=("capacity", "stalls=allowed", "evictions=between_steps", "prefetches=sliced", "alias_rule=in_place"),
    facts=_facts,
    counts=("steps", "tensors", "uses"),
    identity=identify,
    decisions=DECISIONS,
    offset_table=offset_table,
    extras=_extras,
    certificate=_prover,
)
