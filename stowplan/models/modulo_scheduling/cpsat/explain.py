"""Why a problem has no plan: which family of constraints it would have one without."""

from __future__ import annotations

import msgspec

from stowplan.models.modulo_scheduling.cpsat.budget import Budget
from stowplan.models.modulo_scheduling.cpsat.model import ModuloModel, latest_time
from stowplan.models.modulo_scheduling.cpsat.places import COMPLETE, Relax
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Problem
from stowplan.models.modulo_scheduling.structure import Structure

#: Part of the whole budget for each family.
SHARE = 0.05


def explain(structure: Structure, ii: int, budget: Budget, seed: int) -> str:
    """One sentence: no plan at any II up to ``ii``, and the rules without which there is one."""
    families = {
        "siblings stand on different tiles": (structure, Relax(siblings=True)),
        "starts stand on different tiles": (structure, Relax(starts=True)),
        "values go no further than the links reach": (structure, Relax(reach=True)),
        "recurrences must keep up": (structure, Relax(recurrences=True)),
        "readers of one variable share a tile": (Structure(_without_variables(structure.problem)), COMPLETE),
    }
    guilty = []
    for words, (facts, relax) in families.items():
        if budget.is_spent:
            break
        last_time = latest_time(facts, ii, facts.recurrent)
        model = ModuloModel(facts, ii, last_time=last_time, relax=relax)
        if budget.run(model.model, SHARE, seed=seed).is_found:
            guilty.append(words)
    refuted = f"no tiles fit, at any initiation interval up to {ii} (proven)"
    if not guilty:
        return f"{refuted}; no single rule is to blame"
    return f"{refuted}; it could be mapped without the rule that {', or without the rule that '.join(guilty)}"


def _without_variables(problem: Problem) -> Problem:
    """The problem with a constant for every variable."""

    def stripped(instruction: Instruction) -> Instruction:
        operands = tuple(Operand(constant=0.0) if each.variable is not None else each for each in instruction.operands)
        return msgspec.structs.replace(instruction, operands=operands, writes=())

    return msgspec.structs.replace(problem, instructions=tuple(map(stripped, problem.instructions)), variables=())
