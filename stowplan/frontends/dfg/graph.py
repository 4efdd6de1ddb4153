"""Data-flow graphs: how nodes and edges of a file become a graph of instructions, and their JSON format.

A JSON graph has ``nodes`` with ``id`` and ``op``, and ``edges`` with ``src``, ``dst`` and ``distance``. The distance is the
number of iterations between the production of a value and its use. The following keys are optional:

- ``variables`` of a node: names of variables in the memory of tiles (processing elements) that it reads
- ``value`` of a constant
- ``operand`` of an edge: its position among the operands of its target
- ``mult`` of an edge: the number of operands for which it stands
- ``fixed`` of the graph: instructions with a fixed tile, time or slot

Graphs of NetworkX (node-link data) and of Morpher have other names for the same keys, which :data:`NODE_NAMES` and
:data:`EDGE_NAMES` list. Notes for people (:data:`NOTES`) are ignored. Any other key is an error, because the schedule may
depend on it.

Operations are looked up in op tables (:mod:`stowplan.frontends.dfg.op_table`). An operation that is in no table becomes a
*generic* operation, of which only the name and the operands are known.
"""

from __future__ import annotations

import difflib
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from stowplan import files
from stowplan.errors import InputError, brief, naming
from stowplan.frontends.dfg.op_table import OpTable, Resolved, load_op_table
from stowplan.hardware.se.reference import OPERATIONS
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Variable, strong_components

#: A warning names at most so many unknown operations, the most frequent ones, and so many characters of each name.
_MOST_NAMES, _NAME = 12, 16


@dataclass(frozen=True)
class Dfg:
    """A loop body as a graph of instructions, independent of a machine.

    Instructions are named by ids in operands, and elsewhere by their numbers, which are their positions in ``instructions``.
    """

    name: str
    """Name of the graph, for people; may be empty."""
    instructions: tuple[Instruction, ...]
    """Instructions in the order of the file; their operands are the edges of the graph."""
    variables: tuple[Variable, ...] = ()
    """Variables in the memory of tiles that instructions read or write."""
    notes: tuple[str, ...] = ()
    """Remarks for people about parts of the file that could not be represented exactly."""
    results: frozenset[str] = frozenset()
    """Ids of instructions whose values are known to be results of the loop body, even if other instructions read them. An
    instruction that no other reads is a result in any case."""

    @cached_property
    def number(self) -> dict[str, int]:
        """The number of each instruction, by its id."""
        return {instruction.id: at for at, instruction in enumerate(self.instructions)}

    @cached_property
    def consumers(self) -> dict[int, list[int]]:
        """For each instruction whose value is read, the numbers of the instructions that read it, also in later iterations.

        Each reader is listed once.
        """
        readers: dict[int, dict[int, None]] = defaultdict(dict)
        for at, instruction in enumerate(self.instructions):
            for operand in instruction.operands:
                if operand.instruction is not None:
                    readers[self.number[operand.instruction]][at] = None
        return {source: list(targets) for source, targets in readers.items()}

    @cached_property
    def components(self) -> list[int]:
        """For each instruction, a label of its strongly connected component.

        Several instructions of one component form a recurrence: each of them depends on all others, perhaps through earlier
        iterations.
        """
        edges = [(source, target) for source, targets in self.consumers.items() for target in targets]
        return strong_components(len(self.instructions), edges)


@dataclass(frozen=True)
class Reading:
    """How the operations of a file are interpreted."""

    table: OpTable = field(default_factory=load_op_table)
    """The op tables in which operations are looked up."""
    strict: bool = False
    """Whether an operation that is in no table is an error rather than a generic operation."""


class Node(NamedTuple):
    """A node of a file."""

    id: str
    """Name of the node, which no other node may have."""
    op: str
    """The operation as the file names it."""
    variables: tuple[str, ...]
    """Names of variables in the memory of tiles that it reads, after its other operands."""
    place: str
    """Its position in the file, for error messages."""
    value: float | None = None
    """The value of a constant, if the file has it separately from the operation; otherwise None."""


