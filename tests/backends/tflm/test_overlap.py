"""Results in bytes of operands: which pairs a model has, what plans gain, and what the check refuses."""

from __future__ import annotations

import random
import struct
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from stowplan.backends.search import Search
from stowplan.backends.tflm import arena as arenas
from stowplan.backends.tflm.check import faults
from stowplan.backends.tflm.kernels import distance
from stowplan.backends.tflm.order import OperatorOrder, improve_order, lower_bound, predecessors
from stowplan.backends.tflm.overlap import overlaps
from stowplan.backends.tflm.planning import plan_model
from stowplan.backends.tflm.write import with_offsets
from stowplan.errors import InputError, UsageError
from stowplan.frontends.tflite.flatbuffer import FlatBuffer
from stowplan.frontends.tflite.model import read_tflite, scopes
from stowplan.kernel.context import Options
from stowplan.models.packing.overlaps import loads, without_overlaps
from stowplan.models.packing.problem import Problem
from tests.backends.tflm.models import (
    ADD,
    CONCATENATION,
    DEPTHWISE,
    MEAN,
    NEG,
    PAD,
    SUM,
    TRANSPOSE,
    Graph,
    Step,
    branch,
    byte,
    chain,
    drawn,
    drawn_copies,
    loop,
    number,
    real,
    save,
    state,
)
from tests.backends.tflm.test_planning import SHARED
from tests.frontends.tflite.tflite_models import Number, tensor

#: Head by the reference kernels' accesses, of models that are planned in a moment.
HEADS = {
    "emza_ssd_slim": 162_688,
    "mcunet_detection": 245_760,
    "mlperf_resnet8_int8": 33_312,
    "mlperf_vww96_int8": 36_880,
    "tflm_person_detect": 36_880,
}


def depthwise(path: Path) -> Path:
    """Two depthwise convolutions, the second with a stride."""
    weights = {**tensor([1, 3, 3, 8]), 2: Number(1)}
    tensors = [tensor([1, 10, 10, 8]), weights, tensor([1, 10, 10, 8]), tensor([1, 5, 5, 8]), tensor([1, 5, 5, 8])]
    steps = [
        Step(DEPTHWISE, [0, 1, -1], [2], {0: byte(0), 1: number(1), 2: number(1)}),
        Step(DEPTHWISE, [2, 1, -1], [3], {0: byte(0), 1: number(2), 2: number(2), 5: number(1), 6: number(1)}),
        Step(NEG, [3], [4]),
    ]
    return save(path, Graph(tensors, [0], [4], steps), buffers=(bytes(72),))


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/tflm")
@pytest.mark.parametrize("name", HEADS)
def test_models_of_others_are_proven(name: str) -> None:
    summary = plan_model(SHARED / f"{name}.tflite", kernels="reference").summary
    assert (summary.head, summary.is_proven, summary.any_order) == (HEADS[name], True, True)


@pytest.mark.skipif(not SHARED.is_dir(), reason="needs ../shared/tflm")
def test_orders_know_of_overlaps() -> None:
    planned = plan_model(SHARED / "sl_kws_on_off_v3.tflite", kernels="reference", options=Options(deterministic=True))
    kept = plan_model(SHARED / "sl_kws_on_off_v3.tflite", kernels="reference", reorder=False)
    assert planned.summary.head < 15_728 < kept.summary.head
    assert planned.summary.moved
    assert not kept.summary.moved


