"""Declared shapes and types of ONNX models are checked against those that are inferred, as onnxruntime does."""

from __future__ import annotations

import re
import warnings
from pathlib import Path
from typing import Any

import pytest

import stowplan
from stowplan.errors import InputError
from stowplan.log import UnmodelledWarning

onnx = pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")
helper = onnx.helper
FLOAT, BOOL, INT64 = onnx.TensorProto.FLOAT, onnx.TensorProto.BOOL, onnx.TensorProto.INT64
TARGETS = ("arena", "order", "nnp-i", "inferentia")
#: The shape of the input, and one that the model was exported with before that.
NEW, OLD = [8, 256], [1, 256]
BYTES = 8 * 256 * 4


def value(name: str, shape: Any = None, kind: int = FLOAT) -> Any:
    return helper.make_tensor_value_info(name, kind, shape)


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


CHAIN = [node("Relu", "x", "a"), node("Exp", "a", "b"), node("Neg", "b", "y")]


def save(path: Path, nodes: list[Any] = CHAIN, *declared: Any, y: Any = None, **more: Any) -> Path:
    """A model from ``x`` to ``y`` that declares these values."""
    inputs = [value("x", NEW), *more.get("inputs", ())]
    stored = [*more.get("stored", ()), helper.make_tensor("times", INT64, [], [3]), helper.make_tensor("yes", BOOL, [], [True])]
    graph = helper.make_graph(nodes, "g", inputs, [y or value("y")], stored, value_info=declared)
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("own", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10, functions=more.get("functions", [])), path)
    return path


