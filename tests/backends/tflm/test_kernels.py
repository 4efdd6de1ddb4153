"""Distances of kernels against their loops, element by element."""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import Any

import numpy as np
import pytest

from stowplan.backends.tflm.kernels import KERNELS, distance
from stowplan.errors import UsageError
from tests.backends.tflm import kernel_loops as loops

BYTES = {"int8": 1, "int16": 2, "float32": 4, "int32": 4, "bool": 1}

Case = tuple[str, list[tuple[int, ...]], list[str], dict[str, Any], int, Iterator[loops.Event]]


def _size(chance: np.random.Generator, most: int = 6) -> int:
    return int(chance.integers(1, most + 1))


def _window(chance: np.random.Generator, dilated: bool, most_depth: int = 3) -> tuple[loops.Window, dict[str, Any]]:
    while True:
        source = (_size(chance, 2), _size(chance), _size(chance), _size(chance, most_depth))
        taps = (_size(chance, 4), _size(chance, 4))
        stride = (_size(chance, 3), _size(chance, 3))
        dilation = (_size(chance, 3), _size(chance, 3)) if dilated else (1, 1)
        padding = str(chance.choice(["SAME", "VALID"]))
        window = loops.Window(source, taps, stride, dilation, padding)
        if window.rows > 0 and window.columns > 0:
            break
    attributes = {"stride_h": stride[0], "stride_w": stride[1], "padding": padding}
    if dilated:
        attributes |= {"dilation_h_factor": dilation[0], "dilation_w_factor": dilation[1]}
    else:
        attributes |= {"filter_height": taps[0], "filter_width": taps[1]}
    return window, attributes


def _kind(chance: np.random.Generator) -> str:
    return str(chance.choice(["int8", "int16", "float32"]))


def convolution(chance: np.random.Generator) -> Case:
    window, attributes = _window(chance, dilated=True)
    groups, filter_depth, per_group = _size(chance, 2), _size(chance, 3), _size(chance, 3)
    window.source = (*window.source[:3], groups * filter_depth)
    depth, kind = groups * per_group, _kind(chance)
    result = (window.source[0], window.rows, window.columns, depth)
    shapes = [window.source, (depth, *window.taps, filter_depth), (depth,), result]
    types = [kind, "int8", "int32", kind]
    return "CONV_2D", shapes, types, attributes, 0, loops.convolution(window, depth, filter_depth)


def depthwise(chance: np.random.Generator) -> Case:
    window, attributes = _window(chance, dilated=True)
    multiplier, kind = _size(chance, 3), _kind(chance)
    depth = window.source[3] * multiplier
    shapes = [window.source, (1, *window.taps, depth), (window.source[0], window.rows, window.columns, depth)]
    return "DEPTHWISE_CONV_2D", shapes, [kind, "int8", kind], attributes, 0, loops.depthwise(window, multiplier)


def pooling(chance: np.random.Generator) -> Case:
    window, attributes = _window(chance, dilated=False)
    kind, name = _kind(chance), str(chance.choice(["AVERAGE_POOL_2D", "MAX_POOL_2D"]))
    shapes = [window.source, (window.source[0], window.rows, window.columns, window.source[3])]
    return name, shapes, [kind, kind], attributes, 0, loops.depthwise(window, 1)


def fully_connected(chance: np.random.Generator) -> Case:
    batches, depth, output, kind = _size(chance), _size(chance), _size(chance), _kind(chance)
    source = (batches, depth) if chance.random() < 0.5 else (1, batches, 1, depth)
    shapes = [source, (output, depth), (output,), (batches, output)]
    events = loops.fully_connected(batches, depth, output)
    return "FULLY_CONNECTED", shapes, [kind, "int8", "int32", kind], {}, 0, events


def unary(chance: np.random.Generator) -> Case:
    shape, name = tuple(_size(chance) for _ in range(_size(chance, 3))), str(chance.choice(["LOGISTIC", "QUANTIZE", "RELU6"]))
    kinds = ("int8", _kind(chance))
    kinds = kinds[:: int(chance.choice([1, -1]))] if name == "QUANTIZE" else (kinds[1], kinds[1])
    return name, [shape, shape], [*kinds], {}, 0, loops.element_wise(shape, shape)


def binary(chance: np.random.Generator) -> Case:
    result = tuple(_size(chance, 4) for _ in range(_size(chance, 4)))
    shapes = [tuple(size if chance.random() < 0.7 else 1 for size in result) for _ in range(2)]
    result = tuple(map(max, *shapes))
    if chance.random() < 0.3:
        shapes[1] = shapes[1][1:]
        result = (shapes[0][0], *map(max, shapes[0][1:], shapes[1]))
    operand, name = int(chance.integers(2)), str(chance.choice(["ADD", "MUL", "GREATER"]))
    kind = "int8" if name == "GREATER" else _kind(chance)
    kinds = [kind, kind, "bool" if name == "GREATER" else kind]
    return name, [*shapes, result], kinds, {}, operand, loops.element_wise(shapes[operand], result)


