"""Layer files: a network's layers and edges as JSON, in the format of docs/reference/networks.md.

Files of stowplan have the keys ``format`` and ``version``; files of other tools without them are read as well. Layers may be in
any order and have any integers as ids; they are sorted so that the inputs of a layer come before it.
"""

from __future__ import annotations

import heapq
from pathlib import Path
from typing import Any

import msgspec

from stowplan import files
from stowplan.checks import expect
from stowplan.errors import InputError, naming
from stowplan.hardware.network import Layer, Network, Operation

#: Values of the keys ``format`` and ``version``.
FORMAT = "stowplan.layers"
VERSION = 1

#: Operations that slide a window over a feature map.
_WINDOWED = frozenset(("conv", "maxpool", "avgpool"))

#: Fields that only the operations in :data:`_WINDOWED` use; they become 0 in layers of other operations.
_WINDOW_FIELDS = ("groups", "kernel_x", "kernel_y", "stride", "pad", "dilation")


class _Node(Operation, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A layer as it is in the file.

    The sizes in bytes of its weights, its input (``ifm``, input feature map) and its output (``ofm``) are optional. They follow
    from the numbers of elements, and are only checked.
    """

    id: int
    """Any number that no other layer has."""
    weight_bytes: int | None = None
    weight_bytes_int8: int | None = None
    weight_bytes_fp16: int | None = None
    ifm_bytes_int8: int | None = None
    ifm_bytes_fp16: int | None = None
    ofm_bytes_int8: int | None = None
    ofm_bytes_fp16: int | None = None


class _File(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A layer file."""

    nodes: tuple[_Node, ...]
    """The layers, in any order."""
    edges: tuple[tuple[int, int], ...]
    """Pairs ``[from, to]`` of ids of layers: the second layer reads the output of the first."""
    name: str = ""
    """Name of the network."""
    source: str = ""
    """A remark about the origin of the file."""
    mode: str = ""
    """A remark, which is ignored."""
    fx_ops: dict[str, int] = {}
    """A remark, which is ignored: the number of operators of each kind before they were merged into layers."""
    notes: tuple[str, ...] = ()
    """Remarks for people about parts of the model that were approximated."""
    format: str = FORMAT
    version: int = VERSION


def is_layer_file(data: bytes) -> bool:
    """Whether JSON is a layer file: its ``format`` is that of layer files, or it has no ``format`` but has ``nodes``."""
    declared = files.peek_format(data)
    if declared is not None:
        return declared == FORMAT
    try:
        return "nodes" in msgspec.json.decode(data, type=dict[str, msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        return False


def read_layers(path: str | Path) -> Network:
    """Reads the network of a layer file.

    Parameters
    ----------
    path
        Path of a plain or gzip file.

    Raises
    ------
    InputError
        The file cannot be read, or its contents are invalid (see :func:`decode_layers`); the message names the file and the
        field.
    """
    return decode_layers(files.read_bytes(path), source=path)


def decode_layers(data: bytes, source: str | Path | None = None) -> Network:
    """Decodes the network in the contents of a layer file.

    ``source`` is the path of the file for error messages, and for the name of a network without a name.

    Raises
    ------
    InputError
        The contents are not JSON, or have another format or version, wrong types, unknown fields or operations, negative or
        contradictory sizes, the same id or edge twice, edges to missing layers, or a cycle.
    """
    file = files.decode_json(data, _File, "a layer file", source)
    with naming(source):
        expect(file.format == FORMAT, "format", f"format {file.format!r}", f"{FORMAT!r}")
        expect(file.version == VERSION, "version", f"version {file.version!r}", f"{VERSION}")
        return _network(file, Path(source).name.split(".")[0] if source is not None else "network")


def _network(file: _File, fallback: str) -> Network:
    """The network of a file; its name is ``fallback`` if the file has none. Raises InputError as :func:`decode_layers` does."""
    number: dict[int, int] = {}
    for index, node in enumerate(file.nodes):
        _check_bytes(node, f"nodes[{index}] ({node.name})")
        expect(node.id not in number, f"nodes[{index}] ({node.name})", f"the id {node.id} twice", "every id once")
        number[node.id] = index
    inputs: list[list[int]] = [[] for _ in file.nodes]
    seen: set[tuple[int, int]] = set()
    for index, (start, end) in enumerate(file.edges):
        for name in (start, end):
            expect(name in number, f"edges[{index}]", f"an edge to or from {name}", "the id of a node")
        expect((start, end) not in seen, f"edges[{index}]", f"the edge {start} -> {end} twice", "every edge once")
        seen.add((start, end))
        inputs[number[end]].append(number[start])
    order = _order(file.nodes, inputs)
    place = {index: position for position, index in enumerate(order)}
    layers = tuple(_layer(file.nodes[index], tuple(sorted(place[source] for source in inputs[index]))) for index in order)
    return Network(name=file.name or fallback, layers=layers, notes=file.notes)


def _order(nodes: tuple[_Node, ...], inputs: list[list[int]]) -> list[int]:
    """Indices of the nodes, each after its inputs, otherwise in the order of the file; raises InputError for a cycle."""
    readers: list[list[int]] = [[] for _ in inputs]
    missing = [len(sources) for sources in inputs]
    for index, sources in enumerate(inputs):
        for source in sources:
            readers[source].append(index)
    ready = [index for index, count in enumerate(missing) if count == 0]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers[index]:
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, reader)
    if len(order) < len(inputs):
        cycle = _cycle(inputs, missing)
        names = " -> ".join(f"{nodes[index].id} ({nodes[index].name})" for index in cycle)
        raise InputError(f"found a cycle: {names}; expected edges that lead from earlier layers to later ones", place="edges")
    return order


def _cycle(inputs: list[list[int]], missing: list[int]) -> list[int]:
    """The nodes of a cycle in the direction of the edges; the first node is repeated at the end.

    ``missing`` has, for each node, the number of its inputs that could not be sorted. The nodes with a number above 0 contain a
    cycle.
    """
    at = next(index for index, count in enumerate(missing) if count)
    visited: dict[int, int] = {}
    path: list[int] = []
    while at not in visited:
        visited[at] = len(path)
        path.append(at)
        at = next(source for source in inputs[at] if missing[source])
    return [at, *reversed(path[visited[at] :])]


def _layer(node: _Node, inputs: tuple[int, ...]) -> Layer:
    """The layer of a node; ``inputs`` are the numbers of the layers that it reads."""
    values = _operation(node)
    return Layer(inputs=inputs, **values if node.op in _WINDOWED else values | dict.fromkeys(_WINDOW_FIELDS, 0))


def _operation(layer: Operation) -> dict[str, Any]:
    """The values of the fields that layers and nodes have in common."""
    return {name: getattr(layer, name) for name in Operation.__struct_fields__}


def _check_bytes(node: _Node, place: str) -> None:
    """Raises InputError if a size in bytes contradicts a number of elements."""
    for elements, name, width in (
        (node.weight_elements, "weight_bytes", 1),
        (node.weight_elements, "weight_bytes_int8", 1),
        (node.weight_elements, "weight_bytes_fp16", 2),
        (node.input_elements, "ifm_bytes_int8", 1),
        (node.input_elements, "ifm_bytes_fp16", 2),
        (node.output_elements, "ofm_bytes_int8", 1),
        (node.output_elements, "ofm_bytes_fp16", 2),
    ):
        declared = getattr(node, name)
        if declared is not None and declared != elements * width:
            message = f"found {name} {declared}, expected {elements * width} ({elements} elements of {width} bytes)"
            raise InputError(message, place=place)


def encode_layers(network: Network, source: str = "") -> bytes:
    """Encodes a network as the contents of a layer file; ``source`` is a remark about its origin. :func:`decode_layers` is the
    inverse."""
    nodes = tuple(_Node(id=number, **_operation(layer)) for number, layer in enumerate(network.layers))
    file = _File(name=network.name, source=source, nodes=nodes, edges=network.edges, notes=network.notes)
    # One line for each layer, and one line for all edges, are compact, and files can still be compared line by line.
    values = msgspec.to_builtins(file)
    lines = [b" " + msgspec.json.encode(_present(node)) for node in values.pop("nodes")]
    edges = values.pop("edges")
    head = b",\n".join(msgspec.json.encode(key) + b": " + msgspec.json.encode(value) for key, value in _head(values))
    return b"{\n" + head + b',\n"nodes": [\n' + b",\n".join(lines) + b'\n],\n"edges": ' + msgspec.json.encode(edges) + b"\n}\n"


def _head(values: dict[str, object]) -> list[tuple[str, object]]:
    """The fields before the layers that are not empty, in their order in the file."""
    order = ("format", "version", "name", "source", "notes")
    return [(key, values[key]) for key in order if values[key]]


def _present(node: dict[str, object]) -> dict[str, object]:
    """The fields of a node that are not null, with the id first."""
    return {key: value for key, value in {"id": node["id"], **node}.items() if value is not None}


def save_layers(network: Network, path: str | Path, source: str = "") -> None:
    """Writes a layer file; ``source`` is a remark about its origin. Raises InputError if the file cannot be written."""
    files.write_atomic(path, encode_layers(network, source))
