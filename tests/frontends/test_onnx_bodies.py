"""Graphs that nodes of ONNX models run: when their tensors live, how large they are, and which are refused."""

from __future__ import annotations

from itertools import combinations
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import stowplan
from stowplan.errors import InputError
from stowplan.frontends.onnx_file import read_onnx_file
from stowplan.frontends.tflite.model import IF, Operator, Subgraph, scopes
from stowplan.log import UnmodelledWarning
from stowplan.models.operator_order.structure import build

onnx = pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")
FLOAT, INT64, BOOL = onnx.TensorProto.FLOAT, onnx.TensorProto.INT64, onnx.TensorProto.BOOL


def node(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    return onnx.helper.make_node(kind, inputs.split(), outputs.split(), **attributes)


def info(name: str, shape: Any = None, kind: int = FLOAT) -> Any:
    return onnx.helper.make_tensor_value_info(name, kind, shape)


def body(nodes: list[Any], inputs: list[Any], outputs: list[Any]) -> Any:
    return onnx.helper.make_graph(nodes, "body", inputs, outputs)


def save(path: Path, nodes: list[Any], inputs: list[Any], outputs: list[Any], stored: list[Any] | None = None) -> Path:
    graph = onnx.helper.make_graph(nodes, "g", inputs, outputs, stored or [])
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("mine", 1)]
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, ir_version=8), path)
    return path


class RandomModel:
    """A model with nodes that run graphs inside one another, for ONNX and in the tables of TensorFlow Lite Micro."""

    def __init__(self, seed: int):
        self.rng = np.random.default_rng(seed)
        self.names = ["x", "c"]
        self.subgraphs: list[Subgraph | None] = []
        self.nodes = self.graph([0], 0)[0]

    def new(self) -> int:
        self.names.append(f"t{len(self.names)}")
        return len(self.names) - 1

    def graph(self, given: list[int], depth: int) -> tuple[list[Any], int]:
        """Nodes of a graph that may use these tensors, and what it returns; its own inputs are the last two where it loops."""
        number, visible = len(self.subgraphs), list(given)
        self.subgraphs.append(None)
        nodes, operators, used = [], [], set()
        for _ in range(int(self.rng.integers(1, 5))):
            kind = self.rng.choice(["add", "add", "if", "loop"]) if depth < 2 else "add"
            if kind == "add":
                reads = [int(self.rng.choice(visible)) for _ in range(2)]
                result = self.new()
                nodes.append(node("Add", " ".join(self.names[read] for read in reads), self.names[result]))
                operators.append(Operator(0, "", tuple(reads), (result,), (), 0))
                used |= {*reads}
            else:
                result, reads, calls, attributes = self.new(), [1], [], {}
                for name in ("then_branch", "else_branch") if kind == "if" else ("body",):
                    calls.append(len(self.subgraphs))
                    own: list[int] = []
                    if kind == "loop":
                        reads.append(int(self.rng.choice(visible)))
                        own = [self.new(), self.new(), self.new()]
                    inner, returned = self.graph([*visible, *own[2:]], depth + 1)
                    made = self.subgraphs[calls[-1]]
                    assert made is not None
                    outputs = [returned] if kind == "if" else [own[1], returned]
                    self.subgraphs[calls[-1]] = Subgraph(made.tensors, tuple(own), tuple(outputs), made.operators)
                    reads += [read for read in self.uses(calls[-1]) if read in visible]
                    kinds = (INT64, BOOL, FLOAT)
                    inputs = [info(self.names[each], [] if at < 2 else None, kinds[at]) for at, each in enumerate(own)]
                    results = [info(self.names[each], None, BOOL if each in own[1:2] else FLOAT) for each in outputs]
                    attributes[name] = body(inner, inputs, results)
                operand = f"m c {self.names[reads[1]]}" if kind == "loop" else "c"
                made_node = onnx.helper.make_node(
                    "If" if kind == "if" else "Loop", operand.split(), [self.names[result]], **attributes
                )
                nodes.append(made_node)
                operators.append(Operator(IF, "", tuple(reads), (result,), tuple(calls), 0))
                used |= {*reads}
            visible.append(result)
        self.subgraphs[number] = Subgraph(range(0), (0, 1) if number == 0 else (), (result,), tuple(operators))
        return nodes, result

    def uses(self, number: int) -> set[int]:
        graph = self.subgraphs[number]
        assert graph is not None
        return {read for operator in graph.operators for read in operator.reads}


