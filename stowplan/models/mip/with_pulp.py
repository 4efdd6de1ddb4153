"""Solves MILPs with external solvers through PuLP: CBC, which comes with PuLP, and all others that PuLP can call.

The status of PuLP 3.3 may be "Optimal" although the time limit ended the run, with some solvers for any solution, and PuLP
never reports bounds. :func:`solve` therefore reads ``sol_status`` and checks solutions against the model. The bound of CBC is
read from its log; other solvers give no bound.
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

#: PuLP's name of each solver by the name in stowplan; any other name is passed to PuLP unchanged.
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

#: PuLP's names of CBC. It can start from a solution, and its log and ``sol_status`` distinguish a proof from a run that a limit
#: ended.
_CBC = ("PULP_CBC_CMD", "COIN_CMD")

_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"

#: Lines in the log of CBC with the bound of a run that ended before the optimum, and with the objective of an optimum.
_BOUND = re.compile(rf"^Lower bound:\s+{_NUMBER}\s*$", re.MULTILINE)
_OPTIMUM = re.compile(rf"^Result - Optimal solution found\s*$\s*^Objective value:\s+{_NUMBER}\s*$", re.MULTILINE)

#: CBC prunes nodes that could improve its best solution by less than this amount.
CBC_INCREMENT = 1e-5

#: Seconds by which a solver's program may exceed its time limit, for reading the model and writing its result.
GRACE = 3.0


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Suppresses PuLP's warnings."""
    # PuLP 3.3 warns about features that PuLP 4 will remove.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def available() -> list[str]:
    """Names of the solvers that PuLP finds on this machine: the name in :data:`SOLVERS` if there is one, otherwise PuLP's."""
    with _quiet():
        # HiGHS in this process is called without PuLP.
        solvers = set(pulp.listSolvers(onlyAvailable=True)) - {"HiGHS"}
    names = {pulp_name: name for name, pulp_name in SOLVERS.items()}
    return sorted(names.get(name, name) for name in solvers)


def build(model: MatrixModel) -> tuple[pulp.LpProblem, list[pulp.LpVariable]]:
    """Convert a model to PuLP.

    Returns
    -------
    problem : pulp.LpProblem
        The problem without the offset of the objective. A row with two different limits becomes two constraints.
    variables : list of pulp.LpVariable
        In the order of the columns.
    """
    problem = pulp.LpProblem(plain(model.name), pulp.LpMinimize)
    kinds = np.where(model.is_integer, pulp.LpInteger, pulp.LpContinuous).tolist()
    variables = [
        problem.add_variable(model.column_name(column), _side(low), _side(high), cat=kind)
        for column, (low, high, kind) in enumerate(zip(model.lower.tolist(), model.upper.tolist(), kinds, strict=True))
    ]
    nonzero = np.flatnonzero(model.cost).tolist()
    problem.setObjective(pulp.LpAffineExpression([(variables[column], float(model.cost[column])) for column in nonzero]))
    for name, entries, sense, side in model.one_sided():
        terms = pulp.LpAffineExpression([(variables[column], value) for column, value in entries])
        problem.addConstraint(pulp.LpConstraint(e=terms, sense=_SENSES[sense], name=name, rhs=side))
    return problem, variables


def _side(value: float) -> float | None:
    """A bound in the form that PuLP takes: None if it is infinite."""
    return value if np.isfinite(value) else None


def solve(model: MatrixModel, solver: str, options: Options) -> Outcome:
    """Solve a model with one of PuLP's solvers. They ignore the node limit and report no bounds while they run.

    A solver's program that exceeds its time limit by more than :data:`GRACE` seconds is killed (on Linux); there is no solution
    then. ``solver`` is a name in :data:`SOLVERS` or PuLP's own name of a solver.

    Returns
    -------
    Outcome
        The status is ``unknown`` if the solver failed. A bound is known only for CBC.

    Raises
    ------
    pulp.PulpSolverError
        PuLP knows no solver of this name. :func:`stowplan.models.mip.solve.check_solver` finds that out before.
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
            # An available solver failed, for example without a licence or because it was killed.
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
    """The solver object of PuLP. It prints nothing, has its temporary files in the given folder, and, for CBC, writes a log."""
    settings: dict[str, Any] = {"msg": False, "timeLimit": time_limit}
    if name in _CBC:
        settings |= {"logPath": str(log), "threads": 1, "options": [f"randomCbcSeed {options.seed % (1 << 31)}"]}
        if options.start is not None:
            settings["warmStart"] = True
            for variable, value in zip(variables, options.start.tolist(), strict=True):
                variable.setInitialValue(value, check=False)
    engine = pulp.getSolver(name, **settings)
    engine.tmpDir = folder
    return engine


def _values(model: MatrixModel, problem: pulp.LpProblem, variables: list[pulp.LpVariable]) -> FloatArray | None:
    """The solution if it is feasible; otherwise None, since a run that a limit ended may leave arbitrary numbers."""
    if problem.sol_status not in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible):
        return None
    values = np.array([variable.varValue for variable in variables], dtype=np.float64)
    # PuLP leaves out variables that occur in no row and cost nothing, for which any value is right.
    values = np.where(np.isnan(values), np.clip(0.0, model.lower, model.upper), values)
    return values if model.is_feasible(values) else None


def _end_programs(folder: str) -> None:
    """Kill the programs that use files in a folder, since PuLP gives no access to them and waits for them without a limit.

    They are found by their command lines, which name files in the folder; no other process uses that folder. On systems without
    ``/proc`` nothing is killed.
    """
    for entry in Path("/proc").glob("[0-9]*/cmdline"):
        number = int(entry.parent.name)
        # Processes may end while the list is read, and those of other users cannot be inspected.
        with contextlib.suppress(OSError):
            if number != os.getpid() and os.fsencode(folder) in entry.read_bytes():
                os.kill(number, signal.SIGKILL)


def bound_in_log(text: str) -> float | None:
    """The dual bound in a log of CBC; None if there is none.

    The printed number is lowered by one unit of its last digit, since CBC may have rounded it up.
    """
    bounds, optima = _BOUND.findall(text), _OPTIMUM.findall(text)
    if bounds:
        return rounded_down(bounds[-1])
    return rounded_down(optima[-1]) - CBC_INCREMENT if optima else None


def says_infeasible(text: str) -> bool:
    """Whether a log of CBC reports a proof of infeasibility, and not that a limit ended the run."""
    return "infeasible" in text.lower() and "Stopped on" not in text and "Exiting on maximum" not in text
