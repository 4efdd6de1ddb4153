"""Two further uses of the model: why there is no plan (:func:`explain`), and the plan that is closest to an earlier one.

:func:`explain` leaves out one family of constraints after the other. An example of a family is all constraints that keep
siblings, instructions that must not share a tile, on different tiles. If there is a plan without a family, that family is
reported as a reason.

:func:`solve_closest` finds the schedule at one initiation interval that changes the fewest decisions of an earlier schedule. It
uses the complete :class:`~stowplan.models.modulo_scheduling.cpsat.model.ModuloModel`, but without symmetry breaking, which
would forbid the earlier tiles. A Boolean variable for each instruction says that it has its earlier tile and time. A Boolean
variable for each value says that this is true of both producer and consumer, so that the value has its earlier route and delay.
The sum of these variables is maximized.

The argument ``structure`` is the :class:`~stowplan.models.modulo_scheduling.structure.Structure` of the problem, and II stands
for initiation interval. Nothing here raises an error for a valid problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

import msgspec

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Budget, Limits
from stowplan.models.modulo_scheduling.cpsat.model import ModuloModel, latest_time, size
from stowplan.models.modulo_scheduling.cpsat.places import COMPLETE, Relax
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Problem
from stowplan.models.modulo_scheduling.structure import Structure

#: Fraction of the whole budget that :func:`explain` may use for each family of constraints.
SHARE = 0.05


def explain(structure: Structure, ii: int, budget: Budget, seed: int) -> str:
    """A sentence which says that there is no plan at any II up to ``ii``, and the rules without which there would be one.

    That there is no plan must be proven already. For each family of constraints, the solver gets a share of the budget. If the
    solver does not decide for every family whether there is a plan without it, the sentence may name too few rules, or none.
    The sentence then says that the time was over, and for how many rules.
    """
    families = {
        "siblings stand on different tiles": (structure, Relax(siblings=True)),
        "starts stand on different tiles": (structure, Relax(starts=True)),
        "values go no further than the links reach": (structure, Relax(reach=True)),
        "recurrences must keep up": (structure, Relax(recurrences=True)),
        "readers of one variable share a tile": (Structure(_without_variables(structure.problem)), COMPLETE),
    }
    responsible = []
    undecided = 0
    for words, (facts, relax) in families.items():
        if budget.is_spent:
            undecided += 1
            continue
        last_time = latest_time(facts, ii, facts.recurrent)
        model = ModuloModel(facts, ii, last_time=last_time, relax=relax)
        outcome = budget.run(model.model, SHARE, seed=seed)
        if outcome.is_found:
            responsible.append(words)
        undecided += outcome.status == "unknown"
    text = f"no tiles fit, at any initiation interval up to {ii} (proven)"
    if responsible:
        text += f"; it could be mapped without the rule that {', or without the rule that '.join(responsible)}"
    elif not undecided:
        text += "; no single rule is to blame"
    if undecided:
        text += f"; the time was over before it was known of {undecided} of {len(families)} rules whether they are to blame"
    return text


def _without_variables(problem: Problem) -> Problem:
    """The problem with every tile-memory variable replaced by a constant."""

    def stripped(instruction: Instruction) -> Instruction:
        """The instruction without variables."""
        operands = tuple(Operand(constant=0.0) if operand.variable is not None else operand for operand in instruction.operands)
        return msgspec.structs.replace(instruction, operands=operands, writes=())

    return msgspec.structs.replace(problem, instructions=tuple(map(stripped, problem.instructions)), variables=())


#: Largest number of literals (Boolean variables) of the model of :func:`solve_closest`; larger models are not built.
MOST_LITERALS = 100_000


def literals(structure: Structure, ii: int) -> int:
    """The approximate number of literals of the model of :func:`solve_closest` at an II."""
    return size(structure, ii, links=structure.problem.rules.pass_through)


def solve_closest(
    structure: Structure, earlier: Sequence[tuple[int, int] | None], start: Plan, makespan: int, **limits: Unpack[Limits]
) -> Plan | None:
    """Find the plan with the II of ``start`` that is closest to an earlier plan.

    Parameters
    ----------
    earlier
        Earlier (tile, time) of each instruction; None for a new instruction.
    start
        A valid plan to start from.
    makespan
        Largest makespan in clocks; at least that of ``start``.
    limits
        Keyword arguments of :func:`stowplan.models.cpsat_runner.run`.

    Returns
    -------
    Plan or None
        An unverified plan; None if the problem has no instructions, if the model would have more than :data:`MOST_LITERALS`
        literals, or if no plan was found.
    """
    problem = structure.problem
    links = problem.rules.pass_through
    if not structure.count or literals(structure, start.ii) > MOST_LITERALS:
        return None
    last_time = makespan - min(problem.latencies)
    built = ModuloModel(
        structure,
        start.ii,
        whole=True,
        last_time=last_time,
        links=links,
        makespan=(0, makespan),
        windows=[range(problem.machine.tiles)] * structure.count,
    )
    model = built.model
    built.add_hint(start)
    model.clear_objective()  # type: ignore[no-untyped-call]
    keeps = {}
    for number, place in enumerate(earlier):
        if place is None or place[0] >= problem.machine.tiles or not 0 <= place[1] <= last_time:
            continue
        keeps[number] = model.new_bool_var(f"keeps {number}")
        model.add_implication(keeps[number], built.tile(number)[place[0]])
        model.add(built.time[number] == place[1]).only_enforce_if(keeps[number])
    values = []
    for at, edge in enumerate(problem.edges):
        if edge.source in keeps and edge.target in keeps and edge.source != edge.target:
            both = model.new_bool_var(f"keeps value {at}")
            model.add_implication(both, keeps[edge.source])
            model.add_implication(both, keeps[edge.target])
            values.append(both)
    model.maximize(sum(keeps.values()) + sum(values))
    result = cpsat_runner.run(model, **limits)
    return built.extract(result.value) if result.is_found else None
