"""Runs CP-SAT, the constraint solver of OR-Tools, for the models of all kinds of problems.

The exact candidates of a ``solve`` call, that is, its methods that can prove optimality, build a model and hand it to
:func:`find_plan` or :func:`run`. This module sets limits and seed, stops the solver early, passes on its log, gives it hints
(solutions to start from), and rounds its bounds.

*Rounding of bounds.* Objectives are whole numbers, and so is the bound that CP-SAT computes internally. CP-SAT reports the
bound as a double, however, sometimes after a division and a multiplication by the common divisor of the coefficients.
:func:`proven` turns such a double into a whole number that is proven. A double within :data:`ROUNDING` units in the last place
of a whole number is taken for that number, and any other is rounded down. If the double is so large that these units amount to
one half or more, they are subtracted before it is rounded down. The unit in the last place is that of the bound or of the
constant of the objective, whichever is larger. Apart from this tolerance, no bound is rounded up: 99.9999 proves 99.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Generic, Protocol, Required, TypedDict, TypeVar, Unpack

from ortools.sat.python import cp_model

from stowplan.deadline import Watchdog
from stowplan.models.outcome import Outcome, Status

#: Seconds between two checks of the clock and of ``should_stop``.
POLL_SECONDS = 0.05

#: Largest error of a reported bound due to scaling, in units in the last place.
ROUNDING = 4

#: Bounds of this magnitude or more, in units of the objective, mean that there is no bound, or that the model has no solutions.
MOST_BOUND = float(1 << 60)

#: A function that returns the value of a variable, or of a sum of variables, in a solution.
Value = Callable[[Any], int]

_STATUS: dict[Any, Status] = {
    cp_model.OPTIMAL: "optimal",
    cp_model.FEASIBLE: "feasible",
    cp_model.INFEASIBLE: "infeasible",
}


def proven(bound: float, offset: float = 0.0) -> int | None:
    """Return the largest whole number that a reported bound proves, by the rule in this module's docstring.

    ``offset`` is the constant of the objective, which is included in ``bound``. The result is None if the bound proves nothing,
    because it is not a number or its magnitude is :data:`MOST_BOUND` or more.
    """
    if not abs(bound) < MOST_BOUND:
        return None
    error, nearest = ROUNDING * math.ulp(max(abs(bound), abs(offset))), round(bound)
    if error < 0.5 and abs(bound - nearest) <= error:
        return nearest
    return math.floor(bound - error)


@dataclass(frozen=True)
class Run:
    """The result of one run of CP-SAT."""

    status: Status
    """``optimal`` and ``infeasible`` are proven. The status of a model that CP-SAT rejects is ``unknown``."""
    value: Value
    """Returns the value of a variable in the best solution. Without a solution (:attr:`is_found`), its results mean nothing."""
    bound: int | None
    """Proven lower bound on the objective, which is minimized. It is None if the model has no objective, if no solution was
    found, or if nothing is proven."""
    seconds: float
    """Wall time of the run."""
    deterministic: float
    """Length of the run in CP-SAT's deterministic seconds, a measure of work that does not depend on the machine."""

    @property
    def is_found(self) -> bool:
        """Whether there is a solution."""
        return self.status in ("optimal", "feasible")


