"""Small valid files of every format that the package reads: what ``fuzz_readers.py`` damages."""

from __future__ import annotations

import contextlib
from typing import Any

from benchmarks.torch_memory.allocator import MIB, Allocator, OutOfMemoryError

MEASUREMENTS = b"step,fast,latency_ps\na,,100\na,0,80\na,1,90\na,0 1,70\nb,,5\nb,2,3\n"

GRAPH_HLO = b"""HloModule all, entry_computation_layout={(f32[2,3]{1,0})->f32[2]{0}}

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

relu.1 {
  p = f32[2,12]{1,0} parameter(0)
  zero = f32[] constant(0)
  zeros = f32[2,12]{1,0} broadcast(zero), dimensions={}
  ROOT m = f32[2,12]{1,0} maximum(p, zeros)
}

twice {
  pair = (f32[2,12]{1,0}, s32[]) parameter(0)
  one = f32[2,12]{1,0} get-tuple-element(pair), index=0
  two = f32[2,12]{1,0} call(one), to_apply=relu.1
  n = s32[] get-tuple-element(pair), index=1
  ROOT both = (f32[2,12]{1,0}, s32[]) tuple(two, n)
}

ENTRY main {
  x = f32[2,3]{1,0} parameter(0)
  t = f32[3,2]{1,0} transpose(x), dimensions={1,0}
  r = f32[3,2]{1,0} reverse(t), dimensions={0}
  v = f32[] constant(9)
  p = f32[6,4]{1,0} pad(r, v), padding=1_0_1x0_2
  f = f32[2,12]{1,0} reshape(p)
  i = s32[] parameter(2)
  g = (f32[2,12]{1,0}, s32[]) tuple(f, i)
  h = (f32[2,12]{1,0}, s32[]) call(g), to_apply=twice
  c = f32[2,12]{1,0} get-tuple-element(h), index=0
  s = f32[2,5]{1,0} slice(c), slice={[0:2], [1:10:2]}
  k = f32[2,10]{1,0} concatenate(s, s), dimensions={1}
  w = f32[10,3]{1,0} parameter(1)
  d = f32[2,3]{1,0} dot(k, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  e = f32[2,3]{1,0} subtract(d, x)
  z = f32[] constant(0)
  q = f32[2]{0} reduce(e, z), dimensions={1}, to_apply=sum
  img = f32[1,8,8,3]{3,2,1,0} parameter(3)
  ker = f32[3,3,3,4]{3,2,1,0} parameter(4)
  cv = f32[1,4,4,4]{3,2,1,0} convolution(img, ker), window={size=3x3 stride=2x2 pad=1_1x1_1}, dim_labels=b01f_01io->b01f
  rw = f32[1,2,2,4]{3,2,1,0} reduce-window(cv, z), window={size=1x2x2x1 stride=1x2x2x1}, to_apply=sum
  tb = f32[6,4]{1,0} parameter(5)
  ix = s32[3,1]{1,0} parameter(6)
  ga = f32[3,4]{1,0} gather(tb, ix), offset_dims={1}, collapsed_slice_dims={0}, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}
  sc = f32[6,4]{1,0} scatter(tb, ix, ga), update_window_dims={1}, inserted_window_dims={0}, scatter_dims_to_operand_dims={0}, index_vector_dim=1, to_apply=sum
  ds = f32[1,4]{1,0} dynamic-slice(sc, i, i), dynamic_slice_sizes={1,4}
  du = f32[6,4]{1,0} dynamic-update-slice(sc, ds, i, i)
  io = s32[4]{0} iota(), iota_dimension=0
  cm = pred[6,4]{1,0} compare(du, tb), direction=LT
  se = f32[6,4]{1,0} select(cm, du, tb)
  so = (f32[6]{0}, s32[6]{0}) custom-call(se), custom_call_target="TopK"
  ROOT out = (f32[2]{0}, f32[2,3]{1,0}, f32[1,2,2,4]{3,2,1,0}, f32[6,4]{1,0}, s32[4]{0}, (f32[6]{0}, s32[6]{0})) tuple(q, e, rw, se, io, so)
}
"""  # noqa: E501

