"""A construction that only benchmarks ask for: the best plan that follows a hint."""

from __future__ import annotations

from collections.abc import Callable

from stowplan.models.hint import Hint
from stowplan.portfolio.memory_mapping.arrays import Data
from stowplan.portfolio.memory_mapping.guided import better_guided
from stowplan.portfolio.memory_mapping.state import State


def best_guided(data: Data, hint: Hint, stop: Callable[[], bool], objective: int | None = None) -> State:
    """The last of :func:`~stowplan.portfolio.memory_mapping.guided.better_guided`."""
    *_, best = better_guided(data, hint, stop, objective)
    return best
