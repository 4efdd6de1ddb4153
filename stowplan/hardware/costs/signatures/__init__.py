"""Cost model ``signatures``: a table of latencies from compiled modules, and a learned prediction for entries that it lacks.

The *signature* of an instruction is a hash of everything that its time depends on besides memory. A *pattern* says which of its
arrays are in fast memory. Each module imports only modules that are listed before it:

- ``compiled``: evaluation of regression trees, compiled with numba
- ``table``: signatures of instructions, and the latency table
- ``predictor``: predicted cycles, with intervals, for patterns of memories that no compiled module had
- ``costs``: the cost model ``signatures``
"""

from stowplan.hardware.costs.signatures.costs import SignatureCosts, StepCosts
from stowplan.hardware.costs.signatures.predictor import Prediction, Predictor, shipped
from stowplan.hardware.costs.signatures.table import NO_USE, Assignment, LatencyTable, Leaf, StepPlacement, StepSignature

__all__ = [
    "NO_USE",
    "Assignment",
    "LatencyTable",
    "Leaf",
    "Prediction",
    "Predictor",
    "SignatureCosts",
    "StepCosts",
    "StepPlacement",
    "StepSignature",
    "shipped",
]
