"""Solvers of the user's own, by way of PuLP: CBC (it comes with PuLP), and all others that it knows.

PuLP 3.3 says "Optimal" of runs that ended by their time limit, of any point at all for some solvers, and never what was proven.
:func:`solve` therefore reads ``sol_status`` and checks points against the model. Bounds are read from the log of CBC; of other
solvers none is claimed.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
import time
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pulp

from stowplan.deadline import Watchdog
from stowplan.models.mip.export import plain
from stowplan.models.mip.matrix import FloatArray, MatrixModel, Options, Outcome, Status, rounded_down

#: PuLP's names of solvers by ours; any other name is looked up among PuLP's own.
SOLVERS = {
    "cbc": "PULP_CBC_CMD",
    "own-cbc": "COIN_CMD",
    "highs-program": "HiGHS_CMD",
    "scip": "SCIP_CMD",
    "gurobi": "GUROBI_CMD",
    "gurobipy": "GUROBI",
    "cplex": "CPLEX_CMD",
    "glpk": "GLPK_CMD",
}

_SENSES = {"=": pulp.LpConstraintEQ, ">=": pulp.LpConstraintGE, "<=": pulp.LpConstraintLE}

#: Those that are CBC: it starts from a point, and its log and its ``sol_status`` tell a proof from a run that was cut short.
_CBC = ("PULP_CBC_CMD", "COIN_CMD")

_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"

#: How CBC ends where it stops before the optimum, or within a gap that it was told to leave; and where it does not.
_BOUND = re.compile(rf"^Lower bound:\s+{_NUMBER}\s*$", re.MULTILINE)
_OPTIMUM = re.compile(rf"^Result - Optimal solution found\s*$\s*^Objective value:\s+{_NUMBER}\s*$", re.MULTILINE)

#: CBC prunes nodes that are better than the incumbent by less than this.
CBC_INCREMENT = 1e-5

#: Seconds that a program may take beyond its own limit, for reading the model and writing its result.
GRACE = 3.0


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # PuLP 3.3 announces what PuLP 4 will drop.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def available() -> list[str]:
    """Names of the solvers that PuLP finds on this machine: ours where there is one, else PuLP's own."""
    with _quiet():
        # HiGHS in process is called without PuLP.
        solvers = set(pulp.listSolvers(onlyAvailable=True)) - {"HiGHS"}
    ours = {pulp_name: name for name, pulp_name in SOLVERS.items()}
    return sorted(ours.get(name, name) for name in solvers)


def build(model: MatrixModel) -> tuple[pulp.LpProblem, list[pulp.LpVariable]]:
    """The model as PuLP has it.

    Returns
    -------
    problem : pulp.LpProblem
        A minimisation, without the objective's offset. A row with two sides becomes two constraints.
    variables : list of pulp.LpVariable
        In the order of the columns.
    """
    problem = pulp.LpProblem(plain(model.name), pulp.LpMinimize)
    kinds = np.where(model.is_integer, pulp.LpInteger, pulp.LpContinuous).tolist()
    variables = [
        problem.add_variable(model.column_name(column), _side(low), _side(high), cat=kind)
        for column, (low, high, kind) in enumerate(zip(model.lower.tolist(), model.upper.tolist(), kinds, strict=True))
    ]
    paid = np.flatnonzero(model.cost).tolist()
    problem.setObjective(pulp.LpAffineExpression([(variables[column], float(model.cost[column])) for column in paid]))
    for name, entries, sense, side in model.one_sided():
        terms = pulp.LpAffineExpression([(variables[column], value) for column, value in entries])
        problem.addConstraint(pulp.LpConstraint(e=terms, sense=_SENSES[sense], name=name, rhs=side))
    return problem, variables


def _side(value: float) -> float | None:
    return value if np.isfinite(value) else None


