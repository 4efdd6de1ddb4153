"""Data-flow graphs in JSON: ``nodes`` with ``id`` and ``op``, ``edges`` with ``src``, ``dst`` and ``distance``.

Beside these, a node may name tile-memory ``variables``, a constant its ``value``, an edge its ``operand`` (place among the
operands) and ``mult`` (how many operands it is), and the graph ``fixed`` instructions. Graphs of NetworkX (node-link data) and
of Morpher have other names for the same, :data:`NODE_NAMES` and :data:`EDGE_NAMES`. Notes are passed over, :data:`NOTES`; any
other key is an error, for it may say something that the schedule depends on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from stowplan import files
from stowplan.errors import InputError, naming
from stowplan.frontends.dfg.graph import Arrow, Dfg, Node, Reading, join

#: Other names of what a node, an edge and a graph say, the first ones first: where there is an op, ``type`` is a note.
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
#: Keys that are notes for people and other tools, wherever they stand: nothing depends on them.
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
    """Graph of a file; raises :class:`~stowplan.errors.InputError` naming file and place."""
    return decode_json(files.read_bytes(path), source=path, reading=reading)


def decode_json(data: bytes, source: str | Path | None = None, reading: Reading | None = None) -> Dfg:
    """Graph of JSON bytes; raises :class:`~stowplan.errors.InputError` naming source and place."""
    given: dict[str, Any] = files.decode_json(data, dict[str, Any], "a JSON graph", source)
    with naming(source):
        return _graph(given, source, reading or Reading())


def _graph(given: dict[str, Any], source: str | Path | None, reading: Reading) -> Dfg:
    edges_key = next((key for key in ("edges", *GRAPH_NAMES) if key in given), "edges")
    whole = _renamed(given, "", GRAPH_NAMES, ("nodes", "edges", "name", "fixed"), _GRAPH_NOTES)
    if given.get("directed", True) is not True:
        raise InputError(f"found {given['directed']!r}, expected true: an undirected graph has no operands", place="directed")
    for key, expected, names, known, notes in (
        ("nodes", _Node, NODE_NAMES, _Node.__struct_fields__, _NODE_NOTES),
        (edges_key, _Edge, EDGE_NAMES, _Edge.__struct_fields__, _EDGE_NOTES),
    ):
        parts = whole.get(GRAPH_NAMES.get(key, key))
        if not isinstance(parts, list):
            raise InputError(f"found {_kind(parts)}, expected a list", place=key)
        for at, part in enumerate(parts):
            place = f"{key}[{at}]"
            if not isinstance(part, dict):
                raise InputError(f"found {_kind(part)}, expected an object", place=place)
            try:
                parts[at] = msgspec.convert(_renamed(part, place, names, known, notes), expected)
            except msgspec.ValidationError as error:
                raise files.misfit(error, expected, at=place) from error
    inner = given.get("graph")
    name = whole.get("name") or (inner.get("name") if isinstance(inner, dict) else None) or ""
    if not isinstance(name, str):
        raise InputError(f"found {_kind(name)}, expected a string", place="name")
    nodes: list[_Node] = whole["nodes"]
    edges: list[_Edge] = whole["edges"]
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
        Arrow(str(each.src), str(each.dst), each.distance, each.operand, f"{edges_key}[{at}]")
        for at, each in enumerate(edges)
        for _ in range(each.mult)
    ]
    return join(
        name or (Path(source).name.split(".")[0] if source is not None else ""),
        [Node(str(each.id), each.op, each.variables, f"nodes[{at}]", each.value) for at, each in enumerate(nodes)],
        arrows,
        source,
        reading,
    )


def _renamed(
    given: dict[str, Any], place: str, names: dict[str, str], known: tuple[str, ...], notes: frozenset[str]
) -> dict[str, Any]:
    """What an object says, under our names; raises InputError for a key that is unknown, or two that contradict each other."""
    for key in given:
        if key not in known and key not in names and key not in notes:
            expected = ", ".join((*known, *(each for each in names if each not in notes)))
            raise InputError(
                f"found the key {key!r}, expected {expected}, or a note such as label or comment", place=place or None
            )
    found = {key: value for key, value in given.items() if key in known}
    said = {key: key for key in found}
    for key, ours in names.items():
        if key not in given:
            continue
        if ours not in found:
            found[ours], said[ours] = given[key], key
        elif found[ours] != given[key] and key not in notes:
            message = f"found {said[ours]} {found[ours]!r} and {key} {given[key]!r}, expected one of them"
            raise InputError(message, place=place or None)
    return found


def _kind(value: Any) -> str:
    names = {dict: "an object", list: "a list", str: "a string", bool: "a boolean", type(None): "nothing"}
    return names.get(type(value), "a number")
