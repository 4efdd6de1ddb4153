"""Quasi-affine expressions: normal forms never change a value."""

from __future__ import annotations

import pickle
import random
from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from stowplan.frontends.affine.builder import reshaped
from stowplan.hardware.affine.expression import (
    Expression,
    add,
    constant,
    evaluate,
    floor_divide,
    index,
    modulo,
    scale,
    span,
    substitute,
)
from tests.hardware.affine.cases import random_expression

ROW, COLUMN, DEPTH = index(0), index(1), index(2)


@given(st.integers(0, 10**9))
def test_normal_forms_keep_values_and_spans_hold(seed: int) -> None:
    chance = random.Random(seed)
    extents = tuple(chance.randint(1, 6) for _ in range(3))
    expression, function = random_expression(chance, extents, chance.randint(1, 6))
    low, high = span(expression, extents)
    for at in product(*map(range, extents)):
        value = function(*at)
        assert evaluate(expression, at) == value
        assert low <= value <= high


@given(st.integers(0, 10**9))
def test_substitution_is_composition(seed: int) -> None:
    chance = random.Random(seed)
    extents = tuple(chance.randint(1, 5) for _ in range(3))
    inner = [random_expression(chance, extents, 2)[0] for _ in range(2)]
    # What is substituted must stay in the box the outer expression was made for.
    inner = [modulo(each, size, extents) for each, size in zip(inner, (4, 7), strict=True)]
    outer, function = random_expression(chance, (4, 7), 3)
    found = substitute(outer, inner, extents)
    for at in product(*map(range, extents)):
        assert evaluate(found, at) == function(*(evaluate(each, at) for each in inner))


def test_reshapes_cancel() -> None:
    shapes = [(2, 640, 640), (2, 6400, 64), (8, 160, 640), (640, 1280), (819200,)]
    for one, two in product(shapes, shapes):
        there = reshaped(one, two)
        back = [substitute(each, there, one) for each in reshaped(two, one)]
        assert back == [index(number) for number in range(len(one))], (one, two)


def test_reshapes_that_share_no_sizes_cancel() -> None:
    one, two = (5, 4, 6), (12, 10)
    back = [substitute(each, reshaped(one, two), one) for each in reshaped(two, one)]
    assert back == [ROW, COLUMN, DEPTH]


def test_normal_forms_are_short() -> None:
    extents = (10, 64, 3)
    flat = add(scale(ROW, 64), COLUMN, extents)
    assert floor_divide(flat, 64, extents) == ROW
    assert modulo(flat, 64, extents) == COLUMN
    assert modulo(flat, 32, extents) == modulo(COLUMN, 32, extents)
    assert floor_divide(floor_divide(flat, 4, extents), 4, extents) == floor_divide(flat, 16, extents)
    assert add(scale(floor_divide(COLUMN, 8, extents), 8), modulo(COLUMN, 8, extents), extents) == COLUMN
    assert modulo(modulo(COLUMN, 32, extents), 8, extents) == modulo(COLUMN, 8, extents)


def test_text_and_pickle() -> None:
    expression = add(floor_divide(ROW, 3, (10, 10)), modulo(COLUMN, 4, (10, 10)), (10, 10), -2)
    assert expression.text() == "floor((i0)/3) - 2*((i1) mod 4)"
    assert expression.text(["a", "b"]) == "floor((a)/3) - 2*((b) mod 4)"
    assert constant(0).text() == "0"
    assert pickle.loads(pickle.dumps(expression)) == expression
    assert isinstance(expression, Expression)
    assert not expression.is_affine
    assert expression.size == 4
