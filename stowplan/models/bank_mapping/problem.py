"""The bank-mapping problem: tensors that can be spread over memory banks in several layouts, and operators that need layouts.

The rules are on docs/reference/bank-mapping.md. A *layout* says along which dimension a tensor is spread over the banks of the
on-chip memory. :func:`split` divides large tensors into *tiles*, blocks of rows that are tensors of their own, so that a part
of a large tensor can stay on chip (section "Tiles" of that page).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING

import msgspec

from stowplan import files
from stowplan.checks import expect, expect_unique
from stowplan.document import ProblemDocument
from stowplan.errors import InputError

if TYPE_CHECKING:
    from stowplan.models.bank_mapping.plan import Plan  # noqa: F401

UNSPREAD = -1
"""Layout of a tensor that is in a single bank."""

#: The total of all bytes that a plan can move, times their weights, must be less than this, so that objectives fit in 64 bits.
LIMIT = 1 << 56


class View(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rearranged copy of elements of a tensor, for an operator that needs them spread as no layout of the tensor does."""

    name: str
    """Name of the view, for people."""
    bytes: int
    """Size in bytes."""


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An array. Its layouts are numbers: -1 for unspread, ``d`` for spread along dimension ``d``, ``rank + v`` for its view
    ``v``.

    The tensor itself has a layout less than ``rank``; a view is produced by a copy.
    """

    name: str
    """Name of the tensor, which no other tensor has."""
    bytes: int
    """Size in bytes."""
    shape: tuple[int, ...]
    """Number of indices of each dimension."""
    views: tuple[View, ...] = ()
    """The views that some operators need."""
    is_input: bool = False
    """Whether it is in main memory at the start. It can be loaded from there in any layout less than ``rank``."""
    is_output: bool = False
    """Whether it must be in main memory at the end."""

    @property
    def rank(self) -> int:
        """Number of dimensions."""
        return len(self.shape)

    def layout_bytes(self, layout: int) -> int:
        """Size in bytes of the tensor, or of one of its views, in a layout."""
        return self.bytes if layout < self.rank else self.views[layout - self.rank].bytes

    def layout_name(self, layout: int) -> str:
        """Name of a layout for people."""
        if layout == UNSPREAD:
            return "unspread"
        return f"dimension {layout}" if layout < self.rank else f"view {self.views[layout - self.rank].name}"


class Operator(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An operator of the program."""

    name: str
    """Name of the operator, for people."""
    op: str
    """Its operation, for people."""
    reads: tuple[int, ...]
    """Numbers of the tensors that it reads, one for each access; a tensor may occur more than once."""
    read_bytes: tuple[int, ...]
    """For each access, the number of bytes of the tensor that it needs. It loads them if the tensor is in main memory."""
    writes: tuple[int, ...]
    """Numbers of the tensors that it writes."""
    options: tuple[tuple[int, ...], ...]
    """The ways to compute it that its *bank rule* allows, the usual one first. An option has a layout for each read, followed
    by one for each write."""
    restricted: bool = False
    """Whether the bank rule comes from the compute unit (convolutions, matrix products, pooling). Otherwise only the layouts of
    its operands must agree."""

    def write_place(self, tensor: int) -> int:
        """Index, in each option, of the layout in which a tensor is written."""
        return len(self.reads) + self.writes.index(tensor)


