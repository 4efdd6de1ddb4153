"""Every format of graphs has every target that graphs are planned for."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest

import stowplan
from stowplan.cli import main
from stowplan.errors import UsageError
from stowplan.frontends.graph.tflite import TfliteGraphs
from stowplan.frontends.tflite.model import read_tflite
from stowplan.kernel.kind import kind_of
from stowplan.models.operator_order.structure import build, stable_order
from tests.backends.tflm.models import branch
from tests.paths import EXAMPLES

FILES = ("branches.tflite", "cells.graph.json", "alexnet_inf_b1.hlo.txt.gz")
TARGETS = {
    "order": "operator_order",
    "arena": "packing",
    "rematerialization": "rematerialization",
    "stm32h743": "banked_packing",
}


@pytest.mark.parametrize("name", FILES)
@pytest.mark.parametrize("target", TARGETS)
def test_every_target_of_every_format(name: str, target: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        problem = stowplan.read(EXAMPLES / name, target)
    assert kind_of(problem).name == TARGETS[target]


def test_programs_of_torch_and_onnx_models_too(tmp_path: Path) -> None:
    torch = pytest.importorskip("torch")
    program = torch.export.export(torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), (torch.zeros(2, 4),))
    torch.export.save(program, tmp_path / "m.pt2")
    onnx = pytest.importorskip("onnx")
    node = onnx.helper.make_node("Relu", ["x"], ["y"])
    values = [onnx.helper.make_tensor_value_info(name, onnx.TensorProto.FLOAT, [4]) for name in "xy"]
    onnx.save(onnx.helper.make_model(onnx.helper.make_graph([node], "g", values[:1], values[1:])), tmp_path / "m.onnx")
    for path in (tmp_path / "m.pt2", tmp_path / "m.onnx"):
        for target, kind in TARGETS.items():
            assert kind_of(stowplan.read(path, target)).name == kind


def test_what_a_capacity_is_depends_on_the_target() -> None:
    """It is the limit of live bytes, the bytes of the arena, and of no use to an order or to banks."""
    path = EXAMPLES / "cells.graph.json"
    assert stowplan.read(path, "rematerialization", capacity=700_000).limit == 700_000
    assert stowplan.read(path, "arena", capacity=700_000).capacity == 700_000
    for target in ("order", "stm32h743"):
        with pytest.raises(UsageError, match="but not"):
            stowplan.read(path, target, capacity=700_000)


def test_operators_run_again_where_the_memory_is_too_small(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A value that is read at both ends of a chain is computed again behind it, at the cost of the bytes that it has."""
    graph = {
        "tensors": [4, 100, 100, 100, 4, 4],
        "ops": [
            {"name": "big", "reads": [0], "writes": [1]},
            {"name": "wide", "reads": [1], "writes": [2]},
            {"name": "wider", "reads": [2], "writes": [3]},
            {"name": "small", "reads": [3], "writes": [4]},
            {"name": "end", "reads": [1, 4], "writes": [5]},
        ],
        "inputs": [0],
        "outputs": [5],
    }
    path = tmp_path / "again.graph.json"
    path.write_text(json.dumps(graph))
    with pytest.raises(SystemExit) as left:
        main(["solve", str(path), "--target", "rematerialization", "--capacity", "250B", "--json", "--quiet"])
    assert left.value.code == 0
    found = json.loads(capsys.readouterr().out)
    assert (found["status"], found["objective"]) == ("optimal", 100)
    with pytest.raises(SystemExit) as left:
        main(["frontier", str(path), "--target", "rematerialization", "--json", "--quiet"])
    assert left.value.code == 0


def test_what_a_called_subgraph_needs_is_memory_inside_the_operator(tmp_path: Path) -> None:
    """Of the branches of an IF the one that needs more counts; a subgraph that is called again and again is read once."""
    path = tmp_path / "branches.tflite"
    branch(path)
    problem = stowplan.read(path, "order")
    (inside,) = (tensor for tensor in problem.tensors if tensor.id.startswith("inside"))
    graphs = TfliteGraphs(read_tflite(path))
    structures = [build(graphs.graph(number, stored=False)) for number in (1, 2)]
    assert inside.size == max(structure.peak(stable_order(structure)) for structure in structures) > 0
