"""The kind ``banked_packing``: how its plans are verified and described, and which candidates and baselines it has.

A *bank* is one of several memories. It has a capacity and a cost for each byte that is read or written. A plan gives every
buffer a bank and an offset in it. The objective is the cost of all reads and writes. :class:`stowplan.kernel.kind.Kind`
explains the fields of :data:`KIND`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import Baseline, Candidate, Extras, Kind, identify
from stowplan.kinds import Prover
from stowplan.models.banked_packing.plan import DECISIONS, Plan, offset_table
from stowplan.models.banked_packing.problem import Problem, find_overload, floor_bound
from stowplan.models.banked_packing.verify import verify
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.banked_packing import greedy
from stowplan.portfolio.presolve import PRESOLVER, in_caller
from stowplan.units import COST
from stowplan.verification import Verification


class StartParameters(Parameters, frozen=True):
    """Parameters that decide which candidates run."""

    exact_buffers: int = 600
    """Number of buffers up to which the CP-SAT model with offsets is a candidate, and up to which the baseline's plan is
    computed before the run, without a candidate."""
    small: int = 64
    """Number of buffers up to which the presolver, a short exact search before all other candidates, runs."""


PARAMS = parameters(StartParameters, __name__)


def _by_size(problem: Problem) -> Plan | None:
    """The plan that places buffers by size, as ExecuTorch's greedy planner does.

    It is None if no bank has space for some buffer, or if there are more buffers than ``PARAMS.exact_buffers``, because placing
    them would take long.
    """
    (_, order), *_ = greedy.orders(problem)
    plan, _ = greedy.place(problem, order) if len(order) <= PARAMS.exact_buffers else (None, [])
    return plan


def _candidates(problem: Problem, options: Options) -> list[Candidate]:
    """All candidates of the problem, most useful first."""
    candidates = [
        Candidate("choice", "exact", share=0.6),
        in_caller(Candidate("search", "heuristic", share=0.5), options),
        Candidate("milp", "exact", share=0.4),
    ]
    if len(problem.buffers) <= PARAMS.exact_buffers:
        candidates.append(Candidate("cpsat", "exact", share=0.5))
    return [PRESOLVER, *candidates] if len(problem.buffers) <= PARAMS.small else candidates


def _function(name: str) -> Callable[[Problem, Context], None]:
    """The function of the candidate of this name; raises KeyError for other names."""
    from stowplan.portfolio.banked_packing import candidates

    return {
        "presolve": candidates.presolve,
        "choice": candidates.choice,
        "search": candidates.search,
        "milp": candidates.milp_choice,
        "cpsat": candidates.cpsat,
        "by_size": candidates.by_size,
    }[name]


def _facts(problem: Problem, plan: Plan | None, check: Verification[Any] | None) -> dict[str, Any]:
    """Details for the result: sizes in bytes, and the traffic, which is the number of bytes that are read and written.

    Without a plan, they explain why none exists, if counting bytes proves it.
    """
    facts: dict[str, Any] = {
        "buffers": len(problem.buffers),
        "banks": {bank.name: bank.capacity for bank in problem.banks},
        "bytes": sum(buffer.size for buffer in problem.buffers),
        "traffic": sum(problem.traffic(number) for number in range(len(problem.buffers))),
    }
    if plan is not None:
        facts["traffic_by_bank"] = traffic_by_bank(problem, plan)
    elif (overload := find_overload(problem)) is not None:
        facts["explanation"] = overload.reason
    return facts


def traffic_by_bank(problem: Problem, plan: Plan) -> dict[str, int]:
    """The number of bytes that a valid plan reads and writes in each bank, by the bank's name; 0 for an empty bank."""
    traffic = {bank.name: 0 for bank in problem.banks}
    for number, bank in enumerate(plan.banks):
        traffic[problem.banks[bank].name] += problem.traffic(number)
    return traffic


def _identity(problem: Problem) -> dict[str, str]:
    target = ", ".join(f"{bank.name} {bank.capacity} bytes at {bank.cost}" for bank in problem.banks)
    return identify(problem, "banked packing", target)


def _extras() -> Extras[Problem, Plan]:
    from stowplan.portfolio.banked_packing.keep_close import Changes

    return Extras(changes=Changes)


def _prover() -> Prover:
    from stowplan.certificates.maker.linear import banks

    return banks


KIND = Kind(
    name="banked_packing",
    problem=Problem,
    plan=Plan,
    verify=verify,
    labels=lambda problem, plan: {"name": problem.name, "buffers": problem.buffers, "memory": problem.banks},
    bound=floor_bound,
    candidates=_candidates,
    function=_function,
    baselines=(Baseline(name="by_size", plan=_by_size, maker=lambda problem: Candidate("by_size", "baseline")),),
    assumptions=("banks.capacity", "banks.reserved=0", "banks.alignment=1", "buffers.alignment=1", "buffers.banks"),
    facts=_facts,
    counts=("buffers",),
    identity=_identity,
    unit=COST,
    decisions=DECISIONS,
    offset_table=offset_table,
    extras=_extras,
    certificate=_prover,
)
