"""Graphs of operators from ONNX, torch.export, HLO and graph files."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

import stowplan
from stowplan.errors import InputError, UsageError
from stowplan.frontends.graph.torch_export import problem_of_exported
from stowplan.log import UnmodelledWarning
from stowplan.models.operator_order.problem import Problem
from tests.paths import EXAMPLES


def names(problem: Problem, numbers: tuple[int, ...]) -> list[str]:
    return [problem.tensors[number].id for number in numbers]


GRAPH: dict[str, Any] = {
    "name": "two",
    "tensors": [8, 16, 4],
    "ops": [{"name": "a", "reads": [0], "writes": [1], "kind": "conv"}, {"name": "b", "reads": [1, 1], "writes": [2]}],
    "inputs": [0],
    "outputs": [2],
}


@pytest.mark.parametrize("name", ["two.graph.json", "two.graph.json.gz"])
def test_graph_files(tmp_path: Path, name: str) -> None:
    data = json.dumps(GRAPH).encode()
    (tmp_path / name).write_bytes(gzip.compress(data) if name.endswith("gz") else data)
    problem = stowplan.read(tmp_path / name)
    assert isinstance(problem, Problem)
    assert [tensor.size for tensor in problem.tensors] == [8, 16, 4]
    assert [op.reads for op in problem.ops] == [(0,), (1,)]
    with pytest.raises(UsageError, match=r"a graph of operators and tensors: it takes no options, found --capacity$"):
        stowplan.read(tmp_path / name, capacity=10)


@pytest.mark.parametrize("target", ["order", "arena", "rematerialization", "stm32h743"])
def test_errors_say_what_a_file_is_and_not_what_is_made_of_it(tmp_path: Path, target: str) -> None:
    model, module, graph = EXAMPLES / "branches.tflite", EXAMPLES / "alexnet_inf_b1.hlo.txt.gz", tmp_path / "two.graph.json"
    graph.write_text(json.dumps(GRAPH))
    with pytest.raises(UsageError, match=r"branches.tflite is a TensorFlow Lite model: name a target such as "):
        stowplan.read(model)
    for path, words in [
        (model, "a TensorFlow Lite model"),
        (module, "an HLO module"),
        (graph, "a graph of operators and tensors"),
    ]:
        with pytest.raises(UsageError, match=f"{path.name} is {words}: it takes .*, but not --set RULE=VALUE"):
            stowplan.read(path, target, rules=["max_delay=1"])


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"outputs": [9]}, "outputs: found tensor 9, expected 0 to 2"),
        ({"ops": [{"name": "a", "reads": [1], "writes": [1]}]}, "both read and written"),
        ({"tensors": [8, -1, 4]}, "size -1"),
        ({"tensors": [8, "x", 4]}, r"tensors\[1\]: Expected `int`, got `str`"),
        ({"more": 1}, "unknown field `more`"),
    ],
)
def test_bad_graph_files(tmp_path: Path, changes: dict[str, Any], words: str) -> None:
    path = tmp_path / "bad.graph.json"
    path.write_text(json.dumps({**GRAPH, **changes}))
    with pytest.raises(InputError, match=words) as error:
        stowplan.read(path)
    assert str(error.value).startswith(str(path))


def test_graph_files_that_are_no_text(tmp_path: Path) -> None:
    path = tmp_path / "bad.graph.json"
    path.write_bytes(json.dumps(GRAPH).encode().replace(b'"two"', b'"t\xe6o"'))
    with pytest.raises(InputError, match=r"bad\.graph\.json: not a graph of operators"):
        stowplan.read(path)


def save_onnx(path: Path, **changes: Any) -> Path:
    onnx = pytest.importorskip("onnx")
    helper, kind = onnx.helper, onnx.TensorProto.FLOAT
    nodes = changes.get("nodes") or [
        helper.make_node("Conv", ["x", "w"], ["c"], name="conv"),
        helper.make_node("Relu", ["c"], ["r"], name="relu"),
        helper.make_node("Constant", [], ["shape"], value=helper.make_tensor("v", onnx.TensorProto.INT64, [2], [1, 64])),
        helper.make_node("Reshape", ["r", "shape"], ["flat"], name="reshape"),
        helper.make_node("Transpose", ["w"], ["stored"], name="stored"),
        helper.make_node("Add", ["r", "x2"], ["sum"], name="add"),
        helper.make_node("Shape", ["sum"], ["of"], name="shape"),
    ]
    graph = helper.make_graph(
        nodes,
        "g",
        [
            helper.make_tensor_value_info("x", kind, changes.get("shape", [1, 3, 4, 4])),
            helper.make_tensor_value_info("x2", kind, [1, 4, 4, 4]),
        ],
        [helper.make_tensor_value_info("flat", kind, [1, 64]), helper.make_tensor_value_info("sum", kind, [1, 4, 4, 4])],
        [helper.make_tensor("w", kind, [4, 3, 1, 1], [0.0] * 12)],
    )
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def test_onnx(tmp_path: Path) -> None:
    problem = stowplan.read(save_onnx(tmp_path / "net.onnx"), target="order")
    assert isinstance(problem, Problem)
    assert [op.id for op in problem.ops] == ["conv", "relu", "reshape", "add"]
    by_name = {tensor.id: tensor for tensor in problem.tensors}
    assert by_name["x"].size == 3 * 16 * 4
    assert by_name["c"].size == 4 * 16 * 4
    assert by_name["flat"].alias_of == names(problem, tuple(range(len(problem.tensors)))).index("r")
    assert names(problem, problem.inputs) == ["x", "x2"]
    assert names(problem, problem.outputs) == ["flat", "sum"]
    # The sum may take the place of the input that nobody else reads.
    assert [names(problem, pair) for op in problem.ops for pair in op.in_place] == [["c", "r"], ["x2", "sum"]]


def test_onnx_without_fixed_shapes(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"found open sizes of inputs, .* --dim n=1$"):
        stowplan.read(save_onnx(tmp_path / "net.onnx", shape=["n", 3, 4, 4]), target="order")


HLO = """HloModule m, is_scheduled=true, input_output_alias={ {0}: (1, {}, may-alias) }

