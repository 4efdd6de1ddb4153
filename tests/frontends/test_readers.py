"""What every reader must withstand: files that ask for endless work, huge tokens, malformed attributes; and mutants."""

from __future__ import annotations

import importlib
import json
import math
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import stowplan
from stowplan import files
from stowplan.cli import main
from stowplan.deadline import check_reading, is_still_reading, read_within
from stowplan.errors import MAX_MESSAGE_LENGTH, MAX_PLACE_LENGTH, InputError, StowplanError, TimeLimitError, UsageError, brief
from stowplan.frontends.affine.hlo import affine_program
from stowplan.frontends.dfg.dot import parse_dot
from stowplan.frontends.dfg.graph import Reading
from stowplan.frontends.hlo import parse_module, program_from_module
from stowplan.frontends.hlo.placed import read_cycle_table
from stowplan.frontends.xla_plan import import_xla_plan
from stowplan.hardware.se import load_machine
from stowplan.hardware.targets import decode_target
from stowplan.models.packing import csv_files
from tests.paths import ROOT
from tests.patience import HANG, wait_until

F32 = "f32[8,128]{1,0}"


@pytest.fixture(scope="module")
def fuzzing() -> ModuleType:
    """The module ``benchmarks/attacks/fuzz_readers.py``."""
    return importlib.import_module("benchmarks.attacks.fuzz_readers")


# ------------------------------------------------------------------------------------------------------------- mutants

#: Of each reader; the long run is benchmarks/attacks/fuzz_readers.py.
MUTANTS = [6, pytest.param(60, marks=pytest.mark.slow)]


@pytest.mark.slow
@pytest.mark.parametrize("count", MUTANTS)
@pytest.mark.filterwarnings("ignore:invalid escape sequence:DeprecationWarning")
def test_mutants_are_read_or_refused(fuzzing: ModuleType, tmp_path: Path, count: int) -> None:
    failures = []
    for reader in fuzzing.readers():
        found = fuzzing.fuzz(reader, 12, tmp_path, count=count, until=float("inf"), save=tmp_path / "failures", seconds=None)
        assert found.mutants == count == found.refused + found.accepted + found.failures
        failures += [reader.name] * found.failures
    reasons = [each.read_text() for each in sorted((tmp_path / "failures").glob("*.reason.txt"))]
    assert not failures, "\n".join([*failures, *reasons[:2]])


def test_mutants_repeat_themselves(fuzzing: ModuleType) -> None:
    one, two, other = fuzzing.Mutator(5), fuzzing.Mutator(5), fuzzing.Mutator(6)
    text = (fuzzing.INPUTS / "graph.hlo.txt").read_bytes()
    assert [one.mutant(text) for _ in range(40)] == [two.mutant(text) for _ in range(40)]
    assert [fuzzing.Mutator(5).mutant(text) for _ in range(9)] != [other.mutant(text) for _ in range(9)]


# -------------------------------------------------------------------------------------------------------- endless work


def module(computations: list[str], entry: str, header: str = ", is_scheduled=true") -> str:
    return f"HloModule m{header}\n\n" + "\n".join(computations) + "\nENTRY main {\n" + entry + "}\n"


def doubling(levels: int, header: str = "") -> str:
    """Calls that double per level: a few kilobytes that stand for ``2 ** levels`` instructions."""
    computations = [f"f0 {{\n  p = {F32} parameter(0)\n  ROOT r = {F32} negate(p)\n}}\n"]
    computations += [
        f"f{k} {{\n  p = {F32} parameter(0)\n  q = {F32} call(p), to_apply=f{k - 1}\n"
        f"  ROOT r = {F32} call(q), to_apply=f{k - 1}\n}}\n"
        for k in range(1, levels)
    ]
    return module(computations, f"  x = {F32} parameter(0)\n  ROOT y = {F32} call(x), to_apply=f{levels - 1}\n", header)


