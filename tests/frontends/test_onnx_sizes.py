"""Sizes that ONNX models leave open, as they are told, and what is said where they are not."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stowplan
from stowplan.cli import main
from stowplan.errors import InputError, UsageError
from stowplan.frontends.onnx_file import read_onnx_file
from stowplan.frontends.options import as_texts, parse_user_sizes

onnx = pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")
FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL
TARGETS = ("arena", "order", "nnp-i", "inferentia")


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return onnx.helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def info(name: str, shape: Any, kind: int = FLOAT) -> Any:
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def save(path: Path, nodes: list[Any], inputs: list[Any], output: Any = None, values: list[Any] | None = None) -> Path:
    graph = onnx.helper.make_graph(nodes, "g", inputs, [output or info("y", None)], value_info=values or [])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("com.microsoft", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


def simple(path: Path, shape: Any) -> Path:
    return save(path, [node("Relu", "x", "r"), node("Relu", "r", "y")], [info("x", shape)])


@pytest.mark.parametrize("target", TARGETS)
def test_open_sizes_are_told_by_name_or_by_shape(target: str, tmp_path: Path) -> None:
    path = simple(tmp_path / "open.onnx", ["batch", 3, None, "w"])
    fixed = stowplan.read(simple(tmp_path / "fixed.onnx", [2, 3, 4, 5]), target)
    with pytest.raises(InputError, match=r"expected options that fix them, for example: --shape x=1x3x224x224$"):
        stowplan.read(path, target, dim={"w": 224})
    for given in ({"shape": {"x": (2, 3, 4, 5)}}, {"dim": ["batch=2"], "shape": ["x=2x3x4x5"]}):
        assert getattr(stowplan.read(path, target, **given), "tensors", None) == getattr(fixed, "tensors", None)


@pytest.mark.parametrize(
    ("shape", "typed"),
    [
        (["batch", "sequence"], "--dim batch=1 --dim sequence=128"),
        (["N", 3, "H", "W"], "--dim N=1 --dim H=224 --dim W=224"),
        (["batch size", "past_len + 1"], "--dim 'batch size=1' --dim past_len=127"),
        ([None, None, None, 3], "--shape x=1x224x224x3"),
        ([-1, 80, -1], "--shape x=1x80x128"),
        (None, "--shape x=1x3x224x224"),
    ],
)
def test_the_message_has_what_to_type(shape: Any, typed: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = simple(tmp_path / "open.onnx", shape)
    assert main_code(["solve", str(path), "--target", "arena", "-q"]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert said.rstrip().endswith(f"for example: {typed}")
    assert main_code(["solve", str(path), "--target", "arena", "-q", "--time-limit", "5", *shlex.split(typed)]) == 0


def main_code(arguments: list[str]) -> object:
    with pytest.raises(SystemExit) as error:
        main(arguments)
    return error.value.code


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"dim": {"bath": 1}}, "found --dim bath, expected an open size of the model: batch, past, past \\+ 1$"),
        ({"shape": {"z": (1,)}}, "found --shape z, expected a value of the model: p, x$"),
        ({"shape": {"x": (1, 2, 3)}}, "value x: found --shape 1x2x3, expected 2 sizes, as in the model"),
        ({"shape": {"x": (1, 4)}}, "value x: found --shape 1x4, expected 3, as in the model in place of 4"),
        ({"shape": {"x": (2, 3)}, "dim": {"batch": 1}}, "value x: found --shape 2x3, expected 1 for 'batch' in place of 2"),
        ({"shape": {"x": (2, 3), "p": (1, 5)}}, "value p: found --shape 1x5, expected 2 for 'batch' in place of 1"),
        (
            {"shape": {"p": (2, 5)}, "dim": {"past": 3}},
            "found the size 5 for 'past \\+ 1', expected 4, which follows from the other sizes",
        ),
        (
            {"shape": {"y": (9, 9), "x": (2, 3), "p": (2, 5)}},
            "y: found --shape 9x9, expected 2x8, which follows from the other sizes",
        ),
    ],
)
def test_what_contradicts_is_refused(given: dict[str, Any], message: str, tmp_path: Path) -> None:
    inputs = [info("x", ["batch", 3]), info("p", ["batch", "past + 1"])]
    path = save(tmp_path / "two.onnx", [node("Concat", "x p", "y", axis=1)], inputs)
    with pytest.raises(InputError, match=message) as error:
        stowplan.read(path, "arena", **given)
    assert str(error.value).startswith(str(path))
    assert "\n" not in str(error.value)
    problem = stowplan.read(path, "order", dim={"batch": 2, "past": 4})
    assert [tensor.size for tensor in problem.tensors] == [24, 40, 64]


def test_a_model_without_open_sizes_takes_no_option_for_them(tmp_path: Path) -> None:
    path = save(tmp_path / "fixed.onnx", [node("Relu", "x", "y")], [info("x", [2, 3])])
    with pytest.raises(InputError, match=r"found --dim batch, expected no such option: the model has no open sizes$"):
        stowplan.read(path, "arena", dim={"batch": 1})


@pytest.mark.parametrize(
    "text", ["batch", "batch=", "batch=0", "batch=-1", "batch=1.5", "batch=1x2", "=3", f"batch={1 << 41}", 3, "batch=٣"]
)
def test_texts_that_tell_no_size(text: Any) -> None:
    with pytest.raises(UsageError, match=r"--dim: found .*, expected NAME=SIZE, as batch=1, sizes 1 to 2\^40"):
        as_texts("dim", [text])
    if text != "batch=1x2" and text != "batch=":
        with pytest.raises(UsageError, match=r"--shape: found .*, expected NAME=SIZES"):
            as_texts("shape", [text])


def test_texts_that_tell_sizes() -> None:
    for sizes in (12, "12", np.int64(12), np.array(12), [12], np.array([12])):
        assert as_texts("dim", {"batch": sizes}) == as_texts("shape", {"batch": sizes}) == ("batch=12",)
    for shape in ((1, 3), "1x3", np.array([1, 3])):
        assert as_texts("shape", {"x": shape}) == ("x=1x3",)
    assert as_texts("shape", {"s": ()}) == as_texts("shape", {"s": np.array([])}) == ("s=",)
    for wrong in (b"16", np.array([1.0, 3.0]), np.array([[1, 3]])):
        with pytest.raises(UsageError, match=r"--shape: found .x=.*, expected NAME=SIZES"):
            as_texts("shape", {"x": wrong})
    assert parse_user_sizes(("a=b=2",), ("x=1x2", "s=")) == ({"a=b": 2}, {"x": (1, 2), "s": ()})
    with pytest.raises(UsageError, match="--dim: found 1 and 2 for 'batch', expected one"):
        as_texts("dim", ["batch=1", "batch=2"])
    with pytest.raises(UsageError, match="found dim 'batch=1', expected a list of NAME=SIZES"):
        as_texts("dim", "batch=1")


def test_sizes_that_the_file_declares_for_other_inputs_do_not_count(tmp_path: Path) -> None:
    path = save(
        tmp_path / "stale.onnx",
        [node("Relu", "x", "r"), node("Fused", "r", "f", domain="com.microsoft"), node("Relu", "f", "y")],
        [info("x", ["batch", 3])],
        info("y", [1, 3]),
        [info("r", [1, 3]), info("f", ["batch", 7])],
    )
    file = read_onnx_file(path, parse_user_sizes(("batch=4",), ()))
    assert {name: file.shapes[name] for name in "xrfy"} == {"x": (4, 3), "r": (4, 3), "f": (4, 7), "y": (4, 7)}


def test_a_contrib_operator_whose_result_is_told(tmp_path: Path) -> None:
    nodes = [node("Fused", "x", "f", domain="com.microsoft"), node("Relu", "f", "y")]
    path = save(tmp_path / "fused.onnx", nodes, [info("x", [2, 3])])
    with pytest.raises(InputError, match=r"com.microsoft::Fused that makes .f. is not known to onnx \(--shape f=SIZES tells"):
        stowplan.read(path, "order")
    with pytest.warns(stowplan.log.UnmodelledWarning, match="nothing is known of a com.microsoft::Fused"):
        problem = stowplan.read(path, "order", shape={"f": (2, 5)})
    assert [tensor.size for tensor in problem.tensors] == [24, 40, 40]


@pytest.mark.parametrize("target", TARGETS)
def test_an_input_that_is_too_small_is_named(target: str, tmp_path: Path) -> None:
    weight = node("Constant", "", "w", value=onnx.helper.make_tensor("w", FLOAT, [1, 1, 9], [0] * 9))
    path = save(tmp_path / "small.onnx", [weight, node("Conv", "x w", "y")], [info("x", [1, 1, "n"])])
    with pytest.raises(InputError, match=r"y: found (the shape \[1, 1, -4\], expected no negative|no fixed shape)"):
        stowplan.read(path, target, dim={"n": 4})
    assert stowplan.read(path, target, dim={"n": 40})


def test_an_input_of_one_number_may_be_told(tmp_path: Path) -> None:
    def branch(kind: str) -> Any:
        return onnx.helper.make_graph([node(kind, "x", f"{kind}z")], kind, [], [info(f"{kind}z", None)])

    rate = onnx.helper.make_tensor("fast", INT64, [], [16])
    nodes = [node("Constant", "", "fast", value=rate), node("Equal", "rate fast", "is")]
    nodes.append(node("If", "is", "y", then_branch=branch("Relu"), else_branch=branch("Flatten")))
    path = save(tmp_path / "rate.onnx", nodes, [info("x", [2, 3, 4]), info("rate", [], INT64)])
    for number, kind in ((16, "Relu"), (8, "Flatten")):
        problem = stowplan.read(path, "nnp-i" if number == 0 else "order", dim={"rate": number})
        assert [op.kind for op in problem.ops] == [kind]
        assert [tensor.id for tensor in problem.tensors] == ["x", "y"]
    with pytest.raises(
        InputError, match=r"the operator If that makes 'y' runs graphs that do not say it alike, .*\(--shape y=SIZES"
    ):
        stowplan.read(path, "order")
    with pytest.raises(InputError, match="found a If, expected a graph without control flow"):
        stowplan.read(path, "nnp-i")


def random_model(path: Path, rng: np.random.Generator) -> dict[str, np.ndarray]:
    """A random chain over open sizes, with shapes that are computed of shapes; returns inputs to run it on."""
    batch, length = (int(size) for size in rng.integers(1, 6, 2))
    nodes, last = [node("Constant", "", "minus", value_ints=[-1]), node("Constant", "", "zero", value_ints=[0])], "x"
    nodes.append(node("Constant", "", "one", value_ints=[1]))
    for at in range(int(rng.integers(3, 9))):
        name, kind = f"v{at}", rng.choice(["Relu", "Reshape", "Concat", "Transpose", "Expand", "Slice"])
        if kind == "Relu":
            nodes.append(node("Relu", last, name))
        elif kind == "Transpose":
            nodes.append(node("Transpose", last, name))
        elif kind == "Concat":
            nodes.append(node("Concat", f"{last} {last}", name, axis=int(rng.integers(2))))
        elif kind == "Reshape":
            nodes += [node("Shape", last, f"{name}s"), node("Gather", f"{name}s zero", f"{name}g")]
            nodes += [node("Concat", f"minus {name}g", f"{name}t", axis=0), node("Reshape", f"{last} {name}t", name)]
        elif kind == "Expand":
            nodes += [node("Shape", last, f"{name}s"), node("Add", f"{name}s {name}s", f"{name}a")]
            nodes += [node("Max", f"{name}s one", f"{name}m"), node("Expand", f"{last} {name}m", name)]
        else:
            nodes.append(node("Slice", f"{last} zero minus one", f"{name}c"))
            nodes += [node("Concat", f"{last} {name}c", name, axis=1)]
        last = name
    nodes.append(node("Identity", last, "y"))
    save(path, nodes, [info("x", ["batch", "length"])])
    return {"x": np.ones((batch, length), np.float32)}


@pytest.mark.parametrize("seed", range(25))
def test_sizes_are_those_of_a_run(seed: int, tmp_path: Path) -> None:
    from onnx.reference import ReferenceEvaluator

    path = tmp_path / "random.onnx"
    given = random_model(path, np.random.default_rng(seed))
    batch, length = given["x"].shape
    problem = stowplan.read(path, "order", dim={"batch": batch, "length": length})
    model = onnx.load(path)
    names = [tensor.id for tensor in problem.tensors]
    model.graph.output.extend(info(name, None) for name in names if name not in ("x", "y"))
    run = ReferenceEvaluator(model)
    arrays = dict(zip(run.output_names, run.run(None, given), strict=True)) | given
    assert {tensor.id: tensor.size for tensor in problem.tensors} == {name: arrays[name].nbytes for name in names}
