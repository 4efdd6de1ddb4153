"""Solves MILPs with GSCIP in this process, through MathOpt of OR-Tools.

GSCIP is OR-Tools' version of the solver SCIP. In OR-Tools 9.15 it cannot be interrupted. Each solve therefore runs in a thread
of its own; if it has to stop early, the thread is abandoned and ends by its own time limit. Bounds are read from GSCIP's log
messages while it runs, because its callback raises an error.
"""

from __future__ import annotations

import datetime
import re
import threading
import time
from collections.abc import Callable
from typing import Any

import numpy as np
from ortools.math_opt import model_pb2
from ortools.math_opt.python import mathopt

from stowplan.errors import UsageError
from stowplan.models.mip.matrix import MatrixModel, Options, Outcome, Status, rounded_down

#: Seconds between two calls of ``should_stop``.
_POLL_SECONDS = 0.02

#: Seconds, in addition to 5 %, by which GSCIP may exceed its time limit before its thread is abandoned.
_GRACE = 0.4

#: A row of GSCIP's progress table; the dual bound is the third column from the end.
_ROW = re.compile(r"\|\s*(?P<bound>[-+]?\d\.\d+e[-+]\d+)\s*\|[^|]*\|[^|]*\|[^|]*$")

_STATUS: dict[Any, Status] = {
    mathopt.TerminationReason.OPTIMAL: "optimal",
    mathopt.TerminationReason.FEASIBLE: "feasible",
    mathopt.TerminationReason.INFEASIBLE: "infeasible",
    mathopt.TerminationReason.UNBOUNDED: "unbounded",
}


def build(model: MatrixModel) -> Any:
    """Convert a model to MathOpt, without names but with the objective's offset.

    Returns
    -------
    mathopt.Model
        The id of a variable is the number of its column, and that of a constraint the number of its row.
    """
    proto = model_pb2.ModelProto(name=model.name)
    variables, rows = proto.variables, proto.linear_constraints
    variables.ids.extend(range(model.columns))
    variables.lower_bounds.extend(model.lower.tolist())
    variables.upper_bounds.extend(model.upper.tolist())
    variables.integers.extend(model.is_integer.tolist())
    rows.ids.extend(range(model.rows))
    rows.lower_bounds.extend(model.row_lower.tolist())
    rows.upper_bounds.extend(model.row_upper.tolist())
    nonzero = np.flatnonzero(model.cost)
    proto.objective.offset = model.offset
    proto.objective.linear_coefficients.ids.extend(nonzero.tolist())
    proto.objective.linear_coefficients.values.extend(model.cost[nonzero].tolist())
    # MathOpt needs the entries row by row, with ascending columns in each row.
    matrix = model.matrix.sorted_indices()
    entries = proto.linear_constraint_matrix
    entries.row_ids.extend(np.repeat(np.arange(model.rows), np.diff(matrix.indptr)).tolist())
    entries.column_ids.extend(matrix.indices.tolist())
    entries.coefficients.extend(matrix.data.tolist())
    return mathopt.Model.from_model_proto(proto)


def solve(model: MatrixModel, options: Options) -> Outcome:
    """Solve a model with GSCIP.

    Returns
    -------
    Outcome
        The best solution if it satisfies the model, and the best bound. If the thread of GSCIP has to be abandoned, there is no
        solution, and the bound is the best one in the log so far.

    Raises
    ------
    UsageError
        The call of MathOpt raised an exception, for example because it rejects the options.
    """
    began = time.monotonic()
    built = build(model)
    parameters = mathopt.SolveParameters(
        time_limit=datetime.timedelta(seconds=max(0.01, options.time_limit - (time.monotonic() - began))),
        random_seed=options.seed % (1 << 31),
        threads=1,
        node_limit=options.node_limit,
        relative_gap_tolerance=1e-9,
        absolute_gap_tolerance=1e-9,
    )
    model_parameters = mathopt.ModelSolveParameters()
    if options.start is not None:
        values = dict(zip(built.variables(), options.start.tolist(), strict=True))
        model_parameters.solution_hints = [mathopt.SolutionHint(variable_values=values)]
    run = _Run(options.on_bound)
    result = run.solve(
        lambda: mathopt.solve(
            built, mathopt.SolverType.GSCIP, params=parameters, model_params=model_parameters, msg_cb=run.read_bounds
        ),
        options.should_stop,
        began + 1.05 * options.time_limit + _GRACE,
    )
    if result is None:
        return Outcome("unknown", None, run.bound)
    return _outcome(model, result, run.bound)


class _Run:
    """Runs one solve in a thread, so that the calling thread can check the clock."""

    def __init__(self, on_bound: Callable[[float], None] | None):
        self.bound: float | None = None
        """Best bound in the log so far; None if there is none."""
        self._on_bound = on_bound
        self._result: Any = None
        self._error: BaseException | None = None
        self._is_abandoned = False

    def read_bounds(self, lines: list[str]) -> None:
        """Read bounds from lines of GSCIP's log."""
        for line in lines:
            row = _ROW.search(line)
            bound = -np.inf if row is None else rounded_down(row["bound"])
            if np.isfinite(bound) and not self._is_abandoned and (self.bound is None or bound > self.bound):
                self.bound = bound
                if self._on_bound is not None:
                    self._on_bound(bound)

    def solve(self, call: Callable[[], Any], should_stop: Callable[[], bool] | None, end: float) -> Any:
        """Run ``call`` in a thread and return its result; None if the thread was abandoned.

        The thread is abandoned when ``should_stop`` returns True, or at the time ``end`` of ``time.monotonic()``. Raises
        UsageError if the call raises an exception.
        """

        def run_call() -> None:
            try:
                self._result = call()
            except BaseException as error:
                self._error = error

        thread = threading.Thread(target=run_call, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_POLL_SECONDS)
            if (should_stop is not None and should_stop()) or time.monotonic() > end:
                break
        self._is_abandoned = thread.is_alive()
        if self._error is not None:
            # OR-Tools 9.15 raises an AttributeError while it handles its own error; the solver's message is in the context.
            message = self._error.__context__ or self._error
            raise UsageError(f"MathOpt refuses the call: {message}") from self._error
        return self._result


def _outcome(model: MatrixModel, result: Any, logged_bound: float | None) -> Outcome:
    """The outcome of a solve: its status, its solution if that satisfies the model, and its best bound."""
    status: Status = _STATUS.get(result.termination.reason, "unknown")
    values = None
    if result.solutions and result.solutions[0].primal_solution is not None:
        by_variable = result.solutions[0].primal_solution.variable_values
        values = np.fromiter(by_variable.values(), dtype=np.float64, count=len(by_variable))
        if not model.is_feasible(values):
            values = None
    bound = result.termination.objective_bounds.dual_bound
    bounds = [value for value in (bound if np.isfinite(bound) else None, logged_bound) if value is not None]
    if values is None and status in ("optimal", "feasible"):
        status = "unknown"
    return Outcome(
        status,
        objective=None if values is None else model.objective(values),
        bound=max(bounds, default=None),
        values=values,
    )
