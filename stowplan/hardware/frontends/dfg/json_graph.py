"""Data-flow graphs in JSON: ``nodes`` with ``id`` and ``op``, ``edges`` with ``src``, ``dst`` and ``distance``.

Beside these, a node may name tile-memory ``variables``, and an edge its ``operand`` (place among the operands) and ``mult``
(how many operands it is). Other fields are notes, and are passed over.
"""

from __future__ import annotations

from pathlib import Path

import msgspec

from stowplan import files
from stowplan.errors import InputError
from stowplan.hardware.frontends.dfg.graph import Arrow, Dfg, Node, join


class _Node(msgspec.Struct):
    id: int | str
    op: str
    variables: tuple[str, ...] = ()


class _Edge(msgspec.Struct):
    src: int | str
    dst: int | str
    distance: int | None = None
    operand: int | None = None
    mult: int = 1


class _Graph(msgspec.Struct):
    nodes: tuple[_Node, ...]
    edges: tuple[_Edge, ...]
    name: str = ""


def read_json(path: str | Path) -> Dfg:
    """Graph of a file; raises :class:`~stowplan.errors.InputError` naming file and place."""
    return decode_json(files.read_bytes(path), source=path)


def decode_json(data: bytes, source: str | Path | None = None) -> Dfg:
    """Graph of JSON bytes; raises :class:`~stowplan.errors.InputError` naming source and place."""
    try:
        graph = msgspec.json.decode(data, type=_Graph)
    except msgspec.ValidationError as error:
        message, _, path = str(error).partition(" - at `")
        raise InputError(message, source=source, place=path.rstrip("`").removeprefix("$.") or None) from error
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InputError(f"not a JSON graph: {error}", source=source) from error
    for at, edge in enumerate(graph.edges):
        place = f"edges[{at}]"
        if edge.distance is not None and edge.distance < 0:
            raise InputError(f"found distance {edge.distance}, expected 0 or more", source=source, place=place)
        if not 1 <= edge.mult <= 64:
            raise InputError(f"found mult {edge.mult}, expected 1 to 64", source=source, place=place)
    nodes = [Node(str(each.id), each.op, each.variables, f"nodes[{at}]") for at, each in enumerate(graph.nodes)]
    arrows = [
        Arrow(str(each.src), str(each.dst), each.distance, each.operand, f"edges[{at}]")
        for at, each in enumerate(graph.edges)
        for _ in range(each.mult)
    ]
    name = graph.name or (Path(source).name.split(".")[0] if source is not None else "")
    return join(name, nodes, arrows, source)