CALLS_HLO = b"""HloModule counter, is_scheduled=true

%inner (a: f32[8,128]) -> f32[8,128] {
  %a = f32[8,128]{1,0:T(8,128)} parameter(0)
  ROOT %b = f32[8,128]{1,0:T(8,128)} negate(%a)
}

%outer (c: f32[8,128]) -> f32[8,128] {
  %c = f32[8,128]{1,0:T(8,128)} parameter(0)
  %d = f32[8,128]{1,0:T(8,128)} call(%c), to_apply=%inner
  ROOT %e = f32[8,128]{1,0:T(8,128)} call(%d), to_apply=%inner, backend_config={"estimated_cycles":"300"}
}

ENTRY %main (x: f32[8,128], k: f32[128,256]) -> f32[8,256] {
  %x = f32[8,128]{1,0:T(8,128)} parameter(0)
  %k = f32[128,256]{1,0:T(8,128)} parameter(1)
  %f = f32[8,128]{1,0:T(8,128)} call(%x), to_apply=%outer
  ROOT %g = f32[8,256]{1,0:T(8,128)} dot(%f, %k), lhs_contracting_dims={1}, rhs_contracting_dims={0}
}
"""

NODE_LINK = b"""{
 "directed": true, "multigraph": false, "graph": {"name": "links"},
 "nodes": [
  {"id": 0, "opcode": "LOAD", "label": "x"},
  {"id": 1, "opcode": "MUL"},
  {"id": 2, "opcode": "ADD"},
  {"id": 3, "opcode": "STORE"}
 ],
 "links": [
  {"source": 0, "target": 1, "distance": 0, "key": 0},
  {"source": 1, "target": 2},
  {"source": 2, "target": 2, "dist": 1},
  {"source": 2, "target": 3}
 ]
}
"""

LAYERS = b"""{
"format": "stowplan.layers",
"version": 1,
"name": "small",
"nodes": [
 {"id": 0, "op": "conv", "name": "c1", "ofm": [16, 16, 8], "ofm_elems": 2048, "ifm": [32, 32, 3], "ifm_elems": 3072,
  "weight_elems": 216, "macs": 442368, "groups": 1, "kernel_x": 3, "kernel_y": 3, "stride": 2, "pad": 1, "dilation": 1,
  "batch": 1, "fused": ["relu"]},
 {"id": 1, "op": "maxpool", "name": "p1", "ofm": [8, 8, 8], "ofm_elems": 512, "ifm": [16, 16, 8], "ifm_elems": 2048,
  "kernel_x": 2, "kernel_y": 2, "stride": 2},
 {"id": 2, "op": "fc", "name": "f1", "ofm": [1, 1, 10], "ofm_elems": 10, "ifm": [1, 1, 512], "ifm_elems": 512,
  "weight_elems": 5120, "macs": 5120, "weight_bytes_int8": 5120}
],
"edges": [[0, 1], [1, 2]],
"notes": ["made by hand"]
}
"""

BUFFERS = b"""id,begin,end,size,alignment,gaps,offset,hint
a,0,2,602112,64,,,
b,1,9,1605632,64,3-4 6-7,,0
c,1,2,401408,256,,0,-1
d,-3,4,0,1,,,
"""

FIXED = b"""[
 {"instruction": "p0", "tile": 3, "time": 0, "slot": 0},
 {"instruction": "y", "tile": 5}
]
"""

MACHINE = b"""name = "ring"
rows = 4
columns = 2
wraps = true
latency = 2
spoke_depth = 16
instruction_depth = 16
memories = 1
memory_depth = 64
operations = ["add", "mul", "load", "store"]

[[links]]
name = "down"
rows = 1
clocks = 1

[[links]]
name = "right"
rows = 0
columns = 1
clocks = 0
"""


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
