"""The answer to a problem of rematerialization: runs of operators and moves of values, first to last. Data, no rules."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import Literal

import msgspec

from stowplan.document import PlanDocument
from stowplan.models.decisions import Decision, Values
from stowplan.models.rematerialization.problem import Problem

Action = Literal["send", "wait", "fetch"]


class Move(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """A step between two runs that has to do with the host.

    ``send`` issues the copy of a value to the host. ``wait`` waits until it has ended: up to there the value needs its bytes on
    the device. ``fetch`` issues the copy of a value on the host into new bytes on the device; who reads it waits for its end.
    """

    action: Action
    tensor: int
    """Number of a tensor with bytes of its own."""
    before: int
    """Place in the sequence of the run that it comes right before; the number of runs behind the last."""


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Runs of operators; :func:`stowplan.models.rematerialization.verify.verify` says whether they are valid.

    The objective is the added cost: that of all runs, and of waiting for copies, less that of each operator once.
    """

    peak: int
    """Bytes: the most that are live, or live and reserved, while an operator runs."""
    sequence: tuple[int, ...]
    """Numbers of the operators in the order in which they run; one that runs again comes again."""
    moves: tuple[Move, ...] | msgspec.UnsetType = msgspec.UNSET
    """In their order, sorted by ``before``; unset where nothing is sent."""
    name: str = ""
    """Name of the problem, for people; the digest decides."""
    target: str = ""
    format: str = "stowplan.rematerialization.plan"
    version: int = 1

    def steps(self) -> Iterator[tuple[Literal["run"] | Action, int]]:
        """Runs, with numbers of operators, and moves, with numbers of tensors, in their order."""
        moves, at = self.moves or (), 0
        for number, op in enumerate(self.sequence):
            while at < len(moves) and moves[at].before <= number:
                yield moves[at].action, moves[at].tensor
                at += 1
            yield "run", op
        yield from ((move.action, move.tensor) for move in moves[at:])


def _runs(problem: Problem, plan: Plan) -> dict[int, Values]:
    return {op: {"runs": count} for op, count in Counter(plan.sequence).items()}


def _fetches(problem: Problem, plan: Plan) -> dict[int, Values]:
    counts = Counter(move.tensor for move in plan.moves or () if move.action == "fetch")
    return {tensor: {"fetches": count} for tensor, count in counts.items()}


DECISIONS = (
    Decision("operator", lambda problem, op: problem.ops[op].id, _runs),
    Decision("tensor", lambda problem, tensor: problem.tensors[tensor].id, _fetches),
)