@pytest.mark.parametrize("seed", range(30))
def test_tensors_live_when_those_of_tensorflow_lite_micro_do(seed: int, tmp_path: Path) -> None:
    model = RandomModel(seed)
    stored = [onnx.helper.make_tensor("m", INT64, [], [3])]
    last = model.nodes[-1].output[0]
    path = save(tmp_path / "random.onnx", model.nodes, [info("x", [4, 8]), info("c", [], BOOL)], [info(last)], stored)
    arena = stowplan.read(path, "arena")
    found = scopes(len(model.names), [graph for graph in model.subgraphs if graph is not None])
    lives = {buffer.id: (buffer.lower, buffer.upper) for buffer in arena.buffers}
    spans = {name: (found.first[at], found.last[at] + 1) for at, name in enumerate(model.names) if found.last[at] >= 0}
    # Inputs that nothing reads take nothing.
    assert lives.keys() == spans.keys() - ({"c"} - {name for made in model.nodes for name in made.input})
    for one, other in combinations(lives, 2):
        both = [(when[one], when[other]) for when in (lives, spans)]
        ours, theirs = (max(first[0], second[0]) < min(first[1], second[1]) for first, second in both)
        assert ours == theirs, (one, other)
    # Where such nodes are one operator each, as much is live at once.
    order = stowplan.read(path, "order", in_place="none")
    ends = {each.upper for each in arena.buffers}
    flat = max(sum(each.size for each in arena.buffers if each.lower < end <= each.upper) for end in ends)
    structure = build(order)
    assert structure.peak(range(structure.ops)) == flat


LOOP = body(
    [node("Add", "v x", "v2"), node("Identity", "go", "go2"), node("Neg", "v2", "part")],
    [info("i", [], INT64), info("go", [], BOOL), info("v")],
    [info("go2", None, BOOL), info("v2"), info("part")],
)


def loop_model(path: Path, times: int | None = 5, loop: Any = LOOP) -> Path:
    stored = [] if times is None else [onnx.helper.make_tensor("m", INT64, [], [times])]
    inputs = [info("x", [2, 3]), info("c", [], BOOL), *([info("m", [], INT64)] if times is None else [])]
    return save(path, [node("Loop", "m c x", "y parts", body=loop)], inputs, [info("y"), info("parts")], stored)


def test_a_loop(tmp_path: Path) -> None:
    path = loop_model(tmp_path / "loop.onnx")
    with pytest.warns(UnmodelledWarning, match="what its iterations return is counted for as many as there can be"):
        arena = stowplan.read(path, "arena")
    assert {buffer.id: buffer.size for buffer in arena.buffers} == {
        **{"x": 24, "c": 1, "y": 24, "parts": 120},
        **{"i": 8, "go": 1, "v": 24, "v2": 24, "part": 24},
    }
    with pytest.warns(UnmodelledWarning):
        order = stowplan.read(path, "order")
    assert [(tensor.id, tensor.size) for tensor in order.tensors] == [
        *[("x", 24), ("c", 1), ("y", 24), ("parts", 120), ("y.scratch", 1 + 24 + 24)]
    ]


def test_loops_whose_sizes_are_not_known_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        InputError, match=r"parts: found no fixed shape.* the operator Loop .* \(--shape parts=SIZES tells it\)"
    ):
        stowplan.read(loop_model(tmp_path / "times.onnx", None), "arena")
    with pytest.warns(UnmodelledWarning):
        problem = stowplan.read(tmp_path / "times.onnx", "arena", shape={"parts": (7, 2, 3)})
    assert next(buffer.size for buffer in problem.buffers if buffer.id == "parts") == 168
    grows = body(
        [node("Concat", "v x", "v2", axis=0), node("Identity", "go", "go2"), node("Neg", "x", "part")],
        [info("i", [], INT64), info("go", [], BOOL), info("v")],
        [info("go2", None, BOOL), info("v2"), info("part")],
    )
    for target in ("arena", "order"):
        with pytest.raises(InputError, match="y: found no fixed shape, expected one"):
            stowplan.read(loop_model(tmp_path / "grows.onnx", 5, grows), target)


def test_a_scan(tmp_path: Path) -> None:
    scan = body([node("Add", "s p", "s2"), node("Neg", "s2", "q")], [info("s"), info("p")], [info("s2"), info("q")])
    made = node("Scan", "x0 x", "y parts", body=scan, num_scan_inputs=1, scan_input_axes=[1], scan_output_axes=[-1])
    inputs = [info("x0", [2]), info("x", [2, 7])]
    path = save(tmp_path / "scan.onnx", [made], inputs, [info("y"), info("parts")])
    sizes = {buffer.id: buffer.size for buffer in stowplan.read(path, "arena").buffers}
    assert sizes == {"x0": 8, "x": 56, "y": 8, "parts": 56, "s": 8, "p": 8, "s2": 8, "q": 8}
    assert read_onnx_file(path, with_bodies=True).shapes["parts"] == (2, 7)


