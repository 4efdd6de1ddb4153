"""Shapes in HLO text: element type, dimensions, layout, and the bytes of a value as stored.

A shape is that of an array or of a tuple. The arrays in a shape are its *leaves*. The *index* of a leaf says where it is in
nested tuples: ``(1, 0)`` is the first part of the second part.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Iterator
from functools import cached_property
from itertools import accumulate
from typing import TypeAlias

import msgspec

from stowplan.errors import InputError
from stowplan.frontends.hlo.opcodes import HOST

#: Bits of each element type (``xla/primitive_util.h``). Elements of less than a byte are packed only if the layout says so.
BITS = {
    "pred": 8,
    "s1": 1, "u1": 1, "s2": 2, "u2": 2, "s4": 4, "u4": 4,
    "s8": 8, "u8": 8, "s16": 16, "u16": 16, "s32": 32, "u32": 32, "s64": 64, "u64": 64,
    "f4e2m1fn": 4,
    "f8e5m2": 8, "f8e4m3": 8, "f8e4m3fn": 8, "f8e4m3b11fnuz": 8, "f8e5m2fnuz": 8, "f8e4m3fnuz": 8, "f8e3m4": 8, "f8e8m0fnu": 8,
    "bf16": 16, "f16": 16, "f32": 32, "f64": 64, "c64": 64, "c128": 128,
    "token": 0, "opaque": 0,
}  # fmt: skip

#: Shapes with more dimensions or more nested tiles than this are refused: no real array has so many, and the time to compute
#: sizes would grow with their product.
MAX_RANK = 64
#: Tuples that are nested deeper than this are refused, so that functions may recurse over shapes.
MAX_DEPTH = 64
#: Values larger than this (256 TiB) are refused: no machine can hold them, and sums stay within 64 bits.
MAX_BYTES = 1 << 48

_ARRAY = r"[a-z][a-z0-9]*\[[0-9,<=]*\](?:\{[^{}]*\})?"
_ARRAY_PARTS = re.compile(r"([a-z][a-z0-9]*)\[([0-9,<=]*)\](?:\{([^{}]*)\})?")
_TUPLE_TOKEN = re.compile(rf"(?:/\*[^*]*\*/|\s)*(?:([(),])|({_ARRAY}))")
#: Fields of layouts that are accepted: the tiles (T), the memory space (S), the bits of an element (E), the number of elements
#: to a multiple of which the array is padded at its end (L), the bytes in front of a dynamic array (M), and how the array is
#: split between memories (SC), which does not change its size. Fields of sparse arrays and of physical shapes are refused,
#: because they change sizes in other ways.
_LAYOUT_FIELD = re.compile(r"(T|SC|S|E|L|M)((?:\([^()]*\))+)")
_DIMENSION = re.compile(r"(?:<=)?([0-9]{1,18})")


class ArrayShape(msgspec.Struct, frozen=True, gc=False):
    """Shape of one array, with its layout."""

    dtype: str
    """Type of the elements, such as ``bf16``; one of :data:`BITS`."""
    dims: tuple[int, ...]
    """Size of each dimension; the upper bound of a dynamic one."""
    minor_to_major: tuple[int, ...]
    """Numbers of the dimensions, with the one that varies fastest in memory first."""
    tiles: tuple[tuple[int, ...], ...]
    """Nested tiles of the physical layout, outermost first; ``-1`` merges a dimension into the next more minor one."""
    memory_space: int
    """The number ``n`` of ``S(n)`` in the layout, 0 if it has none; see :data:`~stowplan.frontends.hlo.opcodes.SPACES`."""
    elements: int
    """Number of logical elements, without padding."""
    bytes: int
    """Bytes as stored, with the padding of tiles."""

    @property
    def leaves(self) -> Leaves:
        """The only leaf: the empty index and the array itself."""
        return (((), self),)

    @property
    def offsets(self) -> tuple[int, ...]:
        """The pair ``(0, 1)``, as for a tuple with this array as its only part: the number of its first leaf, and of leaves."""
        return 0, 1

    @property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """The only leaf's index as text, which is empty, and its bytes on the device."""
        return (("", self.device_bytes),)

    @property
    def device_bytes(self) -> int:
        """Bytes in device memory; 0 for an array on the host."""
        return 0 if self.memory_space == HOST else self.bytes