%sum (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %c = f32[] add(%a, %b)
}

ENTRY %main (x: f32[8], y: f32[8]) -> (f32[8], f32[2]) {
  %x = f32[8]{0} parameter(0)
  %y = f32[8]{0} parameter(1)
  %k = f32[8]{0} constant({1,2,3,4,5,6,7,8})
  %two = f32[8]{0} multiply(%y, %k)
  %view = f32[2,4]{1,0} bitcast(%two)
  %part = f32[2]{0} reduce(%view, %x), dimensions={1}, to_apply=%sum
  ROOT %out = (f32[8]{0}, f32[2]{0}) tuple(%two, %part)
}
"""


@pytest.mark.parametrize("scheduled", [True, False])
def test_hlo(tmp_path: Path, scheduled: bool) -> None:
    path = tmp_path / "m.hlo.txt"
    path.write_text(HLO if scheduled else HLO.replace(", is_scheduled=true", ""))
    problem = stowplan.read(path, target="order")
    assert isinstance(problem, Problem)
    assert [op.id for op in problem.ops] == ["two", "part"]
    assert names(problem, problem.ops[1].reads) == ["two", "x"]
    assert [names(problem, pair) for pair in problem.ops[0].in_place] == [["y", "two"]]
    # The caller keeps x; y is donated.
    assert set(names(problem, problem.outputs)) == {"two", "part", "x"}


def test_loops_of_hlo_are_one_operator(tmp_path: Path) -> None:
    path = tmp_path / "loop.hlo.txt"
    path.write_text(
        """HloModule loop, is_scheduled=true

