"""Front end for HLO: the text of a compiled module, and the program it is."""

from stowplan.frontends.hlo.format import program_from_module, read_program
from stowplan.frontends.hlo.module import Alias, Computation, HloModule, Instruction
from stowplan.frontends.hlo.parse import parse_module, read_module
from stowplan.frontends.hlo.shape import ArrayShape, Shape, TupleShape, parse_shape

__all__ = [
    "Alias",
    "ArrayShape",
    "Computation",
    "HloModule",
    "Instruction",
    "Shape",
    "TupleShape",
    "parse_module",
    "parse_shape",
    "program_from_module",
    "read_module",
    "read_program",
]
