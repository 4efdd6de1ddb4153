"""Graphs in their given order as packing problems: TensorFlow Lite models and ONNX models; damaged files."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

import stowplan
from stowplan.errors import InputError, UsageError
from stowplan.frontends.graph.lowering import arena_problem
from stowplan.frontends.tflite.model import read_tflite
from stowplan.models.operator_order.problem import Op, Problem, Tensor
from stowplan.models.packing.problem import Problem as Packing
from tests.paths import EXAMPLES

MODEL = EXAMPLES / "branches.tflite"


def lives(problem: Packing) -> dict[str, tuple[int, int, int]]:
    return {each.id: (each.lower, each.upper, each.size) for each in problem.buffers}


def test_a_tensorflow_lite_model() -> None:
    model = read_tflite(MODEL)
    assert len(model.offsets) == 11
    # The bias is stored. Inputs are there before the first operator; the last one writes the output.
    assert lives(model.problem) == {
        "0 x": (0, 2, 96),
        "2 a": (1, 4, 96),
        "3 b": (2, 8, 96),
        "4 c": (3, 6, 192),
        "5 d": (4, 6, 192),
        "6 e": (5, 7, 480),
        "7 f": (6, 9, 480),
        "8 h": (7, 9, 96),
        "9 i": (8, 10, 576),
        "10 y": (9, 10, 576),
    }
    assert all(each.alignment == 16 for each in model.problem.buffers)
    assert stowplan.read(MODEL, target="arena", capacity=4096).capacity == 4096


@pytest.mark.filterwarnings("ignore::stowplan.log.UnmodelledWarning")
def test_damaged_models_are_refused_in_one_line(tmp_path: Path) -> None:
    data = MODEL.read_bytes()
    chance = random.Random(4)
    path = tmp_path / "damaged.tflite"
    refused = 0
    for length in (0, 3, 8, 20, 100, 600, len(data) - 200):
        path.write_bytes(data[:length])
        with pytest.raises(InputError) as told:
            read_tflite(path)
        assert "\n" not in str(told.value)
        assert str(path) in str(told.value)
    for _ in range(400):
        changed = bytearray(data)
        for _ in range(3):
            changed[chance.randrange(len(data))] = chance.randrange(256)
        path.write_bytes(changed)
        try:
            read_tflite(path)
        except InputError:
            refused += 1
    assert refused > 50


def test_an_order_is_kept_and_nothing_is_in_place() -> None:
    tensors = tuple(Tensor(id=name, size=100, alias_of=1 if name == "view" else None) for name in ("x", "a", "view", "b", "y"))
    ops = (
        Op(id="0", reads=(0,), writes=(1,), in_place=((0, 1),)),
        Op(id="1", reads=(1,), writes=(2,)),
        Op(id="2", reads=(0,), writes=(3,)),
        Op(id="3", reads=(2, 3), writes=(4,)),
    )
    problem = arena_problem(Problem(tensors=tensors, ops=ops, inputs=(0,), outputs=(4,)), alignment=16)
    assert lives(problem) == {"x": (0, 3, 100), "a": (0, 4, 100), "b": (2, 4, 100), "y": (3, 4, 100)}


def test_an_onnx_model(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx")
    from onnx import TensorProto, helper

    nodes = [
        helper.make_node("Relu", ["x"], ["a"]),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("Add", ["a", "b"], ["y"]),
    ]
    value = {name: helper.make_tensor_value_info(name, TensorProto.FLOAT, [2, 5]) for name in ("x", "y")}
    graph = helper.make_graph(nodes, "net", [value["x"]], [value["y"]])
    path = tmp_path / "net.onnx"
    onnx.save(helper.make_model(graph), path)
    problem = stowplan.read(path, target="arena")
    assert lives(problem) == {"x": (0, 1, 40), "a": (0, 3, 40), "b": (1, 3, 40), "y": (2, 3, 40)}


def test_a_target_is_needed() -> None:
    with pytest.raises(UsageError, match="arena"):
        stowplan.read(MODEL)
