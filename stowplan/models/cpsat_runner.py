"""One way to run CP-SAT, for the models of all kinds: limits, seed, stops, log, hints, and what its bounds prove.

*What a bound proves.* Objectives are whole numbers, and so is the bound that CP-SAT keeps. But it is handed out as a double,
in places after a division and a multiplication by the coefficients' common divisor. The rule is here and nowhere else
(:func:`proven`). A number within :data:`ROUNDING` units in the last place of a whole number stands for that number; any other
is rounded down. Where doubles are so far apart that this says nothing, that many units are taken off. The units are those of
the bound or of the objective's constant, whichever are larger. It is never rounded to the nearest: 99.9999 proves 99.
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

#: Seconds between two looks at the clock and at ``should_stop``.
POLL_SECONDS = 0.05

#: Units in the last place that scaling may have added to a bound, or taken from it.
ROUNDING = 4

#: Bounds beyond this stand for none, or for that of a model without solutions.
MOST_BOUND = float(1 << 60)

#: Value of a variable, or of a sum of variables, in a solution.
Value = Callable[[Any], int]

_STATUS: dict[Any, Status] = {
    cp_model.OPTIMAL: "optimal",
    cp_model.FEASIBLE: "feasible",
    cp_model.INFEASIBLE: "infeasible",
}


def proven(bound: float, offset: float = 0.0) -> int | None:
    """Largest whole number that a bound of CP-SAT's proves, by the rule of this module; None where it proves none.

    ``offset`` is the objective's constant, which is part of ``bound``.
    """
    if not abs(bound) < MOST_BOUND:
        return None
    doubt, nearest = ROUNDING * math.ulp(max(abs(bound), abs(offset))), round(bound)
    if doubt < 0.5 and abs(bound - nearest) <= doubt:
        return nearest
    return math.floor(bound - doubt)


@dataclass(frozen=True)
class Run:
    """What came of one run."""

    status: Status
    """``optimal`` and ``infeasible`` only with proof. ``unknown`` is also a model that CP-SAT does not take."""
    value: Value
    """Of the best solution; only where there is one."""
    bound: int | None
    """Proven bound on the objective to be minimised; None without an objective, or where nothing is proven."""
    seconds: float
    deterministic: float
    """The same in CP-SAT's deterministic seconds."""

    @property
    def is_found(self) -> bool:
        """There is a solution."""
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
    """Solve a model, to be minimised where it has an objective.

    Parameters
    ----------
    model
        With its hint, if any (:func:`add_hint`).
    time_limit
        Seconds. CP-SAT looks at its clock itself, but not everywhere: a watcher looks too, every 50 ms, and asks it to stop.
    workers
        Threads. One worker with a ``deterministic_limit``, and a ``time_limit`` that does not bind, repeats itself.
    seed
        Any integer.
    deterministic_limit
        Limit in CP-SAT's deterministic seconds.
    parameters
        Further parameters of CP-SAT, by name.
    on_solution
        Called with the values of every better solution, from the solver's threads.
    on_bound
        Called with bounds as they are proven, from the solver's threads.
    should_stop
        Asked every 50 ms; True ends the run.
    log
        Called with the lines of CP-SAT's log.

    Returns
    -------
    Run
        Running out of time is ``unknown`` or ``feasible``, never ``infeasible``.
    """
    solver = cp_model.CpSolver()
    given: dict[str, Any] = {
        "num_workers": workers,
        "random_seed": seed % (1 << 31),
        "max_time_in_seconds": max(0.01, time_limit),
        # Its handler would take the place of Python's, and leave none behind: Ctrl-C would end the process without a word.
        "catch_sigint_signal": False,
        **(parameters or {}),
    }
    if deterministic_limit is not None:
        given["max_deterministic_time"] = deterministic_limit
    if log is not None:
        given |= {"log_search_progress": True, "log_to_stdout": False}
        solver.log_callback = log
    for name, value in given.items():
        setattr(solver.parameters, name, value)
    # To look at the objective of a model that has none gives it an empty one.
    has_objective = model.has_objective()
    offset = float(model.proto.objective.offset) if has_objective else 0.0
    if on_bound is not None:
        report = on_bound

        def take_bound(bound: float) -> None:
            whole = proven(bound, offset)
            if whole is not None:
                report(whole)

        solver.best_bound_callback = take_bound
    with Watchdog(time_limit, should_stop, solver.stop_search, POLL_SECONDS):
        status = solver.solve(model, None if on_solution is None else _Collector(on_solution))
    is_found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    bound = proven(solver.best_objective_bound, offset) if is_found and has_objective else None
    spent = solver.wall_time, solver.response_proto.deterministic_time
    return Run(_STATUS.get(status, "unknown"), solver.value, bound, *spent)


