"""Results that have the offset of their operand: RESHAPE and its kind, in plans, in the check, and byte by byte."""

from __future__ import annotations

import itertools
import random
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from stowplan.backends.tflm.check import faults
from stowplan.backends.tflm.kernels import IN_PLACE, is_modelled
from stowplan.backends.tflm.overlap import overlaps
from stowplan.backends.tflm.planning import plan_model
from stowplan.backends.tflm.write import with_offsets
from stowplan.frontends.tflite.model import TfliteModel, read_tflite
from stowplan.kernel.context import Options
from stowplan.models.packing.verify import verify
from tests.backends.tflm.models import (
    ADD,
    DYNAMIC_UPDATE_SLICE,
    EXPAND_DIMS,
    LESS,
    NEG,
    RESHAPE,
    SQUEEZE,
    WHILE,
    Graph,
    Step,
    drawn_copies,
    real,
    save,
)
from tests.backends.tflm.models import (
    number as integer,
)
from tests.frontends.tflite.tflite_models import Number, tensor

Floats = NDArray[np.float32]

BOTH = pytest.mark.parametrize("kernels", ["reference", "cmsis-nn"])


class OverwrittenError(Exception):
    """A kernel copies by memcpy between bytes that overlap and are not the same."""


def memory_after(model: TfliteModel, offsets: list[int], seed: int) -> list[Floats]:
    """Outputs of a run in one arena, element by element; each tensor has bytes of its own where it has no offset.

    Stored tensors are the axis, an update of 4 elements, and 5, where it begins.
    """
    chance = np.random.default_rng(seed)
    sizes = [tensor.content // 4 for tensor in model.tensors]
    ends = [at // 4 + size for at, size in zip(offsets, sizes, strict=True) if at >= 0]
    starts, top = [at // 4 for at in offsets], max(ends, default=0)
    for number, at in enumerate(offsets):
        if at < 0:
            starts[number], top = top, top + sizes[number]
    arena = np.full(top, np.nan, np.float32)
    for number in model.subgraphs[0].inputs:
        arena[starts[number] : starts[number] + sizes[number]] = chance.integers(1, 99, sizes[number])
    for operator in model.subgraphs[0].operators:
        first, result, count = starts[operator.reads[0]], starts[operator.writes[0]], sizes[operator.writes[0]]
        if operator.code in (NEG, ADD, EXPAND_DIMS):
            second = starts[operator.reads[-1]]
            for at in range(count):
                value = arena[first + at]
                if operator.code == NEG:
                    value = -value
                elif operator.code == ADD:
                    value += arena[second + at]
                arena[result + at] = value
            continue
        if first != result:
            if abs(first - result) < count:
                raise OverwrittenError
            arena[result : result + count] = arena[first : first + count]
        if operator.code == DYNAMIC_UPDATE_SLICE:
            arena[result + 5 : result + 9] = 1, 2, 3, 4
    return [arena[starts[number] : starts[number] + sizes[number]].copy() for number in model.subgraphs[0].outputs]


def are_equal(model: TfliteModel, offsets: list[int]) -> bool:
    plain = memory_after(model, [-1] * len(offsets), 0)
    try:
        return all(map(np.array_equal, memory_after(model, offsets, 0), plain))
    except OverwrittenError:
        return False


@BOTH
@pytest.mark.parametrize("code", [RESHAPE, SQUEEZE, EXPAND_DIMS])
def test_copies_take_nothing_while_their_operand_is_read_on(code: int, kernels: str, tmp_path: Path) -> None:
    axis = {**tensor([1], 2), 2: Number(1)}
    wide, narrow = (real(1, 16), real(16)) if code == SQUEEZE else (real(16), real(1, 16))
    steps = [Step(NEG, [0], [1]), Step(code, [1, 4] if code == EXPAND_DIMS else [1], [2]), Step(ADD, [1, 2], [3])]
    path = save(
        tmp_path / "model.tflite",
        Graph([wide, wide, narrow, wide if code == SQUEEZE else narrow, axis], [0], [3], steps),
        buffers=(bytes(4),),
    )
    planned = plan_model(path, kernels=kernels).summary
    assert plan_model(path).summary.head == 192
    # NEG and ADD may write over their operands with the reference kernels alone.
    assert planned.head == planned.bound == (64 if kernels == "reference" else 128)
    assert planned.offsets[1] == planned.offsets[2]
    assert planned.unmodelled == (0 if kernels == "reference" else 2)


@BOTH
def test_a_model_of_reshapes_takes_one_tensor(kernels: str, tmp_path: Path) -> None:
    shapes = [(16,), (4, 4), (2, 8), (1, 16)]
    steps = [Step(RESHAPE, [at], [at + 1]) for at in range(3)]
    path = save(tmp_path / "model.tflite", Graph([real(*shape) for shape in shapes], [0], [3], steps))
    summary = plan_model(path, kernels=kernels).summary
    assert (summary.head, summary.bound, summary.any_order, summary.offsets) == (64, 64, True, (0,) * 4)
    assert plan_model(path).summary.head == 128


def test_an_update_takes_the_place_of_an_operand_that_dies(tmp_path: Path) -> None:
    update, start = {**real(4), 2: Number(1)}, {**tensor([1], 2), 2: Number(2)}
    tensors = [real(16), real(16), real(16), update, start]
    steps = [Step(NEG, [0], [1]), Step(DYNAMIC_UPDATE_SLICE, [1, 3, 4], [2])]
    stored = bytes(16), bytes(4)
    path = save(tmp_path / "dies.tflite", Graph(tensors, [0], [2], steps), buffers=stored)
    assert plan_model(path, kernels="reference").summary.head == 64
    path = save(
        tmp_path / "read.tflite", Graph([*tensors, real(16)], [0], [5], [*steps, Step(ADD, [1, 2], [5])]), buffers=stored
    )
    assert plan_model(path, kernels="reference").summary.head == 128
    # What is written into is no update of itself.
    steps[1] = Step(DYNAMIC_UPDATE_SLICE, [1, 1, 4], [2])
    path = save(tmp_path / "itself.tflite", Graph(tensors, [0], [2], steps), buffers=stored)
    assert plan_model(path, kernels="reference").summary.head == 128


@pytest.mark.parametrize("seed", range(12))
def test_plans_are_right_byte_by_byte(seed: int, tmp_path: Path) -> None:
    path = drawn_copies(tmp_path / "model.tflite", random.Random(seed), steps=3 + seed)
    model = read_tflite(path)
    plain, planned = (plan_model(path, kernels=kernels, options=Options(time_limit=0.5)) for kernels in ("none", "reference"))
    assert planned.summary.bound <= planned.summary.head <= plain.summary.head
    assert verify(planned.problem, planned.plan).ok
    subgraph = model.subgraphs[0]
    order = planned.summary.orders.get(0, range(len(subgraph.operators)))
    moved = read_tflite(_written(tmp_path / "planned.tflite", planned.data), replace_offline_plan=True)
    assert [operator.writes for operator in moved.subgraphs[0].operators] == [subgraph.operators[at].writes for at in order]
    assert are_equal(moved, [*planned.summary.offsets])


def _written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.filterwarnings("ignore::stowplan.log.UnmodelledWarning")
def test_the_check_accepts_nothing_that_changes_an_output(tmp_path: Path) -> None:
    """Offsets at random: what a run in one arena shows, the check says."""
    refused = accepted = wrong = 0
    for seed in range(6):
        path = drawn_copies(tmp_path / "model.tflite", random.Random(seed), steps=6)
        model, chance = read_tflite(path), random.Random(seed)
        given = plan_model(path, kernels="reference", reorder=False, options=Options(time_limit=0.2)).summary.offsets
        shares = {(pair.operand, pair.result): pair.distance for pair in overlaps(model, "reference") if _dies(model, pair)}
        free = [number for number, at in enumerate(given) if at >= 0]
        for _ in range(60):
            offsets = [*given]
            for at in chance.sample(free, chance.randrange(4)):
                offsets[at] = chance.choice([16 * chance.randrange(12), given[chance.choice(free)]])
            found = faults(model.data, with_offsets(model.data, offsets), {}, shares=shares)
            accepted += not found
            refused += bool(found)
            if not are_equal(model, offsets):
                wrong += 1
                assert found, (seed, offsets)
    assert accepted > 50
    assert refused > wrong > 50


def _dies(model: TfliteModel, pair: object) -> bool:
    """Whether nobody reads the operand of a pair later, or both hold the same bytes."""
    place, operand, _, _, is_copy = pair  # type: ignore[misc]
    later = model.subgraphs[0].operators[place[1] + 1 :]
    return is_copy or not any(operand in step.reads for step in later)  # type: ignore[has-type]


@pytest.mark.parametrize(
    ("offsets", "is_right"),
    [
        ([0, 64, 64, 0, 128], True),
        # Bytes that overlap and are not the same.
        ([0, 64, 80, 0, 144], False),
        # The copy's bytes are written over while the operand is to be read.
        ([0, 64, 64, 64, 128], False),
        # Apart, as without.
        ([0, 64, 0, 128, 192], True),
    ],
)
def test_the_check_knows_what_a_copy_may_share(offsets: list[int], is_right: bool, tmp_path: Path) -> None:
    steps = [Step(NEG, [0], [1]), Step(RESHAPE, [1], [2]), Step(NEG, [2], [3]), Step(ADD, [1, 3], [4])]
    path = save(tmp_path / "model.tflite", Graph([real(16), real(16), real(4, 4), real(16), real(16)], [0], [4], steps))
    model = read_tflite(path)
    assert are_equal(model, offsets) == is_right
    data = with_offsets(model.data, offsets)
    assert (faults(model.data, data, {}, shares={(1, 2): None}) == []) == is_right
    # Without kernels that are known to, none shares any.
    assert (faults(model.data, data, {}) == []) == (is_right and offsets[1] != offsets[2])


def test_what_is_no_copy_has_no_pair(tmp_path: Path) -> None:
    def pairs(graph: Graph) -> tuple[object, ...]:
        return overlaps(read_tflite(save(tmp_path / "model.tflite", graph)), "reference")

    one, two = real(16), real(4, 4)
    assert len(pairs(Graph([one, two], [0], [1], [Step(RESHAPE, [0], [1])]))) == 1
    # Any two copies of one tensor, and of copies.
    chain = [Step(RESHAPE, [0], [1]), Step(RESHAPE, [0], [2]), Step(RESHAPE, [2], [3])]
    assert len(pairs(Graph([one, two, two, one], [0], [1, 3], chain))) == 6
    # Written again, while a copy may be read.
    again = [Step(NEG, [0], [1]), Step(RESHAPE, [1], [2]), Step(NEG, [2], [1])]
    assert all(not pair.is_copy for pair in pairs(Graph([one, one, one], [0], [1], again)))  # type: ignore[attr-defined]
    # Variables, and results of another type.
    assert pairs(Graph([one, {**two, 5: Number(1, "B")}], [0], [1], [Step(RESHAPE, [0], [1])])) == ()
    assert pairs(Graph([one, tensor([4, 4], 2)], [0], [1], [Step(RESHAPE, [0], [1])])) == ()
    assert pairs(Graph([one, tensor([5, 5], 0)], [0], [1], [Step(SQUEEZE, [0], [1])])) == ()


def test_copies_inside_a_loop(tmp_path: Path) -> None:
    """The body's input is copied, and the copy is its output: it is there when the next round writes the input."""
    planned = plan_model(_reshaping_loop(tmp_path / "loop.tflite"), kernels="reference")
    assert planned.summary.head <= plan_model(tmp_path / "loop.tflite").summary.head
    assert planned.summary.shared > 0


def _reshaping_loop(path: Path) -> Path:
    three = {**real(1), 2: Number(1)}
    steps = [Step(WHILE, [0, 1], [2, 3], {0: integer(1), 1: integer(2)}), Step(ADD, [3, 1], [4])]
    main = Graph([real(1), real(64), real(1), real(64), real(64)], [0, 1], [4], steps)
    condition = Graph([real(1), real(64), three, tensor([1], 6)], [0, 1], [3], [Step(LESS, [0, 2], [3])])
    body_steps = [Step(ADD, [0, 2], [3]), Step(RESHAPE, [1], [4]), Step(RESHAPE, [4], [5])]
    body = Graph([real(1), real(64), three, real(1), real(8, 8), real(64)], [0, 1], [3, 5], body_steps)
    return save(path, main, condition, body, buffers=(np.float32(1).tobytes(),))


def test_both_sets_have_the_same_operators_in_place() -> None:
    assert all(is_modelled(name, kernels) for name, kernels in itertools.product(IN_PLACE, ("reference", "cmsis-nn")))
    assert not any(is_modelled(name, "none") for name in IN_PLACE)
