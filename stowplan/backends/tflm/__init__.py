"""Back end for TensorFlow Lite Micro (TFLM): plans the offsets of tensors and the order of operators, and tests the plan.

TFLM (in short *the runtime*) places all activations in one array, the *arena*. Its *head* holds activations and the scratch
buffers of operators; its *tail* holds persistent data. A plan makes the head smaller. :func:`plan_model` plans a model.
:func:`plan_and_run` also runs it in TFLM if the runtime's Python package is installed; nothing here imports that package into
this process.

An *inference* is one run of a model. A *scratch buffer* is temporary memory that the kernel of an operator requests, and that
is live while the operator runs. A *preserved input* is one whose bytes nothing overwrites during an inference. An operator is
given by the index of its subgraph and its position there, and a tensor by its index among the tensors of all subgraphs.

A file imports only files that come before it in this list:

- ``kernels``: how close to an operand the result of a kernel may begin. ``overlap``: pairs of tensors that may share bytes
- ``scratch``: scratch buffers of operators. ``greedy``: a model of TFLM's own planner
- ``order``: orders of operators that need less memory
- ``write``: writes a plan into a model. ``inputs``: inputs on which models are run. ``check``: checks a planned model
- ``child``: a script that runs TFLM in a process of its own. ``runtime``: starts that script, and reads its measurements
- ``arena``: the buffers of one order, and where TFLM places them
- ``planning``: finds the plan of a model. ``recheck``: checks a plan in a JSON file against its model
"""

from stowplan.backends.tflm.planning import Planned, Summary, plan_and_run, plan_model
from stowplan.backends.tflm.runtime import Run

__all__ = ["Planned", "Run", "Summary", "plan_and_run", "plan_model"]
