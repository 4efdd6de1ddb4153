"""Cost models: how long each step takes for each choice of fast uses. :func:`make_problem` is the way in.

Each file knows only those before it:

- ``measured``: measured latencies of steps
- ``roofline``: what a step costs
- ``signatures``: latencies by signatures of instructions
- ``problem``: a program and a target as a problem of memory mapping
"""

from stowplan.hardware.costs.measured import Measurements, StepMeasurement, measurement_sheet, read_measurements
from stowplan.hardware.costs.problem import CostModel, make_problem
from stowplan.hardware.costs.roofline import CycleTable, StepCycles

__all__ = [
    "CostModel",
    "CycleTable",
    "Measurements",
    "StepCycles",
    "StepMeasurement",
    "make_problem",
    "measurement_sheet",
    "read_measurements",
]