class TupleShape(msgspec.Struct, frozen=True, dict=True):
    """Shape of a tuple, which may be nested."""

    parts: tuple[Shape, ...]
    """Shapes of its entries."""

    @cached_property
    def leaves(self) -> Leaves:
        """The leaves of the tuple with their indices, in order: ``((0,), a), ((1, 0), b), ...``."""
        return tuple(_leaves(self))

    @cached_property
    def offsets(self) -> tuple[int, ...]:
        """The number of the first leaf of each part, and after them the number of leaves."""
        return (0, *accumulate(sum(1 for _ in _leaves(part)) for part in self.parts))

    @cached_property
    def sizes(self) -> tuple[tuple[str, int], ...]:
        """For each leaf, its index as it is written in names of values, such as ``{1,0}``, and its bytes on the device."""
        return tuple((index_text(index), leaf.device_bytes) for index, leaf in self.leaves)


Shape = ArrayShape | TupleShape

#: Arrays of a shape with their indices, in order.
Leaves: TypeAlias = tuple[tuple[tuple[int, ...], ArrayShape], ...]


def _leaves(shape: Shape) -> Iterator[tuple[tuple[int, ...], ArrayShape]]:
    """Yields the leaves with their indices one by one. It stores nothing for inner tuples, which may be many and deep."""
    if isinstance(shape, ArrayShape):
        yield (), shape
    else:
        for number, part in enumerate(shape.parts):
            for index, leaf in _leaves(part):
                yield (number, *index), leaf


def parse_shape(text: str) -> Shape:
    """Parses a shape in HLO text such as ``(f32[2,3]{1,0:T(8,128)S(3)}, /*index=1*/pred[])``.

    Raises
    ------
    InputError
        The text is no shape, an element type or a layout field is unknown, the layout does not fit the dimensions, or the shape
        exceeds :data:`MAX_RANK`, :data:`MAX_DEPTH` or :data:`MAX_BYTES`.
    """
    if not text.startswith("("):
        return _parse_array(text)
    open_tuples: list[list[Shape]] = []
    expect_part = True
    position = 0
    while position < len(text):
        token = _TUPLE_TOKEN.match(text, position)
        if token is None:
            break
        position = token.end()
        mark, array = token.groups()
        closed: Shape
        if mark == "(" and expect_part:
            if len(open_tuples) == MAX_DEPTH:
                raise InputError(f"found a tuple shape nested deeper than {MAX_DEPTH} levels")
            open_tuples.append([])
            continue
        if mark == "," and not expect_part:
            expect_part = True
            continue
        if mark == ")" and (not expect_part or not open_tuples[-1]):
            closed = TupleShape(tuple(open_tuples.pop()))
            if not open_tuples:
                if position == len(text):
                    return closed
                break
        elif array is not None and expect_part:
            closed = _parse_array(array)
        else:
            break
        open_tuples[-1].append(closed)
        expect_part = False
    raise InputError(f"found {excerpt(text)}, expected a tuple shape")


def excerpt(text: str, length: int = 60) -> str:
    """A text in quotes for a message, shortened if it has more than ``length`` characters."""
    return repr(text if len(text) <= length else text[: length - 3] + "...")


