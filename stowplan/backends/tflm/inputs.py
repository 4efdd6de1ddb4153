"""Inputs on which a model is run with and without its plan: given by the user, or drawn at random.

An *inference* is one run of a model, and a *seed* is the number of a set of random inputs for several inferences.

Some operators read indices, axes or sizes from tensors, and the kernels of TensorFlow Lite Micro read or write outside of their
tensors if these numbers are not valid. If such an operand is an input of the model, valid numbers are drawn for it. There may
be views and casts between the input and the operand, and the operand may be in a subgraph that an IF or a WHILE runs. If other
operators compute the operand, its numbers cannot be chosen, and users must give inputs for the model.
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

#: RESHAPE, SQUEEZE, CAST and EXPAND_DIMS, whose results have the elements of their first operand.
_VIEWS = (22, 43, 53, 70)
#: Number of GATHER, whose axis is an option.
_GATHER = 36

#: Valid axes are determined only for tensors of at most this many dimensions, because all sets of axes are tried.
_MAX_DIMENSIONS = 8

_Shape: TypeAlias = tuple[int, ...]
_INT64_MAX = np.iinfo(np.int64).max


def draw_inputs(
    model: TfliteModel, seeds: int, inferences: int, kept: Sequence[int], given: Mapping[int, NDArray[Any]]
) -> dict[str, NDArray[Any]]:
    """Returns values of all inputs for all inferences, by ``SEED.INFERENCE.INPUT`` (three numbers, counted from 0).

    Parameters
    ----------
    seeds, inferences
        How many sets of inputs to draw, and for how many inferences each set has values.
    kept
        Positions of the inputs that have the same values in all inferences of a set.
    given
        Values that the user gives, by the position of the input. An array has the shape of the input, or one more axis in
        front, which counts at least ``inferences`` inferences. All other inputs are drawn.

    Raises
    ------
    UnsupportedError
        An input that is drawn has a type that NumPy does not have.
    """
    valid, values = _ranges(model), dict[str, NDArray[Any]]()
    for seed in range(seeds):
        generator = np.random.default_rng(seed)
        for at, (place, number) in itertools.product(range(inferences), enumerate(model.subgraphs[0].inputs)):
            array, shape = given.get(place), model.tensors[number].shape
            if place in kept and at:
                array = values[f"{seed}.0.{place}"]
            elif array is None:
                array = _draw(generator, model.tensors[number], *valid[number]).reshape(shape)
            values[f"{seed}.{at}.{place}"] = array[at] if array.ndim > len(shape) else array
    return values


def _draw(generator: np.random.Generator, tensor: TfliteTensor, low: NDArray[Any], high: NDArray[Any]) -> NDArray[Any]:
    """Returns [elements] random numbers of the tensor's type from ``low`` to ``high``, which are arrays of the same length.

    A floating-point element without a range has a standard normal distribution. Raises UnsupportedError for a type that NumPy
    does not have.
    """
    name = TYPES[tensor.kind]
    # Other packages may have registered types with NumPy, such as bfloat16.
    if name not in np.sctypeDict or np.dtype(name).isbuiltin != 1:
        raise UnsupportedError(f"an input is of type {name}, of which no numbers can be drawn")
    kind = np.dtype(name)
    if kind.kind == "b":
        return generator.random(low.size) < 0.5
    if kind.kind in "iu":
        low, high = (np.clip(bound, np.iinfo(kind).min, min(np.iinfo(kind).max, _INT64_MAX)) for bound in (low, high))
        return generator.integers(low, np.maximum(low, high), None, kind, endpoint=True)
    # A floating-point element with a range becomes an index by a cast, so a whole number is drawn for it.
    indices = generator.integers(
        np.where(high < _INT64_MAX, low, 0), np.where(high < _INT64_MAX, np.maximum(low, high), 0), endpoint=True
    )
    return np.where(high < _INT64_MAX, indices, generator.standard_normal(low.size)).astype(kind)


def read_inputs(model: TfliteModel, path: str | Path) -> tuple[dict[int, NDArray[Any]], int | None]:
    """Reads inputs that a user gives.

    Parameters
    ----------
    path
        An archive of arrays (``.npz``). Each array has the name of an input, or ``:2`` for the third input. It has the shape of
        the input, or one more axis in front, which counts the inferences.

    Returns
    -------
    (dict, int or None)
        Arrays by the position of the input, and the number of inferences; None if no array has an axis of inferences.

    Raises
    ------
    InputError
        One of these:

        - the file cannot be read
        - an array belongs to no input, to several inputs, or to the same input as another array
        - an array has another type or shape than the input
        - arrays have different numbers of inferences
    """
    tensors = [model.tensors[number] for number in model.subgraphs[0].inputs]
    given: dict[int, NDArray[Any]] = {}
    inferences: dict[int, str] = {}
    for name, array in files.read_arrays(path, "one that numpy.savez wrote").items():
        with naming(path):
            (place,) = named_inputs([name], ((tensor.own_name, at) for at, tensor in enumerate(tensors)), "the array")
        kind, shape = TYPES[tensors[place].kind], tensors[place].shape
        has_inferences = array.ndim > len(shape)
        if array.dtype.name != kind or array.shape[has_inferences:] != shape or 0 in array.shape[:has_inferences]:
            expected = f"{kind} {[*shape]}, or with the inferences along one more axis in front"
            raise InputError(f"found {array.dtype.name} {[*array.shape]}, expected {expected}", source=path, place=name)
        if place in given:
            raise InputError("found a second array of one input, expected one", source=path, place=name)
        given[place] = array
        if has_inferences:
            inferences[len(array)] = name
    if len(inferences) > 1:
        counts = " and ".join(f"{count} of {name}" for count, name in inferences.items())
        raise InputError(f"found different numbers of inferences, {counts}, expected one number", source=path)
    return given, next(iter(inferences), None)


def _ranges(model: TfliteModel) -> dict[int, NDArray[Any]]:
    """Returns the valid numbers of inputs, by the index of the input's tensor.

    Each is an array [2, elements] with the least and the largest valid number of each element; ± :data:`_INT64_MAX` if all
    numbers are valid.
    """
    tensors, file = model.tensors, FlatBuffer(model.data)
    sizes = {number: math.prod(tensors[number].shape) for number in model.subgraphs[0].inputs}
    ranges = {number: np.array([[-_INT64_MAX], [_INT64_MAX]]).repeat(size, 1) for number, size in sizes.items()}
    # From a tensor to the range of the input whose elements it has in the same order.
    views = dict(ranges)

    def visit(graph: int) -> None:
        for operator in model.subgraphs[graph].operators:
            code, reads, writes = operator.code, operator.reads, operator.writes
            # An operator with invalid shapes or options restricts nothing.
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
                formal_inputs = model.subgraphs[called].inputs
                for to, number in zip(formal_inputs, reads[1:] if code == IF else reads, strict=False):
                    views.update({to: views[number]} if number in views else {})
                visit(called)

    visit(0)
    return ranges


def _valid(code: int, shapes: Sequence[_Shape], result: _Shape, axis: int) -> list[tuple[int, Any, Any]]:
    """Returns the operands whose numbers must be valid: for each its position, and the least and largest valid number of its
    elements.

    The valid numbers are a number or an array; an array with fewer numbers than the operand has elements is repeated. Sizes and
    axes must agree with the shape of the result in the file, which does not depend on the operands. The list is empty for
    operators that accept all numbers, and for unknown ones.

    Parameters
    ----------
    code
        Number of the operator in the schema.
    shapes, result
        Shapes of the operands and of the result.
    axis
        The axis of GATHER; 0 for all other operators.
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
        case 42 | 90 | 95:  # DIV, FLOOR_DIV and FLOOR_MOD: an integer division by zero ends the process
            return [(1, 1, 1000)]
        case 40 | 56 | 74 | 79 | 82 | 89 | 140 if len(shape) <= _MAX_DIMENSIONS:  # MEAN, ARG_MAX, SUM, ARG_MIN, REDUCE_*
            for axes in itertools.combinations(range(len(shape)), math.prod(shapes[1])):
                reduced = tuple(extent for at, extent in enumerate(shape) if at not in axes)
                if result in (reduced, tuple(1 if at in axes else extent for at, extent in enumerate(shape))):
                    return [(1, axes, axes)]
    return []
