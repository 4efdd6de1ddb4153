"""torch.compile: training within a memory limit, and orders for Inductor.

Importing it does not import torch. Each file knows only those above it in this list:

- ``private``: names that torch keeps private. ``devices``: rates of devices
- ``preserved``: global states, as they were. ``measure``: live bytes while code runs
- ``costs``: what a node costs. ``seconds``: the same in time. ``reader``: a joint graph as a problem of rematerialization
- ``checkpoints``: regions that their user recomputes. ``offload``: values that go to the host and come back
- ``rooms``: what a graph may take beside others. ``timeline``: what a step takes beside graphs, moment by moment
- ``halves``: a plan as two graphs. ``stock``: torch's own plans. ``budget``: a knapsack solver for these
- ``planning``: the plan of one graph. ``partition``: what torch calls
- ``uses``: graphs as they are compiled, and uses of them. ``report``: what is said of steps
- ``fitting``: plans within what steps leave. ``scopes``: steps, and their limits
- ``entry``: what users call. ``inductor``: orders for Inductor
"""

from __future__ import annotations

from itertools import chain
from typing import TYPE_CHECKING

from stowplan.backends.fallback import MemoryLimitError, PlanningWarning, UnsupportedError
from stowplan.lazy import lazy_names, public_names

if TYPE_CHECKING:
    from stowplan.backends.search import OrderReport as OrderReport
    from stowplan.backends.torch.budget import Knapsack as Knapsack
    from stowplan.backends.torch.budget import knapsack as knapsack
    from stowplan.backends.torch.entry import TrainingMemory as TrainingMemory
    from stowplan.backends.torch.entry import backend as backend
    from stowplan.backends.torch.entry import memory_limit as memory_limit
    from stowplan.backends.torch.entry import partitioner as partitioner
    from stowplan.backends.torch.inductor import inductor_order as inductor_order
    from stowplan.backends.torch.measure import measure_peak as measure_peak
    from stowplan.backends.torch.measure import measure_peaks as measure_peaks
    from stowplan.backends.torch.planning import GraphReport as GraphReport
    from stowplan.backends.torch.report import StepsReport as StepsReport
    from stowplan.backends.torch.report import TrainingReport as TrainingReport

_PLACES = {
    "budget": ["Knapsack", "knapsack"],
    "entry": ["TrainingMemory", "backend", "memory_limit", "partitioner"],
    "inductor": ["OrderReport", "inductor_order"],
    "measure": ["measure_peak", "measure_peaks"],
    "planning": ["GraphReport"],
    "report": ["StepsReport", "TrainingReport"],
}

__all__ = ["MemoryLimitError", "PlanningWarning", "UnsupportedError", *chain.from_iterable(_PLACES.values())]

__getattr__ = lazy_names(__name__, _PLACES)
__dir__ = public_names(globals())
