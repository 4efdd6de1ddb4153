"""The kind ``modulo_scheduling``: how its plans are verified and described, and which candidates and baselines it has.

A plan maps the instructions of a loop body to the tiles (processing elements) of a CGRA and to clocks. The *initiation
interval* (II) is the number of clocks from the start of one iteration to the start of the next. The objective is the II first,
then the latency of one iteration in clocks, both encoded in one number. :class:`stowplan.kernel.kind.Kind` explains the fields
of :data:`KIND`.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from stowplan.kernel.assumptions import assumptions
from stowplan.kernel.candidate import Place
from stowplan.kernel.context import Context, Options
from stowplan.kernel.kind import Baseline, Candidate, Extras, Highlight, Kind, identify
from stowplan.kinds import Prover
from stowplan.models.modulo_scheduling.bounds import critical_path, objective_bound, recurrence_mii, resource_mii
from stowplan.models.modulo_scheduling.plan import DECISIONS, SCALE, Plan, decode_objective
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.structure import Structure
from stowplan.models.modulo_scheduling.verify import verify
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.modulo_scheduling import learned
from stowplan.portfolio.presolve import in_caller
from stowplan.units import Pair, Unit
from stowplan.verification import Verification


class StartParameters(Parameters, frozen=True):
    """Parameters that decide where candidates run."""

    small: int = 64
    """Number of instructions up to which the exact model and the baseline run in a thread of the calling process, because they
    take less time than starting a process."""


PARAMS = parameters(StartParameters, __name__)


def _labels(problem: Problem, plan: Plan) -> dict[str, Any]:
    """The fields of a plan that repeat facts of the problem: the ids of the instructions, its name and its target."""
    ids = tuple(instruction.id for instruction in problem.instructions)
    return {"instructions": ids, "name": problem.name, "target": problem.target}


def _candidates(problem: Problem, options: Options) -> list[Candidate]:
    """All candidates of the problem, most useful first."""
    is_small = len(problem.instructions) <= PARAMS.small
    place: Place = "thread" if is_small else "process"
    search = Candidate("search", "heuristic", share=0.5)
    candidates = [
        Candidate("cpsat", "exact", share=1.0, place=place),
        # For a small loop body, the exact model runs in this process, where a second Python thread would slow it down.
        search if is_small else in_caller(search, options),
    ]
    requested = [candidate for candidate in candidates if {candidate.name, candidate.family} & {*options.candidates}]
    milp = Candidate("milp", "exact", share=0.5, by_name_only=True)
    return [*candidates, learned.candidate(problem, options, len(requested)), milp]


def _makes_list(problem: Problem) -> Candidate:
    """The candidate that makes the plan of the baseline ``list``, by list scheduling."""
    return Candidate("list", "baseline", place="thread" if len(problem.instructions) <= PARAMS.small else "process")


def _function(name: str) -> Callable[[Problem, Context], None]:
    """The function of the candidate of this name; raises KeyError for other names."""
    from stowplan.portfolio.modulo_scheduling import candidates

    return {
        "cpsat": candidates.cpsat,
        "search": candidates.search,
        "ppo": learned.ppo,
        "milp": candidates.milp,
        "list": candidates.list_alone,
    }[name]


def _facts(problem: Problem, plan: Plan | None, check: Verification[Any] | None) -> dict[str, Any]:
    """Details for the result: the size of the loop body, and bounds on the II (``mii``) and on the latency in clocks.

    With a plan, there are also its II, its latency, the number of tiles that it uses, and the largest number of clocks that a
    value over links waits.
    """
    structure = Structure(problem)
    resources, recurrences = resource_mii(problem, structure), recurrence_mii(problem, structure)
    facts: dict[str, Any] = {
        "instructions": len(problem.instructions),
        "edges": len(problem.edges),
        "variables": len(problem.variables),
        "tiles": problem.machine.tiles,
        "mii": max(resources, recurrences),
        "mii_resources": resources,
        "mii_recurrences": recurrences,
        "critical_path": critical_path(problem, structure),
    }
    if not problem.is_synchronous:
        facts["flows"], facts["memory_accesses"] = len(set(problem.flows)), len(problem.accesses)
    if plan is not None:
        facts["ii"] = plan.ii
        facts["latency"] = plan.makespan
        facts["tiles_used"] = len(set(plan.tiles))
        waits = (delay for edge, delay in zip(problem.edges, plan.delays, strict=True) if not edge.asynchronous)
        facts["longest_delay"] = max(waits, default=0)
    return facts


def _proven(problem: Problem, objective: int | None, bound: int | None) -> dict[str, Any]:
    """Details of the result: what the bound proves about the II, and about the latency of an iteration at the plan's II."""
    if bound is None:
        return {}
    least, path = decode_objective(bound)
    rules = (assumption for assumption in assumptions(KIND, problem) if assumption.instead.startswith("--"))
    under = {"under": ", ".join(f"{rule.name}={rule.value}" for rule in rules)}
    if objective is None:
        return under | {"ii_bound": least, "interval": f"II {least} or more (proven), latency {path} or more"}
    ii, makespan = decode_objective(objective)
    is_minimal = ii <= least
    shortest = path if is_minimal else critical_path(problem)
    if not is_minimal:
        words = f"II {ii}; {least} or more is proven, latency {makespan}"
    elif makespan <= shortest:
        words = f"II {ii} is minimal (proven), latency {makespan} is minimal at it (proven)"
    else:
        words = f"II {ii} is minimal (proven), latency {makespan}; {shortest} or more at it is proven"
    return under | {"ii_bound": least, "ii_is_minimal": is_minimal, "latency_bound": shortest, "interval": words}


