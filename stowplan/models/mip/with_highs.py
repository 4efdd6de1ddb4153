"""HiGHS by its own interface, which has callbacks and options that MathOpt's lacks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import highspy
import numpy as np

from stowplan.models.mip.matrix import FloatArray, MatrixModel, Options, Outcome, Status

#: Presolve's rules 14 (sparsify) and 15 (probing), as bits: HiGHS 1.12 loses optimal solutions of some MILPs with them, and
#: then "proves" what is not so.
UNSAFE_RULES = 1 << 14 | 1 << 15


#: HiGHS's word for a point that satisfies all rows.
FEASIBLE = 2

#: By how much HiGHS may miss rows and integers where its bound is to count to the picosecond: far below its default.
TIGHT = 1e-9

_STATUS: dict[Any, Status] = {
    highspy.HighsModelStatus.kOptimal: "optimal",
    highspy.HighsModelStatus.kInfeasible: "infeasible",
    highspy.HighsModelStatus.kUnbounded: "unbounded",
}


def one_thread(seed: int) -> highspy.Highs:
    """HiGHS, silent and on one thread, so that it repeats itself."""
    highs = highspy.Highs()
    highs.silent()
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("random_seed", seed % (1 << 31))
    return highs


def tighten(highs: highspy.Highs) -> None:
    """Solve MILPs with :data:`TIGHT` tolerances, to the end, and without the unsafe rules of presolve."""
    highs.setOptionValue("presolve_rule_off", UNSAFE_RULES)
    for name in ("mip_feasibility_tolerance", "primal_feasibility_tolerance", "dual_feasibility_tolerance"):
        highs.setOptionValue(name, TIGHT)
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.setOptionValue("mip_abs_gap", 0.0)


def new_highs(matrix: MatrixModel, seed: int) -> highspy.Highs:
    """HiGHS on one thread with a model in it, without the unsafe rules of presolve.

    Returns
    -------
    highspy.Highs
        Silent, with its own tolerances and no limits.
    """
    highs = one_thread(seed)
    highs.setOptionValue("presolve_rule_off", UNSAFE_RULES)
    pass_model(highs, matrix)
    return highs


def pass_model(highs: highspy.Highs, matrix: MatrixModel) -> None:
    """Give HiGHS a model."""
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = matrix.columns, matrix.rows
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = matrix.cost, matrix.lower, matrix.upper
    lp.row_lower_, lp.row_upper_ = matrix.row_lower, matrix.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = matrix.matrix.indptr
    lp.a_matrix_.index_ = matrix.matrix.indices
    lp.a_matrix_.value_ = matrix.matrix.data
    if matrix.is_integer.any():
        whole, real = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        lp.integrality_ = [whole if is_whole else real for is_whole in matrix.is_integer]
    highs.passModel(lp)


def limit(highs: highspy.Highs, time_limit: float, node_limit: int | None, start: FloatArray | None) -> None:
    """Limit a MILP to some seconds and, where given, nodes of branch and bound; and start it from a point ``[columns]``."""
    highs.setOptionValue("time_limit", max(0.01, time_limit))
    if node_limit is not None:
        highs.setOptionValue("mip_max_nodes", node_limit)
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = start.tolist()
        highs.setSolution(solution)


def best_point(highs: highspy.Highs) -> FloatArray | None:
    """The best point ``[columns]`` that a MILP has found; None where there is none."""
    is_feasible = highs.getInfo().primal_solution_status == FEASIBLE
    return np.array(highs.getSolution().col_value) if is_feasible else None


def interrupt_when(highs: highspy.Highs, should_stop: Callable[[], bool] | None) -> None:
    """Have HiGHS ask now and then, in linear programs and in MILPs; True ends the run."""
    if should_stop is None:
        return

    def ask(event: Any) -> None:
        if should_stop():
            event.interrupt()

    highs.cbSimplexInterrupt += ask
    highs.cbIpmInterrupt += ask
    highs.cbMipInterrupt += ask


def solve(
    model: MatrixModel,
    options: Options,
    *,
    settings: Mapping[str, Any] | None = None,
    on_point: Callable[[FloatArray], None] | None = None,
) -> Outcome:
    """Solve with one thread, to the end.

    Parameters
    ----------
    settings
        Further options of HiGHS, by name.
    on_point
        Called with better points ``[columns]`` on the way.
    """
    began = time.monotonic()
    highs = new_highs(model, options.seed)
    for name, value in {"mip_rel_gap": 0.0, "mip_abs_gap": 1e-9, **(settings or {})}.items():
        highs.setOptionValue(name, value)
    best = -np.inf

    def look(event: highspy.HighsCallbackEvent) -> None:
        nonlocal best
        bound = event.data_out.mip_dual_bound
        if options.on_bound is not None and np.isfinite(bound) and bound > best:
            best = bound
            options.on_bound(bound + model.offset)

    def improved(event: highspy.HighsCallbackEvent) -> None:
        if on_point is not None:
            on_point(np.array(event.data_out.mip_solution))

    highs.cbMipInterrupt += look
    highs.cbMipImprovingSolution += improved
    interrupt_when(highs, options.should_stop)
    limit(highs, options.time_limit - (time.monotonic() - began), options.node_limit, options.start)
    highs.run()
    status, info = _STATUS.get(highs.getModelStatus(), "unknown"), highs.getInfo()
    values = best_point(highs)
    if values is not None and not model.is_feasible(values):
        values = None
    if status in ("optimal", "unknown"):
        status = "unknown" if values is None else "optimal" if status == "optimal" else "feasible"
    # Of a linear program only the optimum is a bound.
    bound = info.mip_dual_bound if model.is_integer.any() else info.objective_function_value
    is_proven = np.isfinite(bound) and (status == "optimal" or bool(model.is_integer.any()))
    return Outcome(
        status,
        objective=None if values is None else model.objective(values),
        bound=float(bound) + model.offset if is_proven else None,
        values=values,
    )


def solve_relaxed(matrix: MatrixModel, seed: int, time_limit: float, should_stop: Callable[[], bool] | None) -> Any:
    """HiGHS's solution of the linear relaxation.

    Parameters
    ----------
    time_limit
        Seconds.
    should_stop
        Asked between iterations; True ends the solve.

    Returns
    -------
    highspy.HighsSolution
        Valid or not: ``value_valid`` and ``dual_valid`` say which.
    """
    highs = new_highs(matrix.relaxed(), seed)
    highs.setOptionValue("time_limit", time_limit)
    interrupt_when(highs, should_stop)
    highs.run()
    return highs.getSolution()