def test_calls_that_double_are_refused_before_they_are_written_out(tmp_path: Path) -> None:
    text = doubling(39)
    assert len(text) < 6000
    with pytest.raises(InputError, match=r"found more than 200000 instructions with loops and calls in line"):
        affine_program(parse_module(text))
    with pytest.raises(InputError, match=r"found more than 2000000 instructions"):
        program_from_module(parse_module(doubling(39, ", is_scheduled=true")))
    assert len(affine_program(parse_module(doubling(6))).statements) == 32


def test_calls_that_double_in_a_plan_and_in_cycles(tmp_path: Path) -> None:
    """These are walked with another program, which may be small."""
    chain = ROOT / "tests" / "data" / "xla_plan" / "chain.hlo.txt"
    problem, program = stowplan.read(chain, "tpu-v4"), program_from_module(parse_module(chain.read_text()))
    large = tmp_path / "large.hlo.txt"
    large.write_text(doubling(39, ", is_scheduled=true"))
    with pytest.raises(InputError, match="found more than 2000000 instructions"):
        import_xla_plan(problem, program, large, chain.with_name("chain.plan.fastmem.txt"))
    with pytest.raises(InputError, match="found no estimated_cycles"):
        read_cycle_table(large, large, program)


def test_tuples_whose_text_hides_their_size() -> None:
    lines = [f"  x = {F32} parameter(0)\n  t0 = {F32} tuple(x, x)\n"]
    lines += [f"  t{k} = {F32} tuple(t{k - 1}, t{k - 1})\n" for k in range(1, 40)]
    with pytest.raises(InputError, match=r"line 6: %t0: found a value of shape a tuple of 2, expected that of its text"):
        affine_program(parse_module(module([], "".join(lines))))


def test_many_arrays_in_many_calls() -> None:
    wide = "(" + ", ".join([F32] * 200) + ")"
    computations = [f"f0 {{\n  ROOT p = {wide} parameter(0)\n}}\n"]
    computations += [
        f"f{k} {{\n  p = {wide} parameter(0)\n  q = {wide} call(p), to_apply=f{k - 1}\n"
        f"  ROOT r = {wide} call(q), to_apply=f{k - 1}\n}}\n"
        for k in range(1, 17)
    ]
    text = module(computations, f"  x = {wide} parameter(0)\n  ROOT y = {wide} call(x), to_apply=f16\n")
    with pytest.raises(InputError, match="found more than 10000000 arrays"):
        program_from_module(parse_module(text))


def test_values_that_users_have_twice() -> None:
    """Each bitcast has its operand twice: following both would take 2 ** 60 steps."""
    fused = f"f {{\n  p = {F32} parameter(0)\n  b0 = {F32} bitcast(p, p)\n"
    fused += "".join(f"  b{k + 1} = {F32} bitcast(b{k}, b{k})\n" for k in range(60))
    fused += "  ROOT r = f32[1,128]{1,0} slice(b60), slice={[0:1], [0:128]}\n}\n"
    entry = f"  x = {F32} parameter(0)\n  ROOT y = f32[1,128]{{1,0}} fusion(x), kind=kLoop, calls=f\n"
    (step,) = program_from_module(parse_module(module([fused], entry))).steps
    assert [use.bytes for use in step.uses] == [512, 512]


def test_digits_without_an_end_in_an_alias() -> None:
    header = ", is_scheduled=true, input_output_alias={ {" + "1" * 200 + "x}: (0, {}) }"
    with pytest.raises(InputError, match="expected aliases such as"):
        program_from_module(parse_module(module([], f"  x = {F32} parameter(0)\n", header)))


def test_tiles_upon_tiles() -> None:
    text = module([], "  x = f32[8]{0:T" + "(8)" * 100_000 + "} parameter(0)\n")
    with pytest.raises(InputError, match="expected at most 64 tiles"):
        parse_module(text)


