"""Promises of readers about their graphs beyond the rules of :mod:`stowplan.graph.rules`, as an executable specification.

Only tests run it, on every file that they have. Lowerings may rely on each of these promises.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from stowplan.graph.graph import Graph

_DIGITS = re.compile("[0-9]+")
#: Bits of types whose names contain no number, in lower case.
_BITS = {"float": 32, "double": 64, "bool": 8, "pred": 8, "half": 16}


def faults(graph: Graph) -> Iterator[str]:
    """Yields a sentence for each promise that a graph breaks."""
    yield from _tensors(graph)
    yield from _order(graph)
    yield from _results(graph)


def _tensors(graph: Graph) -> Iterator[str]:
    """Sizes fit shapes, shapes are fixed, and every tensor is an input or is touched by an operator."""
    for tensor in graph.tensors:
        bits = bits_of(tensor.dtype)
        if tensor.shape is not None and bits is not None and tensor.size:
            least = -(-math.prod(tensor.shape) * bits // 8)
            # A storage may be larger than this tensor's elements, because layouts pad and other views use more of it. A view
            # may use some bytes several times.
            if tensor.size < least and tensor.alias_of is None:
                yield f"{tensor.id} has {tensor.size} bytes, but {list(tensor.shape)} of {tensor.dtype} take {least}"
        if tensor.shape is not None and any(extent < 0 for extent in tensor.shape):
            yield f"{tensor.id} has the shape {list(tensor.shape)}, which is not fixed"
    written = {number for op in graph.ops for number in op.writes}
    available = {*graph.inputs, *written}
    read_or_output = {number for op in graph.ops for number in op.reads} | {*graph.outputs}
    unused = set(range(len(graph.tensors))) - read_or_output - available - {*graph.results}
    for number in sorted(unused):
        if graph.tensors[number].alias_of is None:
            yield f"{graph.tensors[number].id} is no input, and no operator touches it"


def _order(graph: Graph) -> Iterator[str]:
    """The operators are listed in an order in which they can run."""
    for number, before in enumerate(graph.predecessors):
        late = [graph.ops[other].id for other in before if other > number]
        if late:
            yield f"operator {graph.ops[number].id} stands before {', '.join(late)}, which it needs"
    for op in graph.ops:
        if not (op.reads or op.writes or op.has_effects):
            yield f"operator {op.id} reads nothing, writes nothing and has no effects"


def _results(graph: Graph) -> Iterator[str]:
    """Every tensor that is returned exists at the end, unless it is a constant, which no operator touches."""
    touched = {graph.base[number] for op in graph.ops for number in (*op.reads, *op.writes)}
    final_bases = {graph.base[number] for number in graph.outputs}
    for number in graph.results:
        base = graph.base[number]
        if base not in final_bases and base in touched:
            yield f"{graph.tensors[number].id} is returned, but not there at the end"


def bits_of(dtype: str) -> int | None:
    """Bits of an element, from the first number in the name of its type; None if the name does not say."""
    name = dtype.lower()
    if name in _BITS:
        return _BITS[name]
    digits = _DIGITS.search(name)
    return int(digits[0]) if digits else None
