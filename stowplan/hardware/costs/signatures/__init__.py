"""Cost model ``signatures``: a latency table filled by compiling, and a learned prediction of what it lacks."""

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
