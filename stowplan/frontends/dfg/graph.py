"""Data-flow graphs: how nodes and edges of a file become a graph of instructions, and their JSON format.

A JSON graph has ``nodes`` with ``id`` and ``op``, and ``edges`` with ``src``, ``dst`` and ``distance``. Optionally, a node
names ``variables`` in the memory of tiles, a constant has a ``value``, an edge has ``operand`` (its position among the
operands) and ``mult`` (how many operands it is), and the graph has ``fixed`` instructions. Graphs of NetworkX (node-link data)
and of Morpher have other names for the same, which :data:`NODE_NAMES` and :data:`EDGE_NAMES` list. Notes are ignored
(:data:`NOTES`). Any other key is an error, because the schedule may depend on it.
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

#: Maximum number of unknown operations that a warning names, the most frequent ones, and of characters of each name.
_MOST_NAMES, _NAME = 12, 16


@dataclass(frozen=True)
class Dfg:
    """A loop body as a graph of instructions, independent of a machine."""

    name: str
    instructions: tuple[Instruction, ...]
    variables: tuple[Variable, ...] = ()
    notes: tuple[str, ...] = ()
    """Remarks about what could not be read exactly as it is written."""

    @cached_property
    def number(self) -> dict[str, int]:
        """From the id of an instruction to its index."""
        return {instruction.id: at for at, instruction in enumerate(self.instructions)}

    @cached_property
    def consumers(self) -> dict[int, list[int]]:
        """From an instruction to the instructions that read its value, also in later iterations; each is listed once."""
        readers: dict[int, dict[int, None]] = defaultdict(dict)
        for at, instruction in enumerate(self.instructions):
            for operand in instruction.operands:
                if operand.instruction is not None:
                    readers[self.number[operand.instruction]][at] = None
        return {source: list(targets) for source, targets in readers.items()}

    @cached_property
    def components(self) -> list[int]:
        """[instructions] The strongly connected component of each instruction; those of one component form a recurrence."""
        edges = [(source, target) for source, targets in self.consumers.items() for target in targets]
        return strong_components(len(self.instructions), edges)


@dataclass(frozen=True)
class Reading:
    """How the operations of a file are interpreted."""

    table: OpTable = field(default_factory=load_op_table)
    strict: bool = False
    """Whether an operation that no table has is an error rather than a generic operation."""


class Node(NamedTuple):
    """A node of a file."""

    id: str
    op: str
    variables: tuple[str, ...]
    place: str
    """Its position in the file, for error messages."""
    value: float | None = None
    """The value of a constant, if the file has it separately from the operation."""


class Arrow(NamedTuple):
    """An edge of a file."""

    source: str
    target: str
    distance: int | None
    """The distance in iterations. None if the file has none; it is then 1 for an edge from a node to itself, otherwise 0."""
    operand: int | None
    """Position among the operands of the target; None for the order of the file."""
    place: str


def _unknown(op: str, table: OpTable) -> str:
    """Message for an unknown operation, with advice."""
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
    """Makes the graph of nodes and edges.

    Raises
    ------
    InputError
        An id is missing or occurs twice, an operand is not valid, or an operation is unknown and ``reading`` is strict.
    """
    way = reading or Reading()
    node_of: dict[str, Node] = {}
    ops: dict[str, Resolved] = {}
    unknown: Counter[str] = Counter()
    for node in nodes:
        if node.id in node_of:
            raise InputError(f"found the id {node.id!r} twice, expected every id once", source=source, place=node.place)
        resolved = way.table.find(node.op)
        if resolved is None and way.strict:
            raise InputError(_unknown(node.op, way.table), source=source, place=node.place)
        if resolved is None:
            unknown[node.op] += 1
        node_of[node.id], ops[node.id] = node, resolved or way.table.generic(node.op)
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
    """Whether the value is from an earlier iteration; without a distance, that is so for an edge from a node to itself."""
    return arrow.source == arrow.target if arrow.distance is None else arrow.distance > 0


def _instruction(node: Node, resolved: Resolved, operands: tuple[Operand, ...]) -> Instruction:
    return Instruction(
        id=node.id,
        op=resolved.op,
        source_op=None if node.op.lower() == resolved.op else node.op,
        operands=operands,
        latency=resolved.latency,
        tiles=resolved.tiles,
    )


def _with_immediates(instructions: list[Instruction], values: dict[str, float]) -> tuple[Instruction, ...]:
    """Replaces constants with a known value by operands of their readers.

    Constants without readers, and constants with operands, are kept.
    """
    read = {operand.instruction for instruction in instructions for operand in instruction.operands}
    gone = {
        instruction.id: values[instruction.id]
        for instruction in instructions
        if instruction.op == "constant" and instruction.id in values and instruction.id in read and not instruction.operands
    }

    def replaced(operand: Operand) -> Operand:
        value = gone.get(operand.instruction or "")
        return operand if value is None else Operand(constant=value)

    return tuple(
        msgspec.structs.replace(instruction, operands=tuple(map(replaced, instruction.operands))) if gone else instruction
        for instruction in instructions
        if instruction.id not in gone
    )


def _notes(unknown: Counter[str]) -> tuple[str, ...]:
    if not unknown:
        return ()
    total, most = unknown.total(), unknown.most_common(_MOST_NAMES)
    ops = ", ".join(f"{brief(name, _NAME)} ({count})" for name, count in most)
    ops += f" and {len(unknown) - len(most)} more ops" if len(unknown) > len(most) else ""
    what = "1 instruction has an op" if total == 1 else f"{total} instructions have ops"
    return (f"{what} that no op table knows, mapped as a generic operation: {ops}",)


#: Alternative names of keys of nodes, edges and graphs, in order of precedence: if there is an ``op``, ``type`` is a note.
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
    id: int | str
    op: str
    variables: tuple[str, ...] = ()
    value: float | None = None


class _Edge(msgspec.Struct, forbid_unknown_fields=True):
    src: int | str
    dst: int | str
    distance: int | None = None
    operand: int | None = None
    mult: int = 1


def read_json(path: str | Path, reading: Reading | None = None) -> Dfg:
    """Reads the graph of a JSON file; raises :class:`~stowplan.errors.InputError`, which names the file and the field."""
    return decode_json(files.read_bytes(path), source=path, reading=reading)


def decode_json(data: bytes, source: str | Path | None = None, reading: Reading | None = None) -> Dfg:
    """Decodes the graph in JSON; raises :class:`~stowplan.errors.InputError`, which names the source and the field."""
    document: dict[str, Any] = files.decode_json(data, dict[str, Any], "a JSON graph", source)
    with naming(source):
        return _graph(document, source, reading or Reading())


def _graph(document: dict[str, Any], source: str | Path | None, reading: Reading) -> Dfg:
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
    """An object with the names of keys in this format; raises InputError for an unknown key, or for two that contradict."""
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
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "nothing"}
    return names.get(type(value), "a number")
