"""Small valid inputs of every format that the package reads, which ``fuzz_readers.py`` damages: files, and some made here."""

from __future__ import annotations

import contextlib
from typing import Any

from benchmarks.lib.places import ROOT
from benchmarks.torch_memory.allocator import MIB, Allocator, OutOfMemoryError

#: Those that are files.
INPUTS = ROOT / "tests" / "data" / "readers"


def onnx_model() -> Any:
    """A model with an operator of every sort that the front ends tell apart; needs onnx."""
    import numpy as np
    import onnx

    helper, node = onnx.helper, onnx.helper.make_node
    nodes = [
        node("Conv", ["image", "kernel", "bias"], ["c"], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], group=1),
        node("BatchNormalization", ["c", "bias", "bias", "bias", "bias"], ["n"]),
        node("Relu", ["n"], ["r"]),
        node("MaxPool", ["r"], ["m"], kernel_shape=[2, 2], strides=[2, 2]),
        node("GlobalAveragePool", ["m"], ["g"]),
        node("Flatten", ["g"], ["f"], axis=1),
        node("Gemm", ["f", "w", "wb"], ["y"], transB=1),
        node("Softmax", ["y"], ["s"], axis=1),
        node("Transpose", ["x"], ["t"], perm=[1, 0]),
        node("Slice", ["t", "starts", "ends", "axes", "steps"], ["sl"]),
        node("Pad", ["sl", "pads", "seven"], ["p"]),
        node("Reshape", ["p", "shape"], ["re"]),
        node("Split", ["re"], ["a", "b"], axis=0, num_outputs=2),
        node("Concat", ["b", "a"], ["cc"], axis=1),
        node("Expand", ["row", "wide"], ["e"]),
        node("Add", ["cc", "row2"], ["d"]),
        node("Tile", ["d", "times"], ["ti"]),
        node("Gather", ["ti", "one"], ["ga"], axis=0),
        node("Gather", ["table", "rows"], ["em"], axis=0),
        node("MatMul", ["em", "square"], ["mm"]),
        node("LayerNormalization", ["mm", "scale"], ["ln"], axis=-1),
        node("ReduceMean", ["ln", "last"], ["rm"], keepdims=0),
        node("Constant", [], ["k"], value_floats=[1.0, 2.0]),
        node("Mul", ["rm", "k"], ["out"]),
    ]
    floats = {"image": [1, 3, 8, 8], "x": [4, 6], "row": [1, 8], "row2": [1, 16], "table": [9, 4]}
    outputs = {"s": [1, 5], "ga": [32], "e": [1, 8], "out": [2]}
    numbers: dict[str, Any] = {
        "kernel": np.zeros((4, 3, 3, 3), np.float32),
        "bias": np.ones(4, np.float32),
        "w": np.zeros((5, 4), np.float32),
        "wb": np.zeros(5, np.float32),
        "starts": np.array([5, 0]),
        "ends": np.array([-7, 4]),
        "axes": np.array([0, 1]),
        "steps": np.array([-2, 1]),
        "pads": np.array([1, 0, 0, 0]),
        "seven": np.float32(7),
        "shape": np.array([2, 8]),
        "wide": np.array([1, 8]),
        "times": np.array([2, 2]),
        "one": np.array(1),
        "rows": np.array([3, 1]),
        "square": np.zeros((4, 4), np.float32),
        "scale": np.ones(4, np.float32),
        "last": np.array([1]),
    }
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in floats.items()],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [onnx.numpy_helper.from_array(np.array(value), name) for name, value in numbers.items()],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10)


def onnx_shapes_model() -> Any:
    """A model in old operators, some shapes of which follow from numbers that follow from other shapes; needs onnx."""
    import onnx

    helper, node, kinds = onnx.helper, onnx.helper.make_node, onnx.TensorProto
    nodes = [
        node("Shape", ["x"], ["shape"]),
        node("Cast", ["shape"], ["narrow"], to=kinds.INT32),
        node("Slice", ["narrow", "zero", "one"], ["first"]),
        node("Cast", ["first"], ["wide"], to=kinds.INT64),
        node("ConstantOfShape", ["one"], ["filled"], value=helper.make_tensor("v", kinds.INT64, [1], [3])),
        node("Mul", ["filled", "one"], ["three"]),
        node("Concat", ["wide", "three", "minus"], ["to"], axis=0),
        node("Reshape", ["x", "to"], ["flat"]),
        node("Mine", ["flat"], ["y"], domain="com.microsoft"),
    ]
    values = [helper.make_tensor_value_info(name, kinds.FLOAT, shape) for name, shape in (("x", [2, 3, 4]), ("y", [2, 3, 4]))]
    numbers = [helper.make_tensor(name, kinds.INT64, [1], [value]) for name, value in (("zero", 0), ("one", 1), ("minus", -1))]
    graph = helper.make_graph(nodes, "shapes", values[:1], values[1:], numbers)
    opsets = [helper.make_opsetid("", 11), helper.make_opsetid("com.microsoft", 1)]
    return helper.make_model(graph, opset_imports=opsets, ir_version=10)


def snapshot() -> dict[str, Any]:
    """A memory snapshot with events of all sorts."""
    allocator = Allocator(64 * MIB)
    frames = [{"filename": "train.py", "line": 7, "name": "step"}]
    kept = [allocator.malloc(size, stream, frames) for size in (100, 3 * MIB, 12 * MIB) for stream in (0, 7)]
    allocator.record()
    allocator.free(kept[1])
    allocator.free(kept[2], completes=False)
    allocator.malloc(5 * MIB, 7)
    allocator.free(kept[4])
    allocator.empty_cache()
    allocator.note("snapshot", 0, allocator.allocated, 0)
    with contextlib.suppress(OutOfMemoryError):
        allocator.malloc(60 * MIB, 0, frames)
    return allocator.snapshot(device=1)