def run(
    model: cp_model.CpModel,
    *,
    time_limit: float,
    workers: int = 1,
    seed: int = 0,
    deterministic_limit: float | None = None,
    parameters: Mapping[str, Any] | None = None,
    on_solution: Callable[[Value], None] | None = None,
    on_bound: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
    log: Callable[[str], None] | None = None,
) -> Run:
    """Solve a model: find a solution with the smallest objective, or any solution if the model has no objective.

    Parameters
    ----------
    model
        The model, with a hint if there is one (:func:`add_hint`).
    time_limit
        Limit in seconds; less than 0.01 counts as 0.01. CP-SAT does not check its own clock everywhere, so a watcher thread
        also checks the time every 50 ms.
    workers
        Number of threads. Runs with one worker and a ``deterministic_limit`` are repeatable unless ``time_limit`` ends them.
    seed
        Random seed, any integer; it is reduced modulo 2**31.
    deterministic_limit
        Limit in CP-SAT's deterministic seconds (:attr:`Run.deterministic`); None for no such limit.
    parameters
        Further parameters of CP-SAT by name. They replace those that this function sets.
    on_solution
        Called for every better solution with a function that returns its values, from the solver's threads.
    on_bound
        Called with bounds as they are proven, from the solver's threads.
    should_stop
        Called every 50 ms; the run ends when it returns True.
    log
        Called with the lines of CP-SAT's log.

    Returns
    -------
    Run
        If time runs out, its status is ``unknown`` or ``feasible``, never ``infeasible``.

    Raises
    ------
    AttributeError
        CP-SAT has no parameter of a name in ``parameters``.
    """
    solver = cp_model.CpSolver()
    values: dict[str, Any] = {
        "num_workers": workers,
        "random_seed": seed % (1 << 31),
        "max_time_in_seconds": max(0.01, time_limit),
        # CP-SAT's handler would replace Python's and not restore it. Ctrl-C would then end the process without a message.
        "catch_sigint_signal": False,
        **(parameters or {}),
    }
    if deterministic_limit is not None:
        values["max_deterministic_time"] = deterministic_limit
    if log is not None:
        values |= {"log_search_progress": True, "log_to_stdout": False}
        solver.log_callback = log
    for name, value in values.items():
        setattr(solver.parameters, name, value)
    # Reading the objective of a model that has none would add an empty one.
    has_objective = model.has_objective()
    offset = float(model.proto.objective.offset) if has_objective else 0.0
    if on_bound is not None:
        report_bound = on_bound

        def handle_bound(bound: float) -> None:
            proven_bound = proven(bound, offset)
            if proven_bound is not None:
                report_bound(proven_bound)

        solver.best_bound_callback = handle_bound
    with Watchdog(time_limit, should_stop, solver.stop_search, POLL_SECONDS):
        status = solver.solve(model, None if on_solution is None else _Collector(on_solution))
    is_found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    bound = proven(solver.best_objective_bound, offset) if is_found and has_objective else None
    durations = solver.wall_time, solver.response_proto.deterministic_time
    return Run(_STATUS.get(status, "unknown"), solver.value, bound, *durations)


class Budget:
    """A time budget for several models that are solved one after the other. A share is a fraction of the whole budget.

    With a deterministic limit, a share is a fraction of that limit, so that no decision depends on the clock. The time limit
    still ends every run.

    Parameters
    ----------
    seconds
        Time limit of all models together.
    deterministic
        Limit in CP-SAT's deterministic seconds; None if only the time is limited.
    should_stop
        Ends all runs when it returns True.
    """

    def __init__(self, seconds: float, deterministic: float | None, should_stop: Callable[[], bool] | None):
        self._end = time.monotonic() + seconds
        self._seconds = max(seconds, 1e-9)
        self._work_limit = deterministic
        self._used = 0.0
        self.should_stop = should_stop

    @property
    def remaining_share(self) -> float:
        """Fraction of the budget that is left, from 1 down to 0."""
        if self._work_limit is not None:
            return max(0.0, 1.0 - self._used / self._work_limit) if self._work_limit > 0 else 0.0
        return max(0.0, (self._end - time.monotonic()) / self._seconds)

    @property
    def is_spent(self) -> bool:
        """Whether nothing of the budget is left, or ``should_stop`` returned True."""
        must_stop = self.should_stop is not None and self.should_stop()
        return must_stop or self.remaining_share <= 0.0 or time.monotonic() >= self._end

    def part(self, share: float) -> float:
        """The time limit in seconds for a share, at most the time that is left. With a deterministic limit, it is all the time
        that is left."""
        left = max(0.0, self._end - time.monotonic())
        return left if self._work_limit is not None else min(left, share * self._seconds)

    def deterministic_part(self, share: float) -> float | None:
        """The share in deterministic seconds, at most the rest of the limit; None without a deterministic limit."""
        return None if self._work_limit is None else max(0.0, min(share * self._work_limit, self._work_limit - self._used))

    def spend_part(self, share: float) -> None:
        """Count a share of the deterministic limit as used; without such a limit, nothing changes."""
        self._used += share * (self._work_limit or 0.0)

    def run(self, model: cp_model.CpModel, share: float, **options: Any) -> Run:
        """Run CP-SAT within a share of the budget and count its deterministic seconds. Options are passed on to :func:`run`."""
        outcome = run(
            model,
            time_limit=self.part(share),
            deterministic_limit=self.deterministic_part(share),
            should_stop=self.should_stop,
            **options,
        )
        self._used += outcome.deterministic
        return outcome


P = TypeVar("P")


class PlanModel(Protocol[P]):
    """The interface that models of all kinds have in common: a CP-SAT model that can be hinted and read as a plan."""

    @property
    def model(self) -> cp_model.CpModel:
        """The CP-SAT model."""

    def add_hint(self, plan: P, /) -> None:
        """Let the solver start from a valid plan."""

    def extract(self, value: Value, /) -> P:
        """The plan of a solution; the models of some kinds return None if the solution does not give a plan.

        Parameters
        ----------
        value
            Returns the value of a variable of :attr:`model` in the solution, like :attr:`Run.value`.
        """


