"""HLO and ONNX graphs as affine programs: what the text says, clear errors, and the networks of the corpus."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from stowplan.errors import InputError
from stowplan.frontends.affine.hlo import affine_program, read_affine_hlo
from stowplan.frontends.hlo import parse_module
from stowplan.hardware.affine.check import check
from stowplan.hardware.affine.program import Copy, Operator
from stowplan.transforms.eliminate import eliminate
from tests.frontends.affine.execute import run
from tests.hardware.affine.cases import random_inputs

TEXT = """HloModule all, entry_computation_layout={(f32[2,3]{1,0})->f32[2]{0}}

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

ENTRY main {
  x = f32[2,3]{1,0} parameter(0)
  t = f32[3,2]{1,0} transpose(x), dimensions={1,0}
  r = f32[3,2]{1,0} reverse(t), dimensions={0}
  v = f32[] constant(9)
  p = f32[6,4]{1,0} pad(r, v), padding=1_0_1x0_2
  f = f32[2,12]{1,0} reshape(p)
  c = f32[2,12]{1,0} call(f), to_apply=relu.1
  s = f32[2,5]{1,0} slice(c), slice={[0:2], [1:10:2]}
  k = f32[2,10]{1,0} concatenate(s, s), dimensions={1}
  w = f32[10,3]{1,0} parameter(1)
  d = f32[2,3]{1,0} dot(k, w), lhs_contracting_dims={1}, rhs_contracting_dims={0}
  e = f32[2,3]{1,0} subtract(d, x)
  z = f32[] constant(0)
  q = f32[2]{0} reduce(e, z), dimensions={1}, to_apply=sum
  ROOT out = (f32[2]{0}, f32[2,3]{1,0}) tuple(q, e)
}
"""


def test_hlo_means_what_it_says() -> None:
    program = affine_program(parse_module(TEXT))
    assert program.outputs == ("q", "e")
    inputs = random_inputs(program, 1)
    inputs["v"], inputs["zero"], inputs["z"] = (np.array(value) for value in (9.0, 0.0, 0.0))
    x = inputs["x"]
    padded = np.full((6, 4), 9.0)
    padded[1::2, :2] = x.T[::-1]
    flat = np.maximum(padded.reshape(2, 12), 0)
    part = flat[:, 1:10:2]
    expected = np.concatenate([part, part], axis=1) @ inputs["w"] - x
    found = run(program, inputs)
    assert np.allclose(found["e"], expected)
    assert np.allclose(found["q"], expected.sum(axis=1))
    shorter, report = eliminate(program)
    assert report.found == report.eliminated == 9
    assert not list(shorter.copies())
    assert all(np.array_equal(found[name], value) for name, value in run(shorter, inputs).items())


def test_hlo_that_has_no_place_here() -> None:
    text = """HloModule loop

body {
  ROOT b = f32[2]{0} parameter(0)
}

condition {
  p = f32[2]{0} parameter(0)
  ROOT c = pred[] constant(false)
}

ENTRY main {
  x = f32[2]{0} parameter(0)
  ROOT w = f32[2]{0} while(x), condition=condition, body=body
}
"""
    with pytest.raises(InputError, match=r"operator w \(line 14\).*found a while"):
        affine_program(parse_module(text))


def test_gathers_and_dynamic_slices_are_not_affine() -> None:
    text = """HloModule g

