"""Signatures of instructions, and the latency table: cycles of a signature for patterns of memories.

The *signature* of an instruction is a hash of its operation and of the shapes and layouts of its arrays, without names. The
*leaves* of an instruction are the arrays among its operands and results. A *pattern* is a number that says which leaves are in
fast memory: bit ``i`` is set if leaf ``i`` is. In a compiler's estimates, two instructions with the same signature and pattern
take the same number of cycles. Therefore, every compiled module adds entries to one table, and programs with equal instructions
share these entries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import msgspec

from stowplan import files
from stowplan.document import Document
from stowplan.errors import InputError

#: A leaf belongs to a *use*, a read or a write of one tensor by a step. This is the use of a leaf that is not among the uses of
#: its step, such as an empty array or a flag.
NO_USE = -1


class Leaf(msgspec.Struct, frozen=True):
    """One array among the operands and results of an instruction; a tuple has a leaf for each of its arrays."""

    use: int
    """Position in the step's list of uses; :data:`NO_USE` for an array that is not in the list."""
    is_output: bool
    """Whether it is a result; otherwise it is an operand."""
    moved: int
    """Bytes of it that one run of the instruction reads or writes."""
    size: int
    """Bytes as stored, including padding."""
    element_bits: int
    """Bits of an element; 0 if they are not known."""
    dims: tuple[int, ...]
    """Size of each dimension, beginning with the dimension that varies fastest in memory."""


class StepSignature(msgspec.Struct, frozen=True):
    """The properties of an instruction on which its cycles depend, besides the memories of its leaves."""

    signature: str
    """Hash, as 16 hex digits, of opcode, shapes, layouts without memory spaces, attributes and fused computations."""
    opcode: str
    """Opcode of the instruction, such as ``fusion``."""
    kind: str
    """Kind of a fusion, such as ``kLoop``; empty for other opcodes."""
    flops: int
    """Multiplications and additions of convolutions and matrix products."""
    elementwise: int
    """Number of elements that other operations compute."""
    inner: tuple[tuple[str, int], ...]
    """Opcodes in fused computations, each with its number of occurrences."""
    leaves: tuple[Leaf, ...]
    """Leaves of the operands, followed by those of the results."""
    weight: int = 1
    """Number of times that the step runs."""

    def pattern(self, fast: Sequence[bool]) -> int:
        """The pattern of the leaves if ``fast[i]`` says whether use ``i`` of the step is served from fast memory. Leaves
        without a use count as being in slow memory. Raises IndexError if ``fast`` lacks a use."""
        return sum(1 << bit for bit, leaf in enumerate(self.leaves) if leaf.use != NO_USE and fast[leaf.use])

    def used_leaves(self) -> dict[int, int]:
        """For each use of the step that has leaves, the pattern in which exactly these leaves are in fast memory."""
        patterns: dict[int, int] = {}
        for bit, leaf in enumerate(self.leaves):
            if leaf.use != NO_USE:
                patterns[leaf.use] = patterns.get(leaf.use, 0) | 1 << bit
        return patterns


class StepPlacement(msgspec.Struct, frozen=True):
    """Pattern and estimated cycles of one step in a compiled module."""

    pattern: int
    """The pattern: bit ``i`` is set if leaf ``i`` of the step is in fast memory."""
    cycles: int | None = None
    """The compiler's estimate for one run; None if there is none."""


class Assignment(msgspec.Struct, frozen=True):
    """The steps of one compiled module, with their patterns and estimated cycles."""

    steps: dict[str, StepPlacement]
    """Pattern and estimated cycles of each step, by its name."""

    def cycles(self, signatures: Mapping[str, StepSignature]) -> int:
        """The sum of the estimated cycles of all runs of all steps. Copies and waits are not included."""
        return sum(
            signatures[name].weight * placement.cycles
            for name, placement in self.steps.items()
            if placement.cycles is not None and name in signatures
        )


#: Files of tables that have instructions with more leaves, or entries with more cycles, than these limits are refused. No
#: instruction of a real program comes near them.
MAX_LEAVES = 4096
_MAX_CYCLES = 10**15


