"""From maps to plans: with offsets, where tiers are address spaces."""

from __future__ import annotations

import numpy as np

from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.structure import Offsets, Structure
from stowplan.portfolio.tier_placement import arrays
from stowplan.portfolio.tier_placement.arrays import Data, Ints

#: What is left of the room of a tier whose tensors found no offsets.
_SHRINK = 0.98


class Exporter:
    """Turns maps of one problem into plans."""

    def __init__(self, problem: Problem, data: Data):
        self._problem, self._data = problem, data
        self._offsets: Offsets | None = None
        if problem.address_spaces:
            self._structure = Structure(problem)
            self._offsets = Offsets(self._structure)

    def plan(self, tier: Ints) -> Plan | None:
        """Plan of a valid map; None where no offsets were found for it."""
        weights, outputs = arrays.export_tiers(self._data, tier)
        if self._offsets is None:
            return Plan(
                problem=self._problem.digest,
                objective_ps=arrays.latency(self._data, tier),
                weight_tiers=weights,
                output_tiers=outputs,
            )
        return self._offsets.place(
            [(outputs if tensor.is_output else weights)[tensor.layer] for tensor in self._structure.tensors]
        )

    def shrink(self, tier: Ints) -> Data:
        """Arrays with a little less room in every tier that a map stands in; for searches only, not for plans."""
        capacity = self._data.capacity.copy()
        used = np.unique(tier)
        capacity[used] = (capacity[used] * _SHRINK).astype(np.int64)
        self._data = self._data._replace(capacity=capacity)
        return self._data
