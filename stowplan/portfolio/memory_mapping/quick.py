"""A plan in a moment, in the calling process: every tensor in its best way, the densest first."""

from __future__ import annotations

from collections.abc import Callable

from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.context import Options
from stowplan.portfolio.memory_mapping import arrays, heuristics
from stowplan.portfolio.memory_mapping.convert import export_plan


def quick_plan(problem: Problem, options: Options, should_stop: Callable[[], bool]) -> tuple[str, Plan] | None:
    """The plan, under the name ``quick``; stopped early, with the tensors placed so far. None where nothing is saved."""
    data = arrays.build(problem)
    state, _ = heuristics.run(heuristics.best_insertion(data, 1), should_stop)
    if state.totals[0].total >= problem.all_slow_ps:
        return None
    return "quick", export_plan(problem, data, state)