class Budget:
    """Time for several models together; shares are parts of the whole.

    With a deterministic limit, shares are measured in that, so that no choice depends on the clock; the time limit still ends
    everything.
    """

    def __init__(self, seconds: float, deterministic: float | None, should_stop: Callable[[], bool] | None):
        self._end = time.monotonic() + seconds
        self._seconds = max(seconds, 1e-9)
        self._whole = deterministic
        self._used = 0.0
        self.should_stop = should_stop

    @property
    def left_share(self) -> float:
        """Part of the whole that is left, 1 to 0."""
        if self._whole is not None:
            return max(0.0, 1.0 - self._used / self._whole) if self._whole > 0 else 0.0
        return max(0.0, (self._end - time.monotonic()) / self._seconds)

    @property
    def is_spent(self) -> bool:
        """Nothing left, or told to stop."""
        told = self.should_stop is not None and self.should_stop()
        return told or self.left_share <= 0.0 or time.monotonic() >= self._end

    def part(self, share: float) -> float:
        """Seconds of a share, no more than are left."""
        left = max(0.0, self._end - time.monotonic())
        return left if self._whole is not None else min(left, share * self._seconds)

    def deterministic_part(self, share: float) -> float | None:
        """Deterministic seconds of a share, no more than are left; None where time alone counts."""
        return None if self._whole is None else max(0.0, min(share * self._whole, self._whole - self._used))

    def spend_part(self, share: float) -> None:
        """Count a share as used, whatever of it was."""
        self._used += share * (self._whole or 0.0)

    def run(self, model: cp_model.CpModel, share: float, **options: Any) -> Run:
        """Run CP-SAT with a share as its limits, and count what it used; options as :func:`run` takes them."""
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
    """A built model of a kind."""

    @property
    def model(self) -> cp_model.CpModel:
        """Of CP-SAT."""

    def add_hint(self, plan: P, /) -> None:
        """Start the solver from a plan."""

    def extract(self, value: Value, /) -> P:
        """Plan of a solution.

        Parameters
        ----------
        value
            Gives the value of a variable of :attr:`model`, as :attr:`Run.value` does.

        Returns
        -------
        plan
            Of the kind; some kinds give None where the solution is no plan.
        """


class Work(TypedDict, total=False):
    """Keyword arguments of :func:`run` that a kind hands on as they are, but for the time."""

    workers: int
    seed: int
    deterministic_limit: float | None
    should_stop: Callable[[], bool] | None
    log: Callable[[str], None] | None


class Limits(Work, total=False):
    """The same with the time."""

    time_limit: Required[float]


class Search(Limits, Generic[P], total=False):
    """Keyword arguments of :func:`find_plan` that a kind hands on as they are."""

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
    """Solve the model of a kind, in the kind's terms.

    Parameters
    ----------
    built
        The model, not yet hinted.
    objective
        From values of the model's objective to the kind's.
    least
        A bound that is proven already, in the kind's unit.
    parameters, limits
        As :func:`run` takes them.
    hint
        A valid plan to start from.
    on_plan, on_bound
        Called with every better plan and bound, from the solver's threads.

    Returns
    -------
    Outcome
        Best plan, and what is proven; running out of time is never ``infeasible``.
    """
    if hint is not None:
        built.add_hint(hint)
    best = least

    def take_bound(bound: int) -> None:
        nonlocal best
        claimed = objective(bound)
        if best is None or claimed > best:
            best = claimed
            if on_bound is not None:
                on_bound(claimed)

    def take_solution(value: Value) -> None:
        if on_plan is not None:
            on_plan(built.extract(value))

    # Without an objective, what CP-SAT calls a bound says nothing of plans.
    on_better = take_bound if built.model.has_objective() else None
    done = run(built.model, parameters=parameters, on_solution=take_solution, on_bound=on_better, **limits)
    if done.status == "infeasible":
        return Outcome("infeasible", None, None)
    if done.bound is not None:
        take_bound(done.bound)
    return Outcome(done.status, built.extract(done.value) if done.is_found else None, best)


class _Collector(cp_model.CpSolverSolutionCallback):
    def __init__(self, on_solution: Callable[[Value], None]):
        super().__init__()
        self._on_solution = on_solution

    def on_solution_callback(self) -> None:
        """Hand on the solution's values."""
        self._on_solution(self.value)


def add_hint(
    model: cp_model.CpModel, values: Mapping[int, int] | Iterable[tuple[cp_model.IntVar, int]], *, complete: bool = True
) -> None:
    """Hint a model at a solution, in place of any hint before.

    Parameters
    ----------
    values
        By variable or by its index; a variable that comes twice keeps its first value.
    complete
        Every variable has a value: CP-SAT then takes the solution as it is, where it has to search for the rest otherwise.

    Raises
    ------
    ValueError
        A variable has no value though the hint is to be complete; the first such variable is named.
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
            # What can have one value only needs none.
            if number not in hinted and len({*variables[number].domain}) > 1:
                name = variables[number].name or number
                raise ValueError(f"found a hint of {len(hinted)} values without {name}, expected one for every variable")
