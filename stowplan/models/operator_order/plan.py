"""The plan of an operator-order problem: an order of the operators, and an offset for every tensor.

The *peak* is the largest number of bytes that are live while an operator runs. The *base* of a view is the tensor whose bytes
it shares. The verifier (:mod:`stowplan.models.operator_order.verify`) checks the rules.
"""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.document import PlanDocument
from stowplan.models.decisions import Decision, Values
from stowplan.models.hint import longest_ascending
from stowplan.models.offset_table import OffsetRow, OffsetTable, make_table, part_of
from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.structure import build


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An order of the operators and an offset for every tensor.

    :func:`stowplan.models.operator_order.verify.verify` says whether the plan is valid. The objective is the peak in bytes: the
    largest number of bytes that are live while an operator runs.
    """

    arena: int
    """Size of the arena in bytes that the offsets need: the largest end of a tensor."""
    order: tuple[int, ...]
    """Numbers of the operators in the order in which they run."""
    offsets: tuple[int, ...]
    """Offset in bytes of each tensor, in the order of ``problem.tensors``; a view has the offset of its base."""
    name: str = ""
    """Name of the problem, for people. The field ``problem`` decides which problem the plan belongs to."""
    target: str = ""
    """Target for which the problem was made, for people: ``order``, as in ``--target order``."""
    format: str = "stowplan.operator_order.plan"
    version: int = 1


def _operators(problem: Problem, first: Plan, second: Plan) -> tuple[dict[int, Values], dict[int, Values]]:
    """The decisions of two plans about each operator, in a form that can be compared: the position of each moved operator.

    As few operators as possible count as moved, and all others have no value. If one operator moves from the front to the back,
    the positions of all others change, too, but their relative order does not. In this case, only that operator has a position.
    """
    unmoved = in_order(first.order, second.order)

    def positions(plan: Plan) -> dict[int, Values]:
        return {op: {} if op in unmoved else {"position": at} for at, op in enumerate(plan.order)}

    return positions(first), positions(second)


def _tensors(problem: Problem, plan: Plan) -> dict[int, Values]:
    """The offset of each tensor, by its number, as a decision that can be compared."""
    return {at: {"offset": offset} for at, offset in enumerate(plan.offsets)}


def in_order(first: Sequence[int], second: Sequence[int]) -> set[int]:
    """A largest set of operators that have the same relative order in both sequences.

    Both sequences must contain the same operators. The result is the same if the two sequences are exchanged.
    """
    first, second = sorted((tuple(first), tuple(second)))
    position = {op: at for at, op in enumerate(second)}
    return {first[at] for at in longest_ascending([position[op] for op in first])}


#: The sorts of decisions by which two plans are compared (:mod:`stowplan.models.decisions`).
DECISIONS = (
    Decision("operator", lambda problem, op: problem.ops[op].id, paired=_operators),
    Decision("tensor", lambda problem, at: problem.tensors[at].id, _tensors),
)


def offset_table(problem: Problem, plan: Plan) -> OffsetTable:
    """The plan as a table with a row for each tensor that is ever live or that the program returns, in the problem's order.

    Times are positions in the plan's order of operators. A view has the live range of its base. The plan must be valid for the
    problem.
    """
    structure = build(problem)
    begins, ends = structure.lives(plan.order)
    lives = {
        int(tensor): (int(begin), int(end))
        for tensor, begin, end, is_there in zip(structure.tensor, begins, ends, structure.is_there, strict=True)
        if is_there
    }
    returned = {*problem.results}
    row_of = {
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
        row_of.get(number) or part_of(row_of.get(base), tensor.id, problem.base_offset[number], tensor.size)
        for number, (tensor, base) in enumerate(zip(problem.tensors, problem.base, strict=True))
        if base in lives or number in returned
    )
    results = (problem.tensors[number].id for number in problem.results)
    return make_table("operator_order", problem, plan, {"arena": None}, rows, results)
