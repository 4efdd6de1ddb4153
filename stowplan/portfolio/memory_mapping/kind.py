"""Memory mapping as a kind of problem: how its plans are verified, and its candidates."""

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
from stowplan.portfolio.memory_mapping import learned
from stowplan.portfolio.memory_mapping.pace import COMPLETE_MODEL_USES, is_large
from stowplan.portfolio.memory_mapping.priced import first_bounds
from stowplan.portfolio.presolve import PRESOLVER, in_caller
from stowplan.verification import Verification

#: Up to so many uses the complete model is tried for a moment before all else.
SMALL_USES = 128

#: What the relaxation gets of the time where others wait for its place: so many seconds a use, until which its bound grows
#: quickly, and at least and at most so much of all. Of what is left, a large problem's plan gains more than its bound does,
#: for neighbourhoods begin from a guided plan (``docs/results/guidance.md``).
RELAXATION_SECONDS, RELAXATION_SHARE = 9e-4, (0.4, 0.6)

#: Seconds that the plain relaxation takes for a use. Where that is more than this part of the limit, there is no time for what
#: it says, nor to end it when the run does.
PLAIN_SECONDS, PLAIN_SHARE = 1e-4, 0.5

#: Seconds within which nothing but the search can improve plans of such a program, and would only take time from it.
LEAST_SECONDS = 0.5

#: Within so many seconds one worker is for the search, and the others have this part of its time.
SHORT_SECONDS, SHORT_SHARE = 3.0, 0.25


def _labels(problem: Problem, plan: Plan) -> dict[str, Any]:
    placed = sorted({residency.tensor for residency in plan.residencies})
    names = {tensor: problem.tensors[tensor].name for tensor in placed}
    return {"program": problem.name, "target": problem.target, "names": names}


def _all_slow(problem: Problem) -> Plan:
    return Plan(problem=problem.digest, objective=problem.all_slow_ps, program=problem.name, target=problem.target)


def _candidates(problem: Problem, options: Options) -> list[Candidate]:
    """Search has a place of its own; the exact candidates, and a policy where places are few, share another."""
    is_small = problem.use_count <= COMPLETE_MODEL_USES
    search = [in_caller(Candidate("search", "heuristic"), options)]
    relaxation = Candidate("relaxation", "exact", proves_only=True)
    # These go on from other candidates' plans.
    improving = [Candidate("cpsat", "exact")] if is_small else []
    improving += [Candidate("lns", "exact")] if problem.use_count else []
    milp = Candidate("milp", "exact", share=0.4, proves_only=True, by_name_only=True)

    named = {*options.candidates}
    asked_for = [candidate for candidate in (*search, relaxation, *improving) if {candidate.name, candidate.family} & named]
    policy = learned.candidate(problem, options, len(asked_for))
    has_place = len(asked_for) < options.workers
    room = 1.0 - (0.0 if has_place or policy.by_name_only or policy.unavailable else policy.share)
    if options.workers == 1 and options.time_limit <= SHORT_SECONDS:
        room = SHORT_SHARE
    least, most = RELAXATION_SHARE
    proving = min(most * room, max(least, RELAXATION_SECONDS * problem.use_count / options.time_limit))
    has_no_time = PLAIN_SECONDS * problem.use_count > PLAIN_SHARE * options.time_limit
    has_no_time &= not options.deterministic and search[0] in asked_for
    relaxation = replace(relaxation, share=proving, by_name_only=has_no_time)
    if has_no_time and "relaxation" not in options.candidates:
        proving = 0.0
    is_last = has_no_time and options.time_limit < LEAST_SECONDS
    improving = [replace(candidate, share=(room - proving) / len(improving), by_name_only=is_last) for candidate in improving]

    candidates = [*search, relaxation]
    candidates += [*improving, milp, policy] if has_place else [policy, *improving, milp]
    if 0 < problem.use_count <= SMALL_USES:
        candidates.insert(0, PRESOLVER)
    if is_large(problem, options):
        candidates.append(Candidate("lns2", "exact", turn="reserve", by_name_only=is_last))
    return candidates


def _function(name: str) -> Callable[[Problem, Context], None]:
    if name in ("lns", "lns2"):
        # Not with the others: it imports ortools.
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
