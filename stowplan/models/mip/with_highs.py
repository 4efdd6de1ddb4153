"""Solves MILPs and linear programs with HiGHS through its own Python interface.

MathOpt of OR-Tools also offers HiGHS, but without the callbacks and options that are needed here. Nothing here raises an error
for valid arguments. Shapes of arrays are in brackets.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import highspy
import numpy as np

from stowplan.models.mip.matrix import FloatArray, MatrixModel, Options, Outcome, Status

#: Bits of the presolve rules 14 (sparsify) and 15 (probing), which are switched off. With them, HiGHS 1.12 loses optimal
#: solutions of some MILPs and then reports wrong bounds.
UNSAFE_RULES = 1 << 14 | 1 << 15


#: HiGHS's status of a solution that satisfies all rows.
FEASIBLE = 2

#: Tolerance for rows and integers if the bound must be exact to the picosecond. HiGHS's default is much larger (1e-6 or 1e-7).
TIGHT = 1e-9

_STATUS: dict[Any, Status] = {
    highspy.HighsModelStatus.kOptimal: "optimal",
    highspy.HighsModelStatus.kInfeasible: "infeasible",
    highspy.HighsModelStatus.kUnbounded: "unbounded",
}


def one_thread(seed: int) -> highspy.Highs:
    """A HiGHS that prints nothing and runs on one thread, so that runs are repeatable."""
    highs = highspy.Highs()
    highs.silent()
    highs.setOptionValue("threads", 1)
    highs.setOptionValue("random_seed", seed % (1 << 31))
    return highs


def tighten(highs: highspy.Highs) -> None:
    """Make HiGHS solve MILPs to optimality with :data:`TIGHT` tolerances and without :data:`UNSAFE_RULES` of presolve."""
    highs.setOptionValue("presolve_rule_off", UNSAFE_RULES)
    for name in ("mip_feasibility_tolerance", "primal_feasibility_tolerance", "dual_feasibility_tolerance"):
        highs.setOptionValue(name, TIGHT)
    highs.setOptionValue("mip_rel_gap", 0.0)
    highs.setOptionValue("mip_abs_gap", 0.0)


def new_highs(matrix: MatrixModel, seed: int) -> highspy.Highs:
    """A HiGHS with a model, which prints nothing, runs on one thread and does not use :data:`UNSAFE_RULES` of presolve.

    It has HiGHS's default tolerances and no limits.
    """
    highs = one_thread(seed)
    highs.setOptionValue("presolve_rule_off", UNSAFE_RULES)
    pass_model(highs, matrix)
    return highs


def pass_model(highs: highspy.Highs, matrix: MatrixModel) -> None:
    """Pass a model to HiGHS."""
    lp = highspy.HighsLp()
    lp.num_col_, lp.num_row_ = matrix.columns, matrix.rows
    lp.col_cost_, lp.col_lower_, lp.col_upper_ = matrix.cost, matrix.lower, matrix.upper
    lp.row_lower_, lp.row_upper_ = matrix.row_lower, matrix.row_upper
    lp.a_matrix_.format_ = highspy.MatrixFormat.kRowwise
    lp.a_matrix_.start_ = matrix.matrix.indptr
    lp.a_matrix_.index_ = matrix.matrix.indices
    lp.a_matrix_.value_ = matrix.matrix.data
    if matrix.is_integer.any():
        integer, continuous = highspy.HighsVarType.kInteger, highspy.HighsVarType.kContinuous
        lp.integrality_ = [integer if is_whole else continuous for is_whole in matrix.is_integer]
    highs.passModel(lp)


def limit(highs: highspy.Highs, time_limit: float, node_limit: int | None, start: FloatArray | None) -> None:
    """Set the limits of a MILP, in seconds (less than 0.01 counts as 0.01) and in nodes of branch and bound, and a solution
    ``[columns]`` to start from. None means no limit of nodes, or no such solution."""
    highs.setOptionValue("time_limit", max(0.01, time_limit))
    if node_limit is not None:
        highs.setOptionValue("mip_max_nodes", node_limit)
    if start is not None:
        solution = highspy.HighsSolution()
        solution.col_value = start.tolist()
        highs.setSolution(solution)


def best_point(highs: highspy.Highs) -> FloatArray | None:
    """The best solution ``[columns]`` of a MILP; None if there is none."""
    is_feasible = highs.getInfo().primal_solution_status == FEASIBLE
    return np.array(highs.getSolution().col_value) if is_feasible else None


def interrupt_when(highs: highspy.Highs, should_stop: Callable[[], bool] | None) -> None:
    """Make HiGHS call ``should_stop`` repeatedly, in linear programs and in MILPs, and end when the function returns True. None
    changes nothing."""
    if should_stop is None:
        return

    def interrupt(event: Any) -> None:
        if should_stop():
            event.interrupt()

    highs.cbSimplexInterrupt += interrupt
    highs.cbIpmInterrupt += interrupt
    highs.cbMipInterrupt += interrupt


def solve(
    model: MatrixModel,
    options: Options,
    *,
    settings: Mapping[str, Any] | None = None,
    on_point: Callable[[FloatArray], None] | None = None,
) -> Outcome:
    """Solve a model on one thread, by default to optimality.

    Parameters
    ----------
    options
        Limits, seed, start and callbacks.
    settings
        Further options of HiGHS by name; HiGHS ignores names that it does not know.
    on_point
        Called with every better solution ``[columns]`` of a MILP while HiGHS runs.

    Returns
    -------
    Outcome
        The best solution if it satisfies the model, and HiGHS's bound; for a linear program, only an optimum gives a bound.
    """
    began = time.monotonic()
    highs = new_highs(model, options.seed)
    for name, value in {"mip_rel_gap": 0.0, "mip_abs_gap": 1e-9, **(settings or {})}.items():
        highs.setOptionValue(name, value)
    best = -np.inf

    def report_bound(event: highspy.HighsCallbackEvent) -> None:
        nonlocal best
        bound = event.data_out.mip_dual_bound
        if options.on_bound is not None and np.isfinite(bound) and bound > best:
            best = bound
            options.on_bound(bound + model.offset)

    def report_point(event: highspy.HighsCallbackEvent) -> None:
        if on_point is not None:
            on_point(np.array(event.data_out.mip_solution))

    highs.cbMipInterrupt += report_bound
    highs.cbMipImprovingSolution += report_point
    interrupt_when(highs, options.should_stop)
    limit(highs, options.time_limit - (time.monotonic() - began), options.node_limit, options.start)
    highs.run()
    status, info = _STATUS.get(highs.getModelStatus(), "unknown"), highs.getInfo()
    values = best_point(highs)
    if values is not None and not model.is_feasible(values):
        values = None
    if status in ("optimal", "unknown"):
        status = "unknown" if values is None else "optimal" if status == "optimal" else "feasible"
    # For a linear program, only the objective of the optimum is a bound.
    bound = info.mip_dual_bound if model.is_integer.any() else info.objective_function_value
    is_proven = np.isfinite(bound) and (status == "optimal" or bool(model.is_integer.any()))
    return Outcome(
        status,
        objective=None if values is None else model.objective(values),
        bound=float(bound) + model.offset if is_proven else None,
        values=values,
    )


def solve_relaxed(matrix: MatrixModel, seed: int, time_limit: float, should_stop: Callable[[], bool] | None) -> Any:
    """Solve the linear relaxation of a model.

    Parameters
    ----------
    time_limit
        Limit in seconds.
    should_stop
        Called between iterations; HiGHS ends when it returns True.

    Returns
    -------
    highspy.HighsSolution
        Values and duals. Its fields ``value_valid`` and ``dual_valid`` say whether they are valid.
    """
    highs = new_highs(matrix.relaxed(), seed)
    highs.setOptionValue("time_limit", time_limit)
    interrupt_when(highs, should_stop)
    highs.run()
    return highs.getSolution()
