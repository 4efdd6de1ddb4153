"""What operators compute, in NumPy: ``(operands, attributes) -> result``, by the name of the operator."""

from __future__ import annotations

from collections.abc import Callable
from itertools import product
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]
Function = Callable[[list[Array], dict[str, Any]], Any]

_COMPARISONS: dict[str, Callable[..., Any]] = {
    "EQ": np.equal,
    "NE": np.not_equal,
    "LT": np.less,
    "LE": np.less_equal,
    "GT": np.greater,
    "GE": np.greater_equal,
}
_REDUCTIONS: dict[str, Callable[..., Any]] = {"add": np.sum, "maximum": np.max, "minimum": np.min, "multiply": np.prod}
_STARTS = {"add": 0.0, "maximum": -np.inf, "minimum": np.inf, "multiply": 1.0}


def _elementwise(function: Callable[..., Any]) -> Function:
    return lambda operands, attributes: function(*operands)


def _compare(operands: list[Array], attributes: dict[str, Any]) -> Any:
    return _COMPARISONS[attributes["direction"]](operands[0], operands[1])


def _matmul(operands: list[Array], attributes: dict[str, Any]) -> Any:
    """``contracting`` and ``batch``: pairs of dimensions of left and right; the result is batch, left, right dimensions."""
    left, right = operands
    letters = iter("abcdefghijklmnopqrstuvwxyz")
    first = [next(letters) for _ in range(left.ndim)]
    second = [next(letters) for _ in range(right.ndim)]
    for one, two in (*attributes["contracting"], *attributes["batch"]):
        second[two] = first[one]
    batch = [first[one] for one, _ in attributes["batch"]]
    summed = {first[one] for one, _ in attributes["contracting"]}
    rest = [each for each in (*first, *second) if each not in batch and each not in summed]
    return np.einsum(f"{''.join(first)},{''.join(second)}->{''.join(batch + rest)}", left, right, optimize=True)


def _convolution(operands: list[Array], attributes: dict[str, Any]) -> Any:
    """``layout``: (data, kernel, result), each the places of (batch or outputs, features or inputs, spatial ...).

    ``strides``, ``pads`` (low, high), ``base`` and ``kernel`` dilations for each spatial dimension; ``groups``.
    """
    where, kernel_where, result_where = attributes["layout"]
    data = operands[0].transpose(where)
    kernel: Any = operands[1].transpose(kernel_where)
    strides, pads, base, dilations = (attributes[key] for key in ("strides", "pads", "base", "dilations"))
    groups = attributes["groups"]
    spread = [(size - 1) * step + 1 for size, step in zip(data.shape[2:], base, strict=True)]
    before = [max(0, low) for low, _ in pads]
    after = [max(0, high) for _, high in pads]
    padded: Any = np.zeros((*data.shape[:2], *(sum(each) for each in zip(spread, before, after, strict=True))))
    inside = tuple(slice(low, low + size, step) for low, size, step in zip(before, spread, base, strict=True))
    padded[(..., *inside)] = data
    cut = [slice(max(0, -low), padded.shape[2 + at] - max(0, -high)) for at, (low, high) in enumerate(pads)]
    padded = padded[(..., *cut)]
    reach = [(size - 1) * step + 1 for size, step in zip(kernel.shape[2:], dilations, strict=True)]
    sizes = [(size - over) // step + 1 for size, over, step in zip(padded.shape[2:], reach, strides, strict=True)]
    outputs, inputs = kernel.shape[0] // groups, kernel.shape[1]
    result = np.zeros((data.shape[0], kernel.shape[0], *sizes))
    for at in product(*(range(size) for size in kernel.shape[2:])):
        window = tuple(
            slice(place * by, place * by + (size - 1) * step + 1, step)
            for place, by, size, step in zip(at, dilations, sizes, strides, strict=True)
        )
        for group in range(groups):
            part = padded[(slice(None), slice(group * inputs, (group + 1) * inputs), *window)]
            weights = kernel[(slice(group * outputs, (group + 1) * outputs), slice(None), *at)]
            result[:, group * outputs : (group + 1) * outputs] += np.einsum("bi...,oi->bo...", part, weights)
    return result.transpose(np.argsort(result_where))


def _pool(operands: list[Array], attributes: dict[str, Any]) -> Any:
    """``window``, ``strides`` and ``pads`` (low, high) for every dimension; ``kind`` of :data:`_REDUCTIONS`."""
    kind = attributes["kind"]
    padded = np.pad(operands[0], attributes["pads"], constant_values=_STARTS[kind])
    windows = np.lib.stride_tricks.sliding_window_view(padded, attributes["window"])
    steps = tuple(slice(None, None, step) for step in attributes["strides"])
    return _REDUCTIONS[kind](windows[steps], axis=tuple(range(padded.ndim, 2 * padded.ndim)))


def _reduce(operands: list[Array], attributes: dict[str, Any]) -> Any:
    return _REDUCTIONS[attributes["kind"]](operands[0], axis=tuple(attributes["dimensions"]))


def _iota(operands: list[Array], attributes: dict[str, Any]) -> Any:
    shape, dimension = attributes["shape"], attributes["dimension"]
    return np.broadcast_to(
        np.arange(shape[dimension]).reshape([-1 if at == dimension else 1 for at in range(len(shape))]), shape
    )


_UNARY: dict[str, Callable[..., Any]] = {
    "abs": np.abs,
    "exponential": np.exp,
    "negate": np.negative,
    "relu": lambda one: np.maximum(one, 0),
    "sigmoid": lambda one: 1 / (1 + np.exp(-one)),
    "tanh": np.tanh,
}
_BINARY: dict[str, Callable[..., Any]] = {
    "add": np.add,
    "maximum": np.maximum,
    "minimum": np.minimum,
    "multiply": np.multiply,
    "subtract": np.subtract,
}

FUNCTIONS: dict[str, Function] = {
    **{name: _elementwise(function) for name, function in (*_UNARY.items(), *_BINARY.items())},
    "select": _elementwise(lambda chosen, one, two: np.where(chosen != 0, one, two)),
    "compare": _compare,
    "matmul": _matmul,
    "convolution": _convolution,
    "pool": _pool,
    "reduce": _reduce,
    "iota": _iota,
}