class Problem(ProblemDocument["Plan"], frozen=True, forbid_unknown_fields=True, dict=True, kw_only=True):
    """A bank-mapping problem. Constructing one that breaks a rule raises :class:`~stowplan.errors.InputError`."""

    banks: int
    """Number of banks."""
    capacity: int
    """Size of on-chip memory in bytes, all banks together."""
    tensors: tuple[Tensor, ...]
    """The tensors. Their *numbers* are their positions in this tuple."""
    operators: tuple[Operator, ...]
    """The operators in the order in which they run. Their *numbers* are their positions in this tuple."""
    copy_weight: int = 1
    """Cost of one byte that is copied between banks."""
    off_chip_weight: int = 1
    """Cost of one byte that is moved to or from main memory."""
    name: str = ""
    """Name of the program, for people."""
    target: str = ""
    """Name of the hardware target, for people."""
    format: str = "stowplan.bank_mapping.problem"
    version: int = 1

    def __post_init__(self) -> None:
        for field in ("banks", "copy_weight", "off_chip_weight"):
            value = getattr(self, field)
            expect(1 <= value <= 1 << 20, field, value, f"1 to {1 << 20}")
        expect(0 <= self.capacity < LIMIT, "capacity", self.capacity, f"0 to {LIMIT - 1} bytes")
        _check_tensors(self.tensors)
        self._check_operators()

    def _check_operators(self) -> None:
        """Raise InputError if an operator breaks a rule, reads a tensor before it is written, or writes it after a read."""
        writers: dict[int, list[int]] = {}
        read: set[int] = set()
        weight = max(self.copy_weight, self.off_chip_weight)
        total = 0
        for number, operator in enumerate(self.operators):
            place = f"operators[{number}] ({operator.name})"
            check_operator(operator, self.tensors, place)
            for tensor in operator.reads:
                if not self.tensors[tensor].is_input and tensor not in writers:
                    raise InputError(f"reads tensor {self.tensors[tensor].name!r} before it is written", place=place)
                read.add(tensor)
            for tensor in operator.writes:
                if self.tensors[tensor].is_input or tensor in read:
                    why = "an input" if self.tensors[tensor].is_input else "read before"
                    raise InputError(f"writes tensor {self.tensors[tensor].name!r}, which is {why}", place=place)
                writers.setdefault(tensor, []).append(number)
            views = sum(view.bytes for tensor in operator.reads for view in self.tensors[tensor].views)
            total += views + sum(operator.read_bytes)
            total += sum(2 * self.tensors[tensor].bytes for tensor in (*operator.reads, *operator.writes))
            if total * weight >= LIMIT:
                raise InputError(f"the bytes moved add up to {total} or more, times weight {weight}, too many", place=place)
        for tensor, numbers in writers.items():
            self._check_writers(tensor, numbers)

    def _check_writers(self, tensor: int, numbers: list[int]) -> None:
        """Raise InputError if the operators that write parts of a tensor have no layout of it in common."""
        shared: set[int] | None = None
        for number in numbers:
            operator = self.operators[number]
            at = operator.write_place(tensor)
            possible = {option[at] for option in operator.options}
            if shared is not None and not shared & possible:
                name = self.tensors[tensor].name
                layouts = ", ".join(self.tensors[tensor].layout_name(layout) for layout in sorted(possible))
                expected = ", ".join(self.tensors[tensor].layout_name(layout) for layout in sorted(shared))
                raise InputError(
                    f"contradictory bank rules: it writes tensor {name!r} as {layouts}, those before it as {expected}",
                    place=f"operators[{number}] ({operator.name})",
                )
            shared = possible if shared is None else shared & possible

    @cached_property
    def writers(self) -> tuple[tuple[int, ...], ...]:
        """[tensors] numbers of the operators that write the tensor, ascending."""
        by_tensor: list[list[int]] = [[] for _ in self.tensors]
        for number, operator in enumerate(self.operators):
            for tensor in operator.writes:
                by_tensor[tensor].append(number)
        return tuple(map(tuple, by_tensor))

    @cached_property
    def readers(self) -> tuple[tuple[tuple[int, int], ...], ...]:
        """[tensors] (operator, index of the read) of every access to the tensor, in the order of the operators."""
        by_tensor: list[list[tuple[int, int]]] = [[] for _ in self.tensors]
        for number, operator in enumerate(self.operators):
            for at, tensor in enumerate(operator.reads):
                by_tensor[tensor].append((number, at))
        return tuple(map(tuple, by_tensor))

    def life(self, tensor: int) -> tuple[int, int] | None:
        """Half-open range of operators during which a tensor is on chip if the plan keeps it there; None if it is never used.

        The range is from its first writer (for an input, its first reader) to its last reader or writer.
        """
        numbers = [*self.writers[tensor], *(number for number, _ in self.readers[tensor])]
        return (min(numbers), max(numbers) + 1) if numbers else None

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of everything that plans depend on; the names of program and target are left out."""
        rules = msgspec.structs.replace(self, name="", target="")
        return files.digest(rules)


def _check_tensors(tensors: tuple[Tensor, ...]) -> None:
    """Raise InputError if a tensor or one of its views breaks a rule."""
    expect_unique((tensor.name for tensor in tensors), "tensors", "name")
    for number, tensor in enumerate(tensors):
        place = f"tensors[{number}] ({tensor.name})"
        if any(not 1 <= size < LIMIT for size in tensor.shape):
            raise InputError(f"found shape {list(tensor.shape)}, expected sizes of at least 1", place=place)
        for what, size in (("bytes", tensor.bytes), *((f"view {view.name}", view.bytes) for view in tensor.views)):
            if not 0 <= size < LIMIT:
                raise InputError(f"found {size} bytes ({what}), expected 0 to {LIMIT - 1}", place=place)
        if tensor.bytes and tensor.bytes * 8 < prod(tensor.shape):
            raise InputError(
                f"found {tensor.bytes} bytes for shape {list(tensor.shape)}, expected a bit an element", place=place
            )


def check_operator(operator: Operator, tensors: tuple[Tensor, ...], place: str) -> None:
    """Raise InputError if an operator by itself breaks a rule; ``place`` is its position in the input, for the message."""
    for tensor in (*operator.reads, *operator.writes):
        if not 0 <= tensor < len(tensors):
            raise InputError(f"found tensor number {tensor}, expected 0 to {len(tensors) - 1}", place=place)
    expect(len(set(operator.writes)) == len(operator.writes), place, "a tensor written twice", "every one once")
    sizes = len(operator.read_bytes)
    expect(sizes == len(operator.reads), place, f"{sizes} read_bytes", f"{len(operator.reads)}")
    if any(not 0 <= size < LIMIT for size in operator.read_bytes):
        raise InputError(f"found read_bytes {list(operator.read_bytes)}, expected 0 to {LIMIT - 1}", place=place)
    if not operator.options:
        raise InputError("contradictory bank rules: found no option, expected at least one", place=place)
    ports = (*operator.reads, *operator.writes)
    for option in operator.options:
        if len(option) != len(ports):
            raise InputError(f"found an option for {len(option)} accesses, expected {len(ports)}", place=place)
        for at, (layout, tensor) in enumerate(zip(option, ports, strict=True)):
            is_read = at < len(operator.reads)
            top = tensors[tensor].rank + (len(tensors[tensor].views) if is_read else 0)
            if not UNSPREAD <= layout < top:
                raise InputError(f"found layout {layout} of {tensors[tensor].name!r}, expected -1 to {top - 1}", place=place)


@dataclass(frozen=True)
class Tile:
    """Describes the part of an original tensor that a tensor of a tiled problem is."""

    tensor: int
    """Number of the original tensor."""
    dimension: int | None
    """The dimension along which it was divided; None if it is the whole tensor."""
    first: int = 0
    """First index of that dimension that the tile has."""
    end: int = 0
    """First index after the tile."""


@dataclass(frozen=True)
class TiledProblem:
    """A problem whose tensors are tiles."""

    problem: Problem
    """The tiled problem."""
    tiles: tuple[Tile, ...]
    """One tile for each tensor of ``problem``."""


def split(problem: Problem, tile_bytes: int | None, buffer_bytes: int = 0) -> TiledProblem:
    """Divide large tensors of a problem into tiles.

    Parameters
    ----------
    tile_bytes
        Largest size of a tile in bytes; a tile has at least one row, that is, one index of the outermost dimension with more
        than one index. Smaller tensors are not divided, and with None no tensor is.
    buffer_bytes
        Number of bytes of the capacity that are reserved for data that streams through on-chip memory.

    Raises
    ------
    InputError
        ``tile_bytes`` is less than 1, ``buffer_bytes`` is negative or more than the capacity, or the tiled problem breaks a
        rule, for example because a tile gets the name of another tensor.
    """
    expect(tile_bytes is None or tile_bytes >= 1, "tile", f"{tile_bytes} bytes", "at least 1")
    most = f"at most the capacity of {problem.capacity} bytes"
    expect(0 <= buffer_bytes <= problem.capacity, "stream_buffer", f"{buffer_bytes} bytes", most)
    ranges = [_ranges(tensor, tile_bytes) for tensor in problem.tensors]
    numbers: list[range] = []
    tiles: list[Tile] = []
    tensors: list[Tensor] = []
    for number, tensor in enumerate(problem.tensors):
        numbers.append(range(len(tiles), len(tiles) + len(ranges[number])))
        for tile in ranges[number]:
            tiles.append(Tile(number, tile.dimension, tile.first, tile.end))
            tensors.append(_part(tensor, tile))
    operators = tuple(_expanded(operator, problem, tiles, numbers) for operator in problem.operators)
    capacity = problem.capacity - buffer_bytes
    tiled = msgspec.structs.replace(problem, capacity=capacity, tensors=tuple(tensors), operators=operators)
    return TiledProblem(tiled, tuple(tiles))


def share(size: int, tile: Tile, tensor: Tensor) -> int:
    """The number of ``size`` bytes of a tensor that belong to a tile, in proportion to its rows.

    The shares of all tiles of the tensor add up to ``size``.
    """
    if tile.dimension is None:
        return size
    rows = tensor.shape[tile.dimension]
    return size * tile.end // rows - size * tile.first // rows


def _ranges(tensor: Tensor, tile_bytes: int | None) -> list[Tile]:
    """The tiles of a tensor. Rows are the indices of the outermost dimension that has more than one index."""
    dimension = next((at for at, size in enumerate(tensor.shape) if size > 1), None)
    if tile_bytes is None or dimension is None or tensor.bytes <= tile_bytes:
        return [Tile(0, None)]
    rows = tensor.shape[dimension]
    step = max(1, tile_bytes * rows // tensor.bytes)
    return [Tile(0, dimension, first, min(rows, first + step)) for first in range(0, rows, step)]


def _part(tensor: Tensor, tile: Tile) -> Tensor:
    """The part of a tensor that a tile describes, as a tensor."""
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
    """An operator with tiles in place of tensors. It reads and writes all tiles of a tensor, each in the layout of the tensor.

    ``numbers`` has the numbers of the tiles of each original tensor.
    """
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
