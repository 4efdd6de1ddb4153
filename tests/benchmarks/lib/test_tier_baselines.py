"""The baselines of tier placement on a network: executable maps, after as many evaluations as they were given."""

from __future__ import annotations

import stowplan
from benchmarks.lib.tier_placement import baselines
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.verify import verify
from stowplan.portfolio.tier_placement import arrays, heuristics
from stowplan.portfolio.tier_placement.arrays import Exporter
from tests.paths import EXAMPLES


def test_baselines() -> None:
    problem: Problem = stowplan.read(EXAMPLES / "resnet50.layers.json", "nnp-i")
    data = arrays.build(problem)
    begin = heuristics.any_map(data)
    assert begin is not None
    for walk in (
        baselines.random_maps(data, 0, 4_000, lambda: False),
        baselines.annealing(data, begin, 0, 4_000, lambda: False),
    ):
        assert walk is not None
        plan = Exporter(problem, data).plan(walk.tier)
        assert plan is not None
        assert verify(problem, plan).ok
        assert (plan.objective, walk.evaluations) == (walk.latency, 4_000)
