"""Complete CP-SAT model of memory mapping, in both stall modes, offsets included.

:func:`solve` finds and proves optimal plans of problems of up to some hundred uses, and gives plans and bounds beyond. Its
parts: ``variables``, ``constraints`` (with the objective), ``offsets``, ``hint``. Why the model is complete is argued in
``docs/reference/memory-mapping-models.md``; constraints name its lemmas.

:func:`improve` solves the same model of a :class:`Neighbourhood` of a plan: some tensors within a window, all else as it is.
Its parts: ``neighbourhood`` (what is free, as a small problem), ``fixed_part`` (the rest, as constants) and ``improve``. The
plan it starts from is a :class:`~stowplan.models.memory_mapping.copy_engine.PlanTimeline`.

Each file knows only those before it:

- ``decisions``: a plan as the exact model sees it
- ``fixed_part``: what stands around a neighbourhood
- ``neighbourhood``: a small problem cut out of a large one
- ``variables``: variables of the complete model, tensor by tensor
- ``constraints``: constraints and objective of the complete model
- ``offsets``: offsets
- ``hint``: values of all variables from any valid plan
- ``model``: the complete model
- ``improve``: improving a plan within a neighbourhood
"""

from stowplan.models.memory_mapping.cpsat.improve import Improvement, improve
from stowplan.models.memory_mapping.cpsat.model import MAX_SIZE, MemoryMappingModel, size_estimate, solve
from stowplan.models.memory_mapping.cpsat.neighbourhood import Neighbourhood

__all__ = [
    "MAX_SIZE",
    "Improvement",
    "MemoryMappingModel",
    "Neighbourhood",
    "improve",
    "size_estimate",
    "solve",
]