def softmax(chance: np.random.Generator) -> Case:
    shape = (_size(chance), _size(chance))
    kinds = [("int8", "int8"), ("int8", "int16"), ("float32", "float32")][int(chance.integers(3))]
    events = loops.softmax(*shape, kinds == ("int8", "int8") or kinds == ("int8", "int16"))
    return "SOFTMAX", [shape, shape], [*kinds], {}, 0, events


def pad(chance: np.random.Generator) -> Case:
    source = tuple(_size(chance, 4) for _ in range(_size(chance, 4)))
    paddings = [(int(chance.integers(3)), int(chance.integers(3))) for _ in source]
    result = tuple(before + size + after for (before, after), size in zip(paddings, source, strict=True))
    kind = _kind(chance)
    return (
        "PAD",
        [source, (len(source), 2), result],
        [kind, "int32", kind],
        {"paddings": paddings},
        0,
        loops.pad(source, paddings),
    )


def concatenation(chance: np.random.Generator) -> Case:
    rank = _size(chance, 3)
    axis, shape = int(chance.integers(rank)), [_size(chance, 4) for _ in range(rank)]
    shapes = [(*shape[:axis], _size(chance, 4), *shape[axis + 1 :]) for _ in range(_size(chance, 4))]
    result = (*shape[:axis], sum(each[axis] for each in shapes), *shape[axis + 1 :])
    operand, kind = int(chance.integers(len(shapes))), _kind(chance)
    attributes = {"axis": axis - rank * int(chance.integers(2))}
    events = loops.concatenation(shapes, axis, operand)
    return "CONCATENATION", [*shapes, result], [kind] * (len(shapes) + 1), attributes, operand, events


def mean(chance: np.random.Generator) -> Case:
    source = (_size(chance, 3), _size(chance, 4), _size(chance, 4), _size(chance, 4))
    result, kind = (source[0], 1, 1, source[3]), str(chance.choice(["int8", "float32"]))
    events = loops.image_mean(source) if kind == "float32" else loops.mean(source, prod(result))
    axes = (1, 2) if chance.random() < 0.5 else (2, 1)
    return "MEAN", [source, (2,), result], [kind, "int32", kind], {"axis": axes, "keep_dims": True}, 0, events


def transpose(chance: np.random.Generator) -> Case:
    source = tuple(_size(chance, 4) for _ in range(_size(chance, 4)))
    perm, kind = [int(each) for each in chance.permutation(len(source))], _kind(chance)
    result = tuple(source[at] for at in perm)
    return "TRANSPOSE", [source, (len(perm),), result], [kind, "int32", kind], {"perm": perm}, 0, loops.transpose(source, perm)


def transposed_convolution(chance: np.random.Generator) -> Case:
    source, result = ((1, _size(chance), _size(chance), _size(chance, 3)) for _ in range(2))
    kind = str(chance.choice(["int8", "int16"]))
    shapes, types = [(4,), (result[3], 3, 3, source[3]), source, result], ["int32", "int8", kind, kind]
    return "TRANSPOSE_CONV", shapes, types, {}, 2, loops.all_first(prod(source), prod(result))


CASES = [
    convolution,
    depthwise,
    pooling,
    fully_connected,
    unary,
    binary,
    softmax,
    pad,
    concatenation,
    mean,
    transpose,
    transposed_convolution,
]


@pytest.mark.parametrize("make", CASES, ids=lambda make: make.__name__)
def test_distance_is_the_least_safe_one(make: Any) -> None:
    chance = np.random.default_rng(len(make.__name__))
    gained = 0
    for _ in range(120):
        name, shapes, types, attributes, operand, events = make(chance)
        sizes = prod(shapes[operand]), BYTES[types[operand]], prod(shapes[-1]), BYTES[types[-1]]
        least = loops.least_safe(events, *sizes)
        assert distance(name, shapes, types, attributes, "reference", operand) == least, (name, shapes, types, attributes)
        assert distance(name, shapes, types, attributes, "none", operand) is None
        gained += least is not None
    assert gained > 20


@pytest.mark.parametrize("columns", [2, 4])
def test_convolutions_of_cmsis_nn_are_safe_at_the_distance_of_the_reference_kernel(columns: int) -> None:
    chance = np.random.default_rng(columns)
    known = 0
    for _ in range(200):
        window, attributes = _window(chance, dilated=True, most_depth=6)
        depth = _size(chance, 6)
        shapes = [
            window.source,
            (depth, *window.taps, window.source[3]),
            (window.source[0], window.rows, window.columns, depth),
        ]
        here = distance("CONV_2D", shapes, ["int8"] * 3, attributes, "cmsis-nn")
        assert here == (distance("CONV_2D", shapes, ["int8"] * 3, attributes, "reference") if window.taps[0] > 1 else None)
        if here is not None:
            events = loops.convolution_by_columns(window, depth, columns)
            assert all(loops.safe_distances(events, prod(shapes[0]), 1, prod(shapes[-1]), 1)[here:])
            known += 1
    assert known > 50


