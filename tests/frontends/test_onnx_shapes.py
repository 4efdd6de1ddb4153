"""ONNX models: shapes that follow from numbers, and what of a graph is named where it is not modelled, or refused."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import pytest

import stowplan
from stowplan.errors import InputError
from stowplan.frontends import shape_inference
from stowplan.frontends.affine.onnx_graph import read_affine_onnx
from stowplan.frontends.onnx_file import read_onnx_file
from stowplan.hardware.affine.program import UNSPREAD
from stowplan.log import UnmodelledWarning
from tests.paths import ROOT
from tests.patience import no_hang

onnx = pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")
FLOAT, INT32, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.INT32, onnx.TensorProto.INT64
MODEL = ROOT.parent / "shared" / "cases" / "onnx-shapes" / "ocrcls.onnx"
TARGETS = ("arena", "order", "nnp-i", "inferentia")


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return onnx.helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def save(path: Path, nodes: list[Any], output: str = "y", **more: Any) -> Path:
    """A model of these nodes with the input ``x`` of floats, ``x`` and ``output`` of the types in ``more``."""
    helper = onnx.helper
    numbers = {"zero": [0], "one": [1], "two": [2], "minus": [-1], "last": [1 << 40], "huge": [1 << 40, 1 << 40]}
    stored = [helper.make_tensor(name, INT64, [len(value)], value) for name, value in numbers.items()]
    given = helper.make_tensor_value_info("x", more.get("kind", FLOAT), more.get("shape", [2, 3, 4, 8]))
    made = more.get("made") or helper.make_tensor_value_info(output, more.get("output_kind", FLOAT), None)
    graph = helper.make_graph(nodes, "g", [given, *more.get("inputs", [])], [made], stored)
    opsets = [helper.make_opsetid("", more.get("opset", 11)), helper.make_opsetid("com.microsoft", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


#: From a shape by way of a slice, a cast and a concatenation to a reshape.
CHAIN = [
    node("Shape", "x", "shape"),
    node("Cast", "shape", "narrow", to=INT32),
    node("Slice", "narrow zero one", "first"),
    node("Cast", "first", "wide", to=INT64),
    node("Concat", "wide minus", "to", axis=-1),
    node("Reshape", "x to", "flat"),
    node("Relu", "flat", "y"),
]


@pytest.mark.parametrize("opset", [11, 13, 17])
@pytest.mark.parametrize("target", TARGETS)
def test_shapes_that_are_computed_of_shapes(target: str, opset: int, tmp_path: Path) -> None:
    path = save(tmp_path / "chain.onnx", CHAIN, opset=opset)
    with pytest.warns(UnmodelledWarning) if target == "inferentia" else contextlib.nullcontext():
        assert stowplan.read(path, target)
    assert read_onnx_file(path).shapes["y"] == (2, 96)


def test_numbers_of_several_sorts_are_folded(tmp_path: Path) -> None:
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape two", "length"),
        node("Cast", "length", "real", to=FLOAT),
        node("Constant", "", "half", value=onnx.helper.make_tensor("half", FLOAT, [1], [0.5])),
        node("Mul", "real half", "less"),
        node("Floor", "less", "floor"),
        node("Cast", "floor", "rows", to=INT64),
        node("ConstantOfShape", "one", "filled", value=onnx.helper.make_tensor("v", INT64, [1], [3])),
        node("Equal", "filled filled", "same"),
        node("Where", "same rows minus", "chosen"),
        node("Concat", "chosen minus", "to", axis=0),
        node("Reshape", "x to", "flat"),
        node("Shape", "flat", "again"),
        node("Reshape", "x again", "y"),
    ]
    assert read_onnx_file(save(tmp_path / "folded.onnx", nodes)).shapes["y"] == (2, 96)


def test_what_would_be_a_large_list_is_not_folded(tmp_path: Path) -> None:
    nodes = [
        node("ConstantOfShape", "huge", "large"),
        node("Expand", "one huge", "larger"),
        node("ReduceProd", "large", "product", keepdims=0),
        node("Reshape", "x product", "y"),
    ]
    with no_hang(), pytest.raises(InputError, match="the operator Reshape that makes 'y' takes it from values"):
        stowplan.read(save(tmp_path / "large.onnx", nodes), "arena")


@pytest.mark.parametrize(
    ("nodes", "message"),
    [
        (
            [node("NonZero", "x", "n"), node("Cast", "n", "y", to=FLOAT)],
            "the operator NonZero that makes 'n' takes it from values",
        ),
        (
            [node("Size", "x", "s"), node("Unsqueeze", "k", "u", axes=[0]), node("TopK", "x u", "y i")],
            "the operator TopK that makes 'y' takes it from values",
        ),
        (
            [node("Fused", "x", "f", domain="com.microsoft"), node("Relu", "f", "y")],
            "com.microsoft::Fused that makes 'f' is not known",
        ),
        ([node("Fused", "x", "f"), node("Relu", "f", "y")], "the operator Fused that makes 'f' is not known to onnx"),
        ([node("Relu", "free", "y")], "input free: found open sizes of inputs, .* for example: --dim n=1$"),
    ],
)
def test_what_leaves_a_shape_open_is_named(nodes: list[Any], message: str, tmp_path: Path) -> None:
    inputs = [
        onnx.helper.make_tensor_value_info("k", INT64, []),
        onnx.helper.make_tensor_value_info("free", FLOAT, ["n", 2]),
    ]
    used = {name for each in nodes for name in each.input}
    path = save(tmp_path / "open.onnx", nodes, inputs=[each for each in inputs if each.name in used])
    with pytest.raises(InputError, match=message):
        stowplan.read(path, "order")


def test_inference_by_nodes_keeps_what_is_declared(tmp_path: Path) -> None:
    made = onnx.helper.make_tensor_value_info("y", FLOAT, [2, 3, 4, 8])
    nodes = [node("Fused", "x", "f", domain="com.microsoft"), node("Relu", "f", "y")]
    path = save(tmp_path / "declared.onnx", nodes, made=made)
    assert read_onnx_file(path).shapes["y"] == (2, 3, 4, 8)


def declared(path: Path, nodes: list[Any]) -> Path:
    """A model whose values have the shape of ``x``, as files of runtimes with operators of their own say."""
    model = onnx.load(save(path, nodes))
    for name in {result for each in nodes for result in each.output} - {"y"}:
        model.graph.value_info.append(onnx.helper.make_tensor_value_info(name, FLOAT, [2, 3, 4, 8]))
    onnx.save(model, path)
    return path


def test_operators_of_other_domains_are_not_taken_for_standard_ones(tmp_path: Path) -> None:
    kinds = ("Reshape", "Relu", "Shape", "Identity", "Dropout")
    nodes = [node(kind, f"v{at}" if at else "x", f"v{at + 1}", domain="com.microsoft") for at, kind in enumerate(kinds)]
    path = declared(tmp_path / "foreign.onnx", [*nodes, node("Relu", f"v{len(kinds)}", "y")])
    with pytest.warns(UnmodelledWarning, match="v1: nothing is known of a com.microsoft::Reshape") as caught:
        problem = stowplan.read(path, "order")
    assert len(caught) == len(kinds)
    assert [each.alias_of for each in problem.tensors] == [None] * 7
    assert [each.in_place for each in problem.ops] == [()] * 5 + [((5, 6),)]
    with pytest.warns(UnmodelledWarning, match="v2: a com.microsoft::Relu is not modelled: what it reads and"):
        stowplan.read(path, "inferentia")
    notes = stowplan.read(path, "nnp-i").notes
    assert any("com.microsoft::relu is not known here" in note for note in notes)


def test_a_dropout_that_trains_is_no_view(tmp_path: Path) -> None:
    for inputs, alias in (("x", 0), ("x ratio mode", None)):
        stored = [onnx.helper.make_tensor_value_info("ratio", FLOAT, []), onnx.helper.make_tensor_value_info("mode", 9, [])]
        nodes = [node("Dropout", inputs, "d"), node("Relu", "d", "y")]
        path = save(tmp_path / "dropout.onnx", nodes, opset=13, inputs=stored if "mode" in inputs else [])
        problem = stowplan.read(path, "order")
        assert next(each for each in problem.tensors if each.id == "d").alias_of == alias


def test_what_is_drawn_at_random_is_not_stored(tmp_path: Path) -> None:
    half = onnx.helper.make_tensor("half", FLOAT, [1], [0.5])
    nodes = [node("Constant", "", "half", value=half), node("Bernoulli", "half", "drawn"), node("Mul", "x drawn", "y")]
    problem = stowplan.read(save(tmp_path / "drawn.onnx", nodes, opset=15), "order")
    assert [each.id for each in problem.tensors] == ["x", "drawn", "y"]


def test_softmax_is_over_all_dimensions_behind_its_axis_before_version_13(tmp_path: Path) -> None:
    spread = {}
    for opset in (11, 13):
        program = read_affine_onnx(save(tmp_path / "softmax.onnx", [node("Softmax", "x", "y", axis=1)], opset=opset))
        (operator,) = program.statements
        spread[opset] = [option[-1] for option in operator.options]
    assert spread == {11: [0, UNSPREAD], 13: [0, 2, 3, UNSPREAD]}


@pytest.mark.parametrize("target", ["arena", "order", "inferentia"])
@pytest.mark.parametrize(
    ("kind", "bits"),
    [("UINT4", 4), ("INT4", 4), ("BFLOAT16", 16), ("FLOAT8E5M2", 8), ("BOOL", 8), ("DOUBLE", 64), ("INT16", 16)],
)
def test_sizes_of_elements(kind: str, bits: int, target: str, tmp_path: Path) -> None:
    number = onnx.TensorProto.DataType.Value(kind)
    nodes = [node("Transpose", "x", "t"), node("Transpose", "t", "y")]
    path = save(tmp_path / "types.onnx", nodes, kind=number, output_kind=number, shape=[5, 3], opset=23)
    file = read_onnx_file(path)
    assert file.bits("t") == bits
    if target == "inferentia":
        with pytest.warns(UnmodelledWarning, match="less than a byte") if bits < 8 else contextlib.nullcontext():
            read_affine_onnx(path)
    else:
        problem = stowplan.read(path, target)
        sizes = {each.size for each in (problem.buffers if target == "arena" else problem.tensors)}
        assert sizes == {-(-15 * bits // 8)}


@pytest.mark.parametrize("target", ["arena", "order", "inferentia"])
def test_text_is_refused(target: str, tmp_path: Path) -> None:
    path = save(tmp_path / "text.onnx", [node("Identity", "x", "y")], kind=8, output_kind=8)
    with pytest.raises(InputError, match=r"x: found elements of type STRING, expected numbers of a fixed size"):
        stowplan.read(path, target)


@pytest.mark.parametrize("target", TARGETS)
def test_values_that_are_no_tensors_are_refused(target: str, tmp_path: Path) -> None:
    nodes = [node("SequenceConstruct", "x x", "s"), node("ConcatFromSequence", "s", "y", axis=0)]
    with pytest.raises(InputError, match="value s: found a sequence_type, expected a tensor"):
        stowplan.read(save(tmp_path / "sequence.onnx", nodes), target)


@pytest.mark.parametrize("kind", ["If", "com.microsoft::Mine"])
def test_any_operator_with_a_graph_in_it_is_refused(kind: str, tmp_path: Path) -> None:
    helper = onnx.helper
    body = helper.make_graph([node("Relu", "x", "z")], "body", [], [helper.make_tensor_value_info("z", FLOAT, None)])
    domain, _, name = kind.rpartition("::")
    choice = node(name, "c", "y", domain=domain, then_branch=body, else_branch=body)
    path = save(tmp_path / "body.onnx", [choice], inputs=[helper.make_tensor_value_info("c", onnx.TensorProto.BOOL, [])])
    with pytest.raises(InputError, match=f"operator y: found a {name}, expected a graph without control flow"):
        # Graphs to order, or for an arena, may have choices and loops.
        stowplan.read(path, "nnp-i" if kind == "If" else "arena")


def test_a_layout_on_several_devices_is_named(tmp_path: Path) -> None:
    model = onnx.load(save(tmp_path / "devices.onnx", [node("Relu", "x", "y")]))
    model.ir_version = 11
    model.configuration.add(name="two", num_devices=2)
    onnx.save(model, tmp_path / "devices.onnx")
    with pytest.warns(UnmodelledWarning, match="configuration: it is laid out for several devices"):
        stowplan.read(tmp_path / "devices.onnx", "arena")


@pytest.mark.skipif(not MODEL.is_file(), reason="needs ../shared/cases")
@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.filterwarnings("ignore::stowplan.log.UnmodelledWarning")
def test_a_model_of_others(target: str) -> None:
    assert stowplan.read(MODEL, target)
    assert read_onnx_file(MODEL).shapes["save_infer_model/scale_0.tmp_1"] == (1, 2)
    assert shape_inference._kept[0].is_ready
