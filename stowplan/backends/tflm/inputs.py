"""Inputs on which a model and its plan are run: a user's own, or drawn at random.

Some operators take indices, axes or sizes from tensors, and the kernels of TensorFlow Lite Micro read or write outside of their
tensors where these are not valid. Numbers that are drawn for such an operand are therefore valid ones, also where views and
casts lie between an input and the operand, or the operand is in a subgraph that an IF or a WHILE runs. Of an operand that other
operators compute nothing is known: users give their own inputs there.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import struct
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stowplan import files
from stowplan.backends.fallback import UnsupportedError
from stowplan.errors import InputError, naming
from stowplan.frontends.options import named_inputs
from stowplan.frontends.tflite.flatbuffer import FlatBuffer
from stowplan.frontends.tflite.model import IF, OPERATOR_OPTIONS, TYPES, TfliteModel, TfliteTensor

#: RESHAPE, SQUEEZE, CAST and EXPAND_DIMS: the elements of the result are those of the first operand.
_VIEWS = (22, 43, 53, 70)
_GATHER = 36

#: Dimensions of a tensor, at most, where axes are looked for.
_DIMENSIONS = 8

_Shape: TypeAlias = tuple[int, ...]
_MOST = np.iinfo(np.int64).max


def drawn(
    model: TfliteModel, seeds: int, inferences: int, kept: Sequence[int], given: Mapping[int, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Values of all inputs, by ``SEED.INFERENCE.PLACE``, with the place of the input among the model's.

    Parameters
    ----------
    kept
        Places of the inputs that have the same values in all inferences.
    given
        What is not drawn, by the place of the input: its values, or those of each inference along one more axis in front.

    Raises
    ------
    UnsupportedError
        An input of a type that NumPy does not have.
    """
    valid, values = _ranges(model), dict[str, NDArray[Any]]()
    for seed in range(seeds):
        chance = np.random.default_rng(seed)
        for at, (place, number) in itertools.product(range(inferences), enumerate(model.subgraphs[0].inputs)):
            own, shape = given.get(place), model.tensors[number].shape
            if place in kept and at:
                own = values[f"{seed}.0.{place}"]
            elif own is None:
                own = _draw(chance, model.tensors[number], *valid[number]).reshape(shape)
            values[f"{seed}.{at}.{place}"] = own[at] if own.ndim > len(shape) else own
    return values


def _draw(chance: np.random.Generator, tensor: TfliteTensor, low: NDArray[Any], high: NDArray[Any]) -> NDArray[Any]:
    """Numbers at random, in their range, [elements]."""
    name = TYPES[tensor.kind]
    # Other packages may have added types of their own, such as bfloat16.
    if name not in np.sctypeDict or np.dtype(name).isbuiltin != 1:
        raise UnsupportedError(f"an input is of type {name}, of which no numbers can be drawn")
    kind = np.dtype(name)
    if kind.kind == "b":
        return chance.random(low.size) < 0.5
    if kind.kind in "iu":
        low, high = (np.clip(bound, np.iinfo(kind).min, min(np.iinfo(kind).max, _MOST)) for bound in (low, high))
        return chance.integers(low, np.maximum(low, high), None, kind, endpoint=True)
    # What a cast makes indices of is whole.
    whole = chance.integers(np.where(high < _MOST, low, 0), np.where(high < _MOST, np.maximum(low, high), 0), endpoint=True)
    return np.where(high < _MOST, whole, chance.standard_normal(low.size)).astype(kind)


def read_inputs(model: TfliteModel, path: str | Path) -> tuple[dict[int, NDArray[Any]], int | None]:
    """A user's inputs, by their places among the model's, and how many inferences they are for; None where all are constant.

    Parameters
    ----------
    path
        An archive of arrays (``.npz``), each under the name of an input, or ``:2`` for the third. An array has the shape of the
        input, or one more axis in front, along which the inferences are.

    Raises
    ------
    InputError
        The file cannot be read, an array is of no input or of several, or of another type or shape, or arrays are for different
        numbers of inferences.
    """
    tensors = [model.tensors[number] for number in model.subgraphs[0].inputs]
    given: dict[int, NDArray[Any]] = {}
    inferences: dict[int, str] = {}
    for name, array in files.read_arrays(path, "one that numpy.savez wrote").items():
        with naming(path):
            (place,) = named_inputs([name], ((tensor.own_name, at) for at, tensor in enumerate(tensors)), "the array")
        kind, shape = TYPES[tensors[place].kind], tensors[place].shape
        is_several = array.ndim > len(shape)
        if array.dtype.name != kind or array.shape[is_several:] != shape or 0 in array.shape[:is_several]:
            expected = f"{kind} {[*shape]}, or with the inferences along one more axis in front"
            raise InputError(f"found {array.dtype.name} {[*array.shape]}, expected {expected}", source=path, place=name)
        if place in given:
            raise InputError("found a second array of one input, expected one", source=path, place=name)
        given[place] = array
        if is_several:
            inferences[len(array)] = name
    if len(inferences) > 1:
        counts = " and ".join(f"{count} of {name}" for count, name in inferences.items())
        raise InputError(f"found different numbers of inferences, {counts}, expected one number", source=path)
    return given, next(iter(inferences), None)


