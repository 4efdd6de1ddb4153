"""Cost model ``signatures``: a latency table filled by compiling, and a learned prediction of what it lacks.

Each file knows only those before it:

- ``compiled``: the walk through regression trees, compiled
- ``table``: signatures of instructions, and the latency table
- ``predictor``: prediction of cycles for patterns that no compiled module had, with intervals
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
