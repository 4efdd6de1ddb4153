"""The objectives to which the ablation of memory mapping's bound measures gaps."""

from __future__ import annotations

import json

from benchmarks.calls.short_limits import BOUNDS
from benchmarks.memory_mapping.milp_ablation import OBJECTIVES, objectives, table


def test_every_module_has_an_objective_that_is_no_less_than_its_bound() -> None:
    known = objectives(OBJECTIVES)
    bounds = {name: row["bound"] for name, row in json.loads(BOUNDS.read_bytes()).items()}
    assert len(known) == 30
    assert not [name for name, objective in known.items() if objective < bounds[name]]


def test_gaps_are_measured_to_the_objectives() -> None:
    rows = {"a": {"uses": 3, "full": {"bound": 900, "seconds": 1.0}}, "b": {"uses": 4, "full": {"bound": 500, "seconds": 2.0}}}
    lines = table(rows, {"a": 1000}, ["full"]).splitlines()
    assert "10.000 (1 s)" in lines[2]
    assert "0.000 (2 s)" in lines[3]
    assert "5.000" in lines[4]