def test_depthwise_convolutions_of_cmsis_nn_go_by_blocks_of_channels() -> None:
    chance = np.random.default_rng(3)
    for depth in (2, 3, 124, 125, 200):
        window = loops.Window((1, 3, 4, depth), (2, 2), (1, 1), (1, 1), "SAME")
        shapes = [window.source, (1, 2, 2, depth), (1, 3, 4, depth)]
        attributes = {"stride_h": 1, "stride_w": 1, "padding": "SAME"}
        reference = distance("DEPTHWISE_CONV_2D", shapes, ["int8"] * 3, attributes, "reference")
        assert reference is not None
        here = distance("DEPTHWISE_CONV_2D", shapes, ["int8"] * 3, attributes, "cmsis-nn")
        assert here == (reference if depth <= 124 else None)
        at_once = int(chance.choice([1, 4]))
        safe = loops.safe_distances(loops.depthwise_by_blocks(window, 124, at_once), prod(shapes[0]), 1, prod(shapes[0]), 1)
        assert all(safe[reference:]) == (depth <= 124)
    assert (
        distance("DEPTHWISE_CONV_2D", [(1, 4, 4, 1), (1, 3, 3, 8), (1, 4, 4, 8)], ["int8"] * 3, attributes, "cmsis-nn") is None
    )


def test_filters_of_one_row_have_none_in_cmsis_nn() -> None:
    shapes = [(1, 4, 4, 8), (4, 1, 1, 8), (1, 4, 4, 4)]
    attributes = {"stride_h": 1, "stride_w": 1, "padding": "SAME"}
    reference = distance("CONV_2D", shapes, ["int8"] * 3, attributes, "reference")
    assert reference is not None
    assert not all(loops.safe_distances(loops.convolution_by_filters(shapes[0], 4), 128, 1, 64, 1)[reference:])
    assert distance("CONV_2D", shapes, ["int8"] * 3, attributes, "cmsis-nn") is None
    assert distance("CONV_2D", [(1, 4, 4, 8), (4, 3, 3, 4), (1, 4, 4, 4)], ["int8"] * 3, attributes, "cmsis-nn") is None


@pytest.mark.parametrize(
    ("name", "shapes", "types", "attributes", "operand"),
    [
        ("RESHAPE", [(2, 3), (1,), (6,)], ["int8", "int32", "int8"], {}, 0),
        ("SVDF", [(2, 3), (2, 3)], ["int8", "int8"], {}, 0),
        ("RELU", [(2, 3), (2, 3)], ["int4", "int4"], {}, 0),
        # Between types that are no characters compilers may swap reads and writes.
        ("DEQUANTIZE", [(2, 3), (2, 3)], ["int16", "float32"], {}, 0),
        ("MEAN", [(1, 2, 2, 3), (2,), (1, 3)], ["float32", "int32", "float32"], {"axis": (1, 2), "keep_dims": False}, 0),
        ("PAD", [(2, 3), (2, 2), (4, 3)], ["int8", "int32", "int8"], {}, 0),
        ("PAD", [(2, 3), (2, 2), (4, 3)], ["int8", "int32", "int8"], {"paddings": [(1, 0), (0, 0)]}, 0),
        ("TRANSPOSE", [(2, 3), (2,), (3, 2)], ["int8", "int32", "int8"], {}, 0),
        ("TRANSPOSE_CONV", [(4,), (1, 3, 3, 1), (1, 2, 2, 1), (1, 2, 2, 1)], ["int32"] + ["float32"] * 3, {}, 2),
        (
            "CONV_2D",
            [(1, 4, 4, 1), (1, 3, 3, 1), (1, 3, 3, 1)],
            ["int8"] * 3,
            {"stride_h": 1, "stride_w": 1, "padding": "SAME"},
            0,
        ),
        (
            "CONV_2D",
            [(1, 1, 1, 1), (1, 1, 1, 1), (1, 1, 1, 1)],
            ["int8"] * 3,
            {"stride_h": 1, "stride_w": 1, "padding": "SAME"},
            1,
        ),
        ("ADD", [(2, 3), (2, 2), (2, 3)], ["int8"] * 3, {}, 1),
        ("RELU", [(0, 3), (0, 3)], ["int8", "int8"], {}, 0),
    ],
)
def test_what_is_not_known_has_no_distance(
    name: str, shapes: list[tuple[int, ...]], types: list[str], attributes: dict[str, Any], operand: int
) -> None:
    for kernels in KERNELS:
        assert distance(name, shapes, types, attributes, kernels, operand) is None


def test_kernels_are_of_a_known_set() -> None:
    with pytest.raises(UsageError, match="found the kernels 'fast', expected one of none, reference, cmsis-nn"):
        distance("RELU", [(1,), (1,)], ["int8", "int8"], {}, "fast")
