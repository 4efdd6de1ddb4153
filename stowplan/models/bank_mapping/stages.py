"""The MILP in stages: only what is large must wholly stay or not at all, then also what is smaller, at last everything.

Each stage is a relaxation of the next, so its bound is one for the problem. Large tensors decide nearly all of the objective,
and there are few of them: their stage is solved in seconds where the whole is not in minutes. Its point, rounded, is nearly as
good as its bound, and with such a start the next stage fixes most of its columns by their reduced costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np

from stowplan.models.bank_mapping.milp import Model
from stowplan.models.mip.matrix import FloatArray, MatrixModel
from stowplan.models.mip.outcome import Options, Outcome
from stowplan.models.mip.with_highs import solve

#: Smallest tensors of the middle stage, as a part of a unit.
_MIDDLE = 8

#: HiGHS's own heuristics solve MILPs of half the size for tens of seconds; points to round come from its nodes.
_HEURISTICS = ("rins", "rens", "root_reduced_cost")


def stages_of(built: Model) -> list[MatrixModel]:
    """The matrix with more and more columns that must be integers; the last is the whole problem."""
    unit, tensors = built.structure.unit, built.problem.tensors
    sizes = {tensor: tensors[tensor].bytes for tensor in built.stay_columns}
    found: list[MatrixModel] = []
    known = 0
    for smallest in (unit, unit // _MIDDLE):
        is_integer = np.zeros(built.matrix.columns, dtype=bool)
        is_integer[[column for tensor, column in built.stay_columns.items() if sizes[tensor] >= smallest]] = True
        count = int(is_integer.sum())
        if known < count < len(sizes):
            found.append(replace(built.matrix, is_integer=is_integer))
            known = count
    is_integer = built.matrix.is_integer.copy()
    # Where all else is integral, units for the rests can be rounded up, for the whole units beside them are integers.
    is_integer[[moment.rounded for moment in built.moments]] = False
    return [*found, replace(built.matrix, is_integer=is_integer)]


def solve_stage(matrix: MatrixModel, options: Options, on_point: Callable[[FloatArray], None] | None = None) -> Outcome:
    """One of :func:`stages_of`, by HiGHS; points on the way are integral as far as the stage asks for it."""
    without = {"mip_heuristic_effort": 0.0, **{f"mip_heuristic_run_{heuristic}": False for heuristic in _HEURISTICS}}
    return solve(matrix, options, settings=without, on_point=on_point)
