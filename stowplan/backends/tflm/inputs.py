"""Inputs on which a model and its plan are run: a user's own, or drawn at random.

Some operators take indices, axes or sizes from tensors, and the kernels of TensorFlow Lite Micro read or write outside of their
tensors where these are not valid. Numbers that are drawn for such an operand are therefore valid ones, also where views, casts,
PACK or CONCATENATION lie between an input and the operand, or the operand is in a subgraph that an IF or a WHILE runs. Of an
operand that other operators compute nothing is known: users give their own inputs there.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from stowplan import files
from stowplan.backends.fallback import UnsupportedError
from stowplan.errors import InputError, naming
from stowplan.frontends.arena.flatbuffer import FlatBuffer
from stowplan.frontends.arena.tflite_file import IF, OPERATOR_OPTIONS, TYPES, WHILE, TfliteModel, TfliteTensor
from stowplan.frontends.options import named_inputs

#: Values of each input, by its place among the model's inputs, in one inference.
Values: TypeAlias = dict[int, NDArray[Any]]

_Tensors: TypeAlias = Sequence[TfliteTensor]
#: An operand's place, and the least and the largest valid number of its elements; few numbers count again and again.
_Range: TypeAlias = tuple[int, Any, Any]

#: RESHAPE, SQUEEZE, CAST and EXPAND_DIMS: the elements of the result are those of the first operand.
_VIEWS = (22, 43, 53, 70)
_GATHER, _CONCATENATION, _PACK = 36, 2, 83
#: The field of an operator's options that has its axis.
_AXIS = {_GATHER: 0, _CONCATENATION: 0, _PACK: 1}

_MOST = np.iinfo(np.int64).max


def drawn(
    model: TfliteModel, seed: int, inferences: int, kept: Sequence[int] = (), given: Mapping[int, NDArray[Any]] | None = None
) -> list[Values]:
    """Values of all inputs for some inferences.

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
    chance, numbers = np.random.default_rng(seed), model.subgraphs[0].inputs
    valid, runs = _ranges(model), list[Values]()
    for at in range(inferences):
        values: Values = {}
        for place, number in enumerate(numbers):
            own, shape = (given or {}).get(place), model.tensors[number].shape
            if place in kept and runs:
                values[place] = runs[0][place]
            elif own is not None:
                values[place] = own[at] if own.ndim > len(shape) else own
            else:
                values[place] = _draw(chance, model.tensors[number], *valid[number]).reshape(shape)
        runs.append(values)
    return runs


def _draw(chance: np.random.Generator, tensor: TfliteTensor, low: NDArray[Any], high: NDArray[Any]) -> NDArray[Any]:
    """Numbers at random, in their range, [elements]."""
    name = TYPES[tensor.kind]
    if name not in np.sctypeDict:
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
    inputs = [*dict.fromkeys(model.subgraphs[0].inputs)]
    ends = np.cumsum([0, *(math.prod(tensors[number].shape) for number in inputs)])
    valid = np.array([[-_MOST], [_MOST]]).repeat(ends[-1], 1)
    # Which element of an input each element of a tensor is equal to, counted over all inputs; -1 for none.
    origin = {number: np.arange(*span) for number, span in zip(inputs, itertools.pairwise(ends), strict=True)}

    def of(number: int) -> NDArray[Any]:
        return origin.get(number, np.full(math.prod(tensors[number].shape), -1)).reshape(tensors[number].shape)

    def run(graph: int) -> None:
        for operator in model.subgraphs[graph].operators:
            code, reads, writes = operator.code, operator.reads, operator.writes
            options = file.field(operator.table, OPERATOR_OPTIONS) if code in _AXIS else None
            axis = 0 if options is None else file.number(file.follow(options), _AXIS[code], "i")
            if code in _VIEWS and reads[0] in origin:
                origin[writes[0]] = origin[reads[0]]
            elif code in (_PACK, _CONCATENATION) and not origin.keys().isdisjoint(reads):
                join = np.stack if code == _PACK else np.concatenate
                origin[writes[0]] = join([of(number) for number in reads], axis)
            elif code in _RANGES and not origin.keys().isdisjoint(reads):
                ranges = _RANGES[code]([tensors[number] for number in reads], [tensors[number] for number in writes], axis)
                for place, low, high in ranges:
                    to = of(reads[place]).reshape(-1)
                    np.maximum.at(valid[0], to[to >= 0], np.resize(low, to.size)[to >= 0])
                    np.minimum.at(valid[1], to[to >= 0], np.resize(high, to.size)[to >= 0])
            for called in operator.calls if code in (IF, WHILE) else ():
                origin.update(zip(model.subgraphs[called].inputs, map(of, reads[code == IF :]), strict=False))
                run(called)

    run(0)
    return {number: valid[:, slice(*span)] for number, span in zip(inputs, itertools.pairwise(ends), strict=True)}


def _slice(reads: _Tensors, writes: _Tensors, _: int) -> list[_Range]:
    """The result has the shape that the file says, whatever the sizes."""
    size = np.array(writes[0].shape)
    return [(1, 0, reads[0].shape - size), (2, size, size)]


def _axes(reads: _Tensors, writes: _Tensors, _: int) -> list[_Range]:
    """Axes without which, or with 1 in their places, the operand's shape is the result's."""
    shape = reads[0].shape
    for axes in itertools.combinations(range(len(shape)), math.prod(reads[1].shape)):
        left = [(extent, extent) if at not in axes else (1,) for at, extent in enumerate(shape)]
        if writes[0].shape in (tuple(part[0] for part in left), tuple(part[0] for part in left if len(part) == 2)):
            return [(1, axes, axes)]
    return []


def _padded(reads: _Tensors, writes: _Tensors, _: int) -> list[_Range]:
    """Numbers of elements before and after, for each dimension."""
    added = np.subtract(writes[0].shape, reads[0].shape)
    pads = np.stack([added // 2, added - added // 2], 1)
    return [(1, pads, pads)]


#: Valid numbers by the operator: EMBEDDING_LOOKUP, GATHER, GATHER_ND, SLICE, MIRROR_PAD; REVERSE_V2 and CUMSUM; MEAN, ARG_MAX,
#: SUM, ARG_MIN, REDUCE_MAX, REDUCE_MIN and REDUCE_ALL; whole numbers that DIV, FLOOR_DIV and FLOOR_MOD divide by.
_RANGES: dict[int, Callable[[_Tensors, _Tensors, int], list[_Range]]] = {
    7: lambda reads, _, __: [(0, 0, reads[1].shape[0] - 1)],
    _GATHER: lambda reads, _, axis: [(1, 0, reads[0].shape[axis] - 1)],
    107: lambda reads, _, __: [(1, 0, np.subtract(reads[0].shape[: reads[1].shape[-1]], 1))],
    65: _slice,
    100: _padded,
    **dict.fromkeys((105, 128), lambda reads, _, __: [(1, [*range(len(reads[0].shape))], [*range(len(reads[0].shape))])]),
    **dict.fromkeys((40, 56, 74, 79, 82, 89, 140), _axes),
    **dict.fromkeys((42, 90, 95), lambda _, __, ___: [(1, 1, _MOST)]),
}
