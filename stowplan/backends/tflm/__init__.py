"""Plans for TensorFlow Lite Micro: offsets, orders of operators, and what its runtime makes of them. Nothing here imports it.

:func:`plan_model` plans a model, :func:`plan_and_run` also runs it in the runtime where that is installed. Each file knows only
those above it in this list:

- ``kernels``: how near to an operand a result may begin. ``overlap``: pairs of tensors that may share bytes
- ``scratch``: bytes that operators ask for while they run. ``greedy``: the runtime's own planner
- ``order``: orders of operators that need less memory
- ``write``: a plan as metadata of a model. ``inputs``: what models are run on. ``check``: a planned model, read back
- ``child``: a process that the runtime may end. ``runtime``: the runtime itself, where it is installed
- ``arena``: buffers of one order, and where the runtime puts them
- ``planning``: a model's plan, and what the runtime makes of it. ``recheck``: a plan that was written, against its model
"""

from stowplan.backends.tflm.planning import Planned, Summary, plan_and_run, plan_model
from stowplan.backends.tflm.runtime import Run

__all__ = ["Planned", "Run", "Summary", "plan_and_run", "plan_model"]
