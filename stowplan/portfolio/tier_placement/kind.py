"""The kind ``tier_placement``: how its plans are verified and described, and which candidates and baselines it has.

A plan assigns every tensor of a neural network, the weights and the output of each layer, to a *tier* of a chip's memory
hierarchy, for example DRAM or SRAM. The objective is the latency of one inference in picoseconds.
:class:`stowplan.kernel.kind.Kind` explains the fields of :data:`KIND`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import Baseline, Candidate, Extras, Kind, identify
from stowplan.kinds import Prover
from stowplan.models.tier_placement.plan import DECISIONS, Plan, offset_table, placed
from stowplan.models.tier_placement.prices import first_bounds
from stowplan.models.tier_placement.problem import Problem, amended
from stowplan.models.tier_placement.structure import counted_sizes, find_overload, floor_bound
from stowplan.models.tier_placement.verify import verify
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.presolve import PRESOLVER, in_caller
from stowplan.portfolio.tier_placement import learned
from stowplan.verification import Verification


class StartParameters(Parameters, frozen=True):
    """Parameters that decide which candidates run."""

    exact_layers: int = 1_500
    """Number of layers up to which CP-SAT and the MILP run. For more layers CP-SAT gains nothing, and the linear relaxation
    proves bounds sooner than the MILP."""
    small: int = 64
    """Number of layers up to which the presolver, a short exact search before all other candidates, runs."""


PARAMS = parameters(StartParameters, __name__)


def _labels(problem: Problem, plan: Plan) -> dict[str, Any]:
    """The fields of a plan that repeat facts of the problem: its name, its target, and the names of its tiers and layers."""
    tiers, layers = (tuple(thing.name for thing in things) for things in (problem.tiers, problem.layers))
    return {"name": problem.name, "target": problem.target, "tiers": tiers, "layers": layers}


def _compiler(problem: Problem) -> Plan | None:
    """The plan of the chip's own compiler; None if it finds no place for some tensor."""
    from stowplan.hardware.nnp_i.compiler import compiler_plan

    return compiler_plan(problem)


def _candidates(problem: Problem, options: Options) -> list[Candidate]:
    """All candidates of the problem, most useful first."""
    chosen = [in_caller(Candidate("search", "heuristic", share=0.15), options)]
    repeats = len(problem.layers) > PARAMS.small and bool(counted_sizes(problem))
    if repeats:
        chosen.append(Candidate("counts", "exact", share=1.0))
    if len(problem.layers) <= PARAMS.exact_layers:
        chosen.append(Candidate("milp", "exact", share=1.0))
        chosen.append(Candidate("cpsat", "exact", share=0.85))
    else:
        if not repeats:
            chosen.append(Candidate("linear", "exact", share=1.0, proves_only=True))
        chosen.append(Candidate("lns", "exact", share=1.0))
    requested = [candidate for candidate in chosen if {candidate.name, candidate.family} & {*options.candidates}]
    # The learned candidate comes before candidates that only prove or search for long, but after the MILP of smaller networks,
    # which ends before torch has started.
    place = 1 if len(problem.layers) > PARAMS.exact_layers else 2
    is_small = len(problem.layers) <= PARAMS.small
    chosen.insert(place, learned.candidate(problem, options, len(requested)))
    return [PRESOLVER, *chosen] if is_small else chosen


def _function(name: str) -> Callable[[Problem, Context], None]:
    """The function of the candidate of this name; raises KeyError for other names."""
    from stowplan.portfolio.tier_placement import candidates

    return {
        "presolve": candidates.presolve,
        "search": candidates.search,
        "counts": candidates.counts,
        "milp": candidates.milp,
        "cpsat": candidates.cpsat,
        "linear": candidates.linear,
        "lns": candidates.lns,
        "egrl": learned.egrl,
        "greedy_dp": candidates.greedy_dp,
    }[name]


def _facts(problem: Problem, plan: Plan | None, check: Verification[Any] | None) -> dict[str, Any]:
    """Details for the result: the size of the network, and with a plan the bytes of weights and outputs in each tier.

    ``floor`` is a lower bound of the latency in ps. Without a plan, an ``explanation`` says why none exists, if counting bytes
    proves it.
    """
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
    for tensor in placed(problem):
        tier = problem.tiers[tensor.tier(plan)].name
        facts["outputs_in" if tensor.is_output else "weights_in"][tier] += tensor.size(problem)
    return facts


def _extras() -> Extras[Problem, Plan]:
    from stowplan.models.tier_placement.hint import VALUES
    from stowplan.portfolio.tier_placement.keep_close import Changes
    from stowplan.portfolio.tier_placement.validation import ADAPTER

    return Extras(hints=VALUES, changes=Changes, adapter=ADAPTER)


def _prover() -> Prover:
    from stowplan.certificates.maker.linear import tiers

    return tiers


KIND = Kind(
    name="tier_placement",
    problem=Problem,
    plan=Plan,
    amends=("capacity",),
    amend=amended,
    verify=verify,
    labels=_labels,
    bound=floor_bound,
    first_bounds=first_bounds,
    candidates=_candidates,
    function=_function,
    baselines=(
        Baseline(name="compiler", plan=_compiler),
        Baseline(name="greedy_dp", maker=lambda problem: Candidate("greedy_dp", "baseline"), is_awaited=lambda problem: True),
    ),
    assumptions=("tiers.capacity", "address_spaces=no"),
    facts=_facts,
    counts=("layers", "tensors"),
    identity=identify,
    decisions=DECISIONS,
    offset_table=offset_table,
    extras=_extras,
    certificate=_prover,
)