ENTRY main {
  x = f32[4,6]{1,0} parameter(0)
  t = f32[6,4]{1,0} transpose(x), dimensions={1,0}
  i = s32[] parameter(1)
  d = f32[1,4]{1,0} dynamic-slice(t, i, i), dynamic_slice_sizes={1,4}
  n = s32[3,1]{1,0} parameter(2)
  ROOT g = f32[3,4]{1,0} gather(t, n), OFFSETS, start_index_map={0}, index_vector_dim=1, slice_sizes={1,4}
}
""".replace("OFFSETS", "offset_dims={1}, collapsed_slice_dims={0}")
    _, report = eliminate(affine_program(parse_module(text)))
    assert [(each.name, each.reason) for each in report.kept] == [("t", "not affine")]


@pytest.mark.corpus
@pytest.mark.parametrize(
    ("name", "found", "kept"),
    [
        ("alexnet_inf_b1", 31, 0),
        ("bert_base_inf_b1_s384", 1021, 2),
        ("gnn_train_n1024", 1094, 9),
        ("gpt_decode_step_b8", 958, 0),
        ("parallel_wavenet_inf_b2", 1170, 3),
        ("resnet50_inf_b1", 693, 0),
        ("wavenet_inf_b32", 448, 0),
    ],
)
def test_networks_of_the_corpus(corpus: Path, name: str, found: int, kept: int) -> None:
    program = read_affine_hlo(corpus / "unoptimized" / f"{name}.hlo.txt.gz")
    shorter, report = eliminate(program)
    assert report.found == found
    assert len(report.kept) == kept
    assert {each.reason for each in report.kept} <= {"observable output", "not affine"}
    assert report.set_calls == 0
    assert sum(isinstance(each, Copy) for each in shorter.statements) >= kept
    assert sum(isinstance(each, Operator) for each in shorter.statements) == sum(
        isinstance(each, Operator) for each in program.statements
    )


@pytest.mark.slow
@pytest.mark.corpus
def test_a_network_computes_the_same(corpus: Path) -> None:
    """With stand-ins for its operators, which turn any changed operand into noise."""
    program = read_affine_hlo(corpus / "unoptimized" / "alexnet_inf_b1.hlo.txt.gz")
    shorter, _ = eliminate(program)
    check(shorter)
    inputs = random_inputs(program)
    one, two = run(program, inputs, stand_in=True), run(shorter, inputs, stand_in=True)
    assert all(np.array_equal(one[name], two[name]) for name in one)


def onnx_file(
    folder: Path, nodes: list[object], shapes: dict[str, list[int]], outputs: dict[str, list[int]], **numbers: object
) -> Path:
    onnx = pytest.importorskip("onnx")
    helper = onnx.helper
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()],
        [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in outputs.items()],
        [onnx.numpy_helper.from_array(np.array(value), name) for name, value in numbers.items()],
    )
    path = folder / "g.onnx"
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)]), path)
    return path


def test_onnx_means_what_it_says(tmp_path: Path) -> None:
    helper = pytest.importorskip("onnx").helper
    from stowplan.frontends.affine.onnx_graph import read_affine_onnx

    nodes = [
        helper.make_node("Transpose", ["x"], ["t"], perm=[1, 0]),
        helper.make_node("Slice", ["t", "starts", "ends", "axes", "steps"], ["s"]),
        helper.make_node("Pad", ["s", "pads", "seven"], ["p"]),
        helper.make_node("Reshape", ["p", "shape"], ["r"]),
        helper.make_node("Split", ["r"], ["a", "b"], axis=0, num_outputs=2),
        helper.make_node("Concat", ["b", "a"], ["c"], axis=1),
        helper.make_node("Expand", ["row", "wide"], ["e"]),
        helper.make_node("Concat", ["row", "e"], ["two"], axis=1),
        helper.make_node("Add", ["c", "two"], ["d"]),
        helper.make_node("Tile", ["d", "times"], ["y"]),
        helper.make_node("Gather", ["y", "one"], ["g"], axis=0),
        helper.make_node("Squeeze", ["e"], ["q"]),
    ]
    path = onnx_file(
        tmp_path,
        nodes,
        {"x": [4, 6], "row": [1, 8]},
        {"g": [32], "q": [8], "y": [2, 32]},
        starts=np.array([5, 0]),
        ends=np.array([-7, 4]),
        axes=np.array([0, 1]),
        steps=np.array([-2, 1]),
        pads=np.array([1, 0, 0, 0]),
        seven=np.float32(7),
        shape=np.array([2, 8]),
        wide=np.array([1, 8]),
        times=np.array([2, 2]),
        one=np.array(1),
    )
    program = read_affine_onnx(path)
    inputs = random_inputs(program, 2)
    x, row = inputs["x"], inputs["row"]
    padded = np.pad(x.T[5:-7:-2], ((1, 0), (0, 0)), constant_values=7.0).reshape(2, 8)
    joined = np.concatenate([padded[1:], padded[:1]], axis=1)
    y = np.tile(joined + np.tile(row, 2), (2, 2))
    found = run(program, inputs)
    assert np.allclose(found["y"], y)
    assert np.allclose(found["g"], y[1])
    assert np.allclose(found["q"], row[0])
    shorter, report = eliminate(program)
    check(shorter)
    assert {each.reason for each in report.kept} <= {"observable output"}
    assert all(np.array_equal(found[name], value) for name, value in run(shorter, inputs).items())


@pytest.mark.corpus
@pytest.mark.parametrize(("name", "pairs", "kept"), [("resnet50_b1", 1, 0), ("bert_base_s128", 100, 2)])
def test_onnx_networks_of_the_corpus(corpus: Path, name: str, pairs: int, kept: int) -> None:
    pytest.importorskip("onnx")
    from stowplan.frontends.affine.onnx_graph import read_affine_onnx

    shorter, report = eliminate(read_affine_onnx(corpus / "onnx" / f"{name}.stripped.onnx"))
    check(shorter)
    assert (report.found, len(report.kept)) == (pairs, kept)


def test_onnx_by_numbers_that_are_not_there(tmp_path: Path) -> None:
    helper = pytest.importorskip("onnx").helper
    from stowplan.frontends.affine.onnx_graph import read_affine_onnx

    path = onnx_file(tmp_path, [helper.make_node("Tile", ["x", "n"], ["y"])], {"x": [2], "n": [1]}, {"y": [4]})
    with pytest.raises(InputError, match=r"operator y: found Tile by numbers that are not in the file|not an ONNX model"):
        read_affine_onnx(path)
