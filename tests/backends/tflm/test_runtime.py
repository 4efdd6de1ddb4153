"""What TensorFlow Lite Micro itself makes of the plans; skipped where its wheel is not installed."""

from __future__ import annotations

import random
import struct
from pathlib import Path

import numpy as np
import pytest

from stowplan.backends.tflm import runtime, scratch
from stowplan.backends.tflm.planning import plan_and_run, plan_model
from stowplan.backends.tflm.write import with_offsets, with_orders
from stowplan.frontends.tflite.model import read_tflite
from stowplan.kernel.context import Options
from tests.backends.tflm.models import (
    ADD,
    ASSIGN_VARIABLE,
    CALL_ONCE,
    CAST,
    CONCATENATION,
    NEG,
    READ_VARIABLE,
    RESHAPE,
    VAR_HANDLE,
    Graph,
    Step,
    branch,
    chain,
    drawn,
    drawn_copies,
    handle,
    loop,
    number,
    real,
    save,
    state,
    stored,
    variable,
    wide,
)
from tests.frontends.tflite.test_result_shapes import CASES, saved
from tests.frontends.tflite.tflite_models import tensor

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


def test_indices_that_are_drawn_are_taken(tmp_path: Path) -> None:
    begin, size = tensor([2], 2), stored(1, 2)
    tensors = [real(10, 16), tensor([8], 2), begin, size, tensor([6, 2], 2), tensor([5], 2)]
    tensors += [real(8, 16), real(2, 4), real(6), real(5, 16), real(8, 16), tensor([6, 2], 0), tensor([6, 2], 2)]
    steps = [
        Step(36, [0, 1], [6], {0: number(0)}),
        Step(65, [0, 2, 3], [7]),
        Step(CAST, [11], [12]),
        Step(107, [0, 12], [8]),
        Step(7, [5, 0], [9]),
        Step(NEG, [6], [10]),
    ]
    graph = Graph(tensors, [0, 1, 2, 11, 5], [7, 8, 9, 10], steps)
    path = save(tmp_path / "indices.tflite", graph, buffers=(struct.pack("<2i", 2, 4),))
    _, run, why = plan_and_run(path, seeds=1)
    assert run is not None, why
    assert (run.differs, run.compared, run.ended_early) == (None, 5, 0)
    # A user's own, of which some end the inference.
    inputs = tmp_path / "inputs.npz"
    np.savez(inputs, **{":1": np.array([[3] * 8, [-1] * 8, [10] * 8], np.int32)})  # type: ignore[arg-type]
    _, run, why = plan_and_run(path, inputs=inputs, seeds=2)
    assert run is not None, why
    assert (run.differs, run.compared, run.ended_early, run.seeds) == (None, 2, 4, 2)
    assert "failed to invoke" in run.message
    # And some end the process.
    np.savez(inputs, **{":2": np.array([0, 100_000_000], np.int32)})  # type: ignore[arg-type]
    _, run, why = plan_and_run(path, inputs=inputs)
    assert run is None
    assert "ended with code -11 in inference 0 of seed 0 of the source model, which was fed" in why


@pytest.mark.parametrize(
    ("code", "shape", "kind"), [(128, [1], 0), (105, [2], 0), (74, [2], 0), (56, [1], 2), (100, [3, 2], 0)]
)
def test_axes_and_pads_that_are_drawn_are_taken(code: int, shape: list[int], kind: int, tmp_path: Path) -> None:
    results = {128: [4, 8, 2], 105: [4, 8, 2], 74: [8], 56: [4, 2], 100: [6, 8, 3]}
    tensors = [real(4, 8, 2), tensor(shape, 2), tensor(results[code], kind)]
    path = save(tmp_path / "axis.tflite", Graph(tensors, [0, 1], [2], [Step(code, [0, 1], [2])]))
    _, run, why = plan_and_run(path, seeds=1)
    assert run is not None, why
    assert (run.differs, run.compared) == (None, 5), run.message


def streaming(path: Path) -> Path:
    """A state that is summed up, and a CIRCULAR_BUFFER that ends every second inference behind it."""
    start = Graph(
        [handle(), stored(1, 64, kind=0)],
        [],
        [],
        [Step(VAR_HANDLE, [], [0], {1: "sum"}), Step(ASSIGN_VARIABLE, [0, 1], [])],
    )
    tensors = [real(64), tensor([1, 1, 1, 64], 9), handle(), real(64), real(64), variable(1, 4, 1, 64, kind=9)]
    tensors += [tensor([256], 9), tensor([512], 9)]
    main = Graph(
        tensors,
        [0, 1],
        [4, 7],
        [
            Step(CALL_ONCE, [], [], {0: number(1)}),
            Step(VAR_HANDLE, [], [2], {1: "sum"}),
            Step(READ_VARIABLE, [2], [3]),
            Step(ADD, [3, 0], [4]),
            Step(ASSIGN_VARIABLE, [2, 4], []),
            Step("CIRCULAR_BUFFER", [1], [5]),
            Step(22, [5], [6]),
            Step(CONCATENATION, [6, 6], [7]),
        ],
    )
    return save(path, main, start, buffers=(bytes(256),))


def test_inferences_that_end_early_are_not_compared(tmp_path: Path) -> None:
    path = streaming(tmp_path / "streaming.tflite")
    planned, run, why = plan_and_run(path, seeds=2)
    assert run is not None, why
    assert (run.differs, run.compared, run.ended_early) == (None, 10, 10)
    # A state that is updated behind the barrier misses every second inference.
    order = {0: (0, 1, 2, 3, 5, 6, 7, 4)}
    apart = [4096 * at if tensor.is_planned else -1 for at, tensor in enumerate(planned.source.tensors)]
    moved = with_offsets(with_orders(planned.source, order), apart)
    assert runtime.run(planned.source, moved, seeds=1).differs == (0, 1)


def test_bytes_that_nothing_writes_are_not_blamed_on_the_plan(tmp_path: Path) -> None:
    # Of the energies SignalEnergy writes those from its first to its last alone: from 2 up to 4. A flexbuffer says so.
    ends = bytes([2, 4, 2, 4, 4, 4, 40, 1])
    tensors = [tensor([512], 7), tensor([512], 7), tensor([257], 15), tensor([257], 0)]
    steps = [Step(22, [0], [1]), Step("SignalEnergy", [1], [2], {0: ends}), Step(CAST, [2], [3])]
    path = save(tmp_path / "energy.tflite", Graph(tensors, [0], [3], steps))
    model = read_tflite(path)
    moved = with_offsets(model.data, [0, 1024, 4096, 8192])
    run = runtime.run(model, moved, seeds=1)
    assert (run.differs, run.is_undefined) == (None, True)
