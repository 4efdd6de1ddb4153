"""The search for a plan as all back ends have it: its options, :func:`stowplan.solve` under them, and orders of operators."""

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
    """Keyword arguments beside a time limit; as :func:`stowplan.solve` takes them."""

    deterministic: bool
    seed: int
    workers: int


def solve_with(
    options: Options, problem: Any, plans: Mapping[str, Any] | None = None, cancel: threading.Event | None = None
) -> Result:
    """:func:`stowplan.solve` under checked options, with the plans at hand."""
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
    """How a back end looks for several plans, one after the other."""

    options: Options
    cancel: threading.Event | None = None
    """Ends all of them once it is set, each with the best plan so far."""

    def solve(self, problem: Any) -> Result:
        """One of them."""
        return solve_with(self.options, problem, cancel=self.cancel)


class OrderReport(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What came of one graph. Peaks are the most bytes that live while an operator runs, by the framework's own sizes."""

    operators: int
    given: int
    """Peak in the order that the graph had."""
    peak: int
    bound: int
    """No order has a lower peak."""
    moved: bool
    """Whether the graph has another order now."""
    seconds: float
    format: str = "stowplan.order.report"
    version: int = 1

    @property
    def is_proven(self) -> bool:
        """Whether no order has a lower peak."""
        return self.peak <= self.bound


def ordered(problem: Problem, options: Options, began: float) -> tuple[Plan, OrderReport]:
    """The order of least peak, that given where none is lower; ``began`` by ``time.monotonic``."""
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
