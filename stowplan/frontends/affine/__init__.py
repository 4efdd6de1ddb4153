"""Front ends that make affine programs: a builder for Python, HLO modules before optimisation, ONNX graphs."""

from stowplan.frontends.affine.access import Index, Variable
from stowplan.frontends.affine.builder import Builder

__all__ = ["Builder", "Index", "Variable"]
