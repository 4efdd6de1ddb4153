"""Plans for TensorFlow Lite Micro: offsets, orders of operators, and what its runtime makes of them. Nothing here imports it.

:func:`plan_model` plans a model, :func:`plan_and_run` also runs it in the runtime where that is installed.
"""

from stowplan.backends.tflm.planning import Planned, Summary, plan_and_run, plan_model
from stowplan.backends.tflm.runtime import Run

__all__ = ["Planned", "Run", "Summary", "plan_and_run", "plan_model"]
