"""Finds the pairs of tensors that may share bytes, from the reads and writes of the kernels of a model's operators.

A *kernel* is the code of an operator in TensorFlow Lite Micro. Activations are in one range of memory, the *arena*. A tensor is
*planned* if a plan gives it an offset there. Numbers of operators, types and fields are those of the TensorFlow Lite schema.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from itertools import combinations
from math import prod
from typing import Any, NamedTuple

from stowplan.backends.tflm.kernels import IN_PLACE, check_kernels, distance, is_modelled
from stowplan.frontends.tflite import model as schema
from stowplan.frontends.tflite.flatbuffer import FlatBuffer
from stowplan.frontends.tflite.model import Operator, TfliteModel

#: The options of operators on which the reads of their kernels depend, by the operator's name. Each option is a name, the
#: number of the field in the schema, the field's format in :mod:`struct`, and the default.
_WINDOW = (("padding", 0, "b", 0), ("stride_w", 1, "i", 0), ("stride_h", 2, "i", 0))
_POOLING = (*_WINDOW, ("filter_width", 3, "i", 0), ("filter_height", 4, "i", 0))
_OPTIONS: dict[str, tuple[tuple[str, int, str, int], ...]] = {
    "AVERAGE_POOL_2D": _POOLING,
    "CONCATENATION": (("axis", 0, "i", 0),),
    "CONV_2D": (*_WINDOW, ("dilation_w_factor", 4, "i", 1), ("dilation_h_factor", 5, "i", 1)),
    "DEPTHWISE_CONV_2D": (*_WINDOW, ("dilation_w_factor", 5, "i", 1), ("dilation_h_factor", 6, "i", 1)),
    "MAX_POOL_2D": _POOLING,
    "MEAN": (("keep_dims", 0, "B", 0),),
}
#: Names of the values 0 and 1 of the option ``padding``.
_PADDINGS = ("SAME", "VALID")

#: Operators whose constant second operand decides which elements the kernel reads, with its name among the attributes of
#: :func:`~stowplan.backends.tflm.kernels.distance`.
_CONSTANT_OPERANDS = {"MEAN": "axis", "PAD": "paddings", "PADV2": "paddings", "TRANSPOSE": "perm"}
#: Formats of :mod:`struct` for the types that such operands have.
_STRUCT_FORMATS = {"int32": "i", "int64": "q"}


#: Tensors with more elements than this share no bytes, to limit the work; models for small devices have no such tensors.
_MAX_ELEMENTS = 1 << 24


class Pair(NamedTuple):
    """Two tensors that may share bytes: an operator's result and one of its operands, or two copies of the same bytes.

    Tensors are given by their indices over all subgraphs.
    """

    place: tuple[int, int]
    """The operator: the number of its subgraph, and its position there; (-1, -1) for two copies."""
    operand: int
    """Index of the operand, or of the first of two copies."""
    result: int
    """Index of the result, or of the second of two copies."""
    distance: int | None
    """The smallest number of bytes from the start of the result to the end of the operand's elements with which nothing is
    overwritten too early. None if the two tensors may share bytes only at the same offset."""
    is_copy: bool = False
    """Whether the two tensors have the same contents once both are written. Then they may share bytes although both are needed
    later, whichever of their live ranges ends first."""


def overlaps(model: TfliteModel, kernels: str) -> tuple[Pair, ...]:
    """Finds all pairs of a model for a set of kernels: ``reference``, ``cmsis-nn``, or ``none``, for which there are no pairs.

    ``reference`` are the portable kernels of TensorFlow Lite Micro. ``cmsis-nn`` are those that call CMSIS-NN, a library for
    Arm's Cortex-M processors. Any two copies of one tensor are a pair. Live ranges are not considered here. There are no pairs
    for these operators and operands:

    - operators that call subgraphs, use variables, are custom, or have several results
    - operands that are outputs of their subgraph and would be overwritten

    Raises
    ------
    InputError
        Options or values lie beyond the end of the file.
    UsageError
        There is no set of kernels of this name.
    """
    check_kernels(kernels)
    if kernels == "none":
        return ()
    file, pairs = _OperatorReader(model, kernels), list[Pair]()
    copies: dict[int, list[int]] = defaultdict(list)
    source: dict[int, int] = {}
    for graph, subgraph in enumerate(model.subgraphs):
        for position, operator in enumerate(subgraph.operators):
            for pair in file.pairs((graph, position), operator):
                if pair.is_copy:
                    source[pair.result] = source.get(pair.operand, pair.operand)
                    copies[source[pair.result]].append(pair.result)
                else:
                    pairs.append(pair)
    for first, others in copies.items():
        pairs += (Pair((-1, -1), one, other, None, is_copy=True) for one, other in combinations((first, *others), 2))
    return tuple(pairs)


def unmodelled(model: TfliteModel, kernels: str) -> int:
    """Returns how many operators of a model have no access model in a set of kernels, so that their tensors share no bytes.

    An *access model* gives the order in which a kernel reads and writes its elements. Raises KeyError if there is no set of
    kernels of this name.
    """
    operators = [operator for subgraph in model.subgraphs for operator in subgraph.operators]
    return sum(not is_modelled(schema.OPERATORS.get(operator.code, ""), kernels) for operator in operators)


class _OperatorReader:
    """Reads from the file which pairs the operators of a model have."""

    def __init__(self, model: TfliteModel, kernels: str):
        self._model, self._kernels = model, kernels
        self._file = FlatBuffer(model.data)
        root = self._file.follow(0)
        self._holders = self._file.tables(root, schema.MODEL_BUFFERS)
        graphs = self._file.tables(root, schema.MODEL_SUBGRAPHS)
        self._tables = [table for graph in graphs for table in self._file.tables(graph, schema.GRAPH_TENSORS)]
        graphs_writes = ((graph.inputs, *(operator.writes for operator in graph.operators)) for graph in model.subgraphs)
        self._writers = Counter(number for every in graphs_writes for writes in every for number in writes)

    def pairs(self, place: tuple[int, int], operator: Operator) -> list[Pair]:
        """Returns the pairs of one operator, whose subgraph and position in it are ``place``."""
        tensors, name = self._model.tensors, schema.OPERATORS.get(operator.code)
        operands_and_results = (*operator.reads, *operator.writes)
        if name is None or len(operator.writes) != 1 or any(tensors[number].is_variable for number in operands_and_results):
            return []
        subgraph = self._model.subgraphs[place[0]]
        (result,) = operator.writes
        operands = [
            -1 if number < 0 else subgraph.tensors[number]
            for number in self._file.integers(operator.table, schema.OPERATOR_INPUTS)
        ]
        attributes = self._attributes(name, operator, operands)
        if attributes is None:
            return []
        pairs = []
        for operand in dict.fromkeys(operands):
            if operand in (-1, result) or not (tensors[operand].is_planned and tensors[result].is_planned):
                continue
            if name in IN_PLACE and operands[0] == operand and operands.count(operand) == 1:
                # Both keep the same contents if neither is written again.
                is_copy = IN_PLACE[name] and self._writers[operand] <= self._writers[result] == 1
                one, other = tensors[operand], tensors[result]
                is_like = one.kind == other.kind and one.content == other.content
                if is_like and (is_copy or operand not in subgraph.outputs):
                    pairs.append(Pair(place, operand, result, None, is_copy))
            elif operand not in subgraph.outputs:
                least = self._distance(name, operands, result, attributes, operand)
                if least is not None:
                    pairs.append(Pair(place, operand, result, least))
        return pairs

    def _distance(self, name: str, operands: list[int], result: int, attributes: dict[str, Any], operand: int) -> int | None:
        """Returns the least distance from the start of the result to the end of an operand; None if they may not share bytes.

        If the operator reads the tensor as several operands, the largest of their distances is returned.
        """
        tensors = [None if number < 0 else self._model.tensors[number] for number in (*operands, result)]
        shapes = [() if tensor is None else tensor.shape for tensor in tensors]
        types = ["" if tensor is None else schema.TYPES.get(tensor.kind, "") for tensor in tensors]
        if max(map(prod, shapes)) > _MAX_ELEMENTS:
            return None
        numbers = [number for number, other in enumerate(operands) if other == operand]
        try:
            distances = [distance(name, shapes, types, attributes, self._kernels, number) for number in numbers]
        except (ArithmeticError, LookupError, ValueError):
            # The kernel does not accept these shapes.
            return None
        return None if None in distances else max(other for other in distances if other is not None)

    def _attributes(self, name: str, operator: Operator, operands: list[int]) -> dict[str, Any] | None:
        """Returns the options and constant operands on which the kernel's reads depend, by name.

        It is None if one of them is missing or invalid.
        """
        attributes: dict[str, Any] = {}
        fields = _OPTIONS.get(name, ())
        at = self._file.field(operator.table, schema.OPERATOR_OPTIONS)
        if fields:
            if at is None:
                return None
            table = self._file.follow(at)
            attributes = {field: self._file.number(table, number, form, default) for field, number, form, default in fields}
        if "padding" in attributes:
            if attributes["padding"] not in (0, 1) or any(
                value < 1 for field, value in attributes.items() if field != "padding"
            ):
                return None
            attributes["padding"] = _PADDINGS[attributes["padding"]]
        if name in _CONSTANT_OPERANDS:
            values = self._values(operands[1]) if len(operands) > 1 and operands[1] >= 0 else None
            if values is None:
                return None
            pairs = list(zip(values[::2], values[1::2], strict=False))
            attributes[_CONSTANT_OPERANDS[name]] = pairs if _CONSTANT_OPERANDS[name] == "paddings" else values
        return attributes

    def _values(self, number: int) -> list[int] | None:
        """Returns the constant integers of a tensor; None if the file has none for it."""
        tensor = self._model.tensors[number]
        form = _STRUCT_FORMATS.get(schema.TYPES.get(tensor.kind, ""))
        holder = self._holders[self._file.number(self._tables[number], schema.TENSOR_BUFFER, "I")]
        start, count = self._file.vector(holder, schema.BUFFER_DATA)
        # An offset above 1 says that the contents are in the file behind the flatbuffer, as in models above 2 GB.
        if form is None or not count or self._file.number(holder, schema.BUFFER_OFFSET, "Q") > 1:
            return None
        return list(struct.unpack_from(f"<{count // struct.calcsize(form)}{form}", self._file.data, start))
