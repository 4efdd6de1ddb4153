"""Complete CP-SAT model of memory mapping, in both stall modes, offsets included.

:func:`solve` finds and proves optimal plans of problems of up to some hundred uses, and gives plans and bounds beyond. Its
parts: ``variables``, ``constraints`` (with the argument why the model is complete), ``objective``, ``offsets``, ``hint``.

:func:`improve` solves the same model of a :class:`Neighbourhood` of a plan: some tensors within a window, all else as it is.
Its parts: ``timeline`` (the plan, indexed), ``neighbourhood`` (what is free, as a small problem), ``fixed_part`` (the rest,
as constants), ``local_run`` and ``merge``.
"""

from stowplan.models.memory_mapping.cpsat.improve import Improvement, improve
from stowplan.models.memory_mapping.cpsat.model import MAX_SIZE, MemoryMappingModel, build, size_estimate
from stowplan.models.memory_mapping.cpsat.neighbourhood import Neighbourhood
from stowplan.models.memory_mapping.cpsat.solve import ExactOutcome, solve
from stowplan.models.memory_mapping.plan_timeline import PlanTimeline, ProblemFacts

__all__ = [
    "MAX_SIZE",
    "ExactOutcome",
    "Improvement",
    "MemoryMappingModel",
    "Neighbourhood",
    "PlanTimeline",
    "ProblemFacts",
    "build",
    "improve",
    "size_estimate",
    "solve",
]