class _TableFile(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The file of a latency table. A pattern is a text with a character for each leaf: ``1`` for fast memory, otherwise
    ``0``."""

    signatures: dict[str, dict[str, int]]
    """For each signature, cycles by pattern."""
    compiles: int = 0
    """Number of compiled modules that have added entries."""
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
    """Cycles by signature and pattern; compiled modules add entries. ``len(table)`` is the number of entries, and
    ``signature in table`` says whether there is an entry for a signature.

    Attributes
    ----------
    compiles
        Number of compiled modules that have added entries.
    conflicts
        Number of times that an entry was added again with different cycles, which replaced the former ones. No conflicts have
        been observed with a single compiler, so they indicate that modules of different compilers or machines were mixed.
    """

    def __init__(self) -> None:
        self.compiles = 0
        self.conflicts = 0
        self._rows: dict[str, dict[int, int]] = {}
        """For each signature, cycles by pattern."""
        self._leaves: dict[str, int] = {}
        """For each signature, the number of leaves."""

    def __len__(self) -> int:
        return sum(map(len, self._rows.values()))

    def __contains__(self, signature: str) -> bool:
        return signature in self._rows

    def rows(self, signature: str) -> Mapping[int, int]:
        """The cycles of a signature by pattern; empty if it has no entries."""
        return self._rows.get(signature, {})

    def add(self, assignment: Assignment, signatures: Mapping[str, StepSignature]) -> int:
        """Adds the estimates of a compiled module; returns the number of new entries.

        Parameters
        ----------
        assignment
            The steps of the module, from :func:`stowplan.frontends.hlo.placed.read_assignment`.
        signatures
            Signatures of the program's steps by name.

        Raises
        ------
        InputError
            An entry with the same signature has another number of leaves.
        """
        before = len(self)
        for name, placement in assignment.steps.items():
            if placement.cycles is not None and name in signatures:
                step = signatures[name]
                self._set(step.signature, len(step.leaves), placement.pattern, placement.cycles)
        self.compiles += 1
        return len(self) - before

    def merge(self, other: LatencyTable) -> None:
        """Adds all entries of another table; cycles that differ replace those of this table. Raises InputError if a signature
        has another number of leaves there."""
        for signature, rows in other._rows.items():
            for pattern, cycles in rows.items():
                self._set(signature, other._leaves[signature], pattern, cycles)
        self.compiles += other.compiles
        self.conflicts += other.conflicts

    def only(self, signatures: Iterable[str]) -> LatencyTable:
        """A new table with only the entries of these signatures, for example those of one program. Signatures without entries
        are ignored."""
        table = LatencyTable()
        table.compiles, table.conflicts = self.compiles, self.conflicts
        for signature in sorted({*signatures} & self._rows.keys()):
            table._rows[signature] = dict(self._rows[signature])
            table._leaves[signature] = self._leaves[signature]
        return table

    def copy(self) -> LatencyTable:
        """A new table with the same entries."""
        table = LatencyTable()
        table.merge(self)
        return table

    def save(self, path: str | Path) -> None:
        """Writes the table to a JSON file, atomically; equal tables give equal bytes. Raises InputError if the file cannot be
        written."""
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
        """Reads a table from a JSON file, which may be compressed with gzip; raises :class:`~stowplan.errors.InputError` if it
        cannot be read or is no table."""
        return cls.decode(files.read_bytes(path), source=path)

    @classmethod
    def decode(cls, data: bytes, source: str | Path | None = None) -> LatencyTable:
        """Reads a table from the contents of a JSON file; raises :class:`~stowplan.errors.InputError` if they are no table."""
        stored = _TableFile.decode(data, source)
        table = cls()
        table.compiles = stored.compiles
        for signature, rows in stored.signatures.items():
            for pattern, cycles in rows.items():
                table._set(signature, len(pattern), int(pattern[::-1] or "0", 2), cycles)
        return table

    def _set(self, signature: str, leaves: int, pattern: int, cycles: int) -> None:
        """Adds an entry; raises InputError if the signature has entries with another number of leaves."""
        known = self._leaves.setdefault(signature, leaves)
        if known != leaves:
            raise InputError(f"found {leaves} leaves of signature {signature}, expected {known}", place="latency table")
        rows = self._rows.setdefault(signature, {})
        self.conflicts += rows.get(pattern, cycles) != cycles
        rows[pattern] = cycles
