"""Shapes of HLO text and their size as stored."""

from __future__ import annotations

import gzip
import itertools
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowplan.errors import InputError
from stowplan.frontends.hlo.shape import ArrayShape, TupleShape, parse_shape


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("f32[]", 4),
        ("f32[]{:T(128)}", 512),
        ("pred[]{:T(512)}", 512),
        ("f32[2,3]", 24),
        ("f32[40,32,512]{2,1,0}", 40 * 32 * 512 * 4),
        ("f32[9,130]{1,0:T(8,128)}", 16 * 256 * 4),
        # The physical order decides what is padded: here 9 is the most minor dimension.
        ("f32[9,130]{0,1:T(8,128)}", 136 * 128 * 4),
        ("bf16[9,130]{1,0:T(8,128)(2,1)}", 16 * 256 * 2),
        ("pred[9,130]{1,0:T(32,128)(4,1)}", 32 * 256),
        ("bf16[700]{0:T(512)(128)(2,1)}", 1024 * 2),
        ("f32[5]{0:T(8,128)}", 8 * 128 * 4),
        ("f32[3,5]{1,0:T(4,128)S(3)}", 4 * 128 * 4),
        ("f32[2,3,50]{2,1,0:T(*,128)}", 2 * 256 * 4),
        ("s4[3]", 3),
        ("s4[3]{0:E(4)}", 2),
        ("u4[4096]{0:T(1024)E(4)S(1)}", 2048),
        ("f8e4m3fn[7]", 7),
        ("c64[3]", 24),
        ("f32[<=8,2]", 64),
        ("f32[0,128]{1,0:T(8,128)}", 0),
        ("token[]", 0),
        ("u32[]{:S(2)}", 4),
        ("f32[10]{0:L(8)}", 64),
    ],
)
def test_size_as_stored(text: str, size: int) -> None:
    shape = parse_shape(text)
    assert isinstance(shape, ArrayShape)
    assert shape.bytes == size


def test_layout_fields() -> None:
    shape = parse_shape("bf16[8,512,12,64]{1,3,2,0:T(8,128)(2,1)S(3)}")
    assert isinstance(shape, ArrayShape)
    assert shape.dtype == "bf16"
    assert shape.dims == (8, 512, 12, 64)
    assert shape.minor_to_major == (1, 3, 2, 0)
    assert shape.tiles == ((8, 128), (2, 1))
    assert shape.memory_space == 3
    assert shape.elements == 8 * 512 * 12 * 64


def test_nested_tuples_with_comments() -> None:
    shape = parse_shape("((f32[2]{0:T(128)S(3)}, ()), pred[], /*index=2*/(s32[3], (token[])))")
    assert isinstance(shape, TupleShape)
    assert [(index, leaf.dtype) for index, leaf in shape.leaves] == [
        ((0, 0), "f32"),
        ((1,), "pred"),
        ((2, 0), "s32"),
        ((2, 1, 0), "token"),
    ]


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("q32[2]", "element type 'q32'"),
        ("f32", "expected a shape"),
        ("f32[2", "expected a shape"),
        ("f32[2,,3]", "dimension ''"),
        ("f32[2]{1}", "expected an order of 1 dimensions"),
        ("f32[2,3]{0,0}", "expected an order of 2 dimensions"),
        ("f32[2]{0:Z(1)}", "layout field 'Z(1)'"),
        ("f32[2]{0:T(0)}", "expected positive sizes"),
        ("f32[99999999999,99999999999]", "at most"),
        ("(f32[2]", "expected a tuple shape"),
        ("(f32[2],)", "expected a tuple shape"),
        ("(f32[2]))", "expected a tuple shape"),
        ("(f32[2] f32[2])", "expected a tuple shape"),
        ("(" * 1000 + ")" * 1000, "deeper than 64"),
        (f"f32[{','.join(['999999999999999999'] * 400)}]", "at most"),
    ],
)
def test_refuses(text: str, found: str) -> None:
    with pytest.raises(InputError, match=re.escape(found)):
        parse_shape(text)


@given(
    dims=st.lists(st.integers(1, 6), min_size=1, max_size=3),
    tile=st.lists(st.integers(1, 4), min_size=1, max_size=3),
    seed=st.randoms(use_true_random=False),
)
def test_one_tile_against_addresses(dims: list[int], tile: list[int], seed) -> None:
    """Padding is right when every element has an address of its own and the tiles that hold them fill the size."""
    order = list(range(len(dims)))
    seed.shuffle(order)
    text = f"s8[{','.join(map(str, dims))}]{{{','.join(map(str, order))}:T({','.join(map(str, tile))})}}"
    shape = parse_shape(text)
    assert isinstance(shape, ArrayShape)
    physical = [dims[dim] for dim in reversed(order)]
    physical = [1] * (len(tile) - len(physical)) + physical
    outer = len(physical) - len(tile)
    tiles = {
        (*index[:outer], *(position // side for position, side in zip(index[outer:], tile, strict=True)))
        for index in itertools.product(*map(range, physical))
    }
    volume = 1
    for side in tile:
        volume *= side
    assert shape.bytes == len(tiles) * volume


@pytest.mark.corpus
@pytest.mark.parametrize("name", ["alexnet_train_b32", "gpt_decode_loop_b8", "dlrm_inf_b256", "wavenet_inf_b32"])
def test_sizes_are_those_of_the_compiler(corpus: Path, name: str) -> None:
    """XLA's buffer assignment lists values with their sizes."""
    text = gzip.decompress((corpus / "tpu_v4_xla_plan" / f"{name}.fastmem.txt.gz").read_bytes()).decode()
    found = re.findall(r"\(size=(\d+),offset=\d+\): (\S+)", text)
    assert len(found) > 10
    for size, shape_text in found:
        shape = parse_shape(shape_text)
        assert isinstance(shape, ArrayShape)
        assert shape.bytes == int(size), shape_text
