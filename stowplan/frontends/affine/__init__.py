"""Front ends that make affine programs: a builder for Python, HLO modules before optimisation, ONNX graphs."""

from stowplan.frontends.affine.builder import Builder, Index, Variable

__all__ = ["Builder", "Index", "Variable"]
