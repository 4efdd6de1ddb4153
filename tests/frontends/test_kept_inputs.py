"""Inputs that must survive the run, and results in the place of operands, as users ask for them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import stowplan
from stowplan.backends.tflm.planning import plan_model
from stowplan.errors import InputError, UsageError
from stowplan.frontends.read import NoTargetError
from tests.backends.tflm.models import ADD, Graph, Step, save
from tests.frontends.tflite.tflite_models import tensor
from tests.paths import EXAMPLES

TFLITE = EXAMPLES / "branches.tflite"


def save_onnx(path: Path) -> Path:
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")
    made = [onnx.helper.make_node("Relu", [one], [other]) for one, other in (("x", "a"), ("a", "b"), ("b", "c"))]
    made.append(onnx.helper.make_node("Transpose", ["c"], ["y"]))
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4, 4]) for name in "xy"]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph(made, "g", values[:1], values[1:])), path)
    return path


def save_exported(path: Path) -> Path:
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return x.relu().exp().sin().softmax(0)

    torch.export.save(torch.export.export(Module(), (torch.zeros(4, 4),)), path)
    return path


@pytest.fixture(params=["onnx", "pt2"])
def model(request: pytest.FixtureRequest, tmp_path: Path) -> Path:
    return {"onnx": save_onnx, "pt2": save_exported}[request.param](tmp_path / f"net.{request.param}")


def test_an_input_that_is_kept_lives_to_the_end(model: Path) -> None:
    for keep, moment in ((), 1), (["x"], 4):
        arena = stowplan.read(model, "arena", keep=keep)
        assert {buffer.id: buffer.upper for buffer in arena.buffers}["x"] == moment
        order = stowplan.read(model, "order", keep=keep)
        assert ("x" in {order.tensors[number].id for number in order.outputs}) == bool(keep)
    for target in ("arena", "order"):
        with pytest.raises(InputError, match=r"found --keep z, expected an input: x$"):
            stowplan.read(model, target, keep=["z"])


def test_a_target_is_asked_for_before_options_are_refused(model: Path) -> None:
    with pytest.raises(NoTargetError, match=r"name a target such as .*arena"):
        stowplan.read(model, keep=["x"])


def test_results_take_places_where_the_runtime_is_said_to_do_so(model: Path) -> None:
    sizes = [len(stowplan.read(model, "arena", in_place=way).buffers) for way in (None, "none", "elementwise")]
    assert sizes == [5, 5, 2]
    # What is kept is not written over.
    kept = stowplan.read(model, "arena", in_place="elementwise", keep=["x"])
    assert [(buffer.lower, buffer.upper) for buffer in kept.buffers] == [(0, 4), (0, 4), (3, 4)]
    pairs = [sum(len(op.in_place) for op in stowplan.read(model, "order", in_place=way).ops) for way in (None, "none")]
    assert pairs == [3, 0]
    with pytest.raises(UsageError, match="found in_place 'all', expected elementwise or none"):
        stowplan.read(model, "arena", in_place="all")


def test_of_tensorflow_lite_models_too() -> None:
    lives = {buffer.id: (buffer.lower, buffer.upper) for buffer in stowplan.read(TFLITE, keep=["x"], target="arena").buffers}
    assert lives["0 x"] == (0, 10)
    assert lives | {"0 x": (0, 2)} == {each.id: (each.lower, each.upper) for each in stowplan.read(TFLITE, "arena").buffers}
    with pytest.raises(InputError, match=r"branches\.tflite: found --keep a, expected an input: x$"):
        stowplan.read(TFLITE, "arena", keep=["a"])
    with pytest.raises(UsageError, match="found keep 'x', expected a list of names"):
        stowplan.read(TFLITE, "arena", keep="x")


def test_inputs_of_one_name_are_told_apart(tmp_path: Path) -> None:
    tensors = [
        {**tensor([size], 0), 3: name} for size, name in ((16, "in"), (32, "in"), (16, "other"), (16, "mid"), (16, "out"))
    ]
    path = save(tmp_path / "two.tflite", Graph(tensors, [0, 1, 2], [4], [Step(ADD, [0, 1], [3]), Step(ADD, [3, 2], [4])]))
    message = r"two\.tflite: found --keep in, a name of 2 inputs, expected --keep :0 or --keep :1, counted from 0$"
    with pytest.raises(InputError, match=message):
        stowplan.read(path, "arena", keep=["in"])
    with pytest.raises(InputError, match=message):
        plan_model(path, keep=["other", "in"])
    for keep, numbers in (([":0"], {0}), ([":1"], {1}), ([":2", ":0"], {0, 2}), (["other"], {2})):
        last = max(buffer.upper for buffer in stowplan.read(path, "arena").buffers)
        kept = {
            at for at, buffer in enumerate(stowplan.read(path, "arena", keep=keep).buffers) if buffer.upper == last and at < 3
        }
        assert numbers <= kept
        # The third lives to the end all the same.
        assert kept <= {*numbers, 2}
        assert plan_model(path, keep=keep).summary.kept == sum(128 if at == 1 else 64 for at in numbers)
    with pytest.raises(InputError, match=r"found --keep :3, expected an input: in, other$"):
        plan_model(path, keep=[":3"])


def test_a_name_that_looks_like_a_place_goes_first(tmp_path: Path) -> None:
    tensors = [{**tensor([size], 0), 3: name} for size, name in ((16, "in"), (32, ":0"), (16, "out"))]
    path = save(tmp_path / "odd.tflite", Graph(tensors, [0, 1], [2], [Step(ADD, [0, 1], [2])]))
    assert plan_model(path, keep=[":0"]).summary.kept == 128


def test_places_stand_for_inputs_of_graphs_too(model: Path) -> None:
    assert stowplan.read(model, "arena", keep=[":0"]) == stowplan.read(model, "arena", keep=["x"])
    assert stowplan.read(model, "order", keep=[":0"]) == stowplan.read(model, "order", keep=["x"])