def test_functions_of_a_model_that_double(tmp_path: Path) -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")
    helper = onnx.helper
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("own", 1)]
    functions = []
    for level in range(40):
        name, domain = ("Relu", "") if level == 0 else (f"f{level - 1}", "own")
        nodes = [helper.make_node(name, [one], [two], domain=domain) for one, two in (("a", "b"), ("b", "c"))]
        functions.append(helper.make_function("own", f"f{level}", ["a"], ["c"], nodes, opsets))
    values = [helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [2]) for name in "xy"]
    graph = helper.make_graph([helper.make_node("f39", ["x"], ["y"], domain="own")], "g", values[:1], values[1:])
    path = tmp_path / "deep.onnx"
    onnx.save(helper.make_model(graph, functions=functions, opset_imports=opsets, ir_version=10), path)
    for target in ("nnp-i", "inferentia"):
        with pytest.raises(InputError, match="found more than 200000 nodes with functions in line"):
            stowplan.read(path, target)


def test_the_time_limit_holds_while_reading(monkeypatch: pytest.MonkeyPatch) -> None:
    text = doubling(8)
    check_reading()
    monkeypatch.setattr("stowplan.deadline.MIN_READING_SECONDS", 0.0)
    for read in (
        lambda: affine_program(parse_module(text)),
        lambda: program_from_module(parse_module(doubling(8, ", is_scheduled=true"))),
    ):
        with pytest.raises(TimeLimitError, match=r"the time limit of 0 s was over .* before the input was read") as caught:
            read_within(0, read)
        assert caught.value.exit_code == 3
    for limit in (None, 1e6, math.inf, math.nan):
        assert read_within(limit, lambda: affine_program(parse_module(text))) is not None
    # What stops by itself leaves nobody behind.
    wait_until(lambda: not is_still_reading())


def test_what_does_not_look_at_the_clock_is_left_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("stowplan.deadline.MIN_READING_SECONDS", 0.0)
    go_on = threading.Event()
    with pytest.raises(
        TimeLimitError, match=r"^the time limit of 0.1 s was over after \d\.\d s, before the input was read: give"
    ):
        read_within(0.1, lambda: go_on.wait(HANG))
    assert is_still_reading()
    go_on.set()
    wait_until(lambda: not is_still_reading())
    # Time that was over before counts.
    go_on.clear()
    with pytest.raises(TimeLimitError, match="was over after 1000"):
        read_within(5, lambda: go_on.wait(HANG), -1e9)
    go_on.set()


