"""The answer to a packing problem: an offset for every buffer. Data, no rules."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterable, Sequence
from pathlib import Path

import msgspec

from stowplan import files
from stowplan.document import PlanDocument
from stowplan.errors import UsageError
from stowplan.models.decisions import Decision, Values
from stowplan.models.offset_table import OffsetRow, OffsetTable, make_table, part_of
from stowplan.models.packing.problem import Buffer, Part, Problem


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Offsets; :func:`stowplan.models.packing.verify.verify` says whether they are valid.

    The objective is the height in bytes: the highest end of a buffer.
    """

    offsets: tuple[int, ...]
    """Bytes, one for each buffer in the problem's order."""
    buffers: tuple[Buffer, ...] = ()
    """The problem's buffers, for whoever applies or reads the plan; the problem decides."""
    parts: tuple[Part, ...] | msgspec.UnsetType = msgspec.UNSET
    results: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """The problem's parts and results, for the same readers."""
    name: str = ""
    """Name of the problem, for people; the digest decides."""
    target: str = ""
    """Always empty: packing knows no targets."""
    format: str = "stowplan.packing.plan"
    version: int = 1

    def save(self, path: str | Path) -> None:
        """Write the plan: as CSV where the name ends in ``.csv``, else as JSON. The same plan gives the same bytes."""
        if Path(path).suffix.lower() != ".csv":
            files.write_atomic(path, files.encode(self))
            return
        if len(self.buffers) != len(self.offsets):
            raise UsageError("a plan without its buffers cannot be written as CSV: save it as JSON")
        files.write_atomic(path, _csv_rows(self).encode())


def _csv_rows(plan: Plan) -> str:
    """CSV of a plan that carries its buffers; only columns that some buffer needs."""
    aligned = any(buffer.alignment != 1 for buffer in plan.buffers)
    gaps = any(buffer.gaps for buffer in plan.buffers)
    overlaps = any(buffer.overlaps for buffer in plan.buffers)
    for operand in (overlap.operand for buffer in plan.buffers for overlap in buffer.overlaps or ()):
        if len(operand.split()) != 1:
            raise UsageError(f"the id {operand!r} has spaces, and overlaps in CSV stand between spaces: save it as JSON")
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    columns = ["id", "lower", "upper", "size", *["alignment"] * aligned, *["gaps"] * gaps, *["overlaps"] * overlaps, "offset"]
    writer.writerow(columns)
    for buffer, offset in zip(plan.buffers, plan.offsets, strict=True):
        row: list[object] = [buffer.id, buffer.lower, buffer.upper, buffer.size]
        if aligned:
            row.append(buffer.alignment)
        if gaps:
            row.append(" ".join(f"{start}-{end}" for start, end in buffer.gaps))
        if overlaps:
            texts = (f"{each.operand}:{'=' if each.distance is None else each.distance}" for each in buffer.overlaps or ())
            row.append(" ".join(texts))
        writer.writerow([*row, offset])
    return out.getvalue()


def _buffers(problem: Problem, plan: Plan) -> dict[int, Values]:
    return {at: {"offset": offset} for at, offset in enumerate(plan.offsets)}


DECISIONS = (Decision("buffer", lambda problem, at: problem.buffers[at].id, _buffers),)


def offset_table(problem: Problem, plan: Plan) -> OffsetTable:
    """A row for each buffer, then for each part, in the problem's order; the plan is valid for the problem."""
    rows = [
        OffsetRow(
            name=buffer.id,
            offset=offset,
            size=buffer.size,
            alignment=buffer.alignment,
            start=buffer.lower,
            end=buffer.upper,
        )
        for buffer, offset in zip(problem.buffers, plan.offsets, strict=True)
    ]
    return make_table(
        "packing", problem, plan, {"arena": problem.capacity}, with_parts(rows, problem.parts or ()), problem.results or ()
    )


def with_parts(rows: Sequence[OffsetRow], parts: Iterable[Part]) -> list[OffsetRow]:
    """The rows of buffers, then one of each part, inside its buffer's."""
    hosts = {row.name: row for row in rows}
    return [*rows, *(part_of(hosts.get(part.buffer or ""), part.id, part.offset, part.size) for part in parts)]
