"""Complete CP-SAT model of memory mapping, in both stall modes, offsets included.

:func:`solve` finds and proves optimal plans of problems of up to some hundred uses, and gives plans and bounds beyond. Its
parts: ``variables``, ``constraints`` (with the argument why the model is complete), ``objective``, ``offsets``, ``hint``.
"""

from stowplan.models.memory_mapping.cpsat.model import MAX_SIZE, MemoryMappingModel, build, size_estimate
from stowplan.models.memory_mapping.cpsat.solve import ExactOutcome, solve

__all__ = ["MAX_SIZE", "ExactOutcome", "MemoryMappingModel", "build", "size_estimate", "solve"]
