"""What a latency table needs to know of an instruction: its signature, and the arrays it reads and writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import msgspec

#: Stands for a leaf that is no use of its step: an empty array, a flag.
NO_USE = -1


class Leaf(msgspec.Struct, frozen=True):
    """One array among the operands and results of an instruction; tuples are taken apart."""

    use: int
    """Position in the step's list of uses, :data:`NO_USE` for an array that is none of them."""
    is_output: bool
    moved: int
    """Bytes that one run moves through it."""
    size: int
    """Bytes as stored."""
    element_bits: int
    dims: tuple[int, ...]
    """Extents, from the fastest-varying dimension on."""


class StepSignature(msgspec.Struct, frozen=True):
    """An instruction as a compiler's cost model sees it: what it computes on which shapes and layouts, without names.

    Two instructions with equal ``signature`` and equal memories of all leaves have equal cycles.
    """

    signature: str
    """Digest of opcode, shapes, layouts, attributes and fused computations, memory spaces left out: 16 hex digits."""
    opcode: str
    kind: str
    """Kind of a fusion (``kLoop``), empty for other opcodes."""
    flops: int
    elementwise: int
    inner: tuple[tuple[str, int], ...]
    """Opcodes in fused computations, each with how often it occurs."""
    leaves: tuple[Leaf, ...]
    """Operands first, then results; bit i of a pattern is set where leaf i is in fast memory."""
    weight: int = 1
    """How often the step runs."""

    def pattern(self, fast: Sequence[bool]) -> int:
        """Pattern of the leaves where ``fast[i]`` says whether the step's i-th use is served from fast memory."""
        return sum(1 << bit for bit, leaf in enumerate(self.leaves) if leaf.use != NO_USE and fast[leaf.use])

    def used_leaves(self) -> dict[int, int]:
        """For each use of the step, the pattern with exactly its leaves fast."""
        found: dict[int, int] = {}
        for bit, leaf in enumerate(self.leaves):
            if leaf.use != NO_USE:
                found[leaf.use] = found.get(leaf.use, 0) | 1 << bit
        return found


class StepPlacement(msgspec.Struct, frozen=True):
    """What a compiled module says of one step."""

    pattern: int
    """Bit i is set where leaf i of the step is in fast memory."""
    cycles: int | None = None
    """The compiler's estimate for one run, where it gives one."""


class Assignment(msgspec.Struct, frozen=True):
    """One compiled module: for each step that it has, which leaves are in fast memory, and the cycles."""

    steps: dict[str, StepPlacement]

    def cycles(self, signatures: Mapping[str, StepSignature]) -> int:
        """Cycles of all steps with an estimate, runs counted; copies and waits carry none."""
        return sum(
            signatures[name].weight * placement.cycles
            for name, placement in self.steps.items()
            if placement.cycles is not None and name in signatures
        )