@pytest.mark.parametrize("target", ["arena", "order", "nnp-i", "inferentia"])
def test_a_choice_that_is_known_is_no_choice(target: str, tmp_path: Path) -> None:
    """What torch writes for a squeeze: of the right rank once the shape is known."""
    squeeze = body([node("Squeeze", "x one", "z"), node("Relu", "z", "w")], [], [info("w")])
    keep = body([node("Identity", "x", "z")], [], [info("z")])
    nodes = [
        node("Shape", "x", "shape"),
        node("Gather", "shape one", "length"),
        node("Equal", "length one", "is"),
        node("If", "is", "chosen", then_branch=squeeze, else_branch=keep),
        node("Relu", "chosen", "y"),
    ]
    stored = [onnx.helper.make_tensor("one", INT64, [1], [1])]
    path = save(tmp_path / "choice.onnx", nodes, [info("x", [4, "n"])], [info("y")], stored)
    for size, shape in ((1, (4,)), (3, (4, 3))):
        assert stowplan.read(path, target, dim={"n": size})
        assert read_onnx_file(path, stowplan.frontends.options.parse_user_sizes((f"n={size}",), ())).shapes["y"] == shape


@pytest.mark.parametrize("is_known", [False, True])
def test_shapes_inside_graphs_may_be_told(is_known: bool, tmp_path: Path) -> None:
    inner = body([node("Fused", "x", "f", domain="mine"), node("Relu", "f", "z")], [], [info("z")])
    made = node("If", "c", "y", then_branch=inner, else_branch=inner)
    cond = onnx.helper.make_tensor("c", BOOL, [], [True])
    inputs = [info("x", [2, 3]), *([] if is_known else [info("c", [], BOOL)])]
    path = save(tmp_path / "inside.onnx", [made], inputs, [info("y")], [cond] if is_known else [])
    with pytest.raises(InputError, match=r"\(--shape [fyz]=SIZES tells it\)$"):
        stowplan.read(path, "arena")
    with pytest.warns(UnmodelledWarning, match="nothing is known of a mine::Fused"):
        problem = stowplan.read(path, "arena", shape={"f": (2, 5)})
    assert {buffer.size for buffer in problem.buffers if buffer.id not in "xc"} == {40}
    with pytest.raises(InputError, match="found --shape 4, expected 2x5, which follows from the other sizes"):
        stowplan.read(path, "arena", shape={"f": (2, 5), "z" if not is_known else "y": (4,)})


def test_results_are_those_of_a_run(tmp_path: Path) -> None:
    """Nodes of a choice under new names, weights of its graphs with them, compute what they did."""
    from onnx.reference import ReferenceEvaluator

    weight = onnx.helper.make_tensor("w", FLOAT, [3], [1, 2, 3])
    then = onnx.helper.make_graph([node("Mul", "x w", "z")], "b", [], [info("z"), info("w")], [weight])
    other = body([node("Identity", "x", "z"), node("Neg", "x", "w")], [], [info("z"), info("w")])
    nodes = [node("Constant", "", "yes", value=onnx.helper.make_tensor("v", BOOL, [], [True]))]
    nodes += [node("Neg", "x", "z"), node("If", "yes", "a b", then_branch=then, else_branch=other), node("Add", "a z", "s")]
    nodes.append(node("Add", "s b", "y"))
    path = save(tmp_path / "weights.onnx", nodes, [info("x", [2, 3])], [info("y", [2, 3])])
    model = onnx.load(path)
    file = read_onnx_file(path)
    assert [made.op_type for made in file.graph.node] == ["Constant", "Neg", "Mul", "Identity", "Add", "Add"]
    model.graph.CopyFrom(file.graph)
    given = {"x": np.arange(6, dtype=np.float32).reshape(2, 3)}
    before = given["x"] * [1, 2, 3] - given["x"] + [1, 2, 3]
    assert np.array_equal(ReferenceEvaluator(model).run(None, given)[0], before)


def test_functions_of_a_model_stand_in_line_within_graphs(tmp_path: Path) -> None:
    function = onnx.helper.make_function(
        "mine", "Twice", ["a"], ["b"], [node("Add", "a a", "b")], [onnx.helper.make_opsetid("", 17)]
    )
    inner = body([node("Twice", "x", "z", domain="mine")], [], [info("z")])
    graph = onnx.helper.make_graph(
        [node("If", "c", "y", then_branch=inner, else_branch=inner)], "g", [info("x", [2, 3]), info("c", [], BOOL)], [info("y")]
    )
    opsets = [onnx.helper.make_opsetid("", 17), onnx.helper.make_opsetid("mine", 1)]
    path = tmp_path / "functions.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, functions=[function], ir_version=8), path)
    assert sorted(buffer.size for buffer in stowplan.read(path, "arena").buffers) == [1, 24, 24, 24, 24]


