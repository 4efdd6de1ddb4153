"""The kind ``rematerialization``: how its plans are verified and described, and which candidates and baselines it has.

A plan is a sequence of runs of operators, some of which run several times so that their results need not be kept. If the
problem has a *host*, values may also be copied to its memory and fetched back. The objective is the added cost: the cost of all
runs, less the cost of running each operator once, plus the time of waiting for copies. The limit restricts the live bytes.
:class:`stowplan.kernel.kind.Kind` explains the fields of :data:`KIND`.
"""

from __future__ import annotations

from collections.abc import Callable
from math import gcd
from typing import Any

from stowplan.kernel.candidate import Place
from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import Baseline, Candidate, Highlight, Kind, identify
from stowplan.kinds import Prover
from stowplan.models.rematerialization.plan import DECISIONS, Plan
from stowplan.models.rematerialization.problem import Problem, amended
from stowplan.models.rematerialization.structure import build
from stowplan.models.rematerialization.verify import verify
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.presolve import in_caller
from stowplan.portfolio.rematerialization.greedy import simulate
from stowplan.units import BYTES, COST, counted
from stowplan.verification import Verification


class StartParameters(Parameters, frozen=True):
    """Parameters that decide which candidates run, and whether in a thread or a process."""

    small: int = 64
    """Number of operators up to which the greedy simulation takes so little time that it runs in the calling process."""


PARAMS = parameters(StartParameters, __name__)


def _given(problem: Problem) -> Plan | None:
    """The plan that runs every operator once, in the order of the input; None if it exceeds the limit."""
    structure = build(problem)
    plan = structure.made(structure.order)
    return plan if problem.limit is None or plan.peak <= problem.limit else None


def _why_not_given(problem: Problem) -> str:
    """A text that says why there is no plan in the order of the input; empty if there is one."""
    structure = build(problem)
    peak = structure.made(structure.order).peak
    if problem.limit is None or peak <= problem.limit:
        return ""
    return f"the given order needs {BYTES.write(peak)}, and the limit is {BYTES.write(problem.limit)}"


def _greedy(problem: Problem) -> Plan | None:
    """The plan that runs every operator once, if it is within the limit; otherwise the plan of the greedy simulation.

    The simulation (:mod:`.greedy`) runs here only for small graphs. The result is None for larger graphs whose order exceeds
    the limit, or if the simulation finds no plan.
    """
    plan = _given(problem)
    if plan is not None or problem.limit is None or len(problem.ops) > PARAMS.small:
        return plan
    structure = build(problem)
    sequence = simulate(structure, structure.order, problem.limit)
    return None if sequence is None else structure.made(sequence)


def _candidates(problem: Problem, options: Options) -> list[Candidate]:
    """All candidates of the problem, most useful first."""
    small = len(problem.ops) <= PARAMS.small
    place: Place = "thread" if small else "process"
    cuts = Candidate("cuts", "exact", share=0.2 if problem.channel is None else 0.3, place=place)
    if problem.channel is not None:
        # The staged program (a MILP, see :mod:`.staged`) is left out, because it has no variables for copies to the host.
        return [
            in_caller(Candidate("offload", "heuristic", share=0.6), options),
            cuts,
            Candidate("search", "heuristic", share=0.4),
            Candidate("cpsat", "exact", share=0.4),
        ]
    others = [
        in_caller(Candidate("search", "heuristic", share=0.7), options),
        Candidate("stages", "exact", share=0.7),
    ]
    # On large graphs, minimum cuts at one operator after the other take long, and the staged program finds such bounds sooner.
    return [
        *([cuts, *others] if small else [*others, cuts]),
        Candidate("cpsat", "exact", share=0.4),
    ]


def _greedy_candidate(problem: Problem) -> Candidate:
    """The candidate that makes the plan of the baseline ``greedy``."""
    return Candidate("greedy", "baseline", place="thread" if len(problem.ops) <= PARAMS.small else "process")


def _function(name: str) -> Callable[[Problem, Context], None]:
    """The function of the candidate of this name; raises AttributeError for other names."""
    from stowplan.portfolio.rematerialization import candidates, offload, proofs

    if name == "stages":
        # The module is imported only when it is needed, because it imports SciPy.
        from stowplan.portfolio.rematerialization.staged import stages

        return stages
    if name in ("search", "offload"):
        return candidates.search if name == "search" else offload.offload
    function: Callable[[Problem, Context], None] = getattr(proofs, name)
    return function


def _facts(problem: Problem, plan: Plan | None, check: Verification[Any] | None) -> dict[str, Any]:
    """Details for the result: the size of the graph, peaks in bytes, costs, and with a plan the number of added runs.

    With a host and a plan, there are also the most bytes on the host and the time of waiting for copies, in units of cost.
    """
    structure = build(problem)
    facts: dict[str, Any] = {
        "operators": len(problem.ops),
        "tensors": len(problem.tensors),
        "limit": problem.limit,
        "given_peak": structure.ordering.peak(structure.order),
        "cost_once": sum(structure.cost),
    }
    if plan is not None:
        facts |= {"peak": plan.peak, "added_runs": len(plan.sequence) - len(problem.ops)}
    if problem.channel is not None and check is not None:
        facts |= {name: check.figures.get(name) for name in ("host_peak", "stalls")}
    return facts


def _granularity(problem: Problem) -> int:
    """The greatest common divisor of the operators' costs; 1 with a host, since waiting for a copy may cost any amount."""
    return max(1, gcd(*(op.cost for op in problem.ops))) if problem.channel is None else 1


def _prover() -> Prover:
    from stowplan.certificates.maker.cuts import rematerialization

    return rematerialization


KIND = Kind(
    name="rematerialization",
    problem=Problem,
    plan=Plan,
    amends=("capacity",),
    amend=amended,
    # Of plans with equal added cost, the one with the smaller peak is better, but no candidate searches for a smaller peak
    # alone.
    verify=verify,
    labels=lambda problem, plan: {"name": problem.name},
    bound=lambda problem: 0,
    granularity=_granularity,
    candidates=_candidates,
    function=_function,
    baselines=(
        Baseline(name="greedy", plan=_greedy, maker=_greedy_candidate),
        Baseline(name="given", plan=_given, why_missing=_why_not_given),
    ),
    assumptions=("limit", "ops.once=no", "free_inputs=yes"),
    facts=_facts,
    counts=("operators", "tensors"),
    highlights=(
        Highlight("peak", write=BYTES.write),
        Highlight("added_runs", "added", lambda runs: counted(runs, "run")),
        Highlight("host_peak", "host peak", BYTES.write),
        Highlight("stalls", write=COST.write),
    ),
    identity=lambda problem: identify(problem, "cost of added runs", "limit of live bytes"),
    unit=COST,
    decisions=DECISIONS,
    certificate=_prover,
)
