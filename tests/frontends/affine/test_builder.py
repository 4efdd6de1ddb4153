"""The builder and the checks: what programs compute, and clear errors that name the operator."""

from __future__ import annotations

import numpy as np
import pytest

from stowplan.errors import InputError, UsageError
from stowplan.frontends.affine import Builder
from stowplan.hardware.affine.check import check, which_piece
from stowplan.hardware.affine.expression import index
from stowplan.hardware.affine.program import Bound, Copy, Load, Operator, Piece, Program, Store, Tensor, identity
from tests.frontends.affine.execute import run
from tests.hardware.affine.cases import random_inputs


def result(b: Builder, *outputs: object) -> tuple[list[np.ndarray], dict[str, np.ndarray]]:
    program = b.build(*outputs)  # type: ignore[arg-type]
    inputs = random_inputs(program, 3)
    found = run(program, inputs)
    return [found[name] for name in program.outputs], inputs


def test_moves_are_those_of_numpy() -> None:
    b = Builder("moves")
    x = b.input("x", (3, 4, 5))
    outputs = [
        b.transpose(x, (2, 0, 1)),
        b.repeat(x, 3, 1),
        b.tile(x, (2, 1, 3)),
        b.broadcast(x, (3, 2, 4, 5), (0, 2, 3)),
        b.reshape(x, (6, 10)),
        b.reverse(x, (0, 2)),
        b.slice(x, (0, 1, 1), (3, 4, 5), (2, 1, 3)),
        *b.split(x, (1, 3), 1),
        b.concatenate([x, x], 2),
        b.pad(x, (1, 0, -1), (0, 2, -1), (0, 1, 0), value=7.0),
    ]
    found, inputs = result(b, *outputs)
    a = inputs["x"]
    padded = np.full((4, 9, 3), 7.0)
    padded[1:, 0:7:2, :] = a[:, :, 1:4]
    expected = [
        a.transpose(2, 0, 1),
        a.repeat(3, axis=1),
        np.tile(a, (2, 1, 3)),
        np.repeat(a[:, None], 2, axis=1),
        a.reshape(6, 10),
        a[::-1, :, ::-1],
        a[::2, 1:, 1::3],
        a[:, :1],
        a[:, 1:],
        np.concatenate([a, a], axis=2),
        padded,
    ]
    for one, two in zip(found, expected, strict=True):
        assert np.array_equal(one, two)


def test_operators_are_those_of_numpy() -> None:
    b = Builder("operators")
    x, k, w = b.input("x", (2, 4, 6, 5)), b.input("k", (6, 2, 3, 2)), b.input("w", (5, 3))
    found, inputs = result(
        b,
        b.conv2d(x, k, strides=(2, 1), pads=((1, 1), (0, 1)), dilations=(1, 2), groups=2),
        b.pool(x, (1, 1, 2, 2), (1, 1, 2, 1), ((0, 0), (0, 0), (0, 0), (1, 0))),
        b.matmul(x, w),
        b.matmul(x, x, contracting=[(3, 3)], batch=[(0, 0), (1, 1)]),
        b.reduce(x, (1, 3)),
        b.elementwise("add", x, x),
    )
    a, kernel = inputs["x"], inputs["k"]
    padded = np.pad(a, ((0, 0), (0, 0), (1, 1), (0, 1)))
    convolved = np.zeros((2, 6, 3, 4))
    for batch, out, row, column in np.ndindex(*convolved.shape):
        group = out // 3
        for feature, high, wide in np.ndindex(2, 3, 2):
            value = padded[batch, group * 2 + feature, 2 * row + high, column + 2 * wide]
            convolved[batch, out, row, column] += value * kernel[out, feature, high, wide]
    pooled = np.full((2, 4, 3, 5), -np.inf)
    wide = np.pad(a, ((0, 0), (0, 0), (0, 0), (1, 0)), constant_values=-np.inf)
    for at in np.ndindex(*pooled.shape):
        pooled[at] = wide[at[0], at[1], 2 * at[2] : 2 * at[2] + 2, at[3] : at[3] + 2].max()
    expected = [convolved, pooled, a @ inputs["w"], np.einsum("abij,abkj->abik", a, a), a.sum(axis=(1, 3)), a + a]
    for one, two in zip(found, expected, strict=True):
        assert np.allclose(one, two)