@pytest.mark.parametrize("inner", ["inner", "outer"])
def test_overloads_of_a_function_are_functions_of_their_own(inner: str, tmp_path: Path) -> None:
    opsets = [onnx.helper.make_opsetid("", 18), onnx.helper.make_opsetid("mine", 1)]
    bodies = {
        "inner": [node("Relu", "a", "b")],
        "outer": [node("f", "a", "t", domain="mine", overload=inner), node("Neg", "t", "b")],
    }
    functions = [
        onnx.helper.make_function("mine", "f", ["a"], ["b"], nodes, opsets, overload=name) for name, nodes in bodies.items()
    ]
    call = node("f", "x", "y", domain="mine", overload="outer")
    graph = onnx.helper.make_graph([call], "g", [info("x", [4])], [info("y", [4])])
    path = tmp_path / "overloads.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=10), path)
    if inner == "outer":
        with pytest.raises(InputError, match="nested deeper than 100, or in each other: 'f:outer', expected"):
            read_onnx_file(path)
    else:
        assert [made.op_type for made in read_onnx_file(path).graph.node] == ["Relu", "Neg"]


def test_a_loop_may_carry_along_what_it_does_not_change(tmp_path: Path) -> None:
    """The graph returns its own input, as TensorFlow's converter writes weights of a recurrent cell."""
    loop = body(
        [node("Add", "v w", "v2"), node("Identity", "go", "go2"), node("Neg", "v2", "part")],
        [info("i", [], INT64), info("go", [], BOOL), info("v"), info("w", ["n", 3])],
        [info("go2", None, BOOL), info("v2"), info("w", ["n", 3]), info("part")],
    )
    stored = [onnx.helper.make_tensor("m", INT64, [], [5])]
    inputs = [info("x", [2, 3]), info("c", [], BOOL)]
    nodes = [node("Neg", "x", "w0"), node("Loop", "m c x w0", "y same parts", body=loop), node("Neg", "same", "z")]
    save(tmp_path / "loop.onnx", nodes, inputs, [info("y"), info("z"), info("parts")], stored)
    with pytest.warns(UnmodelledWarning, match="what its iterations return"):
        sizes = {buffer.id: buffer.size for buffer in stowplan.read(tmp_path / "loop.onnx", "arena").buffers}
    assert sizes["w"] == sizes["z"] == 24
    assert sizes["parts"] == 120


@pytest.mark.parametrize("opset", [13, 20])
@pytest.mark.parametrize(
    ("kind", "operands", "size", "attributes"),
    [
        *((kind, "x", 24, {}) for kind in ("Celu", "HardSwish", "Mish", "Softmax", "LogSoftmax", "Softplus", "Gelu")),
        *((kind, "x x", 6, {}) for kind in ("GreaterOrEqual", "LessOrEqual")),
        ("MeanVarianceNormalization", "x", 24, {"axes": [0, 1]}),
        ("LayerNormalization", "x w", 24, {}),
        ("SoftmaxCrossEntropyLoss", "x labels", 4, {}),
        ("ReduceSumSquare", "x", 4, {"keepdims": 0}),
    ],
)
def test_operators_that_stand_for_others_have_shapes_beside_a_choice(
    kind: str, operands: str, size: int, attributes: dict[str, Any], opset: int, tmp_path: Path
) -> None:
    """Onnx itself infers through them in a whole model only, and a model with a choice is inferred node by node."""
    if not onnx.defs.has(kind, opset, ""):
        pytest.skip(f"there is no {kind} in version {opset}")
    branches = {name: body([node("Neg", "x", name)], [], [info(name)]) for name in ("then_branch", "else_branch")}
    nodes = [node(kind, operands, "y", **attributes), node("If", "c", "z", **branches)]
    inputs = [info("x", [2, 3]), info("c", [], BOOL), info("labels", [2], INT64), info("w", [3])]
    made = info("y", None, BOOL if size == 6 else FLOAT)
    onnx.save(
        onnx.helper.make_model(
            onnx.helper.make_graph(nodes, "g", inputs, [made, info("z")]),
            opset_imports=[onnx.helper.make_opsetid("", opset)],
            ir_version=10,
        ),
        tmp_path / "net.onnx",
    )
    sizes = {buffer.id: buffer.size for buffer in stowplan.read(tmp_path / "net.onnx", "arena").buffers}
    assert sizes["y"] == size