class Arrow(NamedTuple):
    """An edge of a file."""

    source: str
    """Id of the node that produces the value."""
    target: str
    """Id of the node that reads it."""
    distance: int | None
    """The distance in iterations. None if the file has none; it is then 1 for an edge from a node to itself, otherwise 0."""
    operand: int | None
    """Position among the operands of the target; None for the order of the file."""
    place: str
    """Its position in the file, for error messages."""


def _unknown(op: str, table: OpTable) -> str:
    """The error message for an operation that is in no table, with advice."""
    known_names = {name.lower(): name for name in (*OPERATIONS, *table.names)}
    close = difflib.get_close_matches(op.lower()[:40], known_names, n=1)
    perhaps = f"perhaps {known_names[close[0]]}; " if close else ""
    return (
        f"found the unknown op {op!r}, expected {perhaps}one of {', '.join(OPERATIONS)}: rename it, say in an op table "
        "what it means, or leave out strict: the schedule depends on its operands only"
    )


def join(
    name: str, nodes: Iterable[Node], arrows: Iterable[Arrow], source: str | Path | None, reading: Reading | None = None
) -> Dfg:
    """Makes a graph from nodes and edges.

    Parameters
    ----------
    name
        Name of the graph.
    nodes, arrows
        The nodes and edges, in the order of the file.
    source
        Path of the file, for error messages.
    reading
        How operations are interpreted; by default with the op tables of this package, and not strictly.

    Raises
    ------
    InputError
        An id occurs twice, an edge names an id that no node has, two edges are for the same operand, or an operation is in no
        op table and ``reading`` is strict.
    """
    interpretation = reading or Reading()
    node_of: dict[str, Node] = {}
    ops: dict[str, Resolved] = {}
    unknown: Counter[str] = Counter()
    for node in nodes:
        if node.id in node_of:
            raise InputError(f"found the id {node.id!r} twice, expected every id once", source=source, place=node.place)
        resolved = interpretation.table.find(node.op)
        if resolved is None and interpretation.strict:
            raise InputError(_unknown(node.op, interpretation.table), source=source, place=node.place)
        if resolved is None:
            unknown[node.op] += 1
        node_of[node.id], ops[node.id] = node, resolved or interpretation.table.generic(node.op)
    incoming: dict[str, list[Arrow]] = defaultdict(list)
    for arrow in arrows:
        for end in (arrow.source, arrow.target):
            if end not in node_of:
                raise InputError(f"found the node {end!r}, expected the id of a node", source=source, place=arrow.place)
        incoming[arrow.target].append(arrow)
    instructions = []
    for node in node_of.values():
        order = sorted(incoming[node.id], key=lambda arrow: arrow.operand if arrow.operand is not None else len(node_of))
        # Some tools give the same operand number to a value of this iteration and one of an earlier one; both become operands.
        positions = [(arrow.operand, _is_carried(arrow)) for arrow in order if arrow.operand is not None]
        if len(positions) != len(set(positions)):
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
    names = dict.fromkeys(name for node in node_of.values() for name in node.variables)
    values = {key: ops[key].value if node.value is None else node.value for key, node in node_of.items()}
    return Dfg(
        name,
        _with_immediates(instructions, {key: value for key, value in values.items() if value is not None}),
        tuple(Variable(id=name) for name in names),
        _notes(unknown),
    )


def _is_carried(arrow: Arrow) -> bool:
    """Whether the value of an edge is from an earlier iteration. An edge without a distance has such a value only if it leads
    from a node to itself."""
    return arrow.source == arrow.target if arrow.distance is None else arrow.distance > 0


def _instruction(node: Node, resolved: Resolved, operands: tuple[Operand, ...]) -> Instruction:
    """The instruction of a node. Its ``source_op`` is the name of the operation in the file if this differs from ``op``."""
    return Instruction(
        id=node.id,
        op=resolved.op,
        source_op=None if node.op.lower() == resolved.op else node.op,
        operands=operands,
        latency=resolved.latency,
        tiles=resolved.tiles,
    )


