"""Solvers of the user's own, by way of PuLP: CBC (it comes with PuLP), HiGHS, SCIP, Gurobi, CPLEX and all others it knows.

PuLP 3.3 says "Optimal" of runs that ended by their time limit, of any point at all for some solvers, and never what was proven.
:func:`run` therefore reads ``sol_status``, checks points against the problem, and takes bounds from the solvers' logs.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import tempfile
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pulp

from stowplan.deadline import Watch
from stowplan.errors import UsageError
from stowplan.models.mip.matrix import TOLERANCE, FloatArray, MatrixModel
from stowplan.models.mip.outcome import Options, Outcome, Status, rounded_down


@dataclass(frozen=True)
class _Entry:
    """A solver of PuLP, as it is called here."""

    pulp_name: str
    family: str
    """Whose log it writes."""
    takes_start: bool
    """Known to use a warm start; HiGHS in process takes the option and does nothing."""


#: Solvers by our names; any other name is looked up among PuLP's own.
SOLVERS = {
    "cbc": _Entry("PULP_CBC_CMD", "cbc", True),
    "own-cbc": _Entry("COIN_CMD", "cbc", True),
    "highs": _Entry("HiGHS", "highs", False),
    "highs-program": _Entry("HiGHS_CMD", "highs", True),
    "scip": _Entry("SCIP_CMD", "scip", False),
    "gurobi": _Entry("GUROBI_CMD", "gurobi", True),
    "gurobipy": _Entry("GUROBI", "gurobi", True),
    "cplex": _Entry("CPLEX_CMD", "cplex", True),
    "glpk": _Entry("GLPK_CMD", "glpk", False),
}

_NUMBER = r"([-+]?(?:\d+\.?\d*|\.\d+)(?:[eE][-+]?\d+)?)"

#: A bound as these solvers end a MILP with it: "Lower bound:" (CBC, where it stops before the optimum, or within a gap that it
#: was told to leave), "Dual bound" (HiGHS, SCIP), ", best bound" (Gurobi), "Current MIP best bound =" (CPLEX).
_BOUND = re.compile(
    rf"(?:^\s*|, |MIP )(?:lower|dual|best) bound\s*[:=]?\s+{_NUMBER}\s*(?:$|,|\()", re.MULTILINE | re.IGNORECASE
)
_FAMILIES = ("cbc", "highs", "scip", "gurobi", "cplex")

_CBC_RESULT = re.compile(r"^Result - (.*?)\s*$", re.MULTILINE)
_CBC_OBJECTIVE = re.compile(rf"^Objective value:\s+{_NUMBER}\s*$", re.MULTILINE)

#: CBC prunes nodes that are better than the incumbent by less than this.
CBC_INCREMENT = 1e-5

#: Seconds that a program may take beyond its own limit, for reading the model and writing its result.
GRACE = 3.0

#: Solvers whose ``sol_status`` tells a proof from a run that was cut short.
_HONEST = {"PULP_CBC_CMD", "COIN_CMD", "HiGHS", "HiGHS_CMD"}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    # PuLP 3.3 announces what PuLP 4 will drop.
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        yield


def available() -> list[str]:
    """Names of the solvers that PuLP finds on this machine: ours where there is one, else PuLP's own."""
    with _quiet():
        found = set(pulp.listSolvers(onlyAvailable=True))
    ours = {entry.pulp_name: name for name, entry in SOLVERS.items()}
    return sorted(ours.get(name, name) for name in found)


def _entry(solver: str) -> _Entry:
    with _quiet():
        known = pulp.listSolvers()
    entry = SOLVERS.get(solver) or (_Entry(solver, "", False) if solver in known else None)
    if entry is None or solver not in available():
        raise UsageError(f"found solver {solver!r}, expected one that is there: {', '.join(available())}")
    return entry


def build(model: MatrixModel) -> tuple[pulp.LpProblem, list[pulp.LpVariable]]:
    """The model as PuLP has it.

    Returns
    -------
    problem : pulp.LpProblem
        A minimisation, without the objective's offset. A row with two sides becomes two constraints.
    variables : list of pulp.LpVariable
        In the order of the columns.
    """
    problem = pulp.LpProblem(_plain(model.name), pulp.LpMinimize)
    kinds = np.where(model.is_integer, pulp.LpInteger, pulp.LpContinuous).tolist()
    variables = [
        problem.add_variable(model.column_name(column), _side(low), _side(high), cat=kind)
        for column, (low, high, kind) in enumerate(zip(model.lower.tolist(), model.upper.tolist(), kinds, strict=True))
    ]
    paid = np.flatnonzero(model.cost).tolist()
    problem.setObjective(pulp.LpAffineExpression([(variables[column], float(model.cost[column])) for column in paid]))
    matrix = model.matrix
    starts, indices, data = matrix.indptr.tolist(), matrix.indices.tolist(), matrix.data.tolist()
    for row, (low, high) in enumerate(zip(model.row_lower.tolist(), model.row_upper.tolist(), strict=True)):
        terms = [(variables[indices[k]], data[k]) for k in range(starts[row], starts[row + 1])]
        name = model.row_name(row)
        if low == high:
            problem.addConstraint(_constraint(terms, pulp.LpConstraintEQ, name, low))
            continue
        # PuLP knows no rows with two sides.
        if np.isfinite(low):
            problem.addConstraint(_constraint(terms, pulp.LpConstraintGE, name, low))
        if np.isfinite(high):
            twice = f"{name}_upper" if np.isfinite(low) else name
            problem.addConstraint(_constraint(terms, pulp.LpConstraintLE, twice, high))
    return problem, variables


