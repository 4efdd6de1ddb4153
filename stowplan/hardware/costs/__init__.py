"""Cost models: the duration of each step of a program, depending on which of its uses are served from fast memory.

A *use* is a read or a write of one tensor by one step. :func:`make_problem` builds a memory-mapping problem from a program, a
target and a cost model.

Each module imports only modules that are listed before it:

- ``measured``: measured latencies of steps
- ``roofline``: the roofline model, and the table model with a compiler's estimates
- ``signatures``: estimated and predicted latencies by signatures of instructions
- ``problem``: builds the memory-mapping problem
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