def _with_immediates(instructions: list[Instruction], values: dict[str, float]) -> tuple[Instruction, ...]:
    """Replaces instructions that are constants by constant operands of their readers; returns the other instructions.

    ``values`` has the known values of constants, by the id of the instruction. Constants with unknown values, constants that no
    instruction reads, and constants with operands remain instructions.
    """
    read = {operand.instruction for instruction in instructions for operand in instruction.operands}
    immediates = {
        instruction.id: values[instruction.id]
        for instruction in instructions
        if instruction.op == "constant" and instruction.id in values and instruction.id in read and not instruction.operands
    }

    def replaced(operand: Operand) -> Operand:
        value = immediates.get(operand.instruction or "")
        return operand if value is None else Operand(constant=value)

    return tuple(
        msgspec.structs.replace(instruction, operands=tuple(map(replaced, instruction.operands))) if immediates else instruction
        for instruction in instructions
        if instruction.id not in immediates
    )


def _notes(unknown: Counter[str]) -> tuple[str, ...]:
    """A note about operations that are in no table, with the number of nodes of each; no note if there are none."""
    if not unknown:
        return ()
    total, most = unknown.total(), unknown.most_common(_MOST_NAMES)
    ops = ", ".join(f"{brief(name, _NAME)} ({count})" for name, count in most)
    ops += f" and {len(unknown) - len(most)} more ops" if len(unknown) > len(most) else ""
    what = "1 instruction has an op" if total == 1 else f"{total} instructions have ops"
    return (f"{what} that no op table knows, mapped as a generic operation: {ops}",)


#: Alternative names of keys of nodes, edges and graphs, in order of precedence. An alternative name that is also in
#: :data:`NOTES`, such as ``type``, is ignored if another name of the same key is there.
NODE_NAMES = {"opcode": "op", "operation": "op", "type": "op", "const_value": "value", "constVal": "value"}
EDGE_NAMES = {
    "source": "src",
    "from": "src",
    "target": "dst",
    "to": "dst",
    "dist": "distance",
    "iteration": "distance",
}
GRAPH_NAMES = {"links": "edges"}

_NOTES_TEXT = """
    name label title comment comments note notes description source license url version tool
    pos position x y z rank color colour fillcolor fontcolor fontname fontsize style shape width height"""
#: Keys that are ignored everywhere, because they are notes for people and other tools.
NOTES = frozenset(_NOTES_TEXT.split())
_NODE_NOTES = NOTES | {"type", "asap", "alap", "ASAP", "ALAP", "bb", "BB", "level"}
_EDGE_NOTES = (NOTES - {"source"}) | {"key", "id"}
_GRAPH_NOTES = NOTES | {"directed", "multigraph", "graph", "const_nodes_dropped", "back_edges_inferred"}


class _Node(msgspec.Struct, forbid_unknown_fields=True):
    """A node as JSON has it; the docstring of the module describes the keys."""

    id: int | str
    op: str
    variables: tuple[str, ...] = ()
    value: float | None = None


class _Edge(msgspec.Struct, forbid_unknown_fields=True):
    """An edge as JSON has it; the docstring of the module describes the keys."""

    src: int | str
    dst: int | str
    distance: int | None = None
    operand: int | None = None
    mult: int = 1


def read_json(path: str | Path, reading: Reading | None = None) -> Dfg:
    """Reads the graph of a JSON file.

    ``reading`` says how operations are interpreted; by default with the op tables of this package, and not strictly. Raises
    InputError, which names the file and the field, if the file cannot be read or as :func:`decode_json` does.
    """
    return decode_json(files.read_bytes(path), source=path, reading=reading)


def decode_json(data: bytes, source: str | Path | None = None, reading: Reading | None = None) -> Dfg:
    """Decodes a graph in JSON.

    Parameters
    ----------
    data
        The JSON text.
    source
        Path of the file for error messages and for the name of a graph without a name; None if there is no file.
    reading
        How operations are interpreted; by default with the op tables of this package, and not strictly.

    Raises
    ------
    InputError
        The text is no JSON object with nodes and edges, a key is unknown or has a value of a wrong type, a value is out of
        range, or the graph is not valid (:func:`join`); the message names the source and the field.
    """
    document: dict[str, Any] = files.decode_json(data, dict[str, Any], "a JSON graph", source)
    with naming(source):
        return _graph(document, source, reading or Reading())


