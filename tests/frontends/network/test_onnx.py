"""ONNX models: small ones made here, and those of the corpus, whose weights were stripped."""

from __future__ import annotations

import math
import sys
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from stowplan.errors import InputError, MissingDependencyError
from stowplan.frontends import onnx_file, shape_inference
from stowplan.frontends.network import is_onnx, read_onnx
from tests.paths import EXAMPLES


def save(path: Path, nodes: list[Any], inputs: dict[str, Any], output: str, stored: dict[str, tuple[int, ...]]) -> Path:
    """A model with weights of zeros. ``inputs`` are float, but those whose shape is ``("int", ...)``."""
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")
    helper, kinds = onnx.helper, onnx.TensorProto

    def info(name: str, shape: Any) -> Any:
        if shape and shape[0] == "int":
            return helper.make_tensor_value_info(name, kinds.INT64, shape[1:])
        return helper.make_tensor_value_info(name, kinds.FLOAT, shape)

    weights = [helper.make_tensor(name, kinds.FLOAT, shape, [0.0] * math.prod(shape)) for name, shape in stored.items()]
    outputs = [helper.make_tensor_value_info(output, kinds.FLOAT, None)]
    graph = helper.make_graph(nodes, "g", [info(*each) for each in inputs.items()], outputs, weights)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10), path)
    return path


def make(kind: str, inputs: list[str], output: str, **attributes: Any) -> Any:
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")
    return onnx.helper.make_node(kind, inputs, [output], **attributes)


def test_a_small_convolutional_network(tmp_path: Path) -> None:
    nodes = [
        make("Conv", ["x", "k", "kb"], "c", strides=[2, 2], pads=[1, 1, 1, 1], kernel_shape=[3, 3], group=2),
        make("Relu", ["c"], "r"),
        make("MaxPool", ["r"], "m", kernel_shape=[2, 2], strides=[2, 2]),
        make("GlobalAveragePool", ["m"], "g"),
        make("Flatten", ["g"], "f"),
        make("Gemm", ["f", "w", "wb"], "y", transB=1),
    ]
    stored = {"k": (8, 2, 3, 3), "kb": (8,), "w": (10, 8), "wb": (10,)}
    network = read_onnx(save(tmp_path / "net.onnx", nodes, {"x": (1, 4, 16, 16)}, "y", stored))
    assert [(layer.op, layer.inputs) for layer in network.layers] == [
        ("conv", ()),
        ("maxpool", (0,)),
        ("avgpool", (1,)),
        ("fc", (2,)),
    ]
    conv, _, _, product = network.layers
    assert (conv.groups, conv.kernel_x, conv.kernel_y, conv.stride, conv.pad, conv.dilation) == (2, 3, 3, 2, 1, 1)
    assert conv.macs == 8 * 8 * 8 * 2 * 9
    assert conv.weight_elements == 8 * 2 * 9 + 8
    assert (conv.input_shape, conv.output_shape) == ((16, 16, 4), (8, 8, 8))
    assert (product.macs, product.weight_elements) == (80, 90)


def test_stripped_weights_are_told_from_feature_maps(tmp_path: Path) -> None:
    nodes = [
        make("Gather", ["table", "ids"], "e"),
        make("MatMul", ["e", "w"], "p"),
        make("Add", ["p", "b"], "q"),
        make("Transpose", ["q"], "t", perm=[0, 2, 1]),
        make("MatMul", ["q", "t"], "s"),
        make("Softmax", ["s"], "y"),
    ]
    inputs = {"ids": ("int", 1, 6), "table": (50, 8), "w": (8, 8), "b": (8,)}
    network = read_onnx(save(tmp_path / "net.onnx", nodes, inputs, "y", {}))
    assert [layer.op for layer in network.layers] == ["embedding", "matmul_w", "bias_add", "transpose", "matmul", "softmax"]
    assert [layer.weight_elements for layer in network.layers] == [400, 64, 8, 0, 0, 0]
    assert network.layers[0].weights_read == 48
    assert [layer.macs for layer in network.layers] == [0, 6 * 8 * 8, 0, 0, 6 * 6 * 8, 0]
    assert network.layers[4].inputs == (2, 3)


def test_refusals(tmp_path: Path) -> None:
    pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")
    free = save(tmp_path / "free.onnx", [make("Relu", ["x"], "y")], {"x": ("n", 4)}, "y", {})
    with pytest.raises(InputError, match=r"free\.onnx: input x: found open sizes of inputs, .* --dim n=1$"):
        read_onnx(free)
    garbage = tmp_path / "garbage.onnx"
    for data in (b"", b"hello", b"\x08" * 40):
        garbage.write_bytes(data)
        with pytest.raises(InputError, match=r"garbage\.onnx: not an ONNX model"):
            read_onnx(garbage)
    with pytest.raises(InputError, match="cannot read"):
        read_onnx(tmp_path / "missing.onnx")


