"""How back ends, which apply plans inside a compiler or a runtime, call :func:`stowplan.solve`.

A *plan* is an answer to a problem. :func:`solve_with` passes the options that back ends have in common, :class:`Search` solves
several problems with the same options, and :func:`find_order` orders the operators of a graph. They raise the same errors as
:func:`stowplan.solve`: UsageError for an object that is no problem, and InputError for an existing plan that is not valid.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypedDict

from stowplan.document import Document
from stowplan.kernel.context import Options
from stowplan.kernel.solve import solve
from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Problem
from stowplan.portfolio.operator_order.kind import KIND
from stowplan.result import Result


class SearchOptions(TypedDict, total=False):
    """The keyword arguments of :func:`stowplan.solve` that back ends accept in addition to their own time limit."""

    deterministic: bool
    """Whether the amount of work is limited instead of the time, so that equal inputs give equal plans."""
    seed: int
    """Seed of all random numbers, 0 or more."""
    workers: int
    """Maximum number of worker processes, 1 or more."""


def solve_with(
    options: Options, problem: Any, plans: Mapping[str, Any] | None = None, cancel: threading.Event | None = None
) -> Result:
    """Calls :func:`stowplan.solve` with options that have been checked.

    Parameters
    ----------
    options
        Time limit, determinism, seed and number of workers of the run.
    plans
        Existing plans of the problem by name. The search starts from them, and the result is never worse than any of them. None
        means that there are none.
    cancel
        Once this event is set, the run ends with the best plan so far. None if nothing cancels the run.
    """
    return solve(
        problem,
        time_limit=options.time_limit,
        deterministic=options.deterministic,
        seed=options.seed,
        workers=options.workers,
        plans=plans,
        cancel=cancel,
    )


@dataclass(frozen=True)
class Search:
    """Options for several problems that a back end solves one after the other."""

    options: Options
    """Time limit of each run, determinism, seed and number of workers."""
    cancel: threading.Event | None = None
    """Once it is set, each run ends with its best plan so far; None if nothing cancels the runs."""

    def solve(self, problem: Any) -> Result:
        """Solves one problem."""
        return solve_with(self.options, problem, cancel=self.cancel)


class OrderReport(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The result of ordering the operators of one graph.

    A peak is the largest number of bytes that are live while an operator runs, computed from the framework's own tensor sizes.
    """

    operators: int
    """How many operators the graph has."""
    given: int
    """Peak in the original order of the graph, in bytes."""
    peak: int
    """Peak in the order that the graph has now, in bytes."""
    bound: int
    """Proven lower bound on the peak of every order, in bytes."""
    moved: bool
    """Whether the order of the graph was changed."""
    seconds: float
    """Elapsed time in seconds, from the start of the work on the graph to the end of the search."""
    format: str = "stowplan.order.report"
    version: int = 1

    @property
    def is_proven(self) -> bool:
        """Whether it is proven that no order has a lower peak."""
        return self.peak <= self.bound


def find_order(problem: Problem, options: Options, began: float) -> tuple[Plan, OrderReport]:
    """Finds an operator order with a lower peak.

    Parameters
    ----------
    problem
        The problem; its operators are in the original order of the graph.
    options
        Time limit, determinism, seed and number of workers of the search.
    began
        When work on this graph began, by ``time.monotonic``; the seconds in the report count from there.

    Returns
    -------
    (Plan, OrderReport)
        The best order that was found; the original order if none has a lower peak.
    """
    given = KIND.initial(problem)["given"]
    result = solve_with(options, problem)
    plan = given if result.plan is None or result.plan.objective >= given.objective else result.plan
    report = OrderReport(
        operators=len(problem.ops),
        given=given.objective,
        peak=plan.objective,
        bound=min(plan.objective, result.bound or 0),
        moved=plan is not given,
        seconds=round(time.monotonic() - began, 3),
    )
    return plan, report