def solve(model: MatrixModel, solver: str, options: Options) -> Outcome:
    """Solve with one of PuLP's solvers, which count no nodes and tell no bounds on the way.

    A program that overruns its time limit by some seconds is ended (on Linux), and has then found nothing.
    """
    began = time.monotonic()
    name = SOLVERS.get(solver, solver)
    problem, variables = build(model)
    with tempfile.TemporaryDirectory(prefix="stowplan-") as folder, _quiet():
        log = Path(folder, "solver.log")
        engine = _engine(name, folder, log, options, variables, max(0.01, began + options.time_limit - time.monotonic()))
        try:
            with Watchdog(options.time_limit + GRACE, options.should_stop, lambda: _end_programs(folder)):
                problem.solve(engine)
        except (pulp.PulpError, OSError, ValueError):
            # A solver that is there and fails (no licence, killed) has found nothing and proven nothing.
            return Outcome("unknown", None, None)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    ran_out = time.monotonic() - began >= options.time_limit
    values = _values(model, problem, variables)
    status: Status = "unknown"
    if values is not None:
        is_proof = problem.sol_status == pulp.LpSolutionOptimal and (name in _CBC or not ran_out)
        status = "optimal" if is_proof else "feasible"
    elif problem.sol_status == pulp.LpSolutionInfeasible and not ran_out:
        status = "infeasible" if name not in _CBC or says_infeasible(text) else "unknown"
    elif problem.sol_status == pulp.LpSolutionUnbounded and not ran_out:
        status = "unbounded"
    bound = bound_in_log(text)
    return Outcome(
        status,
        objective=None if values is None else model.objective(values),
        bound=None if bound is None else bound + model.offset,
        values=values,
    )


def _engine(
    name: str, folder: str, log: Path, options: Options, variables: list[pulp.LpVariable], time_limit: float
) -> pulp.LpSolver:
    """The solver, silent, with its temporary files in a folder of their own; of CBC also the log."""
    given: dict[str, Any] = {"msg": False, "timeLimit": time_limit}
    if name in _CBC:
        given |= {"logPath": str(log), "threads": 1, "options": [f"randomCbcSeed {options.seed % (1 << 31)}"]}
        if options.start is not None:
            given["warmStart"] = True
            for variable, value in zip(variables, options.start.tolist(), strict=True):
                variable.setInitialValue(value, check=False)
    engine = pulp.getSolver(name, **given)
    engine.tmpDir = folder
    return engine


def _values(model: MatrixModel, problem: pulp.LpProblem, variables: list[pulp.LpVariable]) -> FloatArray | None:
    """The point that was found, where it is one: a run that was cut short may leave any numbers there."""
    if problem.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return None
    values = np.array([variable.varValue for variable in variables], dtype=np.float64)
    # PuLP leaves out variables that stand in no row and cost nothing: any value will do.
    values = np.where(np.isnan(values), np.clip(0.0, model.lower, model.upper), values)
    return values if model.is_feasible(values) else None


def _end_programs(folder: str) -> None:
    """End the programs that work in a folder: PuLP keeps them to itself, and waits for them, however long they take.

    They are found by their command lines, which name files of the folder: one that no other process knows. Where there is no
    ``/proc`` nothing is ended.
    """
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        number = int(entry.parent.name)
        # Processes come and go while the list is read; those of others may not be looked at.
        with contextlib.suppress(OSError):
            if number != os.getpid() and os.fsencode(folder) in entry.read_bytes():
                os.kill(number, signal.SIGKILL)


def bound_in_log(text: str) -> float | None:
    """Dual bound that a log of CBC proves, for a minimisation; None where it says none.

    A printed number is lowered by one unit of its last digit, which CBC may have rounded up.
    """
    bounds, optima = _BOUND.findall(text), _OPTIMUM.findall(text)
    if bounds:
        return rounded_down(bounds[-1])
    return rounded_down(optima[-1]) - CBC_INCREMENT if optima else None


def says_infeasible(text: str) -> bool:
    """Whether a log of CBC speaks of a proof of infeasibility and not of a limit."""
    return "infeasible" in text.lower() and "Stopped on" not in text and "Exiting on maximum" not in text