%body (p: (s32[], f32[64])) -> (s32[], f32[64]) {
  %p = (s32[], f32[64]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %v = f32[64]{0} get-tuple-element(%p), index=1
  %one = s32[] constant(1)
  %next = s32[] add(%i, %one)
  %big = f32[4,64]{1,0} broadcast(%v), dimensions={1}
  %w = f32[64]{0} slice(%big), slice={[0:1], [0:64]}
  ROOT %r = (s32[], f32[64]{0}) tuple(%next, %w)
}

%condition (p: (s32[], f32[64])) -> pred[] {
  %p = (s32[], f32[64]{0}) parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %n = s32[] constant(4)
  ROOT %less = pred[] compare(%i, %n), direction=LT
}

ENTRY %main (x: f32[64]) -> f32[64] {
  %x = f32[64]{0} parameter(0)
  %zero = s32[] constant(0)
  %copy = f32[64]{0} copy(%x)
  %start = (s32[], f32[64]{0}) tuple(%zero, %copy)
  %loop = (s32[], f32[64]{0}) while(%start), condition=%condition, body=%body
  ROOT %out = f32[64]{0} get-tuple-element(%loop), index=1
}
"""
    )
    problem = stowplan.read(path, target="order")
    assert [op.id for op in problem.ops] == ["copy", "loop"]
    scratch = next(tensor for tensor in problem.tensors if tensor.id == "loop.scratch")
    assert scratch.size >= 4 * 64 * 4
    assert [names(problem, pair) for pair in problem.ops[1].in_place] == [["copy", "loop{1}"]]


_CALLEE = """HloModule call

callee {
  p = f32[64]{0} parameter(0)
  a = f32[128]{0} concatenate(p, p), dimensions={0}
  b = f32[256]{0} concatenate(a, a), dimensions={0}
  ROOT c = f32[2]{0} slice(b), slice={[0:2]}
}

ENTRY main {
  x = f32[64]{0} parameter(0)
  ROOT y = f32[2]{0} call(x), to_apply=callee
}
"""


def test_what_a_call_needs_is_beside_an_operand_that_its_computation_has_read_for_the_last_time(tmp_path: Path) -> None:
    path = tmp_path / "call.hlo.txt"
    path.write_text(_CALLEE)
    problem = stowplan.read(path, target="order")
    assert {tensor.id: tensor.size for tensor in problem.tensors} == {"x": 256, "y": 8, "y.scratch": 512 + 1024}


@pytest.mark.parametrize(
    ("lines", "root", "needed"),
    [
        (["a = f32[64]{0} negate(v)"], "a", 1),
        (["a = f32[64]{0} negate(v)", "b = f32[64]{0} negate(a)"], "b", 1),
        (["a = f32[64]{0} reverse(v), dimensions={0}"], "a", 256),
        (["a = f32[64]{0} reverse(v), dimensions={0}", "b = f32[64]{0} add(a, v)"], "b", 256),
        (["a = f32[64]{0} negate(v)", "b = f32[64]{0} reverse(v), dimensions={0}"], "a", 512),
    ],
    ids=["in place", "in place twice", "copied back", "written where the old value was", "the new value is there before"],
)
def test_what_a_loop_carries_stands_where_it_was_unless_that_is_still_read(
    tmp_path: Path, lines: list[str], root: str, needed: int
) -> None:
    """``needed`` bytes by hand, beside the carried buffer; 1 is the condition's result."""
    path = tmp_path / "loop.hlo.txt"
    body = "\n  ".join(lines)
    path.write_text(
        f"""HloModule loop

cond {{
  q = (s32[], f32[64]{{0}}) parameter(0)
  i = s32[] get-tuple-element(q), index=0
  n = s32[] constant(3)
  ROOT l = pred[] compare(i, n), direction=LT
}}

body {{
  q = (s32[], f32[64]{{0}}) parameter(0)
  i = s32[] get-tuple-element(q), index=0
  v = f32[64]{{0}} get-tuple-element(q), index=1
  one = s32[] constant(1)
  j = s32[] add(i, one)
  {body}
  ROOT r = (s32[], f32[64]{{0}}) tuple(j, {root})
}}

ENTRY main {{
  x = f32[64]{{0}} parameter(0)
  z = s32[] constant(0)
  s = (s32[], f32[64]{{0}}) tuple(z, x)
  w = (s32[], f32[64]{{0}}) while(s), condition=cond, body=body
  ROOT o = f32[64]{{0}} get-tuple-element(w), index=1
}}
"""
    )
    problem = stowplan.read(path, target="order")
    assert next(tensor.size for tensor in problem.tensors if tensor.id == "w.scratch") == needed


def test_text_that_is_no_hlo(tmp_path: Path) -> None:
    path = tmp_path / "no.hlo.txt"
    path.write_text("something else\n")
    with pytest.raises(InputError, match="expected HloModule"):
        stowplan.read(path, target="order")


def test_exported_programs(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")

    class Net(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.linear = torch.nn.Linear(8, 8)

        def forward(self, x: Any) -> Any:
            y = torch.relu(self.linear(x))
            one, two = torch.split(y, 4, dim=1)
            return one.reshape(-1) + two.reshape(-1), y.view(4, 16)

    program = torch.export.export(Net(), (torch.zeros(8, 8),))
    torch.export.save(program, tmp_path / "net.pt2")
    problem = stowplan.read(tmp_path / "net.pt2", target="order")
    assert isinstance(problem, Problem)
    assert [problem.tensors[number].size for number in problem.inputs] == [256]
    assert [tensor for tensor in problem.tensors if tensor.alias_of is not None]
    assert len(problem.outputs) == 2
    relu = next(op for op in problem.ops if "relu" in op.kind)
    assert len(relu.in_place) == 1
    result = stowplan.solve(problem, time_limit=10)
    assert result.status == "optimal"


def test_programs_that_write_over_what_they_read() -> None:
    torch = pytest.importorskip("torch")
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU(inplace=True), torch.nn.Linear(4, 2)).eval()
    problem = problem_of_exported(torch.export.export(model, (torch.zeros(3, 4),)))
    assert len(problem.ops) == 3
    relu = problem.tensors[problem.ops[1].writes[0]]
    assert relu.alias_of is not None
    assert problem.tensors[relu.alias_of].id == "linear"


class Sizes:
    """What is exported with a size that is open."""

    @staticmethod
    def program(**bounds: int) -> Any:
        torch = pytest.importorskip("torch")

        class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
            def forward(self, x: Any, y: Any) -> Any:
                rows = x.shape[0]
                return torch.cat([x, x.relu()]).reshape(-1).sin(), y[:rows].exp(), torch.zeros(20 - rows, 3).cos()

        shapes = {"x": {0: torch.export.Dim("rows", min=2, **bounds)}, "y": None}
        return torch.export.export(Module(), (torch.zeros(4, 3), torch.zeros(32)), dynamic_shapes=shapes)


def test_open_sizes_are_the_largest_they_may_be(tmp_path: Path) -> None:
    program = Sizes.program(max=16)
    (name,) = map(str, program.range_constraints)
    with pytest.warns(UnmodelledWarning, match=f"planned for the largest size {name}, 16"):
        problem = problem_of_exported(program)
    sizes = {tensor.id: tensor.size for tensor in problem.tensors}
    # What shrinks as they grow is as large as it can be, too: 20 - 2 rows.
    expected = {"x": 192, "relu": 192, "cat": 384, "reshape": 384, "sin": 384, "slice_1": 64, "exp": 64, "cos": 216}
    assert {name: sizes[name] for name in expected} == expected
    torch = pytest.importorskip("torch")
    torch.export.save(program, path := tmp_path / "bounded.pt2")
    smaller = stowplan.read(path, "arena", dim={name: 8})
    assert {each.id: each.size for each in smaller.buffers}["sin"] == 192
    for dims, message in (
        ({name: 17}, f"found --dim {name}=17, expected 2 to 16, as in the program"),
        ({"rows": 4}, f"found --dim rows, expected an open size of the program: {name}$"),
    ):
        with pytest.raises(InputError, match=message):
            stowplan.read(path, "order", dim=dims)
    with pytest.raises(UsageError, match="but not --shape"):
        stowplan.read(path, "order", shape={"x": (4, 3)})


def test_open_sizes_without_a_bound_are_asked_for(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    shapes = ({0: torch.export.Dim("n")},)
    program = torch.export.export(torch.nn.Linear(4, 4), (torch.zeros(3, 4),), dynamic_shapes=shapes)
    (name,) = map(str, program.range_constraints)
    torch.export.save(program, path := tmp_path / "open.pt2")
    with pytest.raises(InputError, match=f"no upper bound of the size {name}, expected one, for example: --dim {name}=128$"):
        stowplan.read(path, "arena")
    problem = stowplan.read(path, "order", dim={name: 128})
    assert [tensor.size for tensor in problem.tensors] == [128 * 16, 128 * 16]


def test_sizes_that_depend_on_values_are_the_largest_they_may_be() -> None:
    torch = pytest.importorskip("torch")

    class Module(torch.nn.Module):  # type: ignore[misc, name-defined]
        def forward(self, x: Any) -> Any:
            return torch.nonzero(x).float()

    with pytest.warns(UnmodelledWarning, match="planned for the largest size u0, 12"):
        problem = problem_of_exported(torch.export.export(Module(), (torch.zeros(4, 3),)))
    assert [tensor.size for tensor in problem.tensors] == [48, 12 * 2 * 8, 12 * 2 * 4]


def test_a_file_that_is_no_exported_program(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    path = tmp_path / "no.pt2"
    path.write_bytes(b"nothing")
    with pytest.raises(InputError, match=r"not a program that torch\.export\.save wrote"):
        stowplan.read(path, target="order")
