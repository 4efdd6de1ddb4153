"""Back end for ``torch.compile``: training within a memory limit, and operator orders for Inductor.

AOTAutograd, a part of ``torch.compile``, traces the forward and the backward pass of a model into one *joint graph*, and asks a
*partitioner* to cut it in two. The partitioner decides which values the forward pass saves for the backward pass, and which are
computed again. The partitioner of this back end solves that as a problem of rematerialization with a limit in bytes. The *peak*
of a plan is the largest number of bytes of tensors that are live at once. *Tangents* are the gradients of the results, with
which the backward pass is called. The *border* is the moment between the two passes, and also the operator that stands for it
in the problem. A *use* of a graph is one forward pass, until the end of its backward pass.

Importing this package does not import torch. A file imports only files that come before it in this list:

- ``private``: names that torch keeps private. ``devices``: peak rates of devices
- ``global_state``: restores torch's global state after planning. ``measure``: counts live bytes while code runs
- ``costs``: cost of a node in floating-point operations. ``seconds``: cost of a node in time
- ``reader``: a joint graph as a problem of rematerialization
- ``checkpoints``: regions of ``torch.utils.checkpoint``. ``offload``: values that are sent to the host's memory and fetched
  again
- ``allowance``: how many bytes a graph may use in each phase of a training step. ``timeline``: how many bytes other tensors
  use in that phase
- ``halves``: writes a plan as a forward and a backward graph. ``stock``: plans of torch's own partitioner
- ``budget``: a knapsack solver for torch's own partitioner
- ``planning``: finds the plan of one graph. ``partition``: the partitioner that torch calls
- ``uses``: compiled graphs, and their calls that wait for a backward pass. ``report``: reports and errors about training steps
- ``fitting``: plans graphs again within the bytes that steps leave free. ``scopes``: training steps, whose limit is checked
- ``entry``: the functions and classes that users call. ``inductor``: operator orders for Inductor
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
