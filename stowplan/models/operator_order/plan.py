"""The answer to an operator-order problem: an order of the operators, and an offset for every tensor. Data, no rules."""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.document import PlanDocument
from stowplan.models.decisions import Decision, Values
from stowplan.models.hint import longest_ascending
from stowplan.models.offset_table import OffsetRow, OffsetTable, make_table, part_of
from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.structure import build


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Order and offsets; :func:`stowplan.models.operator_order.verify.verify` says whether they are valid.

    The objective is the peak in bytes: the most that is live while an operator runs.
    """

    arena: int
    """Bytes of memory that the offsets need: the highest end of a tensor."""
    order: tuple[int, ...]
    """Numbers of the operators, first to last."""
    offsets: tuple[int, ...]
    """Bytes, one for each tensor in the problem's order; a view's is its base's."""
    name: str = ""
    """Name of the problem, for people; the digest decides."""
    target: str = ""
    """What other inputs are read for, so that they mean this kind: ``order``."""
    format: str = "stowplan.operator_order.plan"
    version: int = 1


def _operators(problem: Problem, first: Plan, second: Plan) -> tuple[dict[int, Values], dict[int, Values]]:
    """Positions of the operators that moved, as few as can be. Where one goes from the front to the back, everything
    behind it has another position, though the order of the others is the same."""
    kept = in_order(first.order, second.order)

    def positions(plan: Plan) -> dict[int, Values]:
        return {op: {} if op in kept else {"position": at} for at, op in enumerate(plan.order)}

    return positions(first), positions(second)


def _tensors(problem: Problem, plan: Plan) -> dict[int, Values]:
    return {at: {"offset": offset} for at, offset in enumerate(plan.offsets)}


def in_order(first: Sequence[int], second: Sequence[int]) -> set[int]:
    """As many operators as are in the same order in both, which have all of them; the same ones whichever is the first."""
    first, second = sorted((tuple(first), tuple(second)))
    position = {op: at for at, op in enumerate(second)}
    return {first[at] for at in longest_ascending([position[op] for op in first])}


DECISIONS = (
    Decision("operator", lambda problem, op: problem.ops[op].id, paired=_operators),
    Decision("tensor", lambda problem, at: problem.tensors[at].id, _tensors),
)


def offset_table(problem: Problem, plan: Plan) -> OffsetTable:
    """A row for each tensor that is ever live or returned, in the problem's order, with times as places in the plan's order.

    A view is a part of its base, as long as that lives. The plan is valid for the problem.
    """
    structure = build(problem)
    begins, ends = structure.lives(plan.order)
    lives = {
        int(tensor): (int(begin), int(end))
        for tensor, begin, end, is_there in zip(structure.tensor, begins, ends, structure.is_there, strict=True)
        if is_there
    }
    returned = {*problem.results}
    hosts = {
        number: OffsetRow(
            name=problem.tensors[number].id,
            offset=plan.offsets[number],
            size=problem.tensors[number].size,
            alignment=problem.tensors[number].alignment,
            start=life[0],
            end=life[1],
        )
        for number, life in lives.items()
    }
    rows = (
        hosts.get(number) or part_of(hosts.get(base), tensor.id, problem.base_offset[number], tensor.size)
        for number, (tensor, base) in enumerate(zip(problem.tensors, problem.base, strict=True))
        if base in lives or number in returned
    )
    results = (problem.tensors[number].id for number in problem.results)
    return make_table("operator_order", problem, plan, {"arena": None}, rows, results)
