"""Shapes that kernels of TensorFlow Lite Micro work out for their results, where the file declares others."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from stowplan.backends.tflm import check
from stowplan.backends.tflm.planning import plan_model
from stowplan.errors import InputError
from stowplan.frontends.tflite.model import read_tflite
from stowplan.frontends.tflite.result_shapes import result_shape
from stowplan.log import UnmodelledWarning
from tests.backends.tflm.models import (
    BATCH_MATMUL,
    DEPTH_TO_SPACE,
    EMBEDDING_LOOKUP,
    GATHER,
    GATHER_ND,
    L2_POOL_2D,
    NEG,
    RESHAPE,
    SPACE_TO_DEPTH,
    Graph,
    Step,
    byte,
    number,
    real,
    save,
)
from tests.frontends.tflite.tflite_models import Number, tensor


class Case(NamedTuple):
    """An operator whose second operand, if it has one, is stored; shapes of float32 or, of positions, int32."""

    code: int
    first: list[int]
    second: tuple[list[int], int, bytes] | None
    options: dict[int, Any]
    declared: list[int]
    """In the file."""
    shape: list[int]
    """At run time."""


def positions(shape: list[int], *values: int) -> tuple[list[int], int, bytes]:
    return shape, 2, struct.pack(f"<{len(values)}i", *values)


def values(*shape: int) -> tuple[list[int], int, bytes]:
    count = 1
    for extent in shape:
        count *= extent
    return [*shape], 0, struct.pack(f"<{count}f", *range(count))


#: Every kernel that writes a shape over the declared one, with one that is stale; those that check it have the same elements.
CASES = {
    "gather": Case(GATHER, [4, 16], positions([8], *(3, 0, 2, 1) * 2), {}, [1, 16], [8, 16]),
    "gather-axis": Case(GATHER, [4, 16], positions([2, 3], *range(6)), {0: number(-1)}, [4, 1, 1], [4, 2, 3]),
    "gather-batch": Case(
        GATHER, [2, 4, 8], positions([2, 3], *(0, 1, 2) * 2), {0: number(1), 1: number(1)}, [1, 1, 8], [2, 3, 8]
    ),
    "gather-batch-from-the-end": Case(
        GATHER, [2, 4, 8], positions([2, 3], *(0, 1, 2) * 2), {0: number(1), 1: number(-1)}, [1, 9, 9], [2, 3, 8]
    ),
    "gather-smaller": Case(GATHER, [4, 16], positions([2], 3, 0), {}, [4, 16], [2, 16]),
    "gather-nd": Case(GATHER_ND, [4, 4, 8], positions([5, 1], 0, 1, 2, 3, 0), {}, [1, 4, 8], [5, 4, 8]),
    "gather-nd-deeper": Case(GATHER_ND, [4, 4, 8], positions([5, 2], *(0, 1, 2, 3, 0) * 2), {}, [1, 8], [5, 8]),
    "reshape": Case(RESHAPE, [4, 16], None, {}, [2, -1, 8], [2, 4, 8]),
    "reshape-to-a-scalar": Case(RESHAPE, [1, 1], None, {}, [0], []),
    "embedding-lookup": Case(EMBEDDING_LOOKUP, [3], values(5, 8), {}, [6, 8], [3, 8]),
    "embedding-lookup-deep": Case(EMBEDDING_LOOKUP, [2], values(5, 2, 8), {}, [3, 2, 8], [2, 2, 8]),
    "batch-matmul": Case(BATCH_MATMUL, [4, 16], values(16, 8), {}, [8, 4], [4, 8]),
    "batch-matmul-broadcast": Case(BATCH_MATMUL, [2, 3, 4, 16], values(8, 16), {1: byte(1)}, [3, 2, 4, 8], [2, 3, 4, 8]),
    "batch-matmul-adjoint": Case(BATCH_MATMUL, [1, 16, 4], values(3, 16, 8), {0: byte(1)}, [4, 3, 8], [3, 4, 8]),
    "space-to-depth": Case(SPACE_TO_DEPTH, [1, 8, 4, 2], None, {0: number(2)}, [1, 1, 1, 1], [1, 4, 2, 8]),
    "depth-to-space": Case(DEPTH_TO_SPACE, [1, 4, 2, 8], None, {0: number(2)}, [1, 1, 1, 1], [1, 8, 4, 2]),
    "l2-pool": Case(
        L2_POOL_2D,
        [1, 9, 7, 2],
        None,
        {0: byte(1), 1: number(2), 2: number(3), 3: number(3), 4: number(2)},
        [1, 1, 1, 1],
        [1, 3, 3, 2],
    ),
    "l2-pool-same": Case(
        L2_POOL_2D,
        [1, 9, 7, 2],
        None,
        {0: byte(0), 1: number(2), 2: number(3), 3: number(3), 4: number(2)},
        [1, 1, 1, 1],
        [1, 3, 4, 2],
    ),
}


def saved(path: Path, case: Case) -> Path:
    """The operator, NEG of its result, and NEG of another input, which shows what the result takes of the arena."""
    tensors = [tensor(case.first, 0), tensor(case.declared, 0), real(64), real(64), real(*case.shape)]
    reads, inputs, stored = [0], [0, 2], list[bytes]()
    if case.second is not None:
        shape, second, content = case.second
        tensors.append({**tensor(shape, second), 2: Number(1)})
        stored.append(content)
        reads.append(5)
    if case.code == EMBEDDING_LOOKUP:
        # Random inputs are no rows.
        tensors[0] = {**tensor(case.first, 2), 2: Number(2)}
        stored.append(struct.pack(f"<{case.first[0]}i", *range(case.first[0])))
        inputs = [2]
    steps = [Step(case.code, reads, [1], case.options), Step(NEG, [2], [3]), Step(NEG, [1], [4])]
    return save(path, Graph(tensors, inputs, [4, 3], steps), buffers=tuple(stored))


def elements(shape: list[int]) -> int:
    product = 1
    for extent in shape:
        product *= extent
    return product


@pytest.mark.parametrize("name", CASES)
def test_the_shape_is_the_kernels(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    path = saved(tmp_path / "stale.tflite", case)
    is_told = -1 not in case.declared and elements(case.declared) != elements(case.shape)
    if is_told:
        with pytest.warns(UnmodelledWarning, match=rf"tensors\[1\]: \w+ works out the shape \{case.shape}"[:60]) as told:
            model = read_tflite(path)
        assert f"instead of the declared {case.declared}" in str(told[0].message)
    else:
        model = read_tflite(path)
    result = model.tensors[1]
    assert [*result.shape] == case.shape
    assert result.is_resized == (case.declared != case.shape)
    assert result.size == -(-4 * elements(case.shape) // 16) * 16
    right = read_tflite(saved(tmp_path / "right.tflite", case._replace(declared=case.shape)))
    assert right.problem.buffers == model.problem.buffers


@pytest.mark.filterwarnings("ignore::stowplan.log.UnmodelledWarning")
@pytest.mark.parametrize("name", CASES)
def test_the_check_works_it_out_by_itself(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    planned = plan_model(saved(tmp_path / "stale.tflite", case), scratch=["0=0"])
    right = plan_model(saved(tmp_path / "right.tflite", case._replace(declared=case.shape)), scratch=["0=0"])
    assert planned.summary.head == right.summary.head
    # Offsets with the declared size would have the result in the bytes of others.
    model = check._Model(planned.data)
    assert model.sizes[1] == planned.source.tensors[1].size
    assert model.contents[1] == planned.source.tensors[1].content


def test_shapes_go_on_to_the_next_operator(tmp_path: Path) -> None:
    tensors = [
        real(4, 16),
        real(1, 16),
        real(-1, 4),
        real(2, 1),
        {**tensor([8], 2), 2: Number(1)},
        {**tensor([2], 2), 2: Number(2)},
    ]
    steps = [Step(GATHER, [0, 4], [1]), Step(RESHAPE, [1], [2]), Step(GATHER, [2, 5], [3])]
    stored = struct.pack("<8i", *[0] * 8), struct.pack("<2i", 0, 31)
    path = save(tmp_path / "model.tflite", Graph(tensors, [0], [3], steps), buffers=stored)
    with pytest.warns(UnmodelledWarning):
        model = read_tflite(path)
    assert [model.tensors[at].shape for at in range(4)] == [(4, 16), (8, 16), (32, 4), (2, 4)]


@pytest.mark.parametrize("second", [None, positions([2], 1, 64), positions([2], -1, 8)])
@pytest.mark.parametrize("options", [{}, {0: [1, 64]}, {0: [-1, 8]}])
def test_a_reshape_has_its_declared_shape_alone(
    second: tuple[list[int], int, bytes] | None, options: dict[int, Any], tmp_path: Path
) -> None:
    """The runtime looks neither at the operand nor at the option that have a shape, nor at ``shape_signature``."""
    case = Case(RESHAPE, [4, 16], second, options, [16, -1], [16, 4])
    path = saved(tmp_path / "model.tflite", case)
    assert read_tflite(path).tensors[1].shape == (16, 4)
    signed = [real(4, 16), {**real(16, 4), 7: [-1, 8]}]
    path = save(tmp_path / "signed.tflite", Graph(signed, [0], [1], [Step(RESHAPE, [0], [1], options)]))
    assert read_tflite(path).tensors[1].shape == (16, 4)


@pytest.mark.parametrize(
    ("operator", "declared", "operands", "options"),
    [
        ("RESHAPE", (4, 8), [(4, 16)], {}),
        ("RESHAPE", (-1, -1), [(4, 16)], {}),
        ("RESHAPE", (-1, 7), [(4, 16)], {}),
        ("RESHAPE", (-1, 0), [(4, 16)], {}),
        ("GATHER", (1,), [(4, 16), (8,)], {0: 2}),
        ("GATHER", (1, 1), [(4, 16), (8,)], {0: 0, 1: 1}),
        # Rank and extents are written over those of the file, for which there are 16 bytes.
        ("GATHER", (1, 1, 1), [(4, 4, 4), (2, 2)], {}),
        ("GATHER", (1, 1), [(4, 16)], {}),
        ("GATHER_ND", (1, 1), [(4,), (3, 2)], {}),
        ("EMBEDDING_LOOKUP", (2, 8), [(3,), (5, 8)], {}),
        ("EMBEDDING_LOOKUP", (64,), [(3,), (5, 8)], {}),
        ("BATCH_MATMUL", (4, 4), [(4, 16), (16, 8)], {}),
        ("BATCH_MATMUL", (32,), [(4, 16), (16, 8)], {}),
        ("SPACE_TO_DEPTH", (1, 1, 1, 1), [(1, 5, 4, 2)], {0: 2}),
        ("SPACE_TO_DEPTH", (1, 1, 1, 1), [(1, 4, 4, 2)], {}),
        ("DEPTH_TO_SPACE", (1, 1, 1), [(1, 4, 4, 4)], {0: 2}),
        ("DEPTH_TO_SPACE", (1, 1, 1, 1), [(4, 4, 4)], {0: 2}),
        ("L2_POOL_2D", (1, 1, 1, 1), [(1, 4, 4, 1)], {}),
    ],
)
def test_what_the_runtime_refuses_is_an_error_that_names_both(
    operator: str, declared: tuple[int, ...], operands: list[tuple[int, ...]], options: dict[int, int]
) -> None:
    with pytest.raises(InputError) as told:
        result_shape(operator, declared, operands, lambda field, _: options.get(field, 0), "tensors[3]")
    assert str([*declared]) in str(told.value)
    assert all(str([*shape]) in str(told.value) for shape in operands)
    assert str(told.value).startswith(f"tensors[3]: found the declared shape {[*declared]} for the result of {operator}")


def test_other_kernels_take_the_declared_shape() -> None:
    assert result_shape("ADD", (3,), [(4,), (4,)], lambda *_: 0, "") == (3,)
    assert result_shape("SQUEEZE", (3,), [(4,)], lambda *_: 0, "") == (3,)
    # Nothing is known of an operand whose own shape is open.
    assert result_shape("RESHAPE", (-1, 2), [(-1, 4)], lambda *_: 0, "") == (-1, 2)
    assert result_shape("GATHER", (1, 1, 1), [(4, 4), (2, 2)], lambda *_: 0, "") == (2, 2, 4)
