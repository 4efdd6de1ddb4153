"""Packing problems as CSV files, in the manner of the minimalloc project; plans with an ``offset`` column added.

Columns, in any order: ``id`` (or ``buffer``, ``buffer_id``), ``lower`` (or ``begin``, ``start``), ``upper`` (half-open) or
``end`` (inclusive), ``size``. Where wanted also ``alignment``, ``gaps`` (parts of the life without data, ``7-8 9-10``,
half-open; with ``end`` the last moment is inclusive), ``offset`` (a fixed offset), ``hint`` (an offset to try; negative
for none) and ``overlaps`` (buffers whose bytes it may take as they die, ``id:distance id:distance``, or ``id:=`` for a buffer
that holds the same bytes). A table of offsets (``--emit csv``) is read as well, whose columns are others: remarks before them
begin with ``#``.
"""

from __future__ import annotations

import csv
import io
import itertools
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path

import msgspec

from stowplan import files
from stowplan.errors import InputError
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Buffer, Overlap, Problem, check_buffer

#: Bytes of a file, unpacked, at most: two million buffers or so.
MAX_BYTES = 1 << 26

_NEEDED = ("id", "lower", "size")
_KNOWN = {*_NEEDED, "upper", "end", "alignment", "gaps", "offset", "hint", "overlaps"}
#: Columns of a table of offsets (:mod:`stowplan.backends.emit`), as those of a list of buffers; its ``end`` is half-open.
#: Rows of parts of buffers, and of what is in no arena, are left out. Older tables lack the last two columns.
_TABLE = {
    "name": "id",
    "arena": "",
    "offset": "offset",
    "size": "size",
    "alignment": "alignment",
    "start": "lower",
    "end": "upper",
    "buffer": "part_of",
    "results": "",
}
_OTHER_NAMES = {"buffer": "id", "buffer_id": "id", "begin": "lower", "start": "lower"}


def is_packing_csv(path: str | Path) -> bool:
    """Whether a file is named, or begins, like a CSV file of buffers."""
    if Path(path).suffix.lower() == ".csv" or Path(path).name.lower().endswith(".csv.gz"):
        return True
    try:
        with open(path, encoding="utf-8") as stream:
            names = {name.strip().lower() for name in stream.readline(500).split(",")}
    except (OSError, UnicodeDecodeError):
        return False
    return {"lower", "size"} <= names


def read_problem(path: str | Path, capacity: int | None = None) -> Problem:
    """Problem from a CSV file.

    Parameters
    ----------
    path
        Plain or gzip.
    capacity
        Bytes to fit into; None for the least height.

    Raises
    ------
    InputError
        A missing, unknown or repeated column, a row of another length, a value that is no whole number or out of range, an id
        that was used before: with file and line. A file of more than :data:`MAX_BYTES`, or a line longer than
        :data:`stowplan.files.MAX_LINE_BYTES`.
    """
    return parse(files.read_lines(path, MAX_BYTES), capacity, source=path)


def parse(
    text: str | Iterable[str],
    capacity: int | None = None,
    source: str | Path | None = None,
    placed: dict[str, int] | None = None,
) -> Problem:
    """Problem from the text of a CSV file, or its lines; see :func:`read_problem`.

    Offsets fix buffers; where ``placed`` is given, they go there instead, by id, and are not checked.
    """
    given = io.StringIO(text) if isinstance(text, str) else text
    reader = csv.reader(_without_mark(iter(given)), skipinitialspace=True)
    columns: list[str] | None = None
    buffers: list[Buffer] = []
    lines: dict[str, int] = {}
    try:
        for row in reader:
            if not any(cell.strip() for cell in row):
                continue
            place = f"line {reader.line_num}"
            if columns is None:
                if row[0].startswith("#"):
                    continue
                columns = _columns([cell.strip().lower() for cell in row], place)
                continue
            if len(row) != len(columns):
                raise InputError(f"found {len(row)} values, expected {len(columns)}: {','.join(columns)}", place=place)
            values = dict(zip(columns, (cell.strip() for cell in row), strict=True))
            if values.get("part_of") or ("part_of" in values and not values["offset"]):
                continue
            if placed is not None and values.get("offset"):
                placed[values["id"]] = _integer(values, "offset", place)
                values["offset"] = ""
            buffer = _buffer(values, place)
            if buffer.id in lines:
                raise InputError(f"found the id {buffer.id!r} of line {lines[buffer.id]} again", place=place)
            lines[buffer.id] = reader.line_num
            buffers.append(buffer)
        if columns is None:
            raise InputError("found nothing, expected a line of column names: id,lower,upper,size", place="line 1")
        name = "" if source is None else files.printable(Path(source).name).removesuffix(".gz").removesuffix(".csv")
        return Problem(name=name, buffers=tuple(buffers), capacity=capacity)
    except csv.Error as error:
        raise InputError(f"not a CSV file: {error}", source=source, place=f"line {reader.line_num}") from error
    except InputError as error:
        raise (error.within(source) if source is not None else error) from None


def _without_mark(lines: Iterator[str]) -> Iterator[str]:
    """Lines without the byte order mark that some programs begin a file with."""
    yield from (line.removeprefix("\ufeff") for line in itertools.islice(lines, 1))
    yield from lines


