"""Compiles all that the heuristics of memory mapping compile."""

from __future__ import annotations

import numpy as np

from stowplan.compiled import mark_warm
from stowplan.models.memory_mapping.problem import Piece, Problem, Step, Tensor, Use
from stowplan.portfolio.memory_mapping.arrays import build
from stowplan.portfolio.memory_mapping.guided import BY_PLACE, ORDERS, Guide, guided
from stowplan.portfolio.memory_mapping.heuristics import constructive, densities, run
from stowplan.portfolio.memory_mapping.search import new_search, restart, ruin_and_recreate


def warm_up() -> None:
    """Compile everything, where it has not been, by solving a problem of two steps."""
    step = Step("step", "add", 1, (Use(0, False, 1),), (Piece(1, (1,), (0,)),))
    data = build(
        Problem(
            name="warm-up",
            target="none",
            cost_model="none",
            capacity=1,
            steps=(step, step),
            tensors=(Tensor("tensor", 1, 1, 1, is_input=True),),
        )
    )
    for _, steps in constructive(data):
        state, _ = run(steps, lambda: False)
    for by in (ORDERS[0], BY_PLACE):
        run(guided(data, Guide(*np.ones((4, 1))), 0.5, by), lambda: False)
    search = new_search(data, state, densities(data, 1), seed=0)
    ruin_and_recreate(data, state, search, 1, 0.0)
    restart(data, state, search.best, int(search.status[0].best_count))
    mark_warm()
