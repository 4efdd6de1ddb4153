"""ExecuTorch: plans for the memory of exported models.

Importing it imports neither executorch nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stowplan.backends.executorch.banks import BankedPlanningAlgorithm as BankedPlanningAlgorithm
    from stowplan.backends.executorch.banks import banked_memory_planning_pass as banked_memory_planning_pass
    from stowplan.backends.executorch.banks import banked_planning_algorithm as banked_planning_algorithm
    from stowplan.backends.executorch.planning import MemoryPlanningAlgorithm as MemoryPlanningAlgorithm
    from stowplan.backends.executorch.planning import PlanningWarning as PlanningWarning
    from stowplan.backends.executorch.planning import memory_planning_algorithm as memory_planning_algorithm
    from stowplan.backends.executorch.planning import memory_planning_pass as memory_planning_pass
    from stowplan.backends.executorch.program import Planned as Planned
    from stowplan.backends.executorch.program import offset_table as offset_table
    from stowplan.backends.executorch.program import plan as plan
    from stowplan.backends.executorch.program import write_offsets as write_offsets
    from stowplan.backends.executorch.reorder import ReorderPass as ReorderPass
    from stowplan.backends.executorch.reorder import reorder_pass as reorder_pass

_LAZY = {
    "BankedPlanningAlgorithm": "banks",
    "banked_memory_planning_pass": "banks",
    "banked_planning_algorithm": "banks",
    "MemoryPlanningAlgorithm": "planning",
    "Planned": "end_to_end",
    "PlanningWarning": "planning",
    "ReorderPass": "reorder",
    "offset_table": "table",
    "plan": "end_to_end",
    "reorder_pass": "reorder",
    "write_offsets": "table",
    "memory_planning_algorithm": "planning",
    "memory_planning_pass": "planning",
}


__all__ = [*_LAZY]


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        import importlib

        return getattr(importlib.import_module(f"{__name__}.{_LAZY[name]}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
