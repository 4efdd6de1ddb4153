"""Signatures of instructions, and the latency table: cycles of a signature for each pattern of memories that a module had.

A signature says what an instruction computes, on which arrays, without names. By a compiler's estimates the same instruction
with the same operands and results in fast memory always takes the same cycles. So every compiled module fills entries of one
table, and modules with equal instructions share them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from stowplan import files
from stowplan.document import Document
from stowplan.errors import InputError

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
        patterns: dict[int, int] = {}
        for bit, leaf in enumerate(self.leaves):
            if leaf.use != NO_USE:
                patterns[leaf.use] = patterns.get(leaf.use, 0) | 1 << bit
        return patterns


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


#: An instruction with more leaves than this has no entry.
MAX_LEAVES = 4096
_MAX_CYCLES = 10**15


class _TableFile(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """As stored: of each signature its patterns, one character a leaf (``1``: fast memory), with their cycles."""

    signatures: dict[str, dict[str, int]]
    compiles: int = 0
    format: str = "stowplan.latency_table"
    version: int = 1

    def __post_init__(self) -> None:
        for signature, rows in self.signatures.items():
            place = f"signatures.{signature[:40]}"
            if len({len(pattern) for pattern in rows}) > 1:
                raise InputError("found patterns of different lengths, expected one character a leaf", place=place)
            for pattern, cycles in rows.items():
                if len(pattern) > MAX_LEAVES or set(pattern) - {"0", "1"}:
                    raise InputError(f"found pattern {pattern[:40]!r}, expected zeros and ones", place=place)
                if not 0 <= cycles <= _MAX_CYCLES:
                    raise InputError(f"found {cycles} cycles, expected 0 to {_MAX_CYCLES}", place=place)


class LatencyTable:
    """Cycles by signature and pattern; grows with every compiled module that is added.

    Attributes
    ----------
    compiles
        Modules added so far.
    conflicts
        Entries that were added with other cycles than before; the last ones count. None was ever seen of one compiler, so
        they mean that modules of different compilers or machines were mixed.
    """

    def __init__(self) -> None:
        self.compiles = 0
        self.conflicts = 0
        self._rows: dict[str, dict[int, int]] = {}
        self._leaves: dict[str, int] = {}

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def __contains__(self, signature: str) -> bool:
        return signature in self._rows

    def rows(self, signature: str) -> Mapping[int, int]:
        """Cycles by pattern; empty for a signature without entries."""
        return self._rows.get(signature, {})

    def add(self, assignment: Assignment, signatures: Mapping[str, StepSignature]) -> int:
        """Take over what a compiled module says of its steps; returns the number of new entries.

        Parameters
        ----------
        assignment
            Of :func:`stowplan.frontends.hlo.placed.read_assignment`.
        signatures
            Of each of the program's steps, by name.
        """
        before = len(self)
        for name, placement in assignment.steps.items():
            if placement.cycles is not None and name in signatures:
                step = signatures[name]
                self._set(step.signature, len(step.leaves), placement.pattern, placement.cycles)
        self.compiles += 1
        return len(self) - before

    def merge(self, other: LatencyTable) -> None:
        """Take over all entries of another table."""
        for signature, rows in other._rows.items():
            for pattern, cycles in rows.items():
                self._set(signature, other._leaves[signature], pattern, cycles)
        self.compiles += other.compiles
        self.conflicts += other.conflicts

    def only(self, signatures: Iterable[str]) -> LatencyTable:
        """The entries of some signatures: what a program needs of a table of many."""
        table = LatencyTable()
        table.compiles, table.conflicts = self.compiles, self.conflicts
        for signature in sorted({*signatures} & self._rows.keys()):
            table._rows[signature] = dict(self._rows[signature])
            table._leaves[signature] = self._leaves[signature]
        return table

    def copy(self) -> LatencyTable:
        """A table of its own with the same entries."""
        table = LatencyTable()
        table.merge(self)
        return table

    def save(self, path: str | Path) -> None:
        """Write it as JSON, by way of a temporary file; equal tables give equal bytes."""
        rows = {
            signature: {
                format(pattern, f"0{self._leaves[signature]}b")[::-1] if self._leaves[signature] else "": cycles
                for pattern, cycles in sorted(rows.items())
            }
            for signature, rows in sorted(self._rows.items())
        }
        _TableFile(signatures=rows, compiles=self.compiles).save(path)

    @classmethod
    def load(cls, path: str | Path) -> LatencyTable:
        """Read a file, plain or gzip; raises :class:`~stowplan.errors.InputError` naming file and place."""
        return cls.decode(files.read_bytes(path), source=path)

    @classmethod
    def decode(cls, data: bytes, source: str | Path | None = None) -> LatencyTable:
        """Read JSON bytes; raises :class:`~stowplan.errors.InputError` naming source and place."""
        stored = _TableFile.decode(data, source)
        table = cls()
        table.compiles = stored.compiles
        for signature, rows in stored.signatures.items():
            for pattern, cycles in rows.items():
                table._set(signature, len(pattern), int(pattern[::-1] or "0", 2), cycles)
        return table

    def _set(self, signature: str, leaves: int, pattern: int, cycles: int) -> None:
        known = self._leaves.setdefault(signature, leaves)
        if known != leaves:
            raise InputError(f"found {leaves} leaves of signature {signature}, expected {known}", place="latency table")
        rows = self._rows.setdefault(signature, {})
        self.conflicts += rows.get(pattern, cycles) != cycles
        rows[pattern] = cycles