class Work(TypedDict, total=False):
    """Keyword arguments that the models of the kinds pass on to :func:`run`, without the time limit."""

    workers: int
    seed: int
    deterministic_limit: float | None
    should_stop: Callable[[], bool] | None
    log: Callable[[str], None] | None


class Limits(Work, total=False):
    """Keyword arguments that the models of the kinds pass on to :func:`run`, with the time limit in seconds."""

    time_limit: Required[float]


class Search(Limits, Generic[P], total=False):
    """Keyword arguments that the models of the kinds pass on to :func:`find_plan`."""

    hint: P | None
    on_plan: Callable[[P], None] | None
    on_bound: Callable[[int], None] | None


def find_plan(
    built: PlanModel[P],
    *,
    objective: Callable[[int], int],
    least: int | None = None,
    parameters: Mapping[str, Any] | None = None,
    hint: P | None = None,
    on_plan: Callable[[P], None] | None = None,
    on_bound: Callable[[int], None] | None = None,
    **limits: Unpack[Limits],
) -> Outcome[P]:
    """Solve the model of a kind of problem and return its plans and bounds in the terms of that kind.

    Parameters
    ----------
    built
        The model, without a hint.
    objective
        A function that converts a value of the model's objective into the kind's unit, such as bytes.
    least
        A lower bound that is proven already, in the kind's unit; None if there is none.
    parameters, limits
        Passed on to :func:`run`.
    hint
        A valid plan to start from, for ``built.add_hint``; None if there is none.
    on_plan, on_bound
        Called with every better plan and every better bound, in the kind's unit, from the solver's threads.

    Returns
    -------
    Outcome
        The best plan and bound. Running out of time is never reported as ``infeasible``. An infeasible problem has neither plan
        nor bound nor reason.

    Raises
    ------
    AttributeError
        CP-SAT has no parameter of a name in ``parameters``.
    ValueError
        The hint is not valid, so that ``built.add_hint`` has no value for some variable (:func:`add_hint`).
    """
    if hint is not None:
        built.add_hint(hint)
    best = least

    def handle_bound(bound: int) -> None:
        nonlocal best
        plan_bound = objective(bound)
        if best is None or plan_bound > best:
            best = plan_bound
            if on_bound is not None:
                on_bound(plan_bound)

    def handle_solution(value: Value) -> None:
        if on_plan is not None:
            on_plan(built.extract(value))

    # For a model without an objective, the bound that CP-SAT reports has no meaning.
    on_better_bound = handle_bound if built.model.has_objective() else None
    result = run(built.model, parameters=parameters, on_solution=handle_solution, on_bound=on_better_bound, **limits)
    if result.status == "infeasible":
        return Outcome("infeasible", None, None)
    if result.bound is not None:
        handle_bound(result.bound)
    return Outcome(result.status, built.extract(result.value) if result.is_found else None, best)


class _Collector(cp_model.CpSolverSolutionCallback):
    """Calls a function with the values of every solution that CP-SAT finds."""

    def __init__(self, on_solution: Callable[[Value], None]):
        super().__init__()
        self._on_solution = on_solution

    def on_solution_callback(self) -> None:
        """Called by CP-SAT for every solution."""
        self._on_solution(self.value)


def add_hint(
    model: cp_model.CpModel, values: Mapping[int, int] | Iterable[tuple[cp_model.IntVar, int]], *, complete: bool = True
) -> None:
    """Give a model a solution to start from. It replaces an earlier hint.

    Parameters
    ----------
    values
        Values by variable or by the index of the variable. If a variable occurs twice, its first value counts.
    complete
        Whether every variable must have a value. CP-SAT adopts a complete hint directly; an incomplete one has to be completed
        by a search.

    Raises
    ------
    ValueError
        ``complete`` is true, and a variable with several possible values has none; the message names the first such variable.
    """
    hinted: dict[int, int] = {}
    for key, value in values.items() if isinstance(values, Mapping) else values:
        hinted.setdefault(key if isinstance(key, int) else key.index, int(value))
    model.clear_hints()  # type: ignore[no-untyped-call]
    hint = model.proto.solution_hint
    hint.vars.extend(list(hinted))
    hint.values.extend(list(hinted.values()))
    variables = model.proto.variables
    if complete and len(hinted) < len(variables):
        for number in range(len(variables)):
            # A variable with a single possible value needs no hint.
            if number not in hinted and len({*variables[number].domain}) > 1:
                name = variables[number].name or number
                raise ValueError(f"found a hint of {len(hinted)} values without {name}, expected one for every variable")