@pytest.mark.parametrize(
    ("make", "seed"), [*((drawn, seed) for seed in range(16)), *((drawn_copies, seed) for seed in range(4))]
)
def test_every_order_takes_the_floor(make: Any, seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    path = make(tmp_path / "drawn.tflite", chance, steps=chance.randrange(2, 14 if make is drawn else 7))
    model = read_tflite(path)
    pairs, before = overlaps(model, "reference"), predecessors(model, 0)
    least = lower_bound(model, scopes(len(model.tensors), model.subgraphs), {}, pairs)

    def loads_of(order: OperatorOrder) -> list[int]:
        names = {(0, to): (0, at) for to, at in enumerate(order.orders.get(0, ()))}
        lives = scopes(len(model.tensors), order.subgraphs(model))
        return [*loads(arenas.Arena(model, lives, {}, names, pairs).problem).values()]

    for _ in range(10):
        order: list[int] = []
        while len(order) < len(before):
            order.append(chance.choice([at for at in range(len(before)) if at not in order and before[at] <= {*order}]))
        start = OperatorOrder({0: tuple(order)}, 0)
        assert max(loads_of(start)) >= least
        better = improve_order(model, start, loads_of, least, seed, lambda: False)
        assert least <= max(loads_of(better)) <= max(loads_of(start))
        places = {at: to for to, at in enumerate(better.orders[0])}
        assert all(places[first] < places[at] for at, needed in enumerate(before) for first in needed)


def test_plans_are_lower_and_the_default_is_as_before(tmp_path: Path) -> None:
    for make, plain, least in ((chain, 512, 256), (depthwise, 1600, None)):
        path = make(tmp_path / "model.tflite")
        given, none, shared = plan_model(path), plan_model(path, kernels="none"), plan_model(path, kernels="reference")
        assert given.data == none.data
        assert (given.summary.head, given.summary.shared, given.summary.kernels) == (plain, 0, "none")
        assert not given.problem.overlaps
        assert shared.summary.head == shared.plan.objective < plain
        assert shared.summary.shared > 0
        assert shared.summary.is_proven
        assert least is None or shared.summary.head == least
    with pytest.raises(UsageError, match="found the kernels 'fast', expected one of none, reference, cmsis-nn"):
        plan_model(path, kernels="fast")


def test_what_plans_without_overlaps_need_is_no_bound_with_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A search that finds no plan with overlaps, and proves nothing, leaves their load as the bound."""
    packed = arenas._pack

    def blind(problem: Problem, search: Search, target: int) -> tuple[Sequence[int], int]:
        offsets, bound = packed(without_overlaps(problem), search, target)
        return offsets, 0 if problem.overlaps else bound

    monkeypatch.setattr(arenas, "_pack", blind)
    summary = plan_model(depthwise(tmp_path / "model.tflite"), kernels="reference").summary
    assert (summary.head, summary.bound, summary.is_proven) == (1600, 896, False)


def test_the_check_refuses_what_is_nearer_than_the_distance(tmp_path: Path) -> None:
    planned = plan_model(depthwise(tmp_path / "model.tflite"), kernels="reference")
    data, offsets = planned.source.data, list(planned.summary.offsets)
    shares = {(pair.operand, pair.result): pair.distance for pair in overlaps(planned.source, "reference")}
    assert faults(data, planned.data, {}, shares=shares) == []
    assert any("tensor 0 is overwritten" in fault for fault in faults(data, planned.data, {}))
    # The first two tensors take 800 bytes each: the result lies below its operand, as near as it may.
    apart = offsets[0] + 800 - offsets[2]
    assert shares[0, 2] <= apart < shares[0, 2] + 16
    wrong = [offsets[0] - 16, *offsets[1:]]
    assert any("tensor 0 is overwritten" in fault for fault in faults(data, with_offsets(data, wrong), {}, shares=shares))
    assert faults(data, planned.data, {}, shares=shares | {(0, 2): apart}) == []
    assert any(
        "tensor 0 is overwritten" in fault for fault in faults(data, planned.data, {}, shares=shares | {(0, 2): apart + 1})
    )
    # Scratch memory shares nothing.
    assert any("overwritten" in fault for fault in faults(data, planned.data, {(0, 0): [(offsets[0], 16)]}, shares=shares))


def test_the_check_refuses_operands_that_are_read_later(tmp_path: Path) -> None:
    steps = [Step(NEG, [0], [1]), Step(ADD, [0, 1], [2])]
    model = read_tflite(save(tmp_path / "later.tflite", Graph([real(64)] * 3, [0], [2], steps)))
    planned = with_offsets(model.data, [0, 0, 256])
    assert any("tensor 0 is overwritten" in fault for fault in faults(model.data, planned, {}, shares={(0, 1): 256}))
    assert plan_model(tmp_path / "later.tflite", kernels="reference").summary.head == 512


def test_options_and_values_are_read_from_the_file(tmp_path: Path) -> None:
    paddings, axes, perm = ({**tensor(shape, 2), 2: Number(at)} for at, shape in ((1, [4, 2]), (2, [2]), (3, [4])))
    tensors = [real(1, 4, 6, 3), paddings, real(1, 6, 8, 3), perm, real(1, 8, 6, 3), real(1, 8, 12, 3), axes, real(1, 1, 1, 3)]
    steps = [
        Step(PAD, [0, 1], [2]),
        Step(TRANSPOSE, [2, 3], [4]),
        Step(CONCATENATION, [4, 4], [5], {0: number(2)}),
        Step(MEAN, [5, 6], [7], {0: Number(1, "B")}),
    ]
    values = (struct.pack("<8i", 0, 0, 1, 1, 1, 1, 0, 0), struct.pack("<2i", 1, 2), struct.pack("<4i", 0, 2, 1, 3))
    model = read_tflite(save(tmp_path / "values.tflite", Graph(tensors, [0], [7], steps), buffers=values))
    kinds = ["float32", "int32", "float32"]
    expected = {
        (0, 2): distance(
            "PAD", [(1, 4, 6, 3), (4, 2), (1, 6, 8, 3)], kinds, {"paddings": [(0, 0), (1, 1), (1, 1), (0, 0)]}, "reference"
        ),
        (2, 4): distance("TRANSPOSE", [(1, 6, 8, 3), (4,), (1, 8, 6, 3)], kinds, {"perm": [0, 2, 1, 3]}, "reference"),
        # Read twice: the larger of the two.
        (4, 5): max(
            distance("CONCATENATION", [(1, 8, 6, 3)] * 2 + [(1, 8, 12, 3)], ["float32"] * 3, {"axis": 2}, "reference", operand)
            or 0
            for operand in (0, 1)
        ),
        (5, 7): distance("MEAN", [(1, 8, 12, 3), (2,), (1, 1, 1, 3)], kinds, {"axis": [1, 2], "keep_dims": 1}, "reference"),
    }
    found = {(pair.operand, pair.result): pair.distance for pair in overlaps(model, "reference")}
    assert found == expected
    model = read_tflite(depthwise(tmp_path / "depthwise.tflite"))
    shapes = [(1, 10, 10, 8), (1, 3, 3, 8), (1, 5, 5, 8)]
    attributes = {"stride_w": 2, "stride_h": 2, "padding": "SAME"}
    found = {(pair.operand, pair.result): pair.distance for pair in overlaps(model, "reference")}
    assert found[2, 3] == distance("DEPTHWISE_CONV_2D", shapes, ["int8"] * 3, attributes, "reference")


def test_what_has_no_pairs(tmp_path: Path) -> None:
    # Outputs and stored operands, variables, kernels that are not modelled; subgraphs that are run keep their own.
    outputs = save(tmp_path / "outputs.tflite", Graph([real(64)] * 3, [0], [1, 2], [Step(NEG, [0], [1]), Step(NEG, [1], [2])]))
    assert {(pair.operand, pair.result) for pair in overlaps(read_tflite(outputs), "reference")} == {(0, 1)}
    axis = {**tensor([1], 2), 2: Number(1)}
    sums = save(
        tmp_path / "sum.tflite", Graph([real(64), axis, real(1)], [0], [2], [Step(SUM, [0, 1], [2])]), buffers=(bytes(4),)
    )
    assert overlaps(read_tflite(sums), "reference") == ()
    assert overlaps(read_tflite(outputs), "none") == overlaps(read_tflite(outputs), "cmsis-nn") == ()
    # A convolution without options.
    bare = Graph([tensor([1, 4, 4, 8]), tensor([1, 3, 3, 8], stored=True), tensor([1, 4, 4, 8])], [0], [2], [])
    bare.steps.append(Step(DEPTHWISE, [0, 1], [2], {}))
    assert overlaps(read_tflite(save(tmp_path / "bare.tflite", bare, buffers=(bytes(72),))), "reference") == ()


def test_what_no_kernel_takes_has_none_and_files_that_are_cut_off_are_refused(tmp_path: Path) -> None:
    tensors = [tensor([4]), {**tensor([2]), 2: Number(1)}, tensor([])]
    options = {0: byte(0), 1: number(1), 2: number(1)}
    for code in (DEPTHWISE, CONCATENATION, PAD):
        path = save(tmp_path / "odd.tflite", Graph(tensors, [0], [2], [Step(code, [0, 1], [2], options)]), buffers=(b"12",))
        for kernels in ("reference", "cmsis-nn"):
            assert plan_model(path, kernels=kernels).summary.shared == 0
    path = depthwise(tmp_path / "cut.tflite")
    model = read_tflite(path)
    data = bytearray(model.data)
    at = FlatBuffer(model.data).field(model.subgraphs[0].operators[0].table, 4)
    assert at is not None
    struct.pack_into("<I", data, at, len(data))
    path.write_bytes(data)
    assert plan_model(path).summary.shared == 0
    with pytest.raises(
        InputError, match=r"cut\.tflite: not a whole TensorFlow Lite model: found a reference to 4 bytes at \d+"
    ):
        plan_model(path, kernels="reference")


def test_subgraphs_and_variables(tmp_path: Path) -> None:
    for make in (branch, loop, state):
        path = make(tmp_path / "model.tflite")
        plain, shared = plan_model(path).summary, plan_model(path, kernels="reference").summary
        assert shared.bound <= shared.head <= plain.head


@pytest.mark.parametrize("seed", range(8))
def test_no_plan_is_above_that_without(seed: int, tmp_path: Path) -> None:
    chance = random.Random(seed)
    path = drawn(tmp_path / "drawn.tflite", chance, steps=chance.randrange(2, 14))
    plain, shared = (plan_model(path, kernels=kernels, options=Options(time_limit=1.0)) for kernels in ("none", "reference"))
    assert shared.summary.bound <= shared.summary.head <= plain.summary.head
    assert shared.plan.objective == shared.summary.head
