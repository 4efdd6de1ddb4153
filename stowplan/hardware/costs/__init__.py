"""Cost models: how long each step takes for each choice of fast uses. :func:`make_problem` is the way in."""

from stowplan.hardware.costs.cycles import CycleTable, StepCycles, read_cycle_table
from stowplan.hardware.costs.problem import CostModel, make_problem

__all__ = ["CostModel", "CycleTable", "StepCycles", "make_problem", "read_cycle_table"]
