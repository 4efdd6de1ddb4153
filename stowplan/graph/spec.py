"""Promises of readers about their graphs beyond the rules of :mod:`stowplan.graph.rules`, as an executable specification.

Only tests call :func:`faults`, on the graph of every model file that they read. Lowerings may rely on each of these promises.
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
    """Yields a sentence for each promise that a graph breaks; it yields nothing if the reader kept all of them."""
    yield from _tensors(graph)
    yield from _order(graph)
    yield from _results(graph)


def _tensors(graph: Graph) -> Iterator[str]:
    """Yields a sentence for each tensor that breaks one of these promises:

    - Its size suffices for its shape.
    - Its shape is fixed: no extent is negative.
    - If it has bytes of its own, it is used: it is an input, output or result of the program, or an operator touches it.
    """
    for tensor in graph.tensors:
        bits = bits_of(tensor.dtype)
        if tensor.shape is not None and bits is not None and tensor.size:
            least = -(-math.prod(tensor.shape) * bits // 8)
            # A tensor may be larger than its elements, because layouts add padding and views may use more of its bytes. A view
            # may be smaller than its elements, because several elements may share bytes.
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
    """Yields a sentence for each operator that is listed before one that must run earlier, or that does nothing at all."""
    for number, before in enumerate(graph.predecessors):
        late = [graph.ops[other].id for other in before if other > number]
        if late:
            yield f"operator {graph.ops[number].id} stands before {', '.join(late)}, which it needs"
    for op in graph.ops:
        if not (op.reads or op.writes or op.has_effects):
            yield f"operator {op.id} reads nothing, writes nothing and has no effects"


def _results(graph: Graph) -> Iterator[str]:
    """Yields a sentence for each tensor that the program returns but that does not exist at the end. Constants, which no
    operator reads or writes, are no fault."""
    touched = {graph.base[number] for op in graph.ops for number in (*op.reads, *op.writes)}
    final_bases = {graph.base[number] for number in graph.outputs}
    for number in graph.results:
        base = graph.base[number]
        if base not in final_bases and base in touched:
            yield f"{graph.tensors[number].id} is returned, but not there at the end"


def bits_of(dtype: str) -> int | None:
    """Number of bits of an element, which is the first number in the name of its type, for example 16 for ``bfloat16``.

    Names without a number are looked up in a small table, for example 64 for ``double``. The result is None for all others.
    """
    name = dtype.lower()
    if name in _BITS:
        return _BITS[name]
    digits = _DIGITS.search(name)
    return int(digits[0]) if digits else None
