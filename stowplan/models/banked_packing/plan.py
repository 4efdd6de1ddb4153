"""The answer to a banked packing problem: a bank and an offset for every buffer. Data, no rules."""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.document import PlanDocument
from stowplan.models.banked_packing.problem import Bank, Buffer, Problem
from stowplan.models.decisions import Decision, Values
from stowplan.models.offset_table import OffsetRow, OffsetTable, make_table
from stowplan.models.packing.plan import with_parts


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Banks and offsets; :func:`stowplan.models.banked_packing.verify.verify` says whether they are valid.

    The objective is bytes times uses times the cost of the bank, summed over the buffers.
    """

    banks: tuple[int, ...]
    """Number of the bank of each buffer, in the problem's order."""
    offsets: tuple[int, ...]
    """Bytes from the bottom of its bank."""
    buffers: tuple[Buffer, ...] = ()
    """The problem's buffers, for whoever applies or reads the plan; the problem decides."""
    memory: tuple[Bank, ...] = ()
    """The problem's banks, likewise."""
    name: str = ""
    """Name of the problem, for people; the digest decides."""
    target: str = ""
    """Always empty: the banks are the problem's."""
    format: str = "stowplan.banked_packing.plan"
    version: int = 1


def plan_of(problem: Problem, banks: Sequence[int], offsets: Sequence[int]) -> Plan:
    """A plan with its cost."""
    cost = sum(problem.cost(number, bank) for number, bank in enumerate(banks))
    return Plan(problem=problem.digest, objective=cost, banks=tuple(banks), offsets=tuple(offsets))


def _buffers(problem: Problem, plan: Plan) -> dict[int, Values]:
    places = zip(plan.banks, plan.offsets, strict=True)
    return {at: {"bank": problem.banks[bank].name, "offset": offset} for at, (bank, offset) in enumerate(places)}


DECISIONS = (Decision("buffer", lambda problem, at: problem.buffers[at].id, _buffers),)


def offset_table(problem: Problem, plan: Plan) -> OffsetTable:
    """A row for each buffer, then for each part, and an arena for each bank; the plan is valid for the problem."""
    rows = [
        OffsetRow(
            name=buffer.id,
            offset=offset,
            size=problem.taken(number, bank),
            alignment=problem.step(number, bank),
            start=buffer.lower,
            end=buffer.upper,
            arena=bank,
        )
        for number, (buffer, bank, offset) in enumerate(zip(problem.buffers, plan.banks, plan.offsets, strict=True))
    ]
    banks = {bank.name: bank.capacity for bank in problem.banks}
    return make_table("banked_packing", problem, plan, banks, with_parts(rows, problem.parts or ()), problem.results or ())
