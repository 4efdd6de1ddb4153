"""What TensorFlow Lite Micro itself makes of the plans; skipped where its wheel is not installed."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from stowplan.backends.tflm import runtime, scratch
from stowplan.backends.tflm.planning import plan_and_run, plan_model
from stowplan.frontends.arena.tflite_file import read_tflite
from stowplan.kernel.context import Options
from tests.backends.tflm.models import RESHAPE, Graph, Step, branch, chain, drawn, drawn_copies, loop, real, save, state, wide
from tests.frontends.arena.test_result_shapes import CASES, saved

pytest.importorskip("tflite_micro")


@pytest.mark.parametrize("kernels", ["none", "reference"])
@pytest.mark.parametrize("make", [branch, loop, state, wide, chain])
def test_plans_run_as_they_are_told(make: object, kernels: str, tmp_path: Path) -> None:
    planned, run, why = plan_and_run(make(tmp_path / "model.tflite"), seeds=2, kernels=kernels)  # type: ignore[operator]
    assert run is not None, why
    assert (run.greedy_head, run.head, run.differs) == (planned.summary.greedy, planned.summary.head, None)
    assert run.arena <= run.greedy_arena


@pytest.mark.filterwarnings("ignore::stowplan.log.UnmodelledWarning")
@pytest.mark.parametrize("name", CASES)
def test_results_whose_declared_shape_is_stale(name: str, tmp_path: Path) -> None:
    planned, run, why = plan_and_run(saved(tmp_path / "stale.tflite", CASES[name]), seeds=1, kernels="reference")
    assert run is not None, why
    assert (run.greedy_head, run.head, run.differs) == (planned.summary.greedy, planned.summary.head, None)


def test_outputs_that_the_wheel_misreads_are_not_compared(tmp_path: Path) -> None:
    path = save(tmp_path / "open.tflite", Graph([real(4, 16), real(-1, 8)], [0], [1], [Step(RESHAPE, [0], [1])]))
    planned, run, why = plan_and_run(path, seeds=1, kernels="reference")
    assert run is None
    assert why.startswith("an output has another shape than the declared one")
    assert planned.summary.head == 256


@pytest.mark.parametrize("kernels", ["reference", "cmsis-nn"])
@pytest.mark.parametrize("seed", range(4))
def test_results_in_the_place_of_operands(seed: int, kernels: str, tmp_path: Path) -> None:
    path = drawn_copies(tmp_path / "copies.tflite", random.Random(seed))
    planned, run, why = plan_and_run(path, seeds=1, kernels=kernels, options=Options(time_limit=1.0))
    assert run is not None, why
    assert (run.greedy_head, run.head, run.differs) == (planned.summary.greedy, planned.summary.head, None)


@pytest.mark.parametrize("kernels", ["none", "reference"])
@pytest.mark.parametrize("seed", range(4))
def test_models_that_are_drawn(seed: int, kernels: str, tmp_path: Path) -> None:
    path = drawn(tmp_path / "drawn.tflite", random.Random(seed))
    planned, run, why = plan_and_run(path, seeds=1, kernels=kernels, options=Options(time_limit=1.0))
    assert run is not None, why
    assert (run.greedy_head, run.head, run.differs) == (planned.summary.greedy, planned.summary.head, None)


@pytest.mark.parametrize("seed", range(2))
def test_kept_inputs_survive(seed: int, tmp_path: Path) -> None:
    path = drawn(tmp_path / "drawn.tflite", random.Random(seed))
    model = read_tflite(path)
    names = [model.tensors[number].own_name for number in model.subgraphs[0].inputs]
    planned, run, why = plan_and_run(path, seeds=1, kernels="reference", keep=names, options=Options(time_limit=1.0))
    assert run is not None, why
    assert (run.greedy_head, run.head, run.differs) == (planned.summary.greedy, planned.summary.head, None)
    # Set but once, they are overwritten where nobody knows of them.
    assert runtime.run(model, plan_model(path, kernels="reference").data, keep=names, seeds=1).differs is not None


def test_scratch_memory_is_measured(tmp_path: Path) -> None:
    model = read_tflite(wide(tmp_path / "wide.tflite"))
    assert runtime.measured(model) == {(0, 2): (32,), (0, 3): (32,)}
    known, _ = scratch.of_reference_kernels(model)
    everything = runtime.measured(model, every=True)
    assert {name: sum(sizes) for name, sizes in everything.items()} == {
        (0, at): sum(map(scratch.rounded, known.get((0, at), ()))) for at in range(5)
    }