def _parse_array(text: str) -> ArrayShape:
    """Parses the shape of an array, such as ``f32[2,3]{1,0:T(8,128)S(3)}``."""
    match = _ARRAY_PARTS.fullmatch(text)
    if match is None:
        raise InputError(f"found {excerpt(text)}, expected a shape such as f32[8,128]{{1,0}}")
    dtype, dims_text, layout = match.groups()
    if dtype not in BITS:
        raise InputError(f"found element type {excerpt(dtype)} in {excerpt(text)}, expected one such as f32, bf16, s32 or pred")
    if dims_text.count(",") >= MAX_RANK:
        raise InputError(f"found {excerpt(text)}, expected at most {MAX_RANK} dimensions")
    dims = tuple(_parse_dimension(dim, text) for dim in dims_text.split(",")) if dims_text else ()
    order = tuple(range(len(dims) - 1, -1, -1))
    fields: dict[str, str] = {}
    if layout is not None:
        order_text, _, fields_text = layout.partition(":")
        fields = _parse_fields(fields_text, text)
        order = tuple(_parse_dimension(dim, text) for dim in order_text.split(",")) if order_text else ()
        if sorted(order) != list(range(len(dims))):
            raise InputError(
                f"found layout {{{excerpt(layout)[1:-1]}}} in {excerpt(text)}, expected an order of {len(dims)} dimensions"
            )
    tiles = _parse_tiles(fields.get("T", ""), text)
    elements = math.prod(dims)
    bits = _parse_number(fields.get("E", "(0)"), text)
    bits = bits or (BITS[dtype] + 7) // 8 * 8
    stored = _stored_elements([dims[dim] for dim in reversed(order)], tiles)
    alignment = _parse_number(fields.get("L", "(1)"), text)
    if alignment > 1:
        stored = -(-stored // alignment) * alignment
    # A dynamic array stores its actual sizes in M bytes in front of the elements.
    size = -(-stored * bits // 8) + _parse_number(fields.get("M", "(0)"), text) if elements else 0
    if size > MAX_BYTES:
        raise InputError(f"found {excerpt(text)}, expected at most {MAX_BYTES} bytes")
    return ArrayShape(dtype, dims, order, tiles, _parse_number(fields.get("S", "(0)"), text), elements, size)


def _parse_dimension(text: str, shape: str) -> int:
    """A number, without the ``<=`` of a dynamic dimension; ``shape`` is the whole text, for error messages."""
    match = _DIMENSION.fullmatch(text)
    if match is None:
        raise InputError(f"found dimension {excerpt(text)} in {excerpt(shape)}, expected a number")
    return int(match[1])


def _parse_number(text: str, shape: str) -> int:
    """A number in parentheses, the value of a layout field."""
    return _parse_dimension(text[1:-1], shape)


def _parse_fields(text: str, shape: str) -> dict[str, str]:
    """The fields of a layout, such as ``T`` for tiles and ``S`` for the memory space, with their values in parentheses."""
    fields: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _LAYOUT_FIELD.match(text, position)
        if match is None:
            raise InputError(
                f"found layout field {excerpt(text[position:])} in {excerpt(shape)}, expected one such as T(8,128) or S(1)"
            )
        fields[match[1]] = match[2]
        position = match.end()
    return fields


def _parse_tiles(text: str, shape: str) -> tuple[tuple[int, ...], ...]:
    """The tiles in a text such as ``(8,128)(2,1)``; ``*``, which merges dimensions, becomes -1."""
    if not text:
        return ()
    tiles = tuple(
        tuple(-1 if dim == "*" else _parse_dimension(dim, shape) for dim in tile.split(",")) for tile in text[1:-1].split(")(")
    )
    if len(tiles) > MAX_RANK or max(map(len, tiles)) > MAX_RANK:
        raise InputError(f"found tile {excerpt(text)} in {excerpt(shape)}, expected at most {MAX_RANK} tiles and dimensions")
    if any(dim == 0 for tile in tiles for dim in tile) or any(tile[-1] == -1 for tile in tiles):
        raise InputError(f"found tile {excerpt(text)} in {excerpt(shape)}, expected positive sizes")
    return tiles


def _stored_elements(physical: list[int], tiles: tuple[tuple[int, ...], ...]) -> int:
    """Number of elements of a physical shape (major to minor) with the padding of all tiles.

    A tile of rank ``r`` divides the ``r`` most minor dimensions. In the resulting shape, they are replaced by the numbers of
    tiles along each of them, followed by the sides of the tile. The next tile divides this shape.
    """
    for tile in tiles:
        rank = len(tile)
        padded = [1] * (rank - len(physical)) + physical
        outer, inner = padded[:-rank], padded[-rank:]
        grid: list[int] = []
        sides: list[int] = []
        carried = 1
        for size, side in zip(inner, tile, strict=True):
            if side == -1:
                carried *= size
                continue
            grid.append(-(-size * carried // side))
            sides.append(side)
            carried = 1
        physical = outer + grid + sides
    return math.prod(physical)


def index_text(index: Iterable[int]) -> str:
    """An index in a tuple as it is written in names of values, such as ``{0,1}``; empty for an array that is in no tuple."""
    text = ",".join(map(str, index))
    return f"{{{text}}}" if text else ""