#: The objective minimizes the clocks between iterations first, then the clocks of one iteration.
UNIT = Unit(f"clocks (II x {SCALE} + latency)", Pair("II", SCALE, "latency"))

#: Rules of the machine that options change. If there is a value after ``=``, it is the one with which the rule forbids nothing.
RULES = ("rules.siblings=none", "rules.pass_through=yes", "rules.max_delay", "rules.starts=flow")
#: Sizes of memories and tables of the machine, which a target file states. ``spoke_depth`` is the number of entries of a tile's
#: table of slots, the spoke RAM, and therefore the largest II.
DEPTHS = ("machine.spoke_depth", "machine.instruction_depth", "machine.memory_depth")


def _amended(problem: Problem, changes: Mapping[str, Any]) -> Problem:
    """The problem with the fixed instructions of the file ``changes["fixed"]`` in place of its own.

    Raises the errors of :func:`stowplan.frontends.dfg.amended`.
    """
    from stowplan.frontends.dfg import amended

    return amended(problem, changes)


def _extras() -> Extras[Problem, Plan]:
    from stowplan.models.modulo_scheduling.hint import VALUES
    from stowplan.portfolio.modulo_scheduling.keep_close import Changes
    from stowplan.portfolio.modulo_scheduling.validation import ADAPTER

    return Extras(hints=VALUES, changes=Changes, adapter=ADAPTER)


def _prover() -> Prover:
    from stowplan.certificates.maker.loops import schedule

    return schedule


KIND = Kind(
    name="modulo_scheduling",
    problem=Problem,
    plan=Plan,
    amends=("fixed",),
    amend=_amended,
    verify=verify,
    labels=_labels,
    bound=objective_bound,
    candidates=_candidates,
    function=_function,
    baselines=(Baseline(name="list", maker=_makes_list, is_awaited=lambda problem: True),),
    assumptions=(*RULES, "instructions.tiles", "variables.tile", "pins.instruction", *DEPTHS),
    facts=_facts,
    counts=("instructions", "edges"),
    highlights=(Highlight("interval"), Highlight("under")),
    identity=lambda problem: identify(problem, "initiation interval, then latency, in clocks"),
    unit=UNIT,
    proven=_proven,
    decisions=DECISIONS,
    extras=_extras,
    certificate=_prover,
)
