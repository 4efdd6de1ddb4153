"""Constructions that only benchmarks ask for: the best plan that follows a hint, and insertion in the likeliest ways alone."""

from __future__ import annotations

from collections.abc import Callable

from stowplan.compiled import njit
from stowplan.models.hint import Hint
from stowplan.portfolio.memory_mapping.arrays import Data, Ints
from stowplan.portfolio.memory_mapping.guided import better_guided
from stowplan.portfolio.memory_mapping.heuristics import by_density
from stowplan.portfolio.memory_mapping.machine import BEST_FIT, insert_best, new_state
from stowplan.portfolio.memory_mapping.state import State


def best_guided(data: Data, hint: Hint, stop: Callable[[], bool], objective: int | None = None) -> State:
    """The last of :func:`~stowplan.portfolio.memory_mapping.guided.better_guided`."""
    *_, best = better_guided(data, hint, stop, objective)
    return best


def quick_insertion(data: Data, by: int) -> State:
    """Insertion without the ways that are rarely the best, such as stalls."""
    state = new_state(data)
    insert_quickly(data, state, by_density(data, by))
    return state


@njit
def insert_quickly(data: Data, state: State, order: Ints) -> None:
    """See :func:`quick_insertion`; ``state`` is new."""
    for position in range(len(order)):
        insert_best(data, state, order[position], BEST_FIT, False, 0, 0)