def test_without_onnx(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "onnx", None)
    with pytest.raises(MissingDependencyError, match=r"\.\[frontends\]"):
        read_onnx(tmp_path / "any.onnx")


def test_known_by_name_or_first_byte(tmp_path: Path) -> None:
    assert is_onnx("model.onnx.gz")
    assert not is_onnx(EXAMPLES / "resnet50.layers.json")
    (tmp_path / "model").write_bytes(b"\x08\x0a")
    assert is_onnx(tmp_path / "model")


def test_corpus(corpus: Path) -> None:
    pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")
    resnet = read_onnx(corpus / "onnx" / "resnet50_b1.stripped.onnx")
    assert (len(resnet.layers), len(resnet.edges), resnet.macs) == (57, 72, 4_089_184_256)
    bert = read_onnx(corpus / "onnx" / "bert_base_s128.stripped.onnx")
    # Its exporter merged the two transposes of each layer's keys: twelve fewer than the model has.
    assert len(bert.layers) == 376 - 12
    assert bert.macs == 11_173_822_464
    assert Counter(layer.op for layer in bert.layers)["matmul_w"] == 73
    assert len(read_onnx(corpus / "onnx" / "bert_base_s128.stripped.onnx", granularity="layer").layers) == 135


def sliced(path: Path, rows: int, ends: tuple[int, int]) -> Path:
    """A slice of rows of an input, from and to the numbers given."""
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")
    helper, kinds = onnx.helper, onnx.TensorProto
    bounds = [
        helper.make_tensor(name, kinds.INT64, (1,), [value]) for name, value in (("s", ends[0]), ("e", ends[1]), ("a", 0))
    ]
    inputs, outputs = (helper.make_tensor_value_info(*each) for each in (("x", 1, (rows, 8)), ("y", 1, None)))
    graph = helper.make_graph([make("Slice", ["x", "s", "e", "a"], "y")], "g", [inputs], [outputs], bounds)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)], ir_version=10), path)
    return path


def test_sizes_below_zero(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"net\.onnx: input x: found open sizes of inputs, .* --shape x=1x8$"):
        read_onnx(sliced(tmp_path / "net.onnx", -1, (0, 2)))


def test_a_model_that_ends_inference_costs_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnx_file, "fix_sizes", lambda model, told: None)
    bad, good = sliced(tmp_path / "bad.onnx", -1, (0, 2)), sliced(tmp_path / "good.onnx", 4, (0, 2))
    for _ in range(2):
        with pytest.raises(
            InputError, match=r"bad\.onnx: onnx cannot infer the model's shapes: its process was ended by signal SIGABRT"
        ):
            onnx_file.read_onnx_file(bad)
        assert [size.dim_value for size in onnx_file.read_onnx_file(good).graph.output[0].type.tensor_type.shape.dim] == [2, 8]


def test_shapes_are_inferred_by_one_process(tmp_path: Path) -> None:
    good = sliced(tmp_path / "good.onnx", 4, (0, 2))
    onnx_file.read_onnx_file(good)
    (kept,) = shape_inference._kept
    onnx_file.read_onnx_file(good)
    assert shape_inference._kept == [kept]
    # An answer that an interrupted caller has not read goes to no other.
    kept.is_busy = True
    onnx_file.read_onnx_file(good)
    (fresh,) = shape_inference._kept
    assert fresh is not kept


def test_large_weights_are_not_lost(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")
    weight = onnx.numpy_helper.from_array(np.arange(90_000, dtype=np.float32).reshape(300, 300), "w")
    inputs, outputs = (onnx.helper.make_tensor_value_info(*each) for each in (("x", 1, (2, 300)), ("y", 1, None)))
    graph = onnx.helper.make_graph([make("MatMul", ["x", "w"], "y")], "g", [inputs], [outputs], [weight])
    onnx.save(onnx.helper.make_model(graph, ir_version=10), tmp_path / "net.onnx")
    found = onnx_file.read_onnx_file(tmp_path / "net.onnx").graph
    assert list(found.initializer) == [weight]
    assert [size.dim_value for size in found.output[0].type.tensor_type.shape.dim] == [2, 300]


@pytest.mark.parametrize("kind", ["Conv", "ConvTranspose", "Gemm", "MatMul", "GlobalAveragePool"])
def test_operators_that_lack_what_they_need(kind: str, tmp_path: Path) -> None:
    nodes = [make("Relu", ["x"], "r"), make(kind, ["r"], "c"), make("Relu", ["c"], "y")]
    expected = r"net\.onnx: \w+: found (a \w+ with 1 inputs, expected two|the shape \[4, 8\], expected 3)"
    with pytest.raises(InputError, match=expected):
        read_onnx(save(tmp_path / "net.onnx", nodes, {"x": (4, 8)}, "y", {}))
