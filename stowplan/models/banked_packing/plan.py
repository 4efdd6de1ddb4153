"""The plan of a banked packing problem: a bank and an offset for every buffer.

A *bank* is one of several memories. This module defines the data; the verifier checks the rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.document import PlanDocument
from stowplan.models.banked_packing.problem import Bank, Buffer, Problem
from stowplan.models.decisions import Decision, Values
from stowplan.models.offset_table import OffsetRow, OffsetTable, make_table
from stowplan.models.packing.plan import with_parts


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A bank and an offset for every buffer.

    :func:`stowplan.models.banked_packing.verify.verify` says whether the plan is valid. The objective is the sum, over the
    buffers, of their size in bytes times the number of their uses times the cost of their bank.
    """

    banks: tuple[int, ...]
    """Number of the bank of each buffer, in the problem's order."""
    offsets: tuple[int, ...]
    """Offset in bytes of each buffer from the start of its bank."""
    buffers: tuple[Buffer, ...] = ()
    """A copy of the problem's buffers, for readers of the plan. The verifier uses the buffers of the problem."""
    memory: tuple[Bank, ...] = ()
    """A copy of the problem's banks, for the same readers."""
    name: str = ""
    """Name of the problem, for people. The field ``problem`` decides which problem the plan belongs to."""
    target: str = ""
    """Always empty, since the banks are part of the problem."""
    format: str = "stowplan.banked_packing.plan"
    version: int = 1


def plan_of(problem: Problem, banks: Sequence[int], offsets: Sequence[int]) -> Plan:
    """Build the plan with these banks and offsets in bytes, and compute its cost. ``banks`` are numbers of banks, one for each
    buffer. The plan is not checked."""
    cost = sum(problem.cost(number, bank) for number, bank in enumerate(banks))
    return Plan(problem=problem.digest, objective=cost, banks=tuple(banks), offsets=tuple(offsets))


def _buffers(problem: Problem, plan: Plan) -> dict[int, Values]:
    """The bank and the offset of each buffer, by its number, as a decision that can be compared."""
    places = zip(plan.banks, plan.offsets, strict=True)
    return {at: {"bank": problem.banks[bank].name, "offset": offset} for at, (bank, offset) in enumerate(places)}


#: The decisions that :mod:`stowplan.models.decisions` compares between two plans.
DECISIONS = (Decision("buffer", lambda problem, at: problem.buffers[at].id, _buffers),)


def offset_table(problem: Problem, plan: Plan) -> OffsetTable:
    """Returns the plan as a table with an arena for each bank and a row for each buffer. Rows of parts follow, that is, of
    tensors that lie inside a buffer (:attr:`Problem.parts`).

    The plan must be valid for the problem.
    """
    rows = [
        OffsetRow(
            name=buffer.id,
            offset=offset,
            size=problem.size_in(number, bank),
            alignment=problem.step(number, bank),
            start=buffer.lower,
            end=buffer.upper,
            arena=bank,
        )
        for number, (buffer, bank, offset) in enumerate(zip(problem.buffers, plan.banks, plan.offsets, strict=True))
    ]
    banks = {bank.name: bank.capacity for bank in problem.banks}
    return make_table("banked_packing", problem, plan, banks, with_parts(rows, problem.parts or ()), problem.results or ())
