"""Tensors in tiles: blocks of rows that are tensors of their own, so that part of a large tensor can stay on chip.

The rule is in docs/reference/bank-mapping.md, "Tiles".
"""

from __future__ import annotations

from dataclasses import dataclass

import msgspec

from stowplan.errors import InputError
from stowplan.models.bank_mapping.problem import Operator, Problem, Tensor, View


@dataclass(frozen=True)
class Tile:
    """What a tensor of a tiled problem is of the problem it was made of."""

    tensor: int
    """Number of the whole tensor."""
    dimension: int | None
    """Which dimension it is a range of; None where it is the whole tensor."""
    first: int = 0
    """The range ``[first, end)`` of indices of that dimension."""
    end: int = 0


@dataclass(frozen=True)
class TiledProblem:
    """A problem whose tensors are tiles."""

    problem: Problem
    tiles: tuple[Tile, ...]
    """One for each of its tensors."""


def split(problem: Problem, tile_bytes: int | None, buffer_bytes: int = 0) -> TiledProblem:
    """The problem with every tensor of more than ``tile_bytes`` in tiles of at most that, or of one row where rows are larger.

    Where ``tile_bytes`` is None, no tensor is split. ``buffer_bytes`` of the capacity are kept for what passes through the
    scratchpad.

    Raises
    ------
    InputError
        Sizes that are out of range.
    """
    if tile_bytes is not None and tile_bytes < 1:
        raise InputError(f"found {tile_bytes} bytes, expected at least 1", place="tile")
    if not 0 <= buffer_bytes <= problem.capacity:
        raise InputError(
            f"found {buffer_bytes} bytes, expected at most the capacity of {problem.capacity} bytes", place="stream_buffer"
        )
    ranges = [_ranges(tensor, tile_bytes) for tensor in problem.tensors]
    numbers: list[range] = []
    tiles: list[Tile] = []
    tensors: list[Tensor] = []
    for number, tensor in enumerate(problem.tensors):
        numbers.append(range(len(tiles), len(tiles) + len(ranges[number])))
        for tile in ranges[number]:
            tiles.append(Tile(number, tile.dimension, tile.first, tile.end))
            tensors.append(_part(tensor, tile))
    operators = tuple(_expanded(each, problem, tiles, numbers) for each in problem.operators)
    capacity = problem.capacity - buffer_bytes
    made = msgspec.structs.replace(problem, capacity=capacity, tensors=tuple(tensors), operators=operators)
    return TiledProblem(made, tuple(tiles))


def share(size: int, tile: Tile, tensor: Tensor) -> int:
    """The part of ``size`` bytes that falls to a tile by its rows; those of all tiles add up to ``size``."""
    if tile.dimension is None:
        return size
    rows = tensor.shape[tile.dimension]
    return size * tile.end // rows - size * tile.first // rows


def _ranges(tensor: Tensor, tile_bytes: int | None) -> list[Tile]:
    """Rows are along the outermost dimension that has more than one."""
    dimension = next((at for at, size in enumerate(tensor.shape) if size > 1), None)
    if tile_bytes is None or dimension is None or tensor.bytes <= tile_bytes:
        return [Tile(0, None)]
    rows = tensor.shape[dimension]
    step = max(1, tile_bytes * rows // tensor.bytes)
    return [Tile(0, dimension, first, min(rows, first + step)) for first in range(0, rows, step)]


def _part(tensor: Tensor, tile: Tile) -> Tensor:
    if tile.dimension is None:
        return tensor
    rows = f"[{tile.first}:{tile.end}]"
    shape = list(tensor.shape)
    shape[tile.dimension] = tile.end - tile.first
    views = tuple(View(view.name + rows, share(view.bytes, tile, tensor)) for view in tensor.views)
    return msgspec.structs.replace(
        tensor, name=tensor.name + rows, bytes=share(tensor.bytes, tile, tensor), shape=tuple(shape), views=views
    )


def _expanded(operator: Operator, problem: Problem, tiles: list[Tile], numbers: list[range]) -> Operator:
    """An operator that reads and writes all tiles of what it read and wrote, each in the layout of the whole."""
    reads = [(at, tile) for at, tensor in enumerate(operator.reads) for tile in numbers[tensor]]
    writes = [(at, tile) for at, tensor in enumerate(operator.writes, len(operator.reads)) for tile in numbers[tensor]]
    places = [at for at, _ in (*reads, *writes)]
    return msgspec.structs.replace(
        operator,
        reads=tuple(tile for _, tile in reads),
        read_bytes=tuple(
            share(operator.read_bytes[at], tiles[tile], problem.tensors[tiles[tile].tensor]) for at, tile in reads
        ),
        writes=tuple(tile for _, tile in writes),
        options=tuple(tuple(option[at] for at in places) for option in operator.options),
    )