def test_what_a_reader_raises_and_reads_comes_through(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("id,lower,upper,size\na,0,1,4\n")
    with files.recording_reads() as read:
        assert read_within(HANG, lambda: stowplan.read(path)).buffers[0].size == 4
    assert list(read) == [str(path)]
    with pytest.raises(InputError, match="no such"):
        read_within(HANG, lambda: stowplan.read(tmp_path / "no such.csv"))


def test_the_command_line_sets_the_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("stowplan.deadline.MIN_READING_SECONDS", 0.0)
    path, plan = tmp_path / "g.hlo.txt", tmp_path / "plan.json"
    path.write_text(doubling(4))
    with pytest.raises(SystemExit) as caught:
        main(["solve", str(path), "--target", "inferentia", "--time-limit", "1e-9", "-o", str(plan)])
    assert caught.value.code == 3
    assert capsys.readouterr().err.startswith("stowplan: the time limit of 1e-09 s was over after ")
    assert not plan.exists()


#: A command whose input takes a framework that never comes.
HANGS = """
import sys, time
import stowplan.frontends.read as read
read.open_input = lambda *_: time.sleep(1000)
from stowplan.cli import main
main()
"""


@pytest.mark.parametrize("command", [("solve",), ("frontier",), ("train", "egrl")])
def test_a_reader_that_hangs_ends_with_the_limit(tmp_path: Path, command: tuple[str, ...]) -> None:
    if command[0] == "train":
        pytest.importorskip("torch")
    path, output = tmp_path / "a.csv", tmp_path / "out"
    path.write_text("id,lower,upper,size\na,0,1,4\n")
    arguments = [*command, str(path), "--time-limit", "2", "-o", str(output)]
    done = subprocess.run([sys.executable, "-c", HANGS, *arguments], text=True, capture_output=True, timeout=HANG, check=False)
    assert (done.returncode, done.stdout) == (3, ""), done.stderr
    assert re.fullmatch(
        r"stowplan: the time limit of 2 s was over after \d+\.\d s, before the input was read: .*\n", done.stderr
    )
    assert not output.exists()


# ------------------------------------------------------------------------------------------------- malformed attributes

PLAIN = """HloModule all

sum {
  a = f32[] parameter(0)
  b = f32[] parameter(1)
  ROOT c = f32[] add(a, b)
}

ENTRY main {
  x = f32[2,3]{1,0} parameter(0)
  w = f32[3,2]{1,0} parameter(1)
  z = f32[] constant(0)
  LINE
}
"""


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("y = f32[2,2] dot(x, w), lhs_contracting_dims={1}", "found no rhs_contracting_dims, expected rhs_contracting_dims="),
        ("y = f32[2,2] dot(x, w), lhs_contracting_dims={1}, rhs_contracting_dims={1}", "expected dimensions of equal sizes"),
        ("y = f32[2,2] dot(x, w), lhs_contracting_dims={7}, rhs_contracting_dims={0}", "different dimensions from 0 to 1"),
        ("y = s32[4] iota()", "found no iota_dimension"),
        ("y = s32[4] iota(), iota_dimension=1", "expected one number below 1"),
        ('y = f32[3,2] transpose(x), dimensions={"x"}', "expected whole numbers"),
        ("y = f32[3,2] transpose(x), dimensions={1}", "expected 2 numbers, one for each dimension"),
        ("y = f32[3,2] transpose(x), dimensions={1,1}", "expected different dimensions"),
        ("y = f32[2,3] transpose(x), dimensions={1,0}", r"found a value of shape \[3, 2\], expected that of its text"),
        ("y = f32[4,2,3] broadcast(x), dimensions={1}", "expected 2 numbers"),
        ("y = f32[4,2,3] broadcast(x), dimensions={1," + "9" * 5000 + "}", "expected whole numbers"),
        ("y = f32[1,3] slice(x), slice={[0:1]}", "expected 2 ranges"),
        ("y = f32[1,3] slice(x), slice={[1:0], [0:3]}", "expected ranges that go upwards"),
        ("y = f32[1,3] slice(x)", "found slice='None'"),
        ("y = f32[1,3] slice(x), slice={[0:" + "1" * 5000 + "], [0:3]}", "expected 2 ranges"),
        ("y = f32[2,6] concatenate(x, x)", "found no dimensions"),
        ("y = f32[2,6] concatenate(x, z), dimensions={1}", "found operands of different ranks"),
        ("y = f32[2,6] concatenate(), dimensions={1}", "found 0 operands, expected one or more"),
        ("y = f32[3,3] pad(x, z), padding=1_0", "expected 2 parts low_high"),
        ("y = f32[3,3] pad(x), padding=1_0x0_0", "found 1 operands, expected 2"),
        ("y = f32[2] reduce(x, z), dimensions={1}", "found no to_apply"),
        ("y = f32[2] reduce(x), dimensions={1}, to_apply=sum", "found 1 operands and 1 results"),
        ("y = f32[1,2] reduce-window(x, z), window={size=2}, to_apply=sum", "expected size as 2 positive numbers"),
        ("y = f32[2,2] convolution(x, w), dim_labels=bf_io", "found dim_labels 'bf_io'"),
        ("y = f32[2,2] convolution(x, w), dim_labels=b0_io->bf", "expected 2 distinct labels"),
        ("y = f32[2,2] gather(x, w), offset_dims={0}, slice_sizes={1}", r"found slice_sizes=\{1\}, expected 2 numbers"),
        ("y = f32[2,2] gather(x, w), offset_dims={0}, slice_sizes={1,3}", r"found offset_dims=\{0\}, expected 2 numbers"),
        ("y = f32[2] dynamic-slice(x, z, z), dynamic_slice_sizes={1,2}", "expected one rank"),
        ("y = f32[2,3] dynamic-update-slice(x)", "found 1 operands, expected two or more"),
        ("y = f32[2,3] get-tuple-element(x), index=0", "found no tuple"),
        ("y = f32[2,3] call(x), to_apply=sum", "found 1 operands, expected the 2 of %sum"),
        ("y = (f32[2,3], f32[3,2]) tuple(x)", "found a value of shape a tuple of 1"),
        ("y = f32[2,3] copy()", "found 0 operands|expected|^$"),
    ],
)  # fmt: skip
def test_malformed_attributes_of_hlo(line: str, message: str, tmp_path: Path) -> None:
    path = tmp_path / "bad.hlo.txt"
    path.write_text(PLAIN.replace("LINE", line))
    if "copy()" in line:
        stowplan.read(path, "inferentia")  # an operator of which nothing is known
        return
    with pytest.raises(InputError, match=message) as caught:
        stowplan.read(path, "inferentia")
    assert str(caught.value).startswith(f"{path}: ")
    assert "line 13" in str(caught.value) or "operator y" in str(caught.value)


