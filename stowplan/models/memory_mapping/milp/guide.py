"""The plain relaxation as a guide: what its solution says of each access.

With the windows of the copy channels, and solved to the end where time allows: without windows it brings in far more than the
channels can copy.
"""

from __future__ import annotations

import numpy as np

from stowplan.models.hint import Hint
from stowplan.models.memory_mapping import hint as hints
from stowplan.models.memory_mapping.milp.model import RelaxationModel
from stowplan.models.memory_mapping.milp.solve import Effort, FloatArray, RelaxationSearch
from stowplan.models.memory_mapping.problem import Problem


def relaxation_hint(problem: Problem, effort: Effort) -> tuple[Hint | None, int]:
    """Values of the plain linear relaxation, and the bound that it proves (ps).

    Parameters
    ----------
    problem
        Any problem.
    effort
        When to end. Stopped between two rounds of windows, the values are those of the last round.

    Returns
    -------
    tuple
        None instead of a hint where not even the first linear program was solved, or there is nothing to decide.
    """
    if effort.is_over():
        return None, problem.floor_ps
    model = RelaxationModel(problem)
    if effort.is_over() or not model.cost:
        return None, problem.floor_ps
    search = RelaxationSearch(model, effort)
    search.linear()
    if search.solution is None:
        return None, search.bound
    return of_values(model, search.solution), search.bound


def of_values(model: RelaxationModel, values: FloatArray) -> Hint:
    """The hint that a solution stands for; ``values`` of shape ``[columns]``."""
    values = np.clip(values, 0.0, 1.0)
    fast: list[float] = []
    keep: list[float] = []
    for sequence, columns in zip(model.sequences, model.access, strict=True):
        for number, here in enumerate(columns):
            fast.append(_sum(values, here.fast))
            following = columns[number + 1] if number + 1 < len(columns) else None
            if following is None:
                keep.append(0.0)
            elif sequence.is_glued(number + 1):
                keep.append(_sum(values, following.landed))
            else:
                keep.append(0.0 if following.keep is None else float(values[following.keep]))
    return hints.hint(model.problem, fast, keep, source="relaxation")


def _sum(values: FloatArray, columns: tuple[int, ...]) -> float:
    return min(1.0, float(sum(values[column] for column in columns)))
