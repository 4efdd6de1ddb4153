"""The plan of a packing problem: an offset for every buffer. This module defines the data; the verifier checks the rules."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from operator import add
from pathlib import Path

import msgspec

from stowplan import files
from stowplan.document import PlanDocument
from stowplan.errors import UsageError
from stowplan.models.decisions import Decision, Values
from stowplan.models.offset_table import OffsetRow, OffsetTable, make_table, part_of
from stowplan.models.packing.problem import Buffer, Part, Problem, csv_text


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An offset for every buffer. :func:`stowplan.models.packing.verify.verify` says whether the plan is valid.

    The objective is the height in bytes: the largest ``offset + size`` of a buffer. For a problem with reuse penalties, it is
    the sum of the penalties of all pairs of buffers that share bytes.
    """

    offsets: tuple[int, ...]
    """Offset in bytes of each buffer, in the order of ``problem.buffers``."""
    buffers: tuple[Buffer, ...] = ()
    """A copy of the problem's buffers, for readers of the plan. The verifier uses the buffers of the problem."""
    parts: tuple[Part, ...] | msgspec.UnsetType = msgspec.UNSET
    """A copy of the problem's parts, which are tensors of a model that lie inside a buffer, for the same readers."""
    results: tuple[str, ...] | msgspec.UnsetType = msgspec.UNSET
    """A copy of the problem's results, which are ids of the buffers and parts that a model returns, for the same readers."""
    name: str = ""
    """Name of the problem, for people. The field ``problem`` decides which problem the plan belongs to."""
    target: str = ""
    """Always empty, since packing problems have no hardware target."""
    format: str = "stowplan.packing.plan"
    version: int = 1

    def save(self, path: str | Path) -> None:
        """Write the plan to a file: as CSV if its name ends in ``.csv``, otherwise as JSON.

        Equal plans give files that are equal byte for byte.

        Raises
        ------
        UsageError
            The file is to be CSV, but the plan has no copy of the buffers, or CSV cannot represent an id that an overlap refers
            to.
        InputError
            The file cannot be written.
        """
        if Path(path).suffix.lower() != ".csv":
            files.write_atomic(path, files.encode(self))
            return
        if len(self.buffers) != len(self.offsets):
            raise UsageError("a plan without its buffers cannot be written as CSV: save it as JSON")
        files.write_atomic(path, csv_text(self.buffers, self.offsets).encode())


def height(problem: Problem, offsets: Sequence[int]) -> int:
    """The largest ``offset + size`` of a buffer in bytes; ``offsets`` are those of a plan, in bytes."""
    return max(map(add, offsets, problem.spans.size.tolist()), default=0)


def make_plan(problem: Problem, offsets: Iterable[int]) -> Plan:
    """Build the plan with these offsets in bytes, one for each buffer, and compute its objective. The plan is not checked."""
    places = tuple(offsets)
    if not problem.penalties:
        return Plan(problem=problem.digest, objective=height(problem, places), offsets=places)
    ends = tuple(map(add, places, problem.spans.size.tolist()))
    shared_costs = (
        cost
        for (one, other), cost in problem.penalty_of.items()
        if max(places[one], places[other]) < min(ends[one], ends[other])
    )
    return Plan(problem=problem.digest, objective=sum(shared_costs), offsets=places)


def _buffers(problem: Problem, plan: Plan) -> dict[int, Values]:
    """The offset of each buffer, by its number, as a decision that can be compared."""
    return {at: {"offset": offset} for at, offset in enumerate(plan.offsets)}


#: The decisions that :mod:`stowplan.models.decisions` compares between two plans.
DECISIONS = (Decision("buffer", lambda problem, at: problem.buffers[at].id, _buffers),)


def offset_table(problem: Problem, plan: Plan) -> OffsetTable:
    """The plan as a table: a row for each buffer, then one for each part, in the problem's order.

    The plan must be valid for the problem.
    """
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
    """Returns ``rows``, which are the rows of the buffers, followed by a row for each part with its position inside its buffer.
    A *part* is a tensor of a model that has no buffer of its own. A part that lies in no buffer gets a row that is in no
    arena."""
    row_of = {row.name: row for row in rows}
    return [*rows, *(part_of(row_of.get(part.buffer or ""), part.id, part.offset, part.size) for part in parts)]
