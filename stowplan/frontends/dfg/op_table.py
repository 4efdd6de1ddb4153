"""Op tables: names and patterns of operations, with meaning, class, latency and tiles.

The *meaning* of an operation is one of the operations of this package (:mod:`stowplan.hardware.se.reference`), such as ``mul``.
Its *class*, such as ``arithmetic``, says which latency and which tiles it has unless its own entry names them. This package has
tables for its own operations, for LLVM IR and MLIR, and for the graphs of CGRA suites. A table of the user takes precedence,
and the others apply to everything that it does not define. docs/reference/loop-bodies.md describes the fields.
"""

from __future__ import annotations

import functools
import math
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec

from stowplan.errors import InputError, naming
from stowplan.hardware.se.reference import OPERATIONS, generic_operation
from stowplan.hardware.targets.toml_files import TargetFiles
from stowplan.models.modulo_scheduling.machine import MOST_LATENCY, MOST_TILES
from stowplan.models.modulo_scheduling.problem import Instruction

#: Values of the fields ``format`` and ``version`` of op tables.
FORMAT = "stowplan.op_table"
VERSION = 1

#: Class of operations for which no table names a class.
UNCLASSIFIED = "generic"

#: The longest pattern, in characters. Those of this package are much shorter.
_MOST_PATTERN = 400


