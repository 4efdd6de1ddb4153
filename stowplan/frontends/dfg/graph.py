"""A data-flow graph between front end and problem, and how plain nodes and edges become one."""

from __future__ import annotations

import difflib
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

from stowplan.errors import InputError
from stowplan.hardware.se.operations import OPERATIONS, OTHER_NAMES, known_operation
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Variable


@dataclass(frozen=True)
class Dfg:
    """A loop body, for no machine yet."""

    name: str
    instructions: tuple[Instruction, ...]
    variables: tuple[Variable, ...] = ()


class Node(NamedTuple):
    """A node of a file."""

    id: str
    op: str
    variables: tuple[str, ...]
    place: str
    """Where it stands, for error messages."""


class Arrow(NamedTuple):
    """An edge of a file."""

    source: str
    target: str
    distance: int | None
    """None where the file says nothing: 1 from a node to itself, otherwise 0."""
    operand: int | None
    """Place among the operands of the target; None for the order of the file."""
    place: str


def _unknown(op: str) -> str:
    """What is wrong with an op, and how to go on."""
    known = {name.lower(): name for name in (*OPERATIONS, *OTHER_NAMES)}
    close = difflib.get_close_matches(op.lower()[:40], known, n=1)
    perhaps = f"perhaps {known[close[0]]}; " if close else ""
    return (
        f"found the unknown op {op!r}, expected {perhaps}one of {', '.join(OPERATIONS)}: "
        "rename it to one that takes as many operands, for the schedule depends on no more of it"
    )


def join(name: str, nodes: Iterable[Node], arrows: Iterable[Arrow], source: str | Path | None) -> Dfg:
    """Graph of nodes and edges; raises InputError for unknown ops, ids that are missing or stand twice, and bad operands."""
    known: dict[str, Node] = {}
    for node in nodes:
        if node.id in known:
            raise InputError(f"found the id {node.id!r} twice, expected every id once", source=source, place=node.place)
        if known_operation(node.op) is None:
            raise InputError(_unknown(node.op), source=source, place=node.place)
        known[node.id] = node
    incoming: dict[str, list[Arrow]] = defaultdict(list)
    for arrow in arrows:
        for end in (arrow.source, arrow.target):
            if end not in known:
                raise InputError(f"found the node {end!r}, expected the id of a node", source=source, place=arrow.place)
        incoming[arrow.target].append(arrow)
    instructions = []
    for node in known.values():
        order = sorted(incoming[node.id], key=lambda arrow: arrow.operand if arrow.operand is not None else len(known))
        taken = [arrow.operand for arrow in order if arrow.operand is not None]
        if len(taken) != len(set(taken)):
            raise InputError(f"found two edges for one operand of {node.id!r}", source=source, place=order[0].place)
        operands = [
            Operand(
                instruction=arrow.source,
                distance=int(arrow.source == arrow.target) if arrow.distance is None else arrow.distance,
            )
            for arrow in order
        ]
        operands += [Operand(variable=name) for name in node.variables]
        op = known_operation(node.op) or node.op
        instructions.append(Instruction(id=node.id, op=op, operands=tuple(operands)))
    names = dict.fromkeys(name for node in known.values() for name in node.variables)
    return Dfg(name, tuple(instructions), tuple(Variable(id=name) for name in names))