def onnx_graph(folder: Path, node: Any, **shapes: list[int]) -> Path:
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, shape) for name, shape in shapes.items()]
    graph = onnx.helper.make_graph([node], "g", values[:-1], values[-1:])
    path = folder / "bad.onnx"
    onnx.save(onnx.helper.make_model(graph, opset_imports=[onnx.helper.make_opsetid("", 18)], ir_version=10), path)
    return path


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes", "message"),
    [
        ("Transpose", ["x"], {"perm": [0, 5]}, r"found perm \[0, 5\], expected an order of 2 dimensions"),
        ("Transpose", ["x"], {"perm": "up"}, "expected whole numbers"),
        ("Concat", ["x", "w"], {}, "found the axis None, expected -2 to 1"),
        ("Concat", ["x", "w"], {"axis": 9}, "found the axis 9, expected -2 to 1"),
        ("Softmax", ["x"], {"axis": 4}, "found the axis 4"),
        ("MaxPool", ["x"], {}, "found no kernel_shape"),
        ("MaxPool", ["x"], {"kernel_shape": [2]}, "found kernel_shape"),
        ("Conv", ["x"], {}, "found 1 inputs, expected 2 or more"),
        ("Conv", ["x", "w"], {"strides": [1, 1]}, r"found strides \[1, 1\], expected 0 numbers"),
        ("Gemm", ["x"], {}, "found 1 inputs, expected 2 or more"),
        ("Slice", ["x"], {"starts": [0], "ends": [1, 2]}, "expected as many numbers of each"),
        ("Slice", ["x"], {}, "by numbers that are not in the file"),
        ("Tile", ["x", "w"], {}, "by numbers that are not in the file"),
        ("Gather", ["x"], {}, "found no indices"),
        ("ReduceSum", ["x"], {"axes": [3]}, "found the axis 3"),
        ("BatchNormalization", ["x", "w"], {}, "found 2 inputs, expected 5 or more"),
        ("Add", ["x", "w"], {}, r"found an operand of shape \[3, 2\], expected one that broadcasts"),
    ],
)  # fmt: skip
def test_malformed_attributes_of_onnx(
    kind: str, inputs: list[str], attributes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")
    node = onnx.helper.make_node(kind, inputs, ["y"], **attributes)
    path = onnx_graph(tmp_path, node, x=[2, 3], w=[3, 2], y=[2, 3])
    with pytest.raises(InputError, match=message) as caught:
        stowplan.read(path, "inferentia")
    assert str(caught.value).startswith(f"{path}: operator y: ")


def test_a_split_into_more_results_than_it_says(tmp_path: Path) -> None:
    """The shape inference of onnx reads beyond a vector's end there, which ends the process."""
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")
    node = onnx.helper.make_node("Split", ["x"], ["y", "a", "b"], num_outputs=2)
    path = onnx_graph(tmp_path, node, x=[2, 3], y=[1, 3])
    for target in ("inferentia", "nnp-i"):
        with pytest.raises(InputError, match="operator y: found 3 results of a Split, expected its num_outputs, 2"):
            stowplan.read(path, target)


@pytest.mark.parametrize(
    "text", ["x = " + "[" * 100_000, "x = " + "{a=" * 100_000, "a." * 300_000 + "b = 1", "x = " + "7" * 5000]
)
def test_toml_that_is_too_deep_or_too_long(text: str, tmp_path: Path) -> None:
    path = tmp_path / "t.toml"
    path.write_text(text)
    for read in (
        lambda: decode_target(text.encode(), "t.toml"),
        lambda: load_machine(path),
        lambda: stowplan.read(ROOT / "examples" / "data" / "fir.dfg.json", path),
        lambda: stowplan.read(ROOT / "tests" / "data" / "hlo" / "loop.hlo.txt", path),
    ):
        with pytest.raises(InputError, match=r"t\.toml: (not a TOML file|found a key of more than 32 parts)"):
            read()


# ------------------------------------------------------------------------------------------------------ external weights


def external_model(folder: Path, numbers: str) -> Path:
    """``y = reshape(x @ w)`` with the weights, and the shape, in a file of their own; ``numbers`` is its name."""
    onnx = pytest.importorskip("onnx", reason="needs onnx: pip install '.[frontends]'")
    import numpy as np

    helper = onnx.helper
    stored = [("w", np.zeros((4, 6), np.float32)), ("shape", np.array([3, 4]))]
    tensors, data = [], b""
    for name, array in stored:
        tensor = onnx.numpy_helper.from_array(array, name)
        onnx.external_data_helper.set_external_data(tensor, location=numbers, offset=len(data), length=array.nbytes)
        tensor.ClearField("raw_data")
        tensors.append(tensor)
        data += array.tobytes()
    nodes = [helper.make_node("MatMul", ["x", "w"], ["p"]), helper.make_node("Reshape", ["p", "shape"], ["y"])]
    x = helper.make_tensor_value_info("x", onnx.TensorProto.FLOAT, [2, 4])
    y = helper.make_tensor_value_info("y", onnx.TensorProto.FLOAT, None)
    graph = helper.make_graph(nodes, "g", [x], [y], tensors)
    folder.mkdir(exist_ok=True)
    (folder / "weights.bin").write_bytes(data)
    path = folder / "model.onnx"
    path.write_bytes(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10).SerializeToString())
    return path


