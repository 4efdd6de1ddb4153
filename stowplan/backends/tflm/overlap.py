"""Pairs of tensors that may share bytes, by what the kernels of a model's operators read and write."""

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

#: Options by operator: name, number of the field, its form in :mod:`struct`, and what it is where it is left out.
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
_PADDINGS = ("SAME", "VALID")

#: Constant second operands whose values say what is read.
_VALUES = {"MEAN": "axis", "PAD": "paddings", "PADV2": "paddings", "TRANSPOSE": "perm"}
_FORMS = {"int32": "i", "int64": "q"}


#: Elements of a tensor that are looked at, at most: models of small devices have no larger ones.
_MOST_ELEMENTS = 1 << 24


class Pair(NamedTuple):
    """An operator's result and an operand that dies there, or two tensors that hold the same bytes: they may share bytes.

    Tensors are given by their numbers over all subgraphs.
    """

    place: tuple[int, int]
    """Subgraph and place in the file of the operator."""
    operand: int
    result: int
    distance: int | None
    """Bytes from the result's begin up to the operand's end, at least; the end is of the size that is not rounded. None where
    the two may only have the same offset."""
    is_copy: bool = False
    """Whether both hold the same bytes from the time at which both are written, whichever of them dies first."""


def overlaps(model: TfliteModel, kernels: str) -> tuple[Pair, ...]:
    """All pairs of a model under a set of kernels; those of ``none`` share nothing.

    Operators that call subgraphs, use variables, are custom or have several results have none, nor have outputs of subgraphs
    as operands that are written over. When the tensors live is not looked at. Any two copies of one tensor are a pair.

    Raises
    ------
    InputError
        Options or values beyond the end of the file.
    UsageError
        A set of kernels that is not known.
    """
    check_kernels(kernels)
    if kernels == "none":
        return ()
    file, pairs = _File(model, kernels), list[Pair]()
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
    """How many operators a set of kernels has that nothing is known of: nothing is shared there."""
    operators = [operator for subgraph in model.subgraphs for operator in subgraph.operators]
    return sum(not is_modelled(schema.OPERATORS.get(operator.code, ""), kernels) for operator in operators)


class _File:
    """What operators are asked for, as the file has it."""

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
        """Of one operator."""
        tensors, name = self._model.tensors, schema.OPERATORS.get(operator.code)
        touched = (*operator.reads, *operator.writes)
        if name is None or len(operator.writes) != 1 or any(tensors[number].is_variable for number in touched):
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
        """Of one tensor, the largest where it is read several times."""
        tensors = [None if number < 0 else self._model.tensors[number] for number in (*operands, result)]
        shapes = [() if tensor is None else tensor.shape for tensor in tensors]
        types = ["" if tensor is None else schema.TYPES.get(tensor.kind, "") for tensor in tensors]
        if max(map(prod, shapes)) > _MOST_ELEMENTS:
            return None
        numbers = [number for number, other in enumerate(operands) if other == operand]
        try:
            distances = [distance(name, shapes, types, attributes, self._kernels, number) for number in numbers]
        except (ArithmeticError, LookupError, ValueError):
            # Shapes that the kernel does not take.
            return None
        return None if None in distances else max(other for other in distances if other is not None)

    def _attributes(self, name: str, operator: Operator, operands: list[int]) -> dict[str, Any] | None:
        """Options and values of constant operands that the kernel's reads depend on; None where they are not there."""
        attributes: dict[str, Any] = {}
        fields = _OPTIONS.get(name, ())
        at = self._file.field(operator.table, schema.OPERATOR_OPTIONS)
        if fields:
            if at is None:
                return None
            table = self._file.follow(at)
            attributes = {field: self._file.number(table, number, form, left) for field, number, form, left in fields}
        if "padding" in attributes:
            if attributes["padding"] not in (0, 1) or any(
                value < 1 for field, value in attributes.items() if field != "padding"
            ):
                return None
            attributes["padding"] = _PADDINGS[attributes["padding"]]
        if name in _VALUES:
            values = self._values(operands[1]) if len(operands) > 1 and operands[1] >= 0 else None
            if values is None:
                return None
            pairs = list(zip(values[::2], values[1::2], strict=False))
            attributes[_VALUES[name]] = pairs if _VALUES[name] == "paddings" else values
        return attributes

    def _values(self, number: int) -> list[int] | None:
        """The whole numbers that the file has for a tensor; None where it has none."""
        tensor = self._model.tensors[number]
        form = _FORMS.get(schema.TYPES.get(tensor.kind, ""))
        holder = self._holders[self._file.number(self._tables[number], schema.TENSOR_BUFFER, "I")]
        start, count = self._file.vector(holder, schema.BUFFER_DATA)
        if form is None or not count or self._file.number(holder, schema.BUFFER_OFFSET, "Q") > 1:
            return None
        return list(struct.unpack_from(f"<{count // struct.calcsize(form)}{form}", self._file.data, start))