def _columns(given: list[str], place: str) -> list[str]:
    if given in ([*_TABLE], [*_TABLE][:-2]):
        return [*_TABLE.values()][: len(given)]
    names = [_OTHER_NAMES.get(name, name) for name in given]
    for name, written in zip(names, given, strict=True):
        if name not in _KNOWN:
            raise InputError(f"found column {name!r}, expected some of {', '.join(sorted(_KNOWN))}", place=place)
        if names.count(name) > 1:
            other = "" if name == written else f" (as {written!r})"
            raise InputError(f"found column {name!r} twice{other}, expected it once", place=place)
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        raise InputError(f"found no column {missing[0]!r}, expected id,lower,upper,size", place=place)
    if ("upper" in names) == ("end" in names):
        raise InputError("found both or neither of the columns upper and end, expected one of them", place=place)
    return names


def _buffer(values: dict[str, str], place: str) -> Buffer:
    if not values["id"]:
        raise InputError("found an empty id, expected a name", place=place)
    inclusive = "end" in values
    upper = _integer(values, "end", place) + 1 if inclusive else _integer(values, "upper", place)

    def optional(column: str) -> int | None:
        return _integer(values, column, place) if values.get(column) else None

    alignment, hint = optional("alignment"), optional("hint")
    buffer = Buffer(
        id=values["id"],
        lower=_integer(values, "lower", place),
        upper=upper,
        size=_integer(values, "size", place),
        alignment=1 if alignment is None else alignment,
        gaps=tuple(_gap(text, inclusive, place) for text in values.get("gaps", "").split()),
        offset=optional("offset"),
        hint=hint if hint is not None and hint >= 0 else None,
        overlaps=tuple(_overlap(text, place) for text in values.get("overlaps", "").split()) or msgspec.UNSET,
    )
    check_buffer(buffer, place)
    return buffer


def _integer(values: dict[str, str], column: str, place: str) -> int:
    try:
        # int() would also take "1_000" and digits of other scripts; beyond 20 digits nothing is in range anyway.
        if not values[column].isascii() or "_" in values[column] or len(values[column]) > 21:
            raise ValueError
        return int(values[column])
    except ValueError:
        raise InputError(f"found {column} {values[column]!r}, expected a whole number", place=place) from None


def _gap(text: str, inclusive: bool, place: str) -> tuple[int, int]:
    """``7-8`` to (7, 8); the first moment may be negative."""
    if "@" in text:
        raise InputError(f"found gap {text!r}: gaps that leave part of a buffer in use are not supported", place=place)
    first, dash, last = text[:1], *text[1:].partition("-")[1:]
    start = first + text[1:].partition("-")[0]
    if not dash:
        raise InputError(f"found gap {text!r}, expected START-END", place=place)
    values = {"gap": start, "gap end": last}
    return _integer(values, "gap", place), _integer(values, "gap end", place) + inclusive


def _overlap(text: str, place: str) -> Overlap:
    """``name:16``, or ``name:=`` for the same offset; the name may have colons."""
    operand, colon, distance = text.rpartition(":")
    if not colon or not operand:
        raise InputError(f"found overlap {text!r}, expected ID:DISTANCE", place=place)
    if distance == "=":
        return Overlap(operand=operand, distance=None)
    return Overlap(operand=operand, distance=_integer({"distance of an overlap": distance}, "distance of an overlap", place))


def read_plan(path: str | Path, problem: Problem) -> Plan:
    """Plan from a CSV file with an ``offset`` for every buffer of a problem.

    Where lives or sizes are not those of ``problem``, the plan carries the digest of what the file describes, so that its
    verification says that it is for another problem.

    Parameters
    ----------
    path
        Plain or gzip; as other tools write it, buffers in any order.
    problem
        The problem that it is a plan for.

    Raises
    ------
    InputError
        What is wrong with the file, a buffer that is missing or unknown, or one without an offset.
    """
    placed: dict[str, int] = {}
    described = parse(files.read_lines(path, MAX_BYTES), source=path, placed=placed)
    given = {buffer.id: buffer for buffer in described.buffers}
    known = {buffer.id for buffer in problem.buffers}
    for name in given:
        if name not in known:
            raise InputError(f"found buffer {name!r}, which the problem does not have", source=path)
    plan = _plan_of(problem, placed, described.digest, path)
    same = all(
        (row.lower, row.upper, row.size) == (buffer.lower, buffer.upper, buffer.size)
        for buffer in problem.buffers
        for row in (given[buffer.id],)
    )
    return msgspec.structs.replace(plan, problem=problem.digest) if same else plan


def read_described_plan(path: str | Path) -> Plan:
    """Plan from a CSV file with an ``offset`` for every buffer, for the problem that the file itself describes.

    Raises
    ------
    InputError
        What is wrong with the file, or a buffer without an offset.
    """
    placed: dict[str, int] = {}
    described = parse(files.read_lines(path, MAX_BYTES), source=path, placed=placed)
    return _plan_of(described, placed, described.digest, path)


def _plan_of(problem: Problem, placed: Mapping[str, int], digest: str, path: str | Path) -> Plan:
    """Plan of a problem's buffers at these offsets."""
    offsets: list[int] = []
    for buffer in problem.buffers:
        if buffer.id not in placed:
            raise InputError(f"found no offset for buffer {buffer.id!r}", source=path)
        offsets.append(placed[buffer.id])
    height = max((offset + buffer.size for offset, buffer in zip(offsets, problem.buffers, strict=True)), default=0)
    return Plan(problem=digest, objective=height, offsets=tuple(offsets), buffers=problem.buffers, name=problem.name)
