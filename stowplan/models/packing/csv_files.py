"""Reads packing problems from CSV files in the format of the minimalloc project, and plans from such files with offsets.

``stowplan.read`` and ``--plan`` use it for files of packing whose name ends in ``.csv`` or whose header shows the format.
A file has a line of column names, in any order, and then a line for each buffer.

* Required columns: ``id`` (also named ``buffer`` or ``buffer_id``), ``lower`` (``begin``, ``start``), ``upper`` (the half-open
  end) or ``end`` (the inclusive end), and ``size``.
* Optional columns: ``alignment``; ``gaps``, the intervals without data, such as ``7-8 9-10`` (half-open, or inclusive in a file
  with ``end``); ``offset``, a fixed offset; ``hint``, an offset to try (negative for none); ``overlaps``, operands that the
  buffer may overlap, such as ``id:distance id:distance``, or ``id:=`` for a buffer that holds the same bytes
  (:class:`~stowplan.models.packing.problem.Overlap`).

Offset tables, which ``--emit csv`` writes, are read as well. They have other columns and comment lines that begin with ``#``.
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
from stowplan.models.packing.plan import Plan, make_plan
from stowplan.models.packing.problem import Buffer, Overlap, Problem, check_buffer

#: Largest size of a file in bytes after decompression: some two million buffers.
MAX_BYTES = 1 << 26

_REQUIRED_COLUMNS = ("id", "lower", "size")
_COLUMNS = {*_REQUIRED_COLUMNS, "upper", "end", "alignment", "gaps", "offset", "hint", "overlaps"}
#: Columns of an offset table (:mod:`stowplan.backends.emit`), and the columns of a list of buffers that they correspond to. The
#: table's ``end`` is the first moment after the live range. Rows of parts of buffers, and of tensors in no arena, are skipped.
#: Older tables lack the last two columns.
_OFFSET_TABLE_COLUMNS = {
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
_SYNONYMS = {"buffer": "id", "buffer_id": "id", "begin": "lower", "start": "lower"}


def is_packing_csv(path: str | Path) -> bool:
    """Whether a file's name ends in ``.csv`` or ``.csv.gz``, or its first line contains the columns ``lower`` and ``size``.

    The result is False if the file has another name and cannot be read.
    """
    if Path(path).suffix.lower() == ".csv" or Path(path).name.lower().endswith(".csv.gz"):
        return True
    try:
        with open(path, encoding="utf-8") as stream:
            names = {name.strip().lower() for name in stream.readline(500).split(",")}
    except (OSError, UnicodeDecodeError):
        return False
    return {"lower", "size"} <= names


def has_offsets(path: str | Path) -> bool:
    """Whether a file is a CSV file of buffers with a column ``offset``, as plans have; False if it cannot be read."""
    if not is_packing_csv(path):
        return False
    try:
        for line in files.read_lines(path, MAX_BYTES):
            if line.strip() and not line.startswith("#"):
                return "offset" in (name.strip().lower() for name in line.split(","))
    except InputError:
        pass
    return False


def read_problem(path: str | Path, capacity: int | None = None) -> Problem:
    """Read a packing problem from a CSV file.

    Parameters
    ----------
    path
        The file, plain or compressed by gzip.
    capacity
        Size of the arena in bytes; None asks for the smallest arena.

    Raises
    ------
    InputError
        A column is missing, unknown or repeated; a row has the wrong number of values; a value is no whole number or out of
        range; or an id occurs twice. The message has the file and usually the line. The error is also raised for files of more
        than :data:`MAX_BYTES` and for lines longer than :data:`stowplan.files.MAX_LINE_BYTES`.
    """
    return parse(files.read_lines(path, MAX_BYTES), capacity, source=path)


def parse(
    text: str | Iterable[str],
    capacity: int | None = None,
    source: str | Path | None = None,
    placed: dict[str, int] | None = None,
) -> Problem:
    """Read a packing problem from the text or the lines of a CSV file; see :func:`read_problem`.

    Parameters
    ----------
    source
        Name of the file, for messages and as the name of the problem; None gives an empty name.
    placed
        If None, a value in the column ``offset`` fixes the buffer there. Otherwise the offsets are stored in this dictionary,
        by id and unchecked, and the buffers have no fixed offset.

    Raises
    ------
    InputError
        The text breaks a rule that :func:`read_problem` names.
    """
    source_lines = io.StringIO(text) if isinstance(text, str) else text
    reader = csv.reader(_without_byte_order_mark(iter(source_lines)), skipinitialspace=True)
    columns: list[str] | None = None
    buffers: list[Buffer] = []
    line_of: dict[str, int] = {}
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
            if buffer.id in line_of:
                raise InputError(f"found the id {buffer.id!r} of line {line_of[buffer.id]} again", place=place)
            line_of[buffer.id] = reader.line_num
            buffers.append(buffer)
        if columns is None:
            raise InputError("found nothing, expected a line of column names: id,lower,upper,size", place="line 1")
        name = "" if source is None else files.printable(Path(source).name).removesuffix(".gz").removesuffix(".csv")
        return Problem(name=name, buffers=tuple(buffers), capacity=capacity)
    except csv.Error as error:
        raise InputError(f"not a CSV file: {error}", source=source, place=f"line {reader.line_num}") from error
    except InputError as error:
        raise (error.within(source) if source is not None else error) from None


def _without_byte_order_mark(lines: Iterator[str]) -> Iterator[str]:
    """The lines without the byte order mark that some programs write at the start of a file."""
    yield from (line.removeprefix("\ufeff") for line in itertools.islice(lines, 1))
    yield from lines


def _columns(header: list[str], place: str) -> list[str]:
    """Standard names of the columns in a header; InputError if a column is unknown, repeated or missing."""
    if header in ([*_OFFSET_TABLE_COLUMNS], [*_OFFSET_TABLE_COLUMNS][:-2]):
        return [*_OFFSET_TABLE_COLUMNS.values()][: len(header)]
    names = [_SYNONYMS.get(name, name) for name in header]
    for name, written in zip(names, header, strict=True):
        if name not in _COLUMNS:
            raise InputError(f"found column {name!r}, expected some of {', '.join(sorted(_COLUMNS))}", place=place)
        if names.count(name) > 1:
            other = "" if name == written else f" (as {written!r})"
            raise InputError(f"found column {name!r} twice{other}, expected it once", place=place)
    missing = [name for name in _REQUIRED_COLUMNS if name not in names]
    if missing:
        raise InputError(f"found no column {missing[0]!r}, expected id,lower,upper,size", place=place)
    if ("upper" in names) == ("end" in names):
        raise InputError("found both or neither of the columns upper and end, expected one of them", place=place)
    return names


def _buffer(values: dict[str, str], place: str) -> Buffer:
    """The buffer of a row; ``values`` are the texts of the row by column. Raises InputError if a value breaks a rule."""
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
    """The value of a column as a number; raises InputError if it is no whole number."""
    try:
        # int() would also accept "1_000" and digits of other scripts. No number of more than 20 digits is in range.
        if not values[column].isascii() or "_" in values[column] or len(values[column]) > 21:
            raise ValueError
        return int(values[column])
    except ValueError:
        raise InputError(f"found {column} {values[column]!r}, expected a whole number", place=place) from None


def _gap(text: str, inclusive: bool, place: str) -> tuple[int, int]:
    """The interval of a text such as ``7-8``, which gives (7, 8); the first moment may be negative."""
    if "@" in text:
        raise InputError(f"found gap {text!r}: gaps that leave part of a buffer in use are not supported", place=place)
    first, dash, last = text[:1], *text[1:].partition("-")[1:]
    start = first + text[1:].partition("-")[0]
    if not dash:
        raise InputError(f"found gap {text!r}, expected START-END", place=place)
    values = {"gap": start, "gap end": last}
    return _integer(values, "gap", place), _integer(values, "gap end", place) + inclusive


def _overlap(text: str, place: str) -> Overlap:
    """The overlap of a text such as ``name:16``, or ``name:=`` for the same offset; the name may contain colons."""
    operand, colon, distance = text.rpartition(":")
    if not colon or not operand:
        raise InputError(f"found overlap {text!r}, expected ID:DISTANCE", place=place)
    if distance == "=":
        return Overlap(operand=operand, distance=None)
    return Overlap(operand=operand, distance=_integer({"distance of an overlap": distance}, "distance of an overlap", place))


def read_plan(path: str | Path, problem: Problem) -> Plan:
    """Read a plan from a CSV file that has an ``offset`` for every buffer of a problem.

    If live ranges or sizes in the file differ from those of ``problem``, the plan has the digest of the problem that the file
    describes. The verifier then reports that the plan is for another problem.

    Parameters
    ----------
    path
        The file, plain or compressed by gzip; buffers may be in any order.
    problem
        The problem that the plan is for.

    Raises
    ------
    InputError
        The file breaks a rule of :func:`read_problem`, or a buffer is missing, unknown or has no offset.
    """
    placed: dict[str, int] = {}
    described = parse(files.read_lines(path, MAX_BYTES), source=path, placed=placed)
    row_of = {buffer.id: buffer for buffer in described.buffers}
    ids = {buffer.id for buffer in problem.buffers}
    for name in row_of:
        if name not in ids:
            raise InputError(f"found buffer {name!r}, which the problem does not have", source=path)
    plan = _plan_of(problem, placed, described.digest, path)
    is_same = all(
        (row.lower, row.upper, row.size) == (buffer.lower, buffer.upper, buffer.size)
        for buffer in problem.buffers
        for row in (row_of[buffer.id],)
    )
    return msgspec.structs.replace(plan, problem=problem.digest) if is_same else plan


def read_described_plan(path: str | Path) -> Plan:
    """Read a plan from a CSV file with an ``offset`` for every buffer, for the problem that the file itself describes.

    Raises
    ------
    InputError
        The file breaks a rule of :func:`read_problem`, or a buffer has no offset.
    """
    placed: dict[str, int] = {}
    described = parse(files.read_lines(path, MAX_BYTES), source=path, placed=placed)
    return _plan_of(described, placed, described.digest, path)


def _plan_of(problem: Problem, placed: Mapping[str, int], digest: str, path: str | Path) -> Plan:
    """The plan that gives a problem's buffers the offsets in ``placed``, which are bytes by id.

    Raises InputError if a buffer has no offset there.
    """
    offsets: list[int] = []
    for buffer in problem.buffers:
        if buffer.id not in placed:
            raise InputError(f"found no offset for buffer {buffer.id!r}", source=path)
        offsets.append(placed[buffer.id])
    plan = make_plan(problem, offsets)
    return msgspec.structs.replace(plan, problem=digest, buffers=problem.buffers, name=problem.name)