@pytest.mark.parametrize("target", ["inferentia", "nnp-i"])
def test_weights_in_another_file(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = external_model(tmp_path / "models", "weights.bin")
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(elsewhere)
    here = stowplan.read(path, target)
    monkeypatch.chdir(path.parent)
    assert stowplan.read(path.name, target).digest == here.digest


def test_weights_in_a_file_that_is_not_there(tmp_path: Path) -> None:
    path = external_model(tmp_path, "weights.bin")
    data = (tmp_path / "weights.bin").read_bytes()
    # The weights themselves are not needed: only the shape behind them.
    (tmp_path / "weights.bin").write_bytes(b"\xff" * 96 + data[96:])
    whole = stowplan.read(path, "inferentia")
    assert [each.shape for each in whole.tensors if each.is_output] == [(3, 4)]
    (tmp_path / "weights.bin").write_bytes(data[:100])
    with pytest.raises(
        InputError, match=r"value y: .*the numbers of 'shape' stand in another file: found 4 bytes at offset 96"
    ):
        stowplan.read(path, "inferentia")
    (tmp_path / "weights.bin").unlink()
    for target in ("inferentia", "nnp-i"):
        with pytest.raises(
            InputError, match=r"'shape' stand in another file: there is no file 'weights\.bin' beside the model"
        ):
            stowplan.read(path, target)


def test_weights_outside_the_folder_of_the_model(tmp_path: Path) -> None:
    path = external_model(tmp_path / "models", "../secret.bin")
    (path.parent / "weights.bin").rename(tmp_path / "secret.bin")
    with pytest.raises(InputError, match="expected one in the model's folder"):
        stowplan.read(path, "inferentia")


# --------------------------------------------------------------------------------------------------------- short messages

LONG = "kilobytes" * 700
GRAPH = {"nodes": [{"id": 1, "op": "add"}], "edges": []}


def layers(**changes: Any) -> str:
    node = {"id": 0, "op": "relu", "name": "n", "ofm": [1, 1, 1], "ofm_elems": 1, "ifm": [1, 1, 1], "ifm_elems": 1}
    return json.dumps({"nodes": [node | changes], "edges": []})


TOKENS: dict[str, tuple[str, str | None, str]] = {
    "module name": ("a.hlo.txt", "tpu-v4", f"HloModule {LONG} {LONG}\n"),
    "element type": ("a.hlo.txt", "tpu-v4", module([], f"  x = {LONG}[2] parameter(0)\n")),
    "instruction": ("a.hlo.txt", "tpu-v4", module([], f"  {LONG} = {F32} negate({LONG})\n")),
    "twice": ("a.hlo.txt", "tpu-v4", module([], f"  {LONG} = {F32} parameter(0)\n" * 2)),
    "operator": ("a.hlo.txt", "inferentia", module([], f"  {LONG} = s32[3] iota()\n")),
    "dim_labels": ("a.hlo.txt", "tpu-v4", module([], f"  x = {F32} parameter(0)\n"
        f"  y = {F32} convolution(x, x), dim_labels={LONG}\n")),
    "layer": ("a.json", "nnp-i", layers(name=LONG, op=LONG)),
    "layer field": ("a.json", "nnp-i", layers(**{LONG: 1})),
    "id": ("a.json", "se", json.dumps(GRAPH | {"nodes": [{"id": LONG, "op": "add"}] * 2})),
    "op": ("a.json", "se", json.dumps(GRAPH | {"nodes": [{"id": LONG, "op": LONG}]})),
    "key": ("a.json", "se", json.dumps(GRAPH | {LONG: 1})),
    "words": ("a.json", "se", json.dumps(GRAPH | {"nodes": [{"id": 1, "op": "many words " * 900}]})),
    "control characters": ("a.json", "se", json.dumps(GRAPH | {"nodes": [{"id": 1, "op": "\x1b[31m\u202e" * 300}]})),
    "end of an edge": ("a.json", "se", json.dumps(GRAPH | {"edges": [{"src": LONG, "dst": LONG}]})),
    "node of DOT": ("a.dot", "se", f"digraph g {{ {LONG} }}"),
    "distance of DOT": ("a.dot", "se", f'digraph g {{ add1 -> add2 [distance="{LONG}"] }}'),
    "id of CSV": ("a.csv", None, f"id,lower,upper,size\n{LONG},0,x,1\n"),
    "value of CSV": ("a.csv", None, f"id,lower,upper,size\na,0,{LONG},1\n"),
    "column of CSV": ("a.csv", None, f"id,lower,upper,{LONG}\n"),
    "format": ("a.json", None, json.dumps({"format": LONG, "version": 1})),
    "field of a problem": ("a.json", None, json.dumps({"format": "stowplan.packing.problem", "version": 1, LONG: 2})),
    "buffer": ("a.json", None, json.dumps({"format": "stowplan.packing.problem", "version": 1, "name": "", "buffers": [
        {"id": LONG, "lower": 2, "upper": 1, "size": 4}]})),
    "name of a target": ("a.hlo.txt", LONG, module([], f"  x = {F32} parameter(0)\n")),
}  # fmt: skip


@pytest.mark.parametrize("name", TOKENS)
def test_messages_are_short(name: str, tmp_path: Path) -> None:
    suffix, target, text = TOKENS[name]
    path = tmp_path / suffix
    path.write_text(text)
    with pytest.raises((InputError, UsageError)) as caught:
        stowplan.read(path, target, rules=["strict=yes"] if target == "se" else [])
    message = str(caught.value).removeprefix(f"{path}: ")
    assert len(message) <= MAX_MESSAGE_LENGTH + MAX_PLACE_LENGTH + 2
    assert message.isprintable()
    assert LONG not in message


@pytest.mark.parametrize("field", ["clock", "format", "x" * 5000])
def test_messages_of_targets_are_short(field: str) -> None:
    text = (ROOT / "stowplan" / "hardware" / "targets" / "teaching.toml").read_text()
    lines = [f'{field} = "{LONG}"' if line.startswith(f"{field} =") else line for line in text.splitlines()]
    lines = lines if field in text else [f'{field} = "{LONG}"', *lines]
    with pytest.raises(InputError) as caught:
        decode_target("\n".join(lines).encode(), "t.toml")
    assert len(str(caught.value)) <= MAX_MESSAGE_LENGTH + MAX_PLACE_LENGTH + 12
    assert LONG not in str(caught.value)


def test_brief_keeps_both_ends() -> None:
    assert brief("found 'x',\n expected 1") == "found 'x', expected 1"
    short = brief(f"found {LONG!r}, expected a number")
    assert short.startswith("found 'kilobyteskilo")
    assert short.endswith("kilobytes', expected a number")
    assert "..." in short
    assert brief("word " * 9000 + "expected the end").endswith("expected the end")
    assert len(brief("\x00" * 10_000)) <= MAX_MESSAGE_LENGTH
    assert brief("\x1b[31mred") == r"\x1b[31mred"
    error = InputError(LONG, source="f", place=LONG)
    assert len(str(error)) < MAX_MESSAGE_LENGTH + MAX_PLACE_LENGTH + 10
    assert str(error.within("g")) == str(error)
    # The name of the file stands as it is: it is there to be copied.
    assert str(InputError("bad", source="long" * 500)) == f"{'long' * 500}: bad"
    assert isinstance(TimeLimitError("late"), StowplanError)


# ---------------------------------------------------------------------------------------------------------------- hints


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (
            "module_0001.jit_f.before_optimizations.txt",
            "before XLA's optimisations, take the file of the same dump with after_opt",
        ),
        ("module.hlo.txt", "of XLA's dump, take the file with after_optimizations in its name"),
    ],
)
def test_unscheduled_input_says_which_file_to_take(name: str, expected: str, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_text(doubling(2))
    with pytest.raises(InputError, match=expected):
        stowplan.read(path, "tpu-v4")


def test_the_header_may_say_it_too() -> None:
    text = doubling(2).replace("HloModule m", "HloModule jit_f.before_optimizations")
    with pytest.raises(InputError, match="before XLA's optimisations"):
        program_from_module(parse_module(text))


def test_an_unknown_op_says_how_to_go_on() -> None:
    with pytest.raises(
        InputError, match=r"found the unknown op 'mull', expected perhaps mul; one of add, .*: rename it, say in an op table"
    ):
        parse_dot("digraph { a [op=mull] }", reading=Reading(strict=True))


def test_comments_of_dot_end() -> None:
    with pytest.raises(InputError, match="found a comment that never ends"):
        parse_dot("digraph { " + "/* " * 100_000)


@pytest.mark.parametrize("digit", ["\u00b2", "\u0663", "9" * 5000])
def test_digits_that_are_no_numbers(digit: str, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="found distance"):
        parse_dot(f'digraph {{ add1 -> add2 [distance="{digit}"] }}')
    parse_dot(f'digraph {{ add1 -> add2 [operand="{digit}"] }}')
    with pytest.raises(InputError, match="expected a whole number"):
        csv_files.parse(f"id,lower,upper,size\na,0,1,{digit}\n")
    offsets = tmp_path / "o.fastmem.txt"
    offsets.write_text(f" value: <1 a @{digit}> (size=4,offset=0): f32[1]\n")
    from stowplan.frontends.xla_plan.stays import read_offsets

    with pytest.raises(InputError, match="expected value"):
        read_offsets(offsets)
