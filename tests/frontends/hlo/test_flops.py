"""Arithmetic of instructions, convolutions against a count of every tap."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowplan.errors import InputError
from stowplan.frontends.hlo import parse_module
from stowplan.frontends.hlo.flops import Work, computation_work


def work(body: str) -> Work:
    return computation_work(parse_module(f"HloModule m\n\nENTRY %main () -> f32[] {{\n{body}\n}}\n"))["main"]


@given(
    size=st.integers(1, 6),
    kernel=st.integers(1, 5),
    stride=st.integers(1, 4),
    low=st.integers(-2, 5),
    left_dilation=st.integers(1, 4),
    right_dilation=st.integers(1, 4),
    out=st.integers(1, 9),
)
def test_taps_of_a_convolution(
    size: int, kernel: int, stride: int, low: int, left_dilation: int, right_dilation: int, out: int
) -> None:
    window = f"size={kernel} stride={stride} pad={low}_0 lhs_dilate={left_dilation} rhs_dilate={right_dilation}"
    found = work(
        f"  %x = f32[2,{size},3] parameter(0)\n  %k = f32[{kernel},3,5] parameter(1)\n"
        f"  ROOT %y = f32[2,{out},5] convolution(%x, %k), window={{{window}}}, dim_labels=b0f_0io->b0f"
    )
    taps = 0
    for position, tap in itertools.product(range(out), range(kernel)):
        place = position * stride + tap * right_dilation - low
        taps += place % left_dilation == 0 and 0 <= place // left_dilation < size
    assert found == Work(2 * 2 * 3 * 5 * taps, 0)


def test_convolution_groups() -> None:
    text = (
        "  %x = f32[4,9,9,8] parameter(0)\n  %k = f32[3,3,{inner},16] parameter(1)\n"
        "  ROOT %y = f32[{batch},7,7,16] convolution(%x, %k), window={{size=3x3}}, dim_labels=b01f_01io->b01f, {group}"
    )
    taps = 7 * 7 * 3 * 3
    assert work(text.format(inner=2, batch=4, group="feature_group_count=4")).flops == 2 * taps * 4 * 2 * 16
    assert work(text.format(inner=8, batch=1, group="batch_group_count=4")).flops == 2 * taps * 1 * 8 * 16


def test_matrix_product_written_as_convolution() -> None:
    """A batch as a spatial dimension: the window slides over padding only, and every tap of it but one is left out."""
    found = work(
        "  %x = f32[12,64,32] parameter(0)\n  %k = f32[12,32,48] parameter(1)\n"
        "  ROOT %y = f32[12,64,48] convolution(%x, %k), "
        "window={size=12 stride=11 pad=0_0 lhs_dilate=12}, dim_labels=0bf_0io->0bf"
    )
    assert found.flops == 2 * 12 * 64 * 32 * 48


def test_dot() -> None:
    found = work(
        "  %x = f32[5,7,11] parameter(0)\n  %y = f32[5,11,13] parameter(1)\n  ROOT %z = f32[5,7,13] dot(%x, %y), "
        "lhs_batch_dims={0}, lhs_contracting_dims={2}, rhs_batch_dims={0}, rhs_contracting_dims={1}"
    )
    assert found == Work(2 * 5 * 7 * 11 * 13, 0)


def test_everything_else_counts_elements() -> None:
    found = work(
        "  %x = f32[4,6] parameter(0)\n  %c = f32[6,4] transpose(%x), dimensions={1,0}\n  %b = f32[6,4] negate(%c)\n"
        "  %z = f32[] constant(0)\n  %r = f32[4] reduce(%b, %z), dimensions={0}\n"
        "  ROOT %w = f32[2] reduce-window(%r, %z), window={size=3 stride=2}"
    )
    assert found == Work(0, 24 + 24 + 6)


@pytest.mark.parametrize(
    ("out", "window", "elements"),
    [(8, "size=15 pad=7_7", 8), (1, "size=8", 8), (4, "size=2 stride=2", 8), (8, "size=3 pad=1_1", 24)],
)
def test_window_as_long_as_its_dimension_is_one_pass(out: int, window: str, elements: int) -> None:
    found = work(
        "  %x = f32[8] parameter(0)\n  %z = f32[] constant(0)\n"
        f"  ROOT %w = f32[{out}] reduce-window(%x, %z), window={{{window}}}"
    )
    assert found.elementwise == elements


def test_fusions_count_what_is_in_them() -> None:
    module = parse_module(
        "HloModule m\n\n%inner (a: f32[4]) -> f32[4] {\n  %a = f32[4] parameter(0)\n  ROOT %n = f32[4] negate(%a)\n}\n\n"
        "%outer (b: f32[4]) -> f32[4] {\n  %b = f32[4] parameter(0)\n  %f = f32[4] fusion(%b), calls=%inner\n"
        "  %g = f32[4] fusion(%f), calls=%inner\n  ROOT %s = f32[4] add(%g, %g)\n}\n\n"
        "ENTRY %main (c: f32[4]) -> f32[4] {\n  %c = f32[4] parameter(0)\n  ROOT %d = f32[4] fusion(%c), calls=%outer\n}\n"
    )
    assert computation_work(module)["main"] == Work(0, 12)


@pytest.mark.parametrize(
    ("attributes", "message"),
    [
        ("dim_labels=b0f_0io->b0g", "dim_labels"),
        ("dim_labels=b01f_01io->b01f", "expected 3 distinct labels"),
        ("window={size=3 stride=0}, dim_labels=b0f_0io->b0f", "positive numbers"),
        ("window={size=3 stride=1x1}, dim_labels=b0f_0io->b0f", "expected stride as 1 positive numbers"),
        ("window={size=3 pad=1_1x1_1}, dim_labels=b0f_0io->b0f", "expected pad as 1 parts"),
        ("window={size=3 pad=x_}, dim_labels=b0f_0io->b0f", "low_high"),
        ("dim_labels=b0f_0io->b0f, feature_group_count=0", "feature_group_count"),
    ],
)
def test_refuses_what_does_not_fit(attributes: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        work(
            "  %x = f32[2,9,3] parameter(0)\n  %k = f32[3,3,5] parameter(1)\n"
            f"  ROOT %y = f32[2,7,5] convolution(%x, %k), {attributes}"
        )


def test_refuses_a_dot_of_dimensions_that_are_not_there() -> None:
    with pytest.raises(InputError, match="expected different dimensions from 0 to 0"):
        work("  %x = f32[2] parameter(0)\n  ROOT %y = f32[] dot(%x, %x), lhs_contracting_dims={1}, rhs_contracting_dims={0}")