def _ranges(model: TfliteModel) -> dict[int, NDArray[Any]]:
    """The least and the largest valid number of each element of an input, [2, elements], by the input's number."""
    tensors, file = model.tensors, FlatBuffer(model.data)
    sizes = {number: math.prod(tensors[number].shape) for number in model.subgraphs[0].inputs}
    ranges = {number: np.array([[-_MOST], [_MOST]]).repeat(size, 1) for number, size in sizes.items()}
    # Ranges of the inputs whose elements tensors have, in the same sequence.
    views = dict(ranges)

    def run(graph: int) -> None:
        for operator in model.subgraphs[graph].operators:
            code, reads, writes = operator.code, operator.reads, operator.writes
            # What an operator with odd shapes or options needs, no runtime says.
            with contextlib.suppress(IndexError, ValueError, struct.error):
                if code in _VIEWS and reads[0] in views:
                    views[writes[0]] = views[reads[0]]
                options = file.field(operator.table, OPERATOR_OPTIONS) if code == _GATHER else None
                axis = 0 if options is None else file.number(file.follow(options), 0, "i")
                shapes = [tensors[number].shape for number in (*reads, writes[0])]
                for place, low, high in _valid(code, shapes[:-1], shapes[-1], axis):
                    for row, bound, tighter in ((0, low, np.maximum), (1, high, np.minimum)):
                        if (valid := views.get(reads[place])) is not None:
                            valid[row] = tighter(valid[row], np.resize(bound, valid[row].shape))
            for called in operator.calls:
                own = model.subgraphs[called].inputs
                for to, number in zip(own, reads[1:] if code == IF else reads, strict=False):
                    views.update({to: views[number]} if number in views else {})
                run(called)

    run(0)
    return ranges


def _valid(code: int, shapes: Sequence[_Shape], result: _Shape, axis: int) -> list[tuple[int, Any, Any]]:
    """An operand's place, and the least and the largest valid number of its elements; few numbers count again and again.

    The results of these operators have the shapes that the file says, whatever sizes and axes the operands have.
    """
    shape = shapes[0]
    match code:
        case 7:  # EMBEDDING_LOOKUP
            return [(0, 0, shapes[1][0] - 1)]
        case 36:  # GATHER
            return [(1, 0, shape[axis] - 1)]
        case 107:  # GATHER_ND
            return [(1, 0, np.subtract(shape[: shapes[1][-1]], 1))]
        case 65:  # SLICE: begin and size
            return [(1, 0, np.subtract(shape, result)), (2, result, result)]
        case 100:  # MIRROR_PAD: elements before and after, for each dimension
            added = np.subtract(result, shape)
            pads = np.stack([added // 2, added - added // 2], 1)
            return [(1, pads, pads)]
        case 105 | 128:  # REVERSE_V2 and CUMSUM
            return [(1, range(len(shape)), range(len(shape)))]
        case 42 | 90 | 95:  # DIV, FLOOR_DIV and FLOOR_MOD: a zero divisor ends the process where numbers are whole
            return [(1, 1, 1000)]
        case 40 | 56 | 74 | 79 | 82 | 89 | 140 if len(shape) <= _DIMENSIONS:  # MEAN, ARG_MAX, SUM, ARG_MIN, REDUCE_*
            for axes in itertools.combinations(range(len(shape)), math.prod(shapes[1])):
                left = tuple(extent for at, extent in enumerate(shape) if at not in axes)
                if result in (left, tuple(1 if at in axes else extent for at, extent in enumerate(shape))):
                    return [(1, axes, axes)]
    return []
