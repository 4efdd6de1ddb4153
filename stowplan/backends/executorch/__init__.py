"""Back end for ExecuTorch: memory plans for models that it exports.

ExecuTorch places the tensors of a program in *arenas*: ranges of memory whose sizes its runtime allocates. This back end plans
the offsets in each arena, and can also change the order of operators. Importing it imports neither executorch nor torch; only
functions that the framework calls do. A *packing problem* asks for the offsets of buffers with sizes and life spans.

- ``arenas``: tensors of a program as packing problems. ``control_flow``: reads programs whose nodes run other graphs
- ``check``: checks offsets, with code that the planner does not use. ``reorder``: a pass that orders operators
- ``planning``: plans arenas. ``banks``: plans for machines with several memories. ``program``: plans a program in one call
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from stowplan.backends.fallback import PlanningWarning
from stowplan.lazy import lazy_names, public_names

if TYPE_CHECKING:
    from stowplan.backends.executorch.banks import BankedPlanningAlgorithm as BankedPlanningAlgorithm
    from stowplan.backends.executorch.planning import MemoryPlanningAlgorithm as MemoryPlanningAlgorithm
    from stowplan.backends.executorch.program import Planned as Planned
    from stowplan.backends.executorch.program import memory_planning_pass as memory_planning_pass
    from stowplan.backends.executorch.program import offset_table as offset_table
    from stowplan.backends.executorch.program import plan as plan
    from stowplan.backends.executorch.program import write_offsets as write_offsets
    from stowplan.backends.executorch.reorder import ReorderPass as ReorderPass

_PLACES = {
    "banks": ["BankedPlanningAlgorithm"],
    "planning": ["MemoryPlanningAlgorithm"],
    "program": ["Planned", "memory_planning_pass", "offset_table", "plan", "write_offsets"],
    "reorder": ["ReorderPass"],
}

__all__ = ["PlanningWarning", *chain.from_iterable(_PLACES.values())]

__getattr__ = lazy_names(__name__, _PLACES)
__dir__ = public_names(globals())
