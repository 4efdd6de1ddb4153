"""The complete CP-SAT model of memory mapping: residencies, copies, offsets, with stalls allowed or forbidden.

:func:`solve` finds and proves optimal plans of problems with up to a few hundred uses. For larger problems, it gives plans and
bounds. ``docs/reference/memory-mapping-models.md`` proves that the model is complete; comments name its lemmas.

:func:`improve` solves the same model for a :class:`Neighbourhood` of a plan (large-neighbourhood search): only some tensors
within a window of steps may change, and everything else stays as it is. The plan is given as a
:class:`~stowplan.models.memory_mapping.copy_engine.PlanTimeline`.

Each file imports only files that come before it in this list:

- ``decisions``: the decisions of a plan that the model represents
- ``fixed_part``: the part of a plan outside a neighbourhood, as constants
- ``neighbourhood``: the free part of a neighbourhood, as a small problem
- ``variables``: variables of the complete model, tensor by tensor
- ``constraints``: constraints and objective of the complete model
- ``offsets``: offsets of residencies, by first fit and as variables of the model
- ``hint``: values of all variables for any valid plan
- ``model``: the complete model
- ``improve``: the improvement of a plan within a neighbourhood
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