def _constraint(terms: list[tuple[pulp.LpVariable, float]], sense: int, name: str, side: float) -> pulp.LpConstraint:
    return pulp.LpConstraint(e=pulp.LpAffineExpression(terms), sense=sense, name=name, rhs=side)


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name) or "model"


def _side(value: float) -> float | None:
    return value if np.isfinite(value) else None


def run(
    problem: pulp.LpProblem,
    solver: str,
    *,
    time_limit: float,
    seed: int = 0,
    threads: int = 1,
    warm_start: bool = False,
    integer: bool = True,
    should_stop: Callable[[], bool] | None = None,
) -> Outcome:
    """Solve any PuLP minimisation with a solver by name; the point, where there is one, stands in the problem's variables.

    Parameters
    ----------
    solver
        A name of :data:`SOLVERS`, or PuLP's own name of any other.
    time_limit
        Seconds. A program that overruns it by some seconds is ended (on Linux), and has then found nothing.
    warm_start
        Start from the variables' initial values (``setInitialValue``), with solvers that do so.
    integer
        False solves the linear relaxation, with solvers that can.
    should_stop
        Asked now and then; True ends programs (on Linux) and interrupts highspy.

    Returns
    -------
    Outcome
        What the solver said of the run, with what its log says of the bound. Objective and bound are those of the problem, its
        constant included.

    Raises
    ------
    UsageError
        No such solver here (the message names those that are), or a maximisation.
    """
    if problem.sense != pulp.LpMinimize:
        raise UsageError("found a maximisation, expected a minimisation: negate the objective")
    entry = _entry(solver)
    began = time.monotonic()
    is_started = warm_start and entry.takes_start
    with tempfile.TemporaryDirectory(prefix="stowplan-") as folder, _quiet():
        log = Path(folder, "solver.log")
        engine = _engine(entry, folder, log, time_limit, seed, threads, is_started, integer)
        if entry.pulp_name == "HiGHS" and should_stop is not None:
            _let_interrupt(engine, should_stop)
        try:
            with Watch(time_limit + GRACE, should_stop, lambda: _end_programs(folder)):
                problem.solve(engine)
        except (pulp.PulpError, OSError, ValueError):
            # A solver that is there and fails (no licence, killed) has found nothing and proven nothing.
            return Outcome(solver, "unknown", None, None, time.monotonic() - began, warm_started=is_started)
        text = log.read_text(encoding="utf-8", errors="replace") if log.exists() else ""
    seconds = time.monotonic() - began
    found = problem.sol_status
    has_point = found in (pulp.LpSolutionOptimal, pulp.LpSolutionIntegerFeasible) and _holds(problem, integer)
    ran_out = seconds >= time_limit
    status: Status = "unknown"
    if has_point:
        is_proof = found == pulp.LpSolutionOptimal and (entry.pulp_name in _HONEST or not ran_out)
        status = "optimal" if is_proof else "feasible"
    elif found == pulp.LpSolutionInfeasible and not ran_out and says_infeasible(entry.family, text):
        status = "infeasible"
    elif found == pulp.LpSolutionUnbounded and not ran_out:
        status = "unbounded"
    constant = problem.objective.constant if problem.objective is not None else 0.0
    bound = _bound(problem, entry, text, integer)
    objective = pulp.value(problem.objective) if has_point else None
    proven = None if bound is None else bound + constant
    return Outcome(solver, status, objective, proven, seconds, warm_started=is_started)


def _engine(
    entry: _Entry, folder: str, log: Path, time_limit: float, seed: int, threads: int, warm_start: bool, integer: bool
) -> Any:
    """The solver, silent, with its log and its temporary files in a folder of their own."""
    options: dict[str, Any] = {"msg": False, "timeLimit": max(0.01, time_limit), "mip": integer}
    if entry.pulp_name == "HiGHS":
        options |= {"threads": threads, "random_seed": seed % (1 << 31), "gapRel": 0.0}
    elif entry.family in ("cbc", "highs", "scip", "gurobi", "cplex"):
        options |= {"logPath": str(log)}
        if entry.family != "scip":
            options["threads"] = threads
        if warm_start:
            options["warmStart"] = True
        if entry.family == "cbc":
            options["options"] = [f"randomCbcSeed {seed % (1 << 31)}"]
        elif entry.pulp_name == "HiGHS_CMD":
            options |= {"gapRel": 0.0, "options": [f"random_seed={seed % (1 << 31)}"]}
    engine = pulp.getSolver(entry.pulp_name, **options)
    engine.tmpDir = folder
    return engine


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


