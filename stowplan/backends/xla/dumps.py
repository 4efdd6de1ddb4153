"""The files that the compiler dumps during a compilation, and the four files of a result that are made from them.

XLA's *memory-space assignment* places values in fast memory. A *result* is the outcome of one compilation: a folder with these
files of HLO text, compressed with gzip. Functions that read or write files raise OSError if that fails.
"""

from __future__ import annotations

import gzip
import hashlib
import re
from pathlib import Path

#: Names of the files of a result.
PROGRAM = "program.hlo.txt.gz"
"""The scheduled module before memory-space assignment."""
ASSIGNED, OFFSETS = "assigned.hlo.txt.gz", "assigned.fastmem.txt.gz"
"""The module after memory-space assignment, and its allocations in fast memory."""
COMPILED = "compiled.hlo.txt.gz"
"""The module after code generation, with estimated cycles. Copies that move a value in several slices look like other copies
there."""

#: Compiler options that make the compiler dump its files.
DUMPED = ("xla_dump_to", "xla_dump_hlo_as_text")

#: Names of the dumps of the stages right before and after the assignment.
_BEFORE, _AFTER = "after_optimizations_before_buffer_assignment", "after_optimizations_after_buffer_assignment"

#: Parts of instructions that :func:`slim` removes.
_METADATA = re.compile(r',? metadata=\{(?:[^{}"]|"(?:[^"\\]|\\.)*"|\{[^{}]*\})*\}')
_ATTRIBUTES = re.compile(r', frontend_attributes=\{(?:[^{}"]|"(?:[^"\\]|\\.)*")*\}')
#: The beginning of an allocation in the text of a buffer assignment.
_ALLOCATION = re.compile(r"(?m)^(?=allocation \d+:)")
#: The line with the bytes of slow memory in the compiler's report of memory. XLA's *color* is the number of a memory; slow
#: memory has the color 0.
_HBM = re.compile(r"\(color=0\)\nTotal bytes: (\d+)")
#: An allocation in a memory of any other color, that is, in fast memory.
_FAST_ALLOCATION = re.compile(r"allocation \d+: size \d+, color [1-9]\d*,")


def write_assigned(dump: Path, folder: Path) -> None:
    """Write the files that exist after memory-space assignment: the program, the module after assignment, and its
    allocations.

    Parameters
    ----------
    dump
        Folder with the compiler's dumps.
    folder
        Folder of the result.

    Raises
    ------
    RuntimeError
        The compiler wrote no dump of a stage.
    """
    _write(folder / PROGRAM, slim(_dumped(dump, _BEFORE)))
    _write(folder / ASSIGNED, slim(_dumped(dump, "after_optimizations")))
    _write(folder / OFFSETS, fast_allocations(_dumped(dump, "after_optimizations-buffer-assignment")))


def hbm_bytes(dump: Path) -> int:
    """Returns the most bytes in slow memory (HBM), including arguments and results, by the compiler's report.

    It is 0 if there is no report in ``dump``, the folder with the compiler's dumps.
    """
    paths = sorted(dump.glob("*.after_optimizations-memory-usage-report.txt"), key=lambda path: path.stat().st_size)
    total = _HBM.search(paths[-1].read_text()) if paths else None
    return 0 if total is None else int(total[1])


def write_compiled(text: str, folder: Path) -> None:
    """Write the module after code generation, given as HLO text, into the folder of a result."""
    _write(folder / COMPILED, slim(text))


def is_assigned(dump: Path) -> bool:
    """Whether the memory-space assignment is done and dumped; ``dump`` is the folder with the compiler's dumps.

    The compiler dumps the next stage only after the files that :func:`write_assigned` reads. That dump must exist for the
    largest module, because the compiler also compiles small helper modules.
    """
    modules = sorted(dump.glob("*.before_optimizations.txt"), key=lambda path: path.stat().st_size)
    return bool(modules) and Path(str(modules[-1]).replace(".before_optimizations.", f".{_AFTER}.")).exists()


def assignment_digest(folder: str | Path) -> str:
    """Returns a hash of the module after memory-space assignment, in the folder of a result."""
    return hashlib.sha256(gzip.decompress((Path(folder) / ASSIGNED).read_bytes())).hexdigest()


def _dumped(folder: Path, stage: str) -> str:
    """Returns the text of the largest module of a stage; smaller ones are helpers that the compiler makes.

    Raises RuntimeError if there is no dump of the stage.
    """
    paths = sorted(folder.glob(f"*.{stage}.txt"), key=lambda path: path.stat().st_size)
    if not paths:
        raise RuntimeError(f"this libtpu wrote no dump '{stage}', from which the plan is read")
    return paths[-1].read_text()


def slim(text: str) -> str:
    """Returns HLO text without source locations, which make up half of it."""
    head, _, rest = text.partition("\n")
    start = re.search(r"(?m)^(?:%|ENTRY)", rest)
    return head + "\n" + _ATTRIBUTES.sub("", _METADATA.sub("", rest[start.start() :] if start else rest))


def fast_allocations(assignment: str) -> str:
    """Returns the allocations in fast memory, from the text of a buffer assignment."""
    blocks = _ALLOCATION.split(assignment.partition("\n\nHloLiveRange")[0])
    return "".join(block for block in blocks if _FAST_ALLOCATION.match(block))


def _write(path: Path, text: str) -> None:
    """Write a compressed text; equal texts give equal files."""
    path.write_bytes(gzip.compress(text.encode(), 6, mtime=0))
