"""Relaxations, solved: what tests compare others with."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

import numpy as np

from stowplan.models.memory_mapping.milp.hint import hint_values
from stowplan.models.memory_mapping.milp.matrix import Formulation, IntArray, all_windows, formulate
from stowplan.models.memory_mapping.milp.model import RelaxationModel
from stowplan.models.memory_mapping.milp.solve import Effort, RelaxationSearch
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem


def relaxation(
    problem: Problem,
    *,
    model: type[RelaxationModel] = RelaxationModel,
    integer: bool = False,
    seconds: float = math.inf,
    seed: int = 0,
    iteration_limit: int | None = None,
    on_bound: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> RelaxationSearch:
    """The relaxation of a whole problem, linear or with integers."""
    effort = Effort(time.monotonic() + seconds, seed, iteration_limit, iteration_limit, should_stop)
    search = RelaxationSearch(model(problem), effort, on_bound)
    search.linear()
    if integer:
        search.integral()
    return search


def relaxation_bound(problem: Problem, *, integer: bool = False) -> int:
    """What it proves, in ps."""
    return relaxation(problem, integer=integer).bound


def fast_shares(search: RelaxationSearch) -> list[float]:
    """How much each use is served from fast memory in the last solution."""
    values = search.values
    return [0.0 if values is None else float(sum(values[column] for column in columns)) for columns in search.model.fast]


def objective_ps(formulation: Formulation, values: IntArray) -> int:
    """Objective of a point in the model's own units; exact."""
    model = formulation.model
    total: int = sum(cost * value for cost, value in zip(model.cost, values.tolist(), strict=True))
    return model.offset_ps + total


def violated(formulation: Formulation, values: IntArray) -> list[str]:
    """Rows and columns that a point in the model's own units breaks, by name; exact."""
    model, rows, matrix = formulation.model, formulation.rows, formulation.matrix
    activity = formulation.integers @ values
    broken_rows = np.flatnonzero((activity < np.array(rows.lower)) | (activity > np.array(rows.upper)))
    broken_columns = np.flatnonzero((values < np.array(model.lower)) | (values > np.array(model.upper)))
    return [*map(matrix.row_name, broken_rows.tolist()), *map(matrix.column_name, broken_columns.tolist())]


def assert_point(problem: Problem, plan: Plan) -> int:
    """Assert that the plan's point is feasible with all windows, and no worse; its objective."""
    model = RelaxationModel(problem)
    formulation = formulate(model, all_windows(model))
    values = hint_values(formulation, plan)
    assert violated(formulation, values) == []
    found = objective_ps(formulation, values)
    assert found <= plan.objective
    assert formulation.matrix.violation(formulation.scaled(values)) < 1e-9
    return found