def read(path: Path, target: str = "arena", **options: Any) -> tuple[Any, list[str]]:
    """The problem of a file, and what is said about what it declares."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UnmodelledWarning)
        problem = stowplan.read(path, target, **options)
    return problem, [str(each.message) for each in caught if "declar" in str(each.message)]


STALE = {
    "values": ([value("a", OLD), value("b", OLD)], None, r"value a: .* as \[1, 256\], but inferred as \[8, 256\].* 1 more"),
    "output": ([], value("y", OLD), r"value y: .* as \[1, 256\], but inferred as \[8, 256\]"),
    "rank": ([value("a", [2048])], None, r"value a: .* as \[2048\], but inferred as \[8, 256\]"),
    "in part": ([value("a", ["n", 128])], None, r"value a: .* as \[\?, 128\], but inferred as \[8, 256\]"),
}


@pytest.mark.parametrize("target", TARGETS)
@pytest.mark.parametrize("case", STALE)
def test_stale_shapes_are_not_believed(case: str, target: str, tmp_path: Path) -> None:
    """Every reader plans for what is inferred, and names both shapes."""
    declared, y, message = STALE[case]
    right, nothing = read(save(tmp_path / "net.onnx", y=value("y", NEW)), target)
    assert not nothing
    found, (warning,) = read(save(tmp_path / "net.onnx", CHAIN, *declared, y=y), target)
    assert re.search(message, warning)
    assert found == right


@pytest.mark.parametrize("target", TARGETS)
def test_declared_types_that_contradict_are_refused(target: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="value a: found the declared type INT64, expected the inferred one, FLOAT"):
        stowplan.read(save(tmp_path / "net.onnx", CHAIN, value("b", OLD), value("a", NEW, INT64)), target)
    with pytest.raises(InputError, match="value y: found the declared type INT64, expected the inferred one, FLOAT"):
        stowplan.read(save(tmp_path / "net.onnx", y=value("y", NEW, INT64)), target)


def test_what_agrees_is_not_spoken_of(tmp_path: Path) -> None:
    agree = [value("a", ["n", 256]), value("b", ["n", "m"])]
    problem, said = read(save(tmp_path / "net.onnx", CHAIN, *agree, y=value("y", NEW)))
    assert not said
    assert {each.size for each in problem.buffers} == {BYTES}


def test_declared_sizes_fill_what_inference_leaves_open(tmp_path: Path) -> None:
    """As far as both agree: how many indices there are is in the numbers, that there are two of each is inferred."""
    nodes = [node("NonZero", "x", "n"), node("Cast", "n", "y", to=FLOAT)]
    problem, said = read(save(tmp_path / "net.onnx", nodes, value("n", ["two", 10], INT64)))
    assert not said
    assert {each.id: each.size for each in problem.buffers} == {"x": BYTES, "n": 160, "y": 80}
    for wrong in ([3, 10], [20]):
        with pytest.raises(InputError, match="the operator NonZero that makes 'n' takes it from values"):
            stowplan.read(save(tmp_path / "net.onnx", nodes, value("n", wrong, INT64)), "arena")


def test_of_unknown_operators_the_declaration_is_all_there_is(tmp_path: Path) -> None:
    """Where others are stale, whoever is believed is named, unless the user tells its shape."""
    nodes = [node("Relu", "x", "a"), node("Fused", "a", "f", domain="own"), node("Neg", "f", "y")]
    problem, said = read(save(tmp_path / "net.onnx", nodes, value("f", OLD)))
    assert not said
    assert [each.size for each in problem.buffers] == [BYTES, BYTES, 1024, 1024]
    path = save(tmp_path / "net.onnx", nodes, value("f", OLD), value("a", OLD))
    stale, believed = read(path)[1]
    assert stale.startswith("value a: its shape is declared as [1, 256]")
    assert believed.startswith("value f: its shape is known from its declaration only, and other declared shapes are wrong")
    save(path, nodes, value("a", OLD))
    problem, said = read(path, shape=["f=8x256"])
    assert said == [stale]
    assert {each.size for each in problem.buffers} == {BYTES}


def test_initializers_that_contradict_their_declared_inputs_are_refused(tmp_path: Path) -> None:
    nodes, path = [node("MatMul", "x w", "y")], tmp_path / "net.onnx"
    stored = [helper.make_tensor("w", FLOAT, [256, 4], [0.0] * 1024)]
    for shape, kind, message in (
        ([256, 8], FLOAT, r"the declared shape \[256, 8\], expected the inferred one, \[256, 4\]"),
        ([1024], FLOAT, r"the declared shape \[1024\], expected the inferred one, \[256, 4\]"),
        ([256, 4], INT64, "the declared type INT64, expected the inferred one, FLOAT"),
    ):
        with pytest.raises(InputError, match=f"value w: found {message}"):
            stowplan.read(save(path, nodes, inputs=[value("w", shape, kind)], stored=stored), "arena")
    assert not read(save(path, nodes, inputs=[value("w", ["k", 4])], stored=stored))[1]
    # Where it is no input, onnxruntime takes the initializer.
    problem, (warning,) = read(save(path, nodes, value("w", [256, 8]), stored=stored))
    assert re.search(r"value w: .* as \[256, 8\], but inferred as \[256, 4\]", warning)
    assert [each.size for each in problem.buffers] == [BYTES, 8 * 4 * 4]


def test_an_input_that_is_an_output_has_the_shape_of_the_input(tmp_path: Path) -> None:
    problem, (warning,) = read(save(tmp_path / "net.onnx", [node("Relu", "x", "a")], y=value("x", OLD)))
    assert "value x: its shape is declared as [1, 256], but inferred as [8, 256]" in warning
    assert [each.size for each in problem.buffers] == [BYTES, BYTES]


def branch(name: str, shape: Any) -> Any:
    nodes = [node("Relu", "x", f"{name}1"), node("Relu", f"{name}1", name)]
    return helper.make_graph(nodes, name, [], [value(name, shape)], value_info=[value(f"{name}1", shape)])


def body(given: Any, made: Any, kind: int = FLOAT) -> Any:
    nodes = [node("Identity", "on", "still"), node("Relu", "s", "mid"), node("Relu", "mid", "t")]
    inputs = [value("i", [], INT64), value("on", [], BOOL), value("s", given, kind)]
    return helper.make_graph(
        nodes, "body", inputs, [value("still", [], BOOL), value("t", made)], value_info=[value("mid", made)]
    )


def scanned(shape: Any) -> Any:
    return helper.make_graph([node("Relu", "s", "t")], "body", [value("s", shape)], [value("t", shape)])


def choice(condition: str, shape: Any) -> Any:
    return node("If", condition, "r", then_branch=branch("p", shape), else_branch=branch("q", shape))


#: Nodes from x to r with stale shapes inside, the same with right ones, and which of the stale values is named.
BODIES = {
    "choice": (choice("c", OLD), choice("c", NEW), "q1"),
    "known choice": (choice("yes", OLD), choice("yes", NEW), "p1"),
    "given to a loop": (
        node("Loop", "times yes x", "r", body=body(OLD, None)),
        node("Loop", "times yes x", "r", body=body(NEW, None)),
        "s",
    ),
    "made by a loop": (
        node("Loop", "times yes x", "r", body=body(None, OLD)),
        node("Loop", "times yes x", "r", body=body(None, NEW)),
        "mid",
    ),
    "scan": (
        node("Scan", "x", "r", body=scanned([1]), num_scan_inputs=1),
        node("Scan", "x", "r", body=scanned([256]), num_scan_inputs=1),
        "s",
    ),
}


@pytest.mark.parametrize("target", ["arena", "order"])
@pytest.mark.parametrize("case", BODIES)
def test_stale_shapes_inside_graphs_that_nodes_run(case: str, target: str, tmp_path: Path) -> None:
    """Neither those inside nor that of the result are believed, nor what follows from them."""
    stale, right, name = BODIES[case]
    more = {"inputs": [value("c", [], BOOL)]}
    wanted, nothing = read(save(tmp_path / "net.onnx", [right, node("Neg", "r", "y")], **more), target)
    assert not nothing
    found, (warning,) = read(save(tmp_path / "net.onnx", [stale, node("Neg", "r", "y")], **more), target)
    assert warning.startswith(f"value {name}: its shape is declared as [1")
    assert found == wanted
    found, (warning,) = read(save(tmp_path / "net.onnx", [right, node("Neg", "r", "y")], value("r", OLD), **more), target)
    assert warning.startswith("value r: its shape is declared as [1, 256], but inferred as [8, 256]")
    assert found == wanted


def test_types_inside_graphs_that_nodes_run(tmp_path: Path) -> None:
    loop = node("Loop", "times yes x", "y", body=body(NEW, None, INT64))
    with pytest.raises(InputError, match="value s: found the declared type INT64, expected the inferred one, FLOAT"):
        stowplan.read(save(tmp_path / "net.onnx", [loop]), "arena")


def test_branches_that_make_unlike_shapes(tmp_path: Path) -> None:
    """The declared shape of the result is taken where a branch makes none larger."""
    wide = helper.make_graph([node("Concat", "x x", "q", axis=0)], "else", [], [value("q")])
    either = node("If", "c", "y", then_branch=branch("p", NEW), else_branch=wide)
    inputs, path = [value("c", [], BOOL)], tmp_path / "net.onnx"
    problem, said = read(save(path, [either], y=value("y", [16, 256]), inputs=inputs))
    assert not said
    assert {each.id: each.size for each in problem.buffers}["y"] == 2 * BYTES
    with pytest.raises(InputError, match="'y' runs graphs that do not say it alike"):
        stowplan.read(save(path, [either], y=value("y", NEW), inputs=inputs), "arena")


CHAIN_OF_U = [node("Relu", "u", "w"), node("Exp", "w", "v")]


def test_functions(tmp_path: Path) -> None:
    """What a function declares is declared of every call of it."""
    opsets = [helper.make_opsetid("", 17)]
    function = helper.make_function("own", "Twice", ["u"], ["v"], CHAIN_OF_U, opsets, value_info=[value("w", OLD)])
    problem, said = read(save(tmp_path / "net.onnx", [node("Twice", "x", "y", domain="own")], functions=[function]))
    assert {each.size for each in problem.buffers} == {BYTES}
    # Not every version of onnx carries over what functions declare.
    assert all("as [1, 256], but inferred as [8, 256]" in warning for warning in said)