def test_loop_nests_by_hand() -> None:
    b = Builder("nest")
    x = b.input("x", (4, 6))
    y = b.copy("zigzag", (4, 3), lambda i, j: x[3 - i, 2 * j + i // 2 % 2], (12,), lambda i, j: 3 * i + j)
    (found,), inputs = result(b, y)
    a = inputs["x"]
    assert np.array_equal(found, [a[3 - i, 2 * j + i // 2] for i in range(4) for j in range(3)])


def bad(message: str, place: str) -> pytest.RaisesContext[InputError]:
    return pytest.raises(InputError, match=f"(?s){place}.*{message}")  # type: ignore[return-value]


def test_accesses_out_of_bounds() -> None:
    b = Builder("b")
    x = b.input("x", (4,))
    b.copy("ahead", (4,), lambda i: x[i + 1], (4,), lambda i: i)
    with bad("reads 'x' out of bounds: index 4 of dimension 0 in iteration .3., expected 0 to 3", "operator ahead"):
        b.build()
    b = Builder("b")
    x = b.input("x", (4,))
    b.copy("behind", (4,), lambda i: x[i], (4,), lambda i: i - 1)
    with bad("writes 'behind' out of bounds: index -1 of dimension 0, expected 0 to 3", "operator behind"):
        b.build()


def test_indices_that_are_not_affine() -> None:
    b = Builder("b")
    x = b.input("x", (9,))
    with bad("non-affine index .i0. \\* .i1.", "operator square"):
        b.copy("square", (3, 3), lambda i, j: x[i * j], (3, 3), lambda i, j: (i, j))
    with bad("non-affine index .3. // .i0.", "operator left"):
        b.copy("left", (3,), lambda i: x[3 // i], (3,), lambda i: i)
    with bad("non-affine index .3. % .i0.", "operator left"):
        b.copy("left", (3,), lambda i: x[3 % i], (3,), lambda i: i)
    with bad("non-affine index .i0. // .i1.", "operator ratio"):
        b.copy("ratio", (3, 3), lambda i, j: x[i // j], (3, 3), lambda i, j: (i, j))
    with bad("whole numbers", "operator half"):
        b.copy("half", (3,), lambda i: x[i * 0.5], (3,), lambda i: i)  # type: ignore[operator]
    with bad("at least 1", "operator none"):
        b.copy("none", (3,), lambda i: x[i // 0], (3,), lambda i: i)


def test_reading_before_writing() -> None:
    b = Builder("b")
    empty = b.tensor((4,), "empty")
    with bad("reads tensor 'empty' before it is written", "operator tanh"):
        b.build(b.elementwise("tanh", empty))
    b = Builder("b")
    x, half = b.input("x", (2,)), b.tensor((4,), "half")
    b.copy("front", (2,), lambda i: x[i], half, lambda i: i)
    with bad("reads tensor 'half' before all of it is written", "operator tanh"):
        b.build(b.elementwise("tanh", half))
    b.copy("back", (2,), lambda i: x[i], half, lambda i: i + 2)
    with bad("reads tensor 'half' before all of it is written", "operator tanh"):
        b.build(b.elementwise("tanh", half))


def test_what_is_too_large_to_decide_is_not_called_wrong(monkeypatch: pytest.MonkeyPatch) -> None:
    def parts() -> None:
        b = Builder("b")
        x, whole = b.input("x", (2,)), b.tensor((8,), "whole")
        for start in range(0, 8, 2):
            b.copy(f"part{start}", (2,), lambda i: x[i], whole, lambda i, start=start: i + start)
        b.build(b.elementwise("tanh", whole))

    def digits() -> None:
        b = Builder("b")
        x = b.input("x", (6,))
        # The index is at most 3, and interval arithmetic bounds it by 5.
        b.build(b.copy("digits", (6,), lambda i: x[i], (4,), lambda i: i % 4 + i // 4 * 2))

    def many() -> None:
        b = Builder("b")
        x = b.input("x", (6,))
        # More iterations than elements, of which no box is known.
        b.build(b.copy("many", (6,), lambda i: x[i], (4,), lambda i: i % 4))

    parts()
    digits()
    many()
    monkeypatch.setattr("stowplan.hardware.affine.check.MAX_POINTS", 4)
    with bad("cannot show that all of tensor 'whole' is written before it is read", "operator tanh"):
        parts()
    with bad("cannot show that its writes of 'digits' stay within .4.", "operator digits"):
        digits()
    with bad("cannot show that all of tensor 'many' is written before it is read", "outputs"):
        many()


def test_writing_after_reading() -> None:
    b = Builder("b")
    x = b.input("x", (4,))
    y = b.copy("y", (4,), lambda i: x[i], (4,), lambda i: i)
    b.elementwise("tanh", y)
    b.copy("again", (4,), lambda i: x[i], y, lambda i: i)
    with bad("writes tensor 'y', which is read or written in whole before", "operator again"):
        b.build()


def test_contradictory_rules() -> None:
    b = Builder("b")
    x = b.input("x", (4,))
    b.operator("odd", [x], [(4,)], [])
    with bad("no bank mapping that its rule allows", "operator odd"):
        b.build()
    b = Builder("b")
    x = b.input("x", (4,))
    b.operator("odd", [x], [(4,)], [(1, 0)])
    with bad("dimension 1 in a bank rule", "operator odd"):
        b.build()


def test_shapes_that_do_not_fit() -> None:
    b = Builder("b")
    x, y = b.input("x", (4, 3)), b.input("y", (3, 4))
    with bad("expected one shape", "operator add"):
        b.elementwise("add", x, y)
    with bad("as many elements", "operator reshape"):
        b.reshape(x, (5,))
    with bad("to multiply", "operator matmul"):
        b.matmul(x, x)


def test_programs_made_without_the_builder_are_checked() -> None:
    tensors = {"x": Tensor("x", (4,)), "y": Tensor("y", (4,))}
    load = Load((4,), (Piece("x", identity(1), (Bound(index(0), 0, 2),)),))
    program = Program("p", tensors, ("x",), (Copy("c", "copy", load, Store("y", identity(1))),), ("y",))
    with bad("reads nothing in iteration .3.", "operator c"):
        check(program)
    unknown = Operator("o", "tanh", (Load((4,), (Piece("z", identity(1)),)),), ("y",), {}, ((0, 0),))
    with bad("unknown tensor 'z'", "operator o"):
        check(Program("p", tensors, ("x",), (unknown,), ("y",)))
    beyond = Load((4,), (Piece("x", (index(1),)),))
    with bad("beyond its 1 loops", "operator c"):
        check(Program("p", tensors, ("x",), (Copy("c", "copy", beyond, Store("y", identity(1))),), ("y",)))


def test_pieces_apply_in_order() -> None:
    low = Piece(None, (), (Bound(index(0), 0, 1),), 1.0)
    assert which_piece(Load((4,), (low, Piece(None)))).tolist() == [0, 0, 1, 1]


def test_operators_that_can_only_be_stood_in_for() -> None:
    b = Builder("b")
    x = b.input("x", (4,))
    program = b.build(*b.operator("fft", [x], [(4,)], [(0, 0)]))
    inputs = random_inputs(program)
    with pytest.raises(UsageError, match="fft"):
        run(program, inputs)
    once, twice = (run(program, inputs, stand_in=True)["fft"] for _ in range(2))
    assert np.array_equal(once, twice)
    assert not np.array_equal(once, run(program, {"x": inputs["x"] + 1e-12}, stand_in=True)["fft"])
