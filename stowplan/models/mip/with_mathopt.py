"""GSCIP in this process, by way of OR-Tools' MathOpt.

In OR-Tools 9.15, GSCIP complains of an interrupter and goes on. So a solve runs in a thread of its own, and one that is to
stop is left behind, to end by its own time limit. Bounds on the way come from its messages, for its callback raises.
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

#: Seconds between two looks at ``should_stop``.
_LOOK_EVERY = 0.02

#: Seconds, besides 5 %, that GSCIP may take past its limit before it is left behind.
_GRACE = 0.4

#: A row of the table of progress; the column of the dual bound is the last but two.
_ROW = re.compile(r"\|\s*(?P<bound>[-+]?\d\.\d+e[-+]\d+)\s*\|[^|]*\|[^|]*\|[^|]*$")

_STATUS: dict[Any, Status] = {
    mathopt.TerminationReason.OPTIMAL: "optimal",
    mathopt.TerminationReason.FEASIBLE: "feasible",
    mathopt.TerminationReason.INFEASIBLE: "infeasible",
    mathopt.TerminationReason.UNBOUNDED: "unbounded",
}


def build(model: MatrixModel) -> Any:
    """The model as MathOpt has it, without names.

    Returns
    -------
    mathopt.Model
        Variable ``j`` and constraint ``i`` have the ids ``j`` and ``i``; with the offset.
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
    paid = np.flatnonzero(model.cost)
    proto.objective.offset = model.offset
    proto.objective.linear_coefficients.ids.extend(paid.tolist())
    proto.objective.linear_coefficients.values.extend(model.cost[paid].tolist())
    # MathOpt wants the entries row by row, and the columns of each row in order.
    matrix = model.matrix.sorted_indices()
    entries = proto.linear_constraint_matrix
    entries.row_ids.extend(np.repeat(np.arange(model.rows), np.diff(matrix.indptr)).tolist())
    entries.column_ids.extend(matrix.indices.tolist())
    entries.coefficients.extend(matrix.data.tolist())
    return mathopt.Model.from_model_proto(proto)


def solve(model: MatrixModel, options: Options) -> Outcome:
    """Solve with GSCIP.

    Returns
    -------
    Outcome
        Where GSCIP does not stop when told to, it is left behind: it has found nothing but the bounds reported until then.

    Raises
    ------
    UsageError
        Options that MathOpt refuses.
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
    guided = mathopt.ModelSolveParameters()
    if options.start is not None:
        values = dict(zip(built.variables(), options.start.tolist(), strict=True))
        guided.solution_hints = [mathopt.SolutionHint(variable_values=values)]
    run = _Run(options.on_bound)
    result = run.solve(
        lambda: mathopt.solve(
            built, mathopt.SolverType.GSCIP, params=parameters, model_params=guided, msg_cb=run.take_messages
        ),
        options.should_stop,
        began + 1.05 * options.time_limit + _GRACE,
    )
    if result is None:
        return Outcome("unknown", None, run.bound)
    return _outcome(model, result, run.bound)


class _Run:
    """One solve in a thread, so that this one can look at the clock."""

    def __init__(self, on_bound: Callable[[float], None] | None):
        self.bound: float | None = None
        """Best bound that was reported on the way."""
        self._on_bound = on_bound
        self._result: Any = None
        self._error: BaseException | None = None
        self._left_behind = False

    def take_messages(self, lines: list[str]) -> None:
        """Look for bounds in lines of GSCIP's log."""
        for line in lines:
            row = _ROW.search(line)
            bound = -np.inf if row is None else rounded_down(row["bound"])
            if np.isfinite(bound) and not self._left_behind and (self.bound is None or bound > self.bound):
                self.bound = bound
                if self._on_bound is not None:
                    self._on_bound(bound)

    def solve(self, call: Callable[[], Any], should_stop: Callable[[], bool] | None, end: float) -> Any:
        """Result of the call, or None where it was left behind."""

        def work() -> None:
            try:
                self._result = call()
            except BaseException as error:
                self._error = error

        thread = threading.Thread(target=work, daemon=True)
        thread.start()
        while thread.is_alive():
            thread.join(_LOOK_EVERY)
            if (should_stop is not None and should_stop()) or time.monotonic() > end:
                break
        self._left_behind = thread.is_alive()
        if self._error is not None:
            # OR-Tools 9.15 stumbles over its own error (an AttributeError); what the solver said stands behind it.
            said = self._error.__context__ or self._error
            raise UsageError(f"MathOpt refuses the call: {said}") from self._error
        return self._result


def _outcome(model: MatrixModel, result: Any, seen: float | None) -> Outcome:
    status: Status = _STATUS.get(result.termination.reason, "unknown")
    values = None
    if result.solutions and result.solutions[0].primal_solution is not None:
        by_variable = result.solutions[0].primal_solution.variable_values
        values = np.fromiter(by_variable.values(), dtype=np.float64, count=len(by_variable))
        if not model.is_feasible(values):
            values = None
    bound = result.termination.objective_bounds.dual_bound
    known = [value for value in (bound if np.isfinite(bound) else None, seen) if value is not None]
    if values is None and status in ("optimal", "feasible"):
        status = "unknown"
    return Outcome(
        status,
        objective=None if values is None else model.objective(values),
        bound=max(known, default=None),
        values=values,
    )
