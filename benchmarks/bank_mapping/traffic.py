"""Bytes that statements of a program load and store, on chip and off, under a plan: what elimination saves."""

from __future__ import annotations

from dataclasses import dataclass
from math import prod

from stowplan.hardware.affine.program import Copy
from stowplan.hardware.inferentia.problem import MappedProgram
from stowplan.models.bank_mapping.plan import Plan


@dataclass(frozen=True)
class Traffic:
    """Bytes."""

    on_chip: int
    """Loaded and stored by statements in the scratchpad, and copied between its banks (read and written)."""
    off_chip: int
    """Moved to and from main memory."""


def traffic(mapped: MappedProgram, plan: Plan) -> Traffic:
    """Traffic of a program under a plan of its problem.

    An operator stores every output once and loads what it needs of every operand once; what is in main memory passes through
    the scratchpad, so that it counts on both sides.
    """
    problem = mapped.problem
    on_chip = off_chip = 0
    loaded: set[int] = set()
    stored: set[int] = set()
    for statement, operator in zip(mapped.program.statements, problem.operators, strict=True):
        for tensor, size in zip(operator.reads, operator.read_bytes, strict=True):
            on_chip += size
            if not plan.on_chip[tensor]:
                off_chip += size
            elif problem.tensors[tensor].is_input and tensor not in loaded:
                loaded.add(tensor)
                off_chip += problem.tensors[tensor].bytes
        for name in statement.outputs:
            # Of a tensor in parts, each loop nest stores its own.
            written = mapped.program.tensors[name]
            on_chip += prod(statement.extents) * written.item_bytes if isinstance(statement, Copy) else written.bytes
        for tensor in operator.writes:
            if tensor not in stored and (problem.tensors[tensor].is_output or not plan.on_chip[tensor]):
                stored.add(tensor)
                off_chip += problem.tensors[tensor].bytes
    copied = sum(problem.tensors[copy.tensor].layout_bytes(copy.layout) for copy in plan.copies)
    return Traffic(on_chip + 2 * copied, off_chip)
