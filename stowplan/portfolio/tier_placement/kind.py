"""Tier placement as a kind of problem: how its plans are verified, its baselines, and its candidates."""

from __future__ import annotations

from typing import Any

from stowplan.models.tier_placement.plan import DECISIONS, Plan, offset_table, placed
from stowplan.models.tier_placement.prices import first_bounds
from stowplan.models.tier_placement.problem import Problem, amended
from stowplan.models.tier_placement.structure import counted_sizes, find_overload, floor_bound
from stowplan.models.tier_placement.verify import verify
from stowplan.portfolio.context import Options
from stowplan.portfolio.kind import Candidate, Extras, Kind, identify, in_caller, presolver
from stowplan.portfolio.tier_placement import learned

#: Beyond this many layers CP-SAT finds nothing that the others lack; the linear relaxation proves sooner than the MILP.
EXACT_LAYERS = 1_500

#: Up to so many layers the exact model is tried for a moment before all else.
SMALL = 64

_HERE = "stowplan.portfolio.tier_placement.candidates"


def _labels(problem: Problem, plan: Plan) -> dict[str, Any]:
    tiers, layers = (tuple(thing.name for thing in things) for things in (problem.tiers, problem.layers))
    return {"name": problem.name, "target": problem.target, "tiers": tiers, "layers": layers}


def _initial(problem: Problem) -> dict[str, Plan]:
    """What the chip's own compiler does, where it finds a place for everything."""
    from stowplan.hardware.nnp_i.compiler import compiler_plan

    plan = compiler_plan(problem)
    return {} if plan is None else {"compiler": plan}


def _candidates(problem: Problem, options: Options) -> list[Candidate]:
    found = [in_caller(Candidate("search", "heuristic", f"{_HERE}:search", share=0.15), options)]
    repeats = len(problem.layers) > SMALL and bool(counted_sizes(problem))
    if repeats:
        found.append(Candidate("counts", "exact", f"{_HERE}:counts", share=1.0))
    if len(problem.layers) <= EXACT_LAYERS:
        found.append(Candidate("milp", "exact", f"{_HERE}:milp", share=1.0))
        found.append(Candidate("cpsat", "exact", f"{_HERE}:cpsat", share=0.85))
    else:
        if not repeats:
            found.append(Candidate("linear", "exact", f"{_HERE}:linear", share=1.0, proves_only=True))
        found.append(Candidate("lns", "exact", "stowplan.portfolio.tier_placement.lns:lns", share=1.0))
    asked_for = [each for each in found if {each.name, each.family} & {*options.candidates}]
    # Before what only proves, or searches long; after the MILP, which on small networks is done before torch has started.
    place = 1 if len(problem.layers) > EXACT_LAYERS else 2
    is_small = len(problem.layers) <= SMALL and not options.deterministic
    found.insert(place, learned.candidate(problem, options, len(asked_for)))
    return [presolver(f"{_HERE}:presolve"), *found] if is_small else found


def _facts(problem: Problem, plan: Plan | None) -> dict[str, Any]:
    facts: dict[str, Any] = {
        "layers": len(problem.layers),
        "tensors": sum(1 + bool(layer.weight_bytes) for layer in problem.layers),
        "weight_bytes": sum(layer.weight_bytes for layer in problem.layers),
        "tiers": {tier.name: tier.capacity for tier in problem.tiers},
        "floor": floor_bound(problem),
    }
    if plan is None:
        overload = find_overload(problem)
        if overload is not None:
            facts["explanation"] = overload.reason
        return facts
    facts["weights_in"], facts["outputs_in"] = ({tier.name: 0 for tier in problem.tiers} for _ in range(2))
    for each in placed(problem):
        facts["outputs_in" if each.is_output else "weights_in"][problem.tiers[each.tier(plan)].name] += each.size(problem)
    return facts


def _extras() -> Extras[Problem, Plan]:
    from stowplan.models.tier_placement.hint import VALUES
    from stowplan.portfolio.tier_placement.keep_close import Changes
    from stowplan.portfolio.tier_placement.validation import ADAPTER

    return Extras(hints=VALUES, changes=Changes, adapter=ADAPTER)


KIND = Kind(
    name="tier_placement",
    problem=Problem,
    plan=Plan,
    amends=("capacity",),
    amend=amended,
    verify=verify,
    labels=_labels,
    initial=_initial,
    bound=floor_bound,
    first_bounds=first_bounds,
    candidates=_candidates,
    baseline="compiler",
    assumptions=("tiers.capacity", "address_spaces=no"),
    facts=_facts,
    counts=("layers", "tensors"),
    identity=identify,
    baseline_sources=("compiler", "greedy_dp"),
    awaited_baselines=lambda problem: ("greedy_dp",),
    makes_baselines=lambda problem: (Candidate("greedy_dp", "baseline", f"{_HERE}:greedy_dp"),),
    decisions=DECISIONS,
    offset_table=offset_table,
    presenter="stowplan.report.tier_placement.presenter:TierPlacementPresenter",
    extras=_extras,
    certificate="stowplan.certificates.maker.linear:tiers",
)
