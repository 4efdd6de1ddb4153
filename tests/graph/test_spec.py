"""Every reader's graphs keep what the specification promises; and it finds what is wrong with graphs that do not."""

from __future__ import annotations

import os
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stowplan.errors import InputError, MissingDependencyError
from stowplan.frontends.formats import look
from stowplan.frontends.graph import read_graph
from stowplan.frontends.options import ReadOptions
from stowplan.graph.graph import Graph, Op, Tensor
from stowplan.graph.spec import bits_of, faults
from stowplan.models.operator_order.problem import of_graph
from stowplan.models.rematerialization.problem import of_graph as rematerialization_of
from tests.paths import EXAMPLES

SHARED = Path(os.environ.get("STOWPLAN_SHARED", Path(__file__).parents[3] / "shared"))

#: Ends of names of files that are graphs.
ENDS = (".onnx", ".tflite", ".pt2", ".hlo.txt", ".hlo.txt.gz", ".hlo", ".graph.json", ".graph.json.gz")


def files_of(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.name.endswith(ENDS)) if folder.is_dir() else []


def check(path: Path) -> None:
    """A file that is a graph keeps the specification, however it is read; what is refused is no graph."""
    options = ReadOptions(target="order", in_place="elementwise")
    for keeps_order in (False, True):
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                graph = read_graph(look(path, "order"), options, keeps_order=keeps_order)
        except MissingDependencyError as error:
            pytest.skip(str(error))
        except InputError:
            return
        assert list(faults(graph)) == [], path
        for problem in (of_graph(graph), rematerialization_of(graph)):
            assert problem.predecessors == graph.predecessors
            assert problem.base == graph.base


@pytest.mark.parametrize("path", files_of(EXAMPLES), ids=lambda path: path.name)
def test_examples(path: Path) -> None:
    check(path)


@pytest.mark.parametrize("folder", ["cases", "tflm", "corpus/order", "corpus/onnx", "llm"])
def test_files_of_others(folder: str) -> None:
    paths = files_of(SHARED / folder)
    if not paths:
        pytest.skip("there is no ../shared")
    for path in paths:
        check(path)


@pytest.mark.slow
@pytest.mark.parametrize("folder", ["corpus/cpu", "corpus/unoptimized", "corpus/tpu_v4", "corpus/tpu_v4_large"])
def test_modules_of_xla(folder: str) -> None:
    paths = files_of(SHARED / folder)
    if not paths:
        pytest.skip("there is no ../shared")
    for path in paths:
        check(path)


GOOD = Graph(
    name="good",
    tensors=(
        Tensor(id="x", size=16, dtype="f32", shape=(4,)),
        Tensor(id="y", size=16, dtype="f32", shape=(2, 2)),
        Tensor(id="view", size=8, alias_of=1, start=8, dtype="f32", shape=(2,)),
    ),
    ops=(Op(id="a", kind="add", reads=(0,), writes=(1,)), Op(id="b", kind="sum", reads=(2,), has_effects=True)),
    inputs=(0,),
    outputs=(1,),
    results=(1,),
)


def changed(**fields: Any) -> Graph:
    return msgspec.structs.replace(GOOD, **fields)


def broken() -> Iterator[tuple[Graph, str]]:
    replace = msgspec.structs.replace
    x, y, view = GOOD.tensors
    first, second = GOOD.ops
    yield changed(tensors=(replace(x, shape=(5,)), y, view)), "x has 16 bytes, but [5] of f32 take 20"
    yield changed(tensors=(replace(x, shape=(-1,)), y, view)), "x has the shape [-1], which is not fixed"
    yield changed(tensors=(*GOOD.tensors, Tensor(id="z", size=4))), "z is no input, and no operator touches it"
    yield changed(ops=(second, first)), "operator b stands before a, which it needs"
    yield changed(ops=(*GOOD.ops, Op(id="c"))), "operator c reads nothing, writes nothing and has no effects"
    yield changed(outputs=()), "y is returned, but not there at the end"


def test_the_specification_says_what_is_wrong() -> None:
    assert list(faults(GOOD)) == []
    for graph, sentence in broken():
        assert list(faults(graph)) == [sentence]


@pytest.mark.parametrize(
    ("dtype", "bits"),
    [
        ("f32", 32),
        ("FLOAT", 32),
        ("float16", 16),
        ("BFLOAT16", 16),
        ("pred", 8),
        ("int4", 4),
        ("f8e4m3fn", 8),
        ("STRING", None),
    ],
)
def test_bits(dtype: str, bits: int | None) -> None:
    assert bits_of(dtype) == bits
