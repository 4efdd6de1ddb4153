"""The MILP in stages: only what is large must wholly stay or not at all, then also what is smaller, at last everything.

Each stage is a relaxation of the next, so its bound is one for the problem. Large tensors decide nearly all of the objective,
and there are few of them: their stage is solved in seconds where the whole is not in minutes. Its point, rounded, is nearly as
good as its bound, and with such a start the next stage fixes most of its columns by their reduced costs.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import highspy
import numpy as np

from stowplan.models.bank_mapping.milp import Model
from stowplan.models.mip.matrix import FloatArray, MatrixModel
from stowplan.models.mip.with_highs import best_point, limit, new_highs

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


@dataclass(frozen=True)
class Found:
    """What came of a stage."""

    proven: bool
    """Solved to the end."""
    infeasible: bool
    bound: int | None
    """Weighted bytes that no plan is below."""
    values: FloatArray | None
    """Best point ``[columns]``."""


def solve_stage(
    built: Model,
    matrix: MatrixModel,
    *,
    time_limit: float,
    seed: int = 0,
    start: FloatArray | None = None,
    node_limit: int | None = None,
    on_point: Callable[[FloatArray], None] | None = None,
    on_bound: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Found:
    """One of :func:`stages_of`, by HiGHS with one thread.

    Parameters
    ----------
    built, matrix
        The model, and what the stage makes of its matrix.
    time_limit
        Seconds.
    start
        A point ``[columns]`` to start from.
    node_limit
        Nodes of branch and bound.
    on_point
        Called with points ``[columns]`` on the way, integral as far as the stage asks for it.
    on_bound
        Called with better bounds, weighted bytes.
    should_stop
        Asked now and then; True ends the stage.

    Returns
    -------
    Found
        The best point and what is proven; running out of time proves nothing.
    """
    highs = new_highs(matrix, seed)
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.setOptionValue("mip_abs_gap", 1e-9)
    highs.setOptionValue("mip_heuristic_effort", 0.0)
    for heuristic in _HEURISTICS:
        highs.setOptionValue(f"mip_heuristic_run_{heuristic}", False)
    limit(highs, time_limit, None if node_limit is None else max(1, node_limit), start)
    proven_so_far = -np.inf

    def interrupt(event: highspy.HighsCallbackEvent) -> None:
        nonlocal proven_so_far
        bound = event.data_out.mip_dual_bound
        if on_bound is not None and np.isfinite(bound) and bound > proven_so_far:
            proven_so_far = bound
            on_bound(built.bound(bound + matrix.offset))
        if should_stop is not None and should_stop():
            event.interrupt()

    def improved(event: highspy.HighsCallbackEvent) -> None:
        if on_point is not None:
            on_point(np.array(event.data_out.mip_solution))

    highs.cbMipInterrupt += interrupt
    highs.cbMipImprovingSolution += improved
    highs.run()
    status, info = highs.getModelStatus(), highs.getInfo()
    proven = status == highspy.HighsModelStatus.kOptimal
    bound = built.bound(info.mip_dual_bound + matrix.offset) if np.isfinite(info.mip_dual_bound) else None
    return Found(proven, status == highspy.HighsModelStatus.kInfeasible, bound, best_point(highs))