def _let_interrupt(engine: Any, should_stop: Callable[[], bool]) -> None:
    """Have highspy ask ``should_stop``."""
    import highspy

    kinds = highspy.cb.HighsCallbackType

    def ask(kind: Any, message: str, out: Any, into: Any, data: Any) -> None:
        if should_stop():
            into.user_interrupt = True

    engine.callbackTuple = (ask, None)
    engine.callbacksToActivate = [kinds.kCallbackMipInterrupt, kinds.kCallbackSimplexInterrupt]


def _holds(problem: pulp.LpProblem, integer: bool) -> bool:
    """Whether the variables' values satisfy the problem; a run that was cut short may leave any numbers there.

    Relative to the numbers at hand: CBC prints eight digits.
    """
    slack = 10 * TOLERANCE
    for variable in problem.variables():
        value = variable.varValue
        if value is None or not _in_box(variable, value, slack):
            return False
        if integer and variable.cat == pulp.LpInteger and abs(value - round(value)) > slack:
            return False
    return all(
        constraint.valid(slack * max(1.0, *(abs(c * v.varValue) for v, c in constraint.items()), 0.0))
        for constraint in _constraints(problem)
    )


def _constraints(problem: pulp.LpProblem) -> list[pulp.LpConstraint]:
    """A dict in PuLP 3, a method in PuLP 4."""
    found = problem.constraints
    with _quiet():
        return list(found.values()) if hasattr(found, "values") else list(found())


def _in_box(variable: pulp.LpVariable, value: float, slack: float) -> bool:
    low, high = variable.lowBound, variable.upBound
    return (low is None or value >= low - slack * max(1.0, abs(low))) and (
        high is None or value <= high + slack * max(1.0, abs(high))
    )


def _bound(problem: pulp.LpProblem, entry: _Entry, log: str, integer: bool) -> float | None:
    """What the solver proved of a MILP, less the objective's constant; linear programs prove by their duals."""
    if not integer:
        return None
    if entry.pulp_name == "HiGHS":
        engine = getattr(problem, "solverModel", None)
        bound = engine.getInfo().mip_dual_bound if engine is not None else -np.inf
        return float(bound) if np.isfinite(bound) else None
    return bound_in_log(entry.family, log)


def bound_in_log(family: str, text: str) -> float | None:
    """Last dual bound that a log proves, for a minimisation; None where it says none.

    ``family`` is ``cbc``, ``highs``, ``scip``, ``gurobi`` or ``cplex``; of other solvers nothing is known. A printed number is
    lowered by one unit of its last digit, which the solver may have rounded up.
    """
    bounds = _BOUND.findall(text) if family in _FAMILIES else []
    if bounds:
        return rounded_down(bounds[-1])
    if family != "cbc":
        return None
    results, objectives = _CBC_RESULT.findall(text), _CBC_OBJECTIVE.findall(text)
    if results and results[-1] == "Optimal solution found" and objectives:
        return rounded_down(objectives[-1]) - CBC_INCREMENT
    return None


def says_infeasible(family: str, text: str) -> bool:
    """Whether the log itself speaks of a proof of infeasibility and not of a limit; True where the family is not known."""
    if family == "cbc":
        return "infeasible" in text.lower() and "Stopped on" not in text and "Exiting on maximum" not in text
    return True


def solve(model: MatrixModel, solver: str, options: Options) -> Outcome:
    """Solve with one of PuLP's solvers, which count no nodes and tell no bounds on the way.

    Returns
    -------
    Outcome
        With duals for a linear program that was solved to the end.

    Raises
    ------
    UsageError
        No such solver here; the message names those that are.
    """
    began = time.monotonic()
    _entry(solver)
    problem, variables = build(model)
    if options.start is not None:
        for variable, value in zip(variables, options.start.tolist(), strict=True):
            variable.setInitialValue(value, check=False)
    integer = bool(model.is_integer.any())
    found = run(
        problem,
        solver,
        time_limit=max(0.01, options.time_limit - (time.monotonic() - began)),
        seed=options.seed,
        threads=options.threads,
        warm_start=options.start is not None,
        integer=integer,
        should_stop=options.should_stop,
    )
    values = None
    if found.objective is not None:
        # PuLP leaves out variables that stand in no row and cost nothing: any value will do.
        idle = np.clip(0.0, model.lower, model.upper)
        values = np.array([variable.varValue for variable in variables], dtype=np.float64)
        values = np.where(np.isnan(values), idle, values)
    return replace(
        found,
        objective=None if values is None else model.objective(values),
        bound=None if found.bound is None else found.bound + model.offset,
        seconds=time.monotonic() - began,
        values=values,
        duals=_duals(model, problem) if not integer and found.status == "optimal" else None,
    )


def _duals(model: MatrixModel, problem: pulp.LpProblem) -> FloatArray | None:
    """The rows' multipliers; a row with two sides was split into two."""
    rows = {constraint.name: constraint for constraint in _constraints(problem)}
    found = np.zeros(model.rows)
    for row in range(model.rows):
        name = model.row_name(row)
        for each in (name, f"{name}_upper"):
            price = getattr(rows.get(each), "pi", None)
            found[row] += price or 0.0
    return found if np.any(found) else None
