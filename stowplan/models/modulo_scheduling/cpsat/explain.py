"""Why a problem has no plan: which family of constraints it would have one without."""

from __future__ import annotations

from ortools.sat.python import cp_model

from stowplan.models.modulo_scheduling.cpsat.budget import Budget
from stowplan.models.modulo_scheduling.cpsat.model import IntervalModel, latest_time
from stowplan.models.modulo_scheduling.cpsat.places import Relax
from stowplan.models.modulo_scheduling.structure import Structure

#: Each family, by what it says to people.
_FAMILIES = {
    "siblings stand on different tiles": Relax(siblings=True),
    "starts stand on different tiles": Relax(starts=True),
    "values go no further than the links reach": Relax(reach=True),
    "recurrences must keep up": Relax(recurrences=True),
}

#: Part of the whole budget for each family.
SHARE = 0.05


def explain(structure: Structure, ii: int, budget: Budget, seed: int) -> str:
    """One sentence: no plan at any interval up to ``ii``, and the rules without which there is one."""
    guilty = []
    for words, relax in _FAMILIES.items():
        if budget.is_spent:
            break
        model = IntervalModel(
            structure, ii, timed=structure.recurrent, last_time=latest_time(structure, ii, structure.recurrent), relax=relax
        )
        solver = cp_model.CpSolver()
        solver.parameters.num_workers = 1
        solver.parameters.random_seed = seed % (1 << 31)
        budget.limit(solver.parameters, SHARE)
        status = solver.solve(model.model)
        budget.spend(solver)
        if status in (cp_model.OPTIMAL, cp_model.FEASIBLE):
            guilty.append(words)
    refuted = f"no tiles fit, at any interval up to {ii} (proven)"
    if not guilty:
        return f"{refuted}; no single rule is to blame"
    return f"{refuted}; it could be mapped without the rule that {', or without the rule that '.join(guilty)}"