class _Costs(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Latency and tiles of a class of operations."""

    latency: int | None = None
    """Clocks from the issue of an instruction to its result; None if the class does not define it."""
    tiles: tuple[int, ...] | None = None
    """Numbers of the tiles that can execute the operations; None if the class does not define them."""


class _Ops(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Meaning and costs of some operations, given by names or by a pattern."""

    names: tuple[str, ...] = ()
    """Names of the operations; empty if a pattern describes them."""
    pattern: str | None = None
    """Regular expression for the whole name. Its group ``value``, if it has one, is the value of a constant."""
    meaning: str | None = None
    """An operation of this package; None if the entry does not define it."""
    group: str | None = msgspec.field(default=None, name="class")
    """The class of the operations; None if the entry does not define it."""
    latency: int | None = None
    """Clocks from the issue of an instruction to its result; None for the latency of the class."""
    tiles: tuple[int, ...] | None = None
    """Numbers of the tiles that can execute the operations; None for the tiles of the class."""


class OpTableFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """The contents of a file with an op table. Construction raises InputError if an entry is not valid."""

    format: str
    version: int
    name: str = ""
    """Name of the table, for people."""
    ops: tuple[_Ops, ...] = msgspec.field(default=(), name="op")
    """Entries of operations; names take precedence over patterns, and earlier patterns over later ones."""
    classes: dict[str, _Costs] = msgspec.field(default_factory=dict, name="class")
    """Latency and tiles of each class, by its name."""

    def __post_init__(self) -> None:
        for group, costs in self.classes.items():
            _check_costs(costs, f"class.{group}")
        for at, entry in enumerate(self.ops):
            place = f"op[{at}]"
            if bool(entry.names) == (entry.pattern is not None):
                raise InputError("expected either names or a pattern", place=place)
            if entry.meaning is not None and entry.meaning not in OPERATIONS:
                expected = ", ".join(OPERATIONS)
                raise InputError(f"found {entry.meaning!r}, expected one of {expected}", place=f"{place}.meaning")
            _compile(entry.pattern, f"{place}.pattern")
            _check_costs(entry, place)


def _check_costs(costs: _Costs | _Ops, place: str) -> None:
    """Raises InputError if a latency or a tile is out of range, or a tile is named twice."""
    if costs.latency is not None and not 1 <= costs.latency <= MOST_LATENCY:
        raise InputError(f"found latency {costs.latency}, expected 1 to {MOST_LATENCY} clocks", place=f"{place}.latency")
    if costs.tiles is None:
        return
    for tile in costs.tiles:
        if not 0 <= tile < MOST_TILES:
            raise InputError(f"found tile {tile}, expected 0 to {MOST_TILES - 1}", place=f"{place}.tiles")
    if not costs.tiles or len(set(costs.tiles)) < len(costs.tiles):
        raise InputError("expected one tile or more, each once", place=f"{place}.tiles")


def _compile(pattern: str | None, place: str) -> re.Pattern[str] | None:
    """The compiled pattern, if there is one; raises InputError if it is too long or no regular expression."""
    if pattern is None:
        return None
    if len(pattern) > _MOST_PATTERN:
        raise InputError(f"found {len(pattern)} characters, expected {_MOST_PATTERN} at most", place=place)
    try:
        return re.compile(pattern, re.IGNORECASE)
    except (re.error, OverflowError, RecursionError) as error:
        raise InputError(f"found {pattern!r}, expected a regular expression: {error}", place=place) from error


@dataclass(frozen=True)
class Resolved:
    """An operation with its meaning and costs."""

    op: str
    """An operation of this package, or a generic one, of which only the name and the operands are known."""
    value: float | None = None
    """The value of a constant whose name contains it; None for all other operations."""
    latency: int | None = None
    """Clocks from the issue of an instruction to its result; None for the latency of the machine."""
    tiles: tuple[int, ...] | None = None
    """Tiles that can execute the operation, ascending; None for all tiles."""


class _Layer:
    """One table with its patterns compiled. Construction raises InputError if two entries have the same name."""

    def __init__(self, file: OpTableFile):
        self.classes, self.ops = file.classes, file.ops
        self.names = [name for entry in file.ops for name in entry.names]
        self._by_name: dict[str, _Ops] = {}
        self._patterns: list[tuple[re.Pattern[str], _Ops]] = []
        for at, entry in enumerate(file.ops):
            for name in entry.names:
                if self._by_name.setdefault(_key(name), entry) is not entry:
                    raise InputError(f"found the op {name!r} twice, expected every name once", place=f"op[{at}].names")
            pattern = _compile(entry.pattern, f"op[{at}].pattern")
            if pattern is not None:
                self._patterns.append((pattern, entry))

    def find(self, name: str) -> tuple[_Ops, str | None] | None:
        """The entry of an operation, with the text of its value if the pattern has one; None if there is no entry.

        An entry with its name takes precedence over patterns, of which the first that matches counts.
        """
        named = self._by_name.get(_key(name))
        if named is not None:
            return named, None
        for pattern, entry in self._patterns:
            match = pattern.fullmatch(name.strip())
            if match is not None:
                return entry, match.groupdict().get("value")
        return None


def _key(name: str) -> str:
    """The form of a name in which names are compared: without blanks around it and without regard to case."""
    return name.strip().casefold()


class OpTable:
    """Several tables in order of precedence: each one applies to what the tables before it do not define.

    ``files`` are the tables, the one with the highest precedence first. ``source`` is the path of the user's table, for error
    messages; None if there is none. Raises InputError if two entries of one table have the same name.
    """

    def __init__(self, files: tuple[OpTableFile, ...], source: str | Path | None = None):
        self._layers = [_Layer(file) for file in files]
        self._resolved: dict[str, Resolved | None] = {}
        self.source = source
        """Path of the user's table, for error messages."""

    def check(self, tiles: int) -> None:
        """Raises InputError if a table names a tile that a machine with ``tiles`` tiles does not have."""
        for layer in self._layers:
            places: list[tuple[str, _Costs | _Ops]] = [
                *((f"class.{name}", costs) for name, costs in layer.classes.items()),
                *((f"op[{at}]", op) for at, op in enumerate(layer.ops)),
            ]
            for place, costs in places:
                highest = max(costs.tiles or (), default=0)
                if highest >= tiles:
                    raise InputError(f"found tile {highest}, expected 0 to {tiles - 1}", source=self.source, place=place)

    def find(self, name: str) -> Resolved | None:
        """The meaning and costs of an operation; None if it is in no table and is no operation of this package."""
        if name not in self._resolved:
            self._resolved[name] = self._find(name)
        return self._resolved[name]

    @property
    def names(self) -> list[str]:
        """All names in the tables; patterns are not included."""
        return [name for layer in self._layers for name in layer.names]

    def generic(self, name: str) -> Resolved:
        """A generic operation for a name that is in no table, with the costs of the class :data:`UNCLASSIFIED`."""
        costs = self._costs([], UNCLASSIFIED)
        return Resolved(generic_operation(_key(name)), None, *costs)

    def filled(self, instruction: Instruction) -> Instruction:
        """The instruction with the latency and tiles that the tables define for its operation.

        This is for added instructions, which are in no file, such as relays and fused multiply-adds.
        """
        resolved = self.find(instruction.op)
        if resolved is None or (resolved.latency is None and resolved.tiles is None):
            return instruction
        return msgspec.structs.replace(instruction, latency=resolved.latency, tiles=resolved.tiles)

    def _find(self, name: str) -> Resolved | None:
        """Looks an operation up in all tables, without the cache that :meth:`find` uses."""
        matches = [entry for layer in self._layers if (entry := layer.find(name)) is not None]
        key = _key(name)
        if not matches and key not in OPERATIONS:
            return None
        entries = [entry for entry, _ in matches]
        meaning = _first(entries, lambda entry: entry.meaning) or (key if key in OPERATIONS else None)
        text = next((value for _, value in matches if value is not None), None)
        if meaning is not None and meaning != key:
            # Costs of an operation of this package apply to all operations with this meaning that have none of their own.
            entries += [entry[0] for layer in self._layers if (entry := layer.find(meaning)) is not None]
        group = _first(entries, lambda entry: entry.group) or UNCLASSIFIED
        value = read_number(text) if meaning == "constant" else None
        return Resolved(meaning or generic_operation(key), value, *self._costs(entries, group))

    def _costs(self, entries: list[_Ops], group: str) -> tuple[int | None, tuple[int, ...] | None]:
        """Latency and tiles, each from the first of the entries that defines it, or else from the class ``group``."""
        every: list[_Costs | _Ops] = [*entries, *(layer.classes[group] for layer in self._layers if group in layer.classes)]
        tiles = _first(every, lambda entry: entry.tiles)
        return _first(every, lambda entry: entry.latency), None if tiles is None else tuple(sorted(tiles))


def _first(entries: list[Any], field: Callable[[Any], Any]) -> Any:
    """Applies ``field`` to the entries in turn, and returns the first value that is not None; None if there is no such
    value."""
    return next((value for entry in entries if (value := field(entry)) is not None), None)


def read_number(text: str | None) -> float | None:
    """Reads a finite number, in decimal or with a prefix such as 0x; returns None for anything else, also for None."""
    if text is None:
        return None
    for read in (float, lambda text: float(int(text, 0))):
        try:
            value = read(text.strip())
        except (ValueError, OverflowError):
            continue
        return value if math.isfinite(value) else None
    return None


_FILES = TargetFiles(OpTableFile, __name__.rpartition(".")[0], FORMAT, VERSION, noun="op table")

#: Tables of this package, in order of precedence.
SHIPPED = ("own", "llvm", "cgra")


def load_op_table(path: str | Path | None = None) -> OpTable:
    """Loads the tables of this package, and a table of the user, which takes precedence.

    Parameters
    ----------
    path
        Path of a TOML file; None for the tables of this package only.

    Raises
    ------
    InputError
        The file is missing or is not TOML, a field is missing, unknown or out of range, or two entries have the same name; the
        message names the file and the field. Whether the machine has the tiles that it names is for :meth:`OpTable.check`.
    """
    if path is None:
        return _shipped()
    file = _FILES.load(Path(path))
    with naming(path):
        return OpTable((file, *_shipped_files()), path)


@functools.cache
def _shipped_files() -> tuple[OpTableFile, ...]:
    """The files of this package's tables, in order of precedence."""
    return tuple(_FILES.load(name) for name in SHIPPED)


@functools.cache
def _shipped() -> OpTable:
    """The tables of this package, without a table of the user."""
    return OpTable(_shipped_files())
