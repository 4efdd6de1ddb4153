"""Describes a coarse-grained reconfigurable array (CGRA): a grid of equal tiles, and the links that every tile has.

A *tile* is a processing element with its own memory. It executes at most one instruction of the loop in each *slot*, that is,
in each clock modulo the initiation interval. Its *spoke RAM* says which instruction it issues in each slot, and its instruction
RAM holds the instructions. Values go over links, or over a second network, the *asynchronous fabric*. Target files of machines
are read into these classes.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cached_property
from typing import TypeAlias

import msgspec

from stowplan.errors import InputError

#: Largest number of tiles of a machine.
MOST_TILES = 1024

#: Largest latency, in clocks.
MOST_LATENCY = 1000

#: A table in which ``table[from][to]`` is the number of clocks from one tile to another; None if a value cannot go there.
Clocks: TypeAlias = tuple[tuple[int | None, ...], ...]


class Link(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An output that every tile has, described by the tile that it leads to. There, it is an input of the same name."""

    name: str
    """Name of the link, which no other link has."""
    rows: int
    """Number of rows downwards; negative for upwards."""
    columns: int = 0
    """Number of columns to the right; negative for the left."""
    clocks: int = 1
    """Clocks from the output to the input at the other end."""


class Interface(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """An interface between the asynchronous fabric and memory."""

    name: str
    """Name of the interface, which no other interface has."""
    ports: int = 1
    """Number of requests that it accepts in one clock."""
    tiles: tuple[int, ...] | None = None
    """Tiles that it serves; None for all tiles."""


class AsynchronousFabric(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A network that carries messages from any tile to any other and to memory, without a fixed latency.

    Its latencies are *nominal*: plans are computed as if they were exact.
    """

    latency: int = 10
    """Nominal clocks from a result to the arrival of the word in another tile's memory."""
    memory_latency: int = 100
    """Nominal clocks from a request to memory to the arrival of its answer in a tile's memory."""
    interfaces: tuple[Interface, ...] = ()
    """The interfaces to memory."""


class Registers(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The registers of a tile, in which values wait.

    They do not rotate: an instruction writes the same register in every interval.
    """

    count: int | None = None
    """Largest number of values that wait in a tile at a time; None for any number."""
    output: bool = False
    """Whether a value waits for other tiles in the output register of its own tile, which the next result there overwrites.
    Otherwise it waits in the tiles of its consumers."""


class Machine(msgspec.Struct, frozen=True, forbid_unknown_fields=True, dict=True, kw_only=True):
    """A machine. The tile in a row and column has the number ``row * columns + column``.

    Constructing a machine that breaks a rule raises :class:`~stowplan.errors.InputError`. See
    docs/reference/modulo-scheduling.md.
    """

    name: str
    """Name of the machine, for people."""
    rows: int
    """Number of rows of tiles."""
    columns: int = 1
    """Number of columns of tiles."""
    links: tuple[Link, ...]
    """The links that every tile has."""
    wraps: bool = False
    """Whether links that lead over an edge of the grid continue at the opposite edge (a torus)."""
    latency: int = 3
    """Clocks from the issue of an instruction to its result (pipeline depth)."""
    spoke_depth: int = 64
    """Number of entries of a tile's spoke RAM (one entry for each slot), which limits the initiation interval."""
    instruction_depth: int = 64
    """Number of entries of a tile's instruction RAM."""
    memories: int = 2
    """Number of memories of a tile."""
    memory_depth: int = 512
    """Number of words of each memory."""
    operations: tuple[str, ...] = ()
    """Operations that a tile can execute; empty for any operation."""
    asynchronous: AsynchronousFabric | None = None
    """The asynchronous fabric; None if values can only go over links."""
    registers: Registers | msgspec.UnsetType = msgspec.UNSET
    """The registers in which values wait. Files omit the field if any number of values may wait for any time."""
    memory_tiles: tuple[int, ...] | msgspec.UnsetType = msgspec.UNSET
    """Tiles that can execute loads and stores of a fixed latency, ascending. Files omit the field if all tiles can."""

    def __post_init__(self) -> None:
        def check(field: str, holds: bool, found: object, expected: str) -> None:
            if not holds:
                raise InputError(f"found {found}, expected {expected}", place=f"machine.{field}")

        check("rows", self.rows >= 1, self.rows, "1 or more")
        check("columns", self.columns >= 1, self.columns, "1 or more")
        check("rows", self.tiles <= MOST_TILES, f"{self.tiles} tiles", f"at most {MOST_TILES}")
        check("latency", 1 <= self.latency <= MOST_LATENCY, self.latency, f"1 to {MOST_LATENCY} clocks")
        check("spoke_depth", 1 <= self.spoke_depth <= 4096, self.spoke_depth, "1 to 4096 entries")
        check("instruction_depth", 1 <= self.instruction_depth <= 65536, self.instruction_depth, "1 to 65536 entries")
        check("memories", 0 <= self.memories <= 64, self.memories, "0 to 64")
        check("memory_depth", 0 <= self.memory_depth <= 1 << 32, self.memory_depth, "0 to 2^32 words")
        names: set[str] = set()
        for number, link in enumerate(self.links):
            check(f"links[{number}].name", link.name not in names, repr(link.name), "a name of its own")
            check(f"links[{number}].clocks", 0 <= link.clocks <= 1000, link.clocks, "0 to 1000 clocks")
            check(f"links[{number}]", (link.rows, link.columns) != (0, 0), "no step", "a step: feedback needs no link")
            names.add(link.name)
        if self.asynchronous is not None:
            self._check_asynchronous(self.asynchronous, check)
        if self.registers:
            count = self.registers.count
            check("registers.count", count is None or 0 <= count <= 65536, count, "0 to 65536, or none for any number")
            slow = next((link for link in self.links if link.clocks), None)
            check("registers", slow is None, f"them beside a link of {slow and slow.clocks} clocks", "links of 0 clocks")
        if self.memory_tiles is not msgspec.UNSET:
            tiles = self.memory_tiles
            ascending = bool(tiles) and list(tiles) == sorted({*tiles} & {*range(self.tiles)})
            check("memory_tiles", ascending, list(tiles), f"one or more of 0 to {self.tiles - 1}, ascending")

    def _check_asynchronous(self, fabric: AsynchronousFabric, check: Callable[[str, bool, object, str], None]) -> None:
        """Raise InputError, through ``check``, if a field of the asynchronous fabric breaks a rule."""
        for field in ("latency", "memory_latency"):
            clocks = getattr(fabric, field)
            check(f"asynchronous.{field}", 0 <= clocks <= 100 * MOST_LATENCY, clocks, f"0 to {100 * MOST_LATENCY} clocks")
        names: set[str] = set()
        for number, interface in enumerate(fabric.interfaces):
            place = f"asynchronous.interfaces[{number}]"
            check(f"{place}.name", interface.name not in names, repr(interface.name), "a name of its own")
            check(f"{place}.ports", 1 <= interface.ports <= MOST_TILES, interface.ports, f"1 to {MOST_TILES}")
            for tile in interface.tiles or ():
                check(f"{place}.tiles", 0 <= tile < self.tiles, f"tile {tile}", f"0 to {self.tiles - 1}")
            names.add(interface.name)

    @property
    def interfaces(self) -> tuple[Interface, ...]:
        """The interfaces to memory; empty without an asynchronous fabric."""
        return () if self.asynchronous is None else self.asynchronous.interfaces

    @property
    def tiles(self) -> int:
        """Number of tiles."""
        return self.rows * self.columns

    def end(self, tile: int, link: int) -> int | None:
        """The tile that a link of a tile leads to; None if it leaves the grid or leads back to the same tile. ``link`` is an
        index into :attr:`links`; IndexError is raised if it is too large."""
        row = tile // self.columns + self.links[link].rows
        column = tile % self.columns + self.links[link].columns
        if self.wraps:
            row, column = row % self.rows, column % self.columns
        elif not (0 <= row < self.rows and 0 <= column < self.columns):
            return None
        number = row * self.columns + column
        return None if number == tile else number

    @cached_property
    def one_link(self) -> Clocks:
        """The least number of clocks from tile to tile over at most one link; 0 from a tile to itself (feedback), and None
        without a link."""
        table: list[list[int | None]] = [[None] * self.tiles for _ in range(self.tiles)]
        for tile in range(self.tiles):
            table[tile][tile] = 0
            for number, link in enumerate(self.links):
                end = self.end(tile, number)
                if end is not None:
                    shortest = table[tile][end]
                    table[tile][end] = link.clocks if shortest is None else min(shortest, link.clocks)
        return tuple(tuple(row) for row in table)

    @cached_property
    def any_links(self) -> Clocks:
        """The least number of clocks from tile to tile over any number of links; None if no links lead there."""
        table = [list(row) for row in self.one_link]
        for middle in range(self.tiles):
            for row in table:
                first = row[middle]
                if first is None:
                    continue
                for to, second in enumerate(table[middle]):
                    length = row[to]
                    if second is not None and (length is None or first + second < length):
                        row[to] = first + second
        return tuple(tuple(row) for row in table)