def _graph(document: dict[str, Any], source: str | Path | None, reading: Reading) -> Dfg:
    """The graph of a JSON object; raises InputError as :func:`decode_json` says."""
    edges_key = next((key for key in ("edges", *GRAPH_NAMES) if key in document), "edges")
    fields = _renamed(document, "", GRAPH_NAMES, ("nodes", "edges", "name", "fixed"), _GRAPH_NOTES)
    if document.get("directed", True) is not True:
        raise InputError(
            f"found {document['directed']!r}, expected true: an undirected graph has no operands", place="directed"
        )
    for key, expected, names, allowed, notes in (
        ("nodes", _Node, NODE_NAMES, _Node.__struct_fields__, _NODE_NOTES),
        (edges_key, _Edge, EDGE_NAMES, _Edge.__struct_fields__, _EDGE_NOTES),
    ):
        parts = fields.get(GRAPH_NAMES.get(key, key))
        if not isinstance(parts, list):
            raise InputError(f"found {_kind(parts)}, expected a list", place=key)
        for at, part in enumerate(parts):
            place = f"{key}[{at}]"
            if not isinstance(part, dict):
                raise InputError(f"found {_kind(part)}, expected an object", place=place)
            try:
                parts[at] = msgspec.convert(_renamed(part, place, names, allowed, notes), expected)
            except msgspec.ValidationError as error:
                raise files.type_mismatch(error, expected, at=place) from error
    inner = document.get("graph")
    name = fields.get("name") or (inner.get("name") if isinstance(inner, dict) else None) or ""
    if not isinstance(name, str):
        raise InputError(f"found {_kind(name)}, expected a string", place="name")
    nodes: list[_Node] = fields["nodes"]
    edges: list[_Edge] = fields["edges"]
    for at, edge in enumerate(edges):
        place = f"{edges_key}[{at}]"
        if edge.distance is not None and edge.distance < 0:
            raise InputError(f"found distance {edge.distance}, expected 0 or more", place=place)
        if edge.operand is not None and edge.operand < 0:
            raise InputError(f"found operand {edge.operand}, expected 0 or more", place=place)
        if not 1 <= edge.mult <= 64:
            raise InputError(f"found mult {edge.mult}, expected 1 to 64", place=place)
    for at, node in enumerate(nodes):
        meant = reading.table.find(node.op)
        if node.value is not None and (meant is None or meant.op != "constant"):
            raise InputError(f"found a value of the op {node.op!r}, expected it of constants only", place=f"nodes[{at}].value")
    arrows = [
        Arrow(str(edge.src), str(edge.dst), edge.distance, edge.operand, f"{edges_key}[{at}]")
        for at, edge in enumerate(edges)
        for _ in range(edge.mult)
    ]
    return join(
        name or (Path(source).name.split(".")[0] if source is not None else ""),
        [Node(str(node.id), node.op, node.variables, f"nodes[{at}]", node.value) for at, node in enumerate(nodes)],
        arrows,
        source,
        reading,
    )


def _renamed(
    document: dict[str, Any], place: str, names: dict[str, str], allowed: tuple[str, ...], notes: frozenset[str]
) -> dict[str, Any]:
    """A JSON object whose alternative keys are replaced by those of this format, without notes.

    Raises
    ------
    InputError
        A key is unknown, or two names of one key have different values.
    """
    for key in document:
        if key not in allowed and key not in names and key not in notes:
            expected = ", ".join((*allowed, *(name for name in names if name not in notes)))
            raise InputError(
                f"found the key {key!r}, expected {expected}, or a note such as label or comment", place=place or None
            )
    renamed = {key: value for key, value in document.items() if key in allowed}
    source_key = {key: key for key in renamed}
    for key, ours in names.items():
        if key not in document:
            continue
        if ours not in renamed:
            renamed[ours], source_key[ours] = document[key], key
        elif renamed[ours] != document[key] and key not in notes:
            message = f"found {source_key[ours]} {renamed[ours]!r} and {key} {document[key]!r}, expected one of them"
            raise InputError(message, place=place or None)
    return renamed


def _kind(value: Any) -> str:
    """The JSON type of a value, for error messages."""
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "nothing"}
    return names.get(type(value), "a number")
