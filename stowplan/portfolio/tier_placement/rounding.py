"""The linear relaxation as a map: every tensor where most of it stands, then what is too much thrown out."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from stowplan.models.tier_placement.problem import Problem
from stowplan.portfolio.tier_placement import engine
from stowplan.portfolio.tier_placement.arrays import Data, Ints


def rounded_map(problem: Problem, data: Data, seconds: float, stop: Callable[[], bool]) -> Ints | None:
    """[m] A valid map; None where the relaxation is not solved within ``seconds``, or its rounding does not fit."""
    from stowplan.models.mip.with_highs import solve_relaxed
    from stowplan.models.tier_placement.milp import build

    model = build(problem)
    if not model.matrix.columns:
        return None
    solution = solve_relaxed(model.matrix, 0, seconds, stop)
    if not solution.value_valid:
        return None
    tiers = model.tiers(np.array(solution.col_value))
    place = {(each.layer, each.is_output): tier for each, tier in zip(model.structure.tensors, tiers, strict=True)}
    owners = zip(data.layer.tolist(), data.is_weight.tolist(), strict=True)
    tier = np.array([place[layer, not is_weight] for layer, is_weight in owners], np.int64)
    state = engine.start(data, tier, 0)
    return state.tier.copy() if engine.repair(data, state) else None
