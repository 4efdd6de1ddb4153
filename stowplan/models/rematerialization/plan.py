"""The plan of a rematerialization problem: runs of operators, and copies to and from the host, in their order.

The *host* is a second memory, such as the RAM of a GPU's computer. This module defines the data; the verifier checks the rules.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

import msgspec

from stowplan.document import PlanDocument
from stowplan.models.decisions import Decision, Values
from stowplan.models.rematerialization.problem import Problem

#: The values of :attr:`Move.action`.
Action = Literal["send", "wait", "fetch"]


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A step between two runs that concerns the host.

    ``send`` issues a copy of a value to the host. ``wait`` waits until that copy has ended; until then the value needs its
    bytes on the device. ``fetch`` issues a copy from the host into new bytes on the device; operators that read the value wait
    until that copy has ended.
    """

    action: Action
    """``send``, ``wait`` or ``fetch``."""
    tensor: int
    """Number of the tensor, which is not a view: its bytes are its own, not those of another tensor."""
    before: int
    """The move comes right before the run with this index in the sequence, or after all runs if this is the length of the
    sequence."""


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A sequence of runs of operators, in which an operator may run several times.

    :func:`stowplan.models.rematerialization.verify.verify` says whether the plan is valid. The objective is the added cost: the
    cost of all runs and of waiting for copies, minus the cost of running each operator once.
    """

    peak: int
    """The largest number of bytes that a step needs: its live bytes plus the largest of the reservations in force. A
    :class:`~stowplan.models.rematerialization.problem.Reservation` is memory that something outside the graph occupies."""
    sequence: tuple[int, ...]
    """Numbers of the operators in the order in which they run; an operator that runs twice occurs twice."""
    moves: tuple[Move, ...] | msgspec.UnsetType = msgspec.UNSET
    """The moves in their order, which is ascending in ``before``; unset if nothing is sent to the host."""
    name: str = ""
    """Name of the problem, for display only. The inherited field ``problem`` identifies the problem by its digest."""
    target: str = ""
    """Always empty in plans that stowplan makes, since rematerialization problems have no hardware target."""
    format: str = "stowplan.rematerialization.plan"
    version: int = 1

    def steps(self) -> Iterator[tuple[Literal["run"] | Action, int]]:
        """All steps in their order, each as (``run``, number of the operator) or (action of a move, number of the tensor)."""
        moves, at = self.moves or (), 0
        for number, op in enumerate(self.sequence):
            while at < len(moves) and moves[at].before <= number:
                yield moves[at].action, moves[at].tensor
                at += 1
            yield "run", op
        yield from ((move.action, move.tensor) for move in moves[at:])


def _runs(problem: Problem, plan: Plan) -> dict[int, Values]:
    """The number of runs of each operator, by its number, as a decision that can be compared."""
    return {op: {"runs": count} for op, count in Counter(plan.sequence).items()}


def _fetches(problem: Problem, plan: Plan) -> dict[int, Values]:
    """The number of fetches of each tensor from the host, by its number, as a decision that can be compared."""
    counts = Counter(move.tensor for move in plan.moves or () if move.action == "fetch")
    return {tensor: {"fetches": count} for tensor, count in counts.items()}


#: The sorts of decisions that a comparison of two plans lists (:mod:`stowplan.models.decisions`).
DECISIONS = (
    Decision("operator", lambda problem, op: problem.ops[op].id, _runs),
    Decision("tensor", lambda problem, tensor: problem.tensors[tensor].id, _fetches),
)
