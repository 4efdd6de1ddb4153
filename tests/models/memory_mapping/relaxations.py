"""Relaxations, solved: what tests compare others with."""

from __future__ import annotations

import math
import time
from collections.abc import Callable

from stowplan.models.memory_mapping.milp.model import RelaxationModel
from stowplan.models.memory_mapping.milp.solve import Effort, RelaxationSearch
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
