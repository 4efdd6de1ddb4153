"""A data-flow graph between front end and problem, and how plain nodes and edges become one."""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

import msgspec

from stowplan.errors import InputError, brief
from stowplan.frontends.dfg.op_tables import OpTable, Resolved, load_op_table
from stowplan.hardware.se.reference import OPERATIONS
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Variable

#: Unknown ops that a warning names, the most frequent ones; and characters of each.
_MOST_NAMES, _NAME = 12, 16


@dataclass(frozen=True)
class Dfg:
    """A loop body, for no machine yet."""

    name: str
    instructions: tuple[Instruction, ...]
    variables: tuple[Variable, ...] = ()
    notes: tuple[str, ...] = ()
    """What could not be taken literally."""


@dataclass(frozen=True)
class Reading:
    """How the ops of a file are understood."""

    table: OpTable = field(default_factory=load_op_table)
    strict: bool = False
    """Whether an op that no table has is an error, not a generic operation."""


class Node(NamedTuple):
    """A node of a file."""

    id: str
    op: str
    variables: tuple[str, ...]
    place: str
    """Where it stands, for error messages."""
    value: float | None = None
    """Of a constant, where the file says it beside the op."""


class Arrow(NamedTuple):
    """An edge of a file."""

    source: str
    target: str
    distance: int | None
    """None where the file says nothing: 1 from a node to itself, otherwise 0."""
    operand: int | None
    """Place among the operands of the target; None for the order of the file."""
    place: str


def _unknown(op: str, table: OpTable) -> str:
    """What is wrong with an op, and how to go on."""
    known = {name.lower(): name for name in (*OPERATIONS, *table.names)}
    close = difflib.get_close_matches(op.lower()[:40], known, n=1)
    perhaps = f"perhaps {known[close[0]]}; " if close else ""
    return (
        f"found the unknown op {op!r}, expected {perhaps}one of {', '.join(OPERATIONS)}: rename it, say in an op table "
        "what it means, or leave out strict: the schedule depends on its operands only"
    )


def join(
    name: str, nodes: Iterable[Node], arrows: Iterable[Arrow], source: str | Path | None, reading: Reading | None = None
) -> Dfg:
    """Graph of nodes and edges.

    Raises
    ------
    InputError
        Ids that are missing or stand twice, bad operands, and where ``reading`` is strict, unknown ops.
    """
    way = reading or Reading()
    known: dict[str, Node] = {}
    ops: dict[str, Resolved] = {}
    unknown: Counter[str] = Counter()
    for node in nodes:
        if node.id in known:
            raise InputError(f"found the id {node.id!r} twice, expected every id once", source=source, place=node.place)
        found = way.table.find(node.op)
        if found is None and way.strict:
            raise InputError(_unknown(node.op, way.table), source=source, place=node.place)
        if found is None:
            unknown[node.op] += 1
        known[node.id], ops[node.id] = node, found or way.table.generic(node.op)
    incoming: dict[str, list[Arrow]] = defaultdict(list)
    for arrow in arrows:
        for end in (arrow.source, arrow.target):
            if end not in known:
                raise InputError(f"found the node {end!r}, expected the id of a node", source=source, place=arrow.place)
        incoming[arrow.target].append(arrow)
    instructions = []
    for node in known.values():
        order = sorted(incoming[node.id], key=lambda arrow: arrow.operand if arrow.operand is not None else len(known))
        # A value of this iteration and one of an earlier one may share an operand, as some tools have it: both are operands.
        taken = [(arrow.operand, _is_carried(arrow)) for arrow in order if arrow.operand is not None]
        if len(taken) != len(set(taken)):
            raise InputError(f"found two edges for one operand of {node.id!r}", source=source, place=order[0].place)
        operands = [
            Operand(
                instruction=arrow.source,
                distance=int(_is_carried(arrow)) if arrow.distance is None else arrow.distance,
            )
            for arrow in order
        ]
        operands += [Operand(variable=name) for name in node.variables]
        instructions.append(_instruction(node, ops[node.id], tuple(operands)))
    names = dict.fromkeys(name for node in known.values() for name in node.variables)
    values = {each: ops[each].value if node.value is None else node.value for each, node in known.items()}
    return Dfg(
        name,
        _with_immediates(instructions, {each: value for each, value in values.items() if value is not None}),
        tuple(Variable(id=name) for name in names),
        _notes(unknown),
    )


def _is_carried(arrow: Arrow) -> bool:
    """Whether the value is one of an earlier iteration; where the file says nothing, one from a node to itself is."""
    return arrow.source == arrow.target if arrow.distance is None else arrow.distance > 0


def _instruction(node: Node, known: Resolved, operands: tuple[Operand, ...]) -> Instruction:
    return Instruction(
        id=node.id,
        op=known.op,
        source_op=None if node.op.lower() == known.op else node.op,
        operands=operands,
        latency=known.latency,
        tiles=known.tiles,
    )


def _with_immediates(instructions: list[Instruction], values: dict[str, float]) -> tuple[Instruction, ...]:
    """Constants of a known value are operands of those that read them; what nothing reads, or what reads itself, stays."""
    read = {operand.instruction for each in instructions for operand in each.operands}
    gone = {
        each.id: values[each.id]
        for each in instructions
        if each.op == "constant" and each.id in values and each.id in read and not each.operands
    }

    def replaced(operand: Operand) -> Operand:
        value = gone.get(operand.instruction or "")
        return operand if value is None else Operand(constant=value)

    return tuple(
        msgspec.structs.replace(each, operands=tuple(map(replaced, each.operands))) if gone else each
        for each in instructions
        if each.id not in gone
    )


def _notes(unknown: Counter[str]) -> tuple[str, ...]:
    if not unknown:
        return ()
    total, most = unknown.total(), unknown.most_common(_MOST_NAMES)
    ops = ", ".join(f"{brief(name, _NAME)} ({count})" for name, count in most)
    ops += f" and {len(unknown) - len(most)} more ops" if len(unknown) > len(most) else ""
    what = "1 instruction has an op" if total == 1 else f"{total} instructions have ops"
    return (f"{what} that no op table knows, mapped as a generic operation: {ops}",)
