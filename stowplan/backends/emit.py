"""Writes the offsets of a plan as a C header, as JSON or as CSV, for use in a build.

:func:`emit` works for every kind of problem whose plans have offsets (``Kind.offset_table``). An *offset table*
(:class:`~stowplan.models.offset_table.OffsetTable`) lists the arenas of a plan, which are contiguous ranges of memory, and has
a row for each buffer. To add a format, write a function of (table, prefix of identifiers) that returns bytes, and add it to
:data:`FORMATS`. Equal plans give equal bytes: no format contains a time stamp.
"""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from stowplan import files
from stowplan.errors import UsageError
from stowplan.kernel.kind import kind_of, registered
from stowplan.models.offset_table import NOWHERE, OffsetTable


def table_of(problem: Any, plan: Any) -> OffsetTable:
    """Returns the offset table of a plan. The plan must be valid, which is not checked.

    Raises
    ------
    UsageError
        The problem is of no known kind, plans of its kind have no offsets, or the plans of this problem have none, for example
        those of tier placement if the tiers are not address spaces.
    """
    return check_emittable(problem)(problem, plan)


def check_emittable(problem: Any) -> Callable[[Any, Any], OffsetTable]:
    """Returns the function that makes the offset table of a problem and a plan.

    Call this before a plan is searched for, so that a kind of problem without offsets is refused early.

    Raises
    ------
    UsageError
        The problem is of no known kind, or plans of its kind have no offsets.
    """
    kind = kind_of(problem)
    if kind.offset_table is None:
        titles = ", ".join(other.title for other in registered() if other.offset_table is not None)
        raise UsageError(f"plans of {kind.title} have no offsets to emit, those of {titles} have")
    return kind.offset_table


def emit(problem: Any, plan: Any, form: str, name: str = "") -> bytes:
    """Returns the contents of a file with the offsets of a plan.

    Parameters
    ----------
    problem, plan
        A problem of any kind and a plan for it. The plan must be valid, which is not checked.
    form
        A key of :data:`FORMATS`.
    name
        Prefix of identifiers in C. If it is empty, it is the program's name, or ``plan`` if the program has no name either. The
        other formats do not use it.

    Raises
    ------
    UsageError
        ``form`` is no key of :data:`FORMATS`, or :func:`table_of` raises it.
    """
    check_form(form)
    table = table_of(problem, plan)
    return FORMATS[form](table, name or table.program or "plan")


def check_form(form: str) -> None:
    """Raise UsageError if ``form`` is no key of :data:`FORMATS`."""
    if form not in FORMATS:
        raise UsageError(f"found the format {form!r}, expected one of {', '.join(FORMATS)}")


def write(path: Path, problem: Any, plan: Any, form: str) -> None:
    """Write the offsets of a plan to a file, as :func:`emit` returns them.

    The prefix of identifiers in C is the name of the file up to its first dot.

    Raises
    ------
    UsageError
        As for :func:`emit`.
    InputError
        The file cannot be written.
    """
    files.write_atomic(path, emit(problem, plan, form, files.printable(path.name).partition(".")[0]))


def _json(table: OffsetTable, name: str) -> bytes:
    return files.encode(table)


def _csv(table: OffsetTable, name: str) -> bytes:
    """CSV with one row for each buffer, after comment lines with the digests and the arenas."""
    out = io.StringIO()
    out.write(f"# problem {table.problem_digest}\n# plan {table.plan_digest}\n")
    for arena in table.arenas:
        out.write(f"# arena {arena.name}: {arena.bytes} bytes, alignment {arena.alignment}\n")
    results_of_row: dict[int, list[str]] = {}
    for at, number in enumerate(table.results):
        results_of_row.setdefault(number, []).append(str(at))
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["name", "arena", "offset", "size", "alignment", "start", "end", "buffer", "results"])
    for number, row in enumerate(table.rows):
        location = ["", ""] if row.arena == NOWHERE else [table.arenas[row.arena].name, row.offset]
        results = " ".join(results_of_row.get(number, ()))
        writer.writerow([row.name, *location, row.size, row.alignment, row.start, row.end, row.buffer or "", results])
    return out.getvalue().encode()


def _c_header(table: OffsetTable, name: str) -> bytes:
    """A header that compiles as C99 and C++11: macros for each row and each arena, and a table of all rows."""
    upper = _identifier(name).upper()
    lower = upper.lower()
    lines = [
        f"/* Offsets of {_comment(table.program or name)} ({table.kind}), written by stowplan: do not edit. */",
        f"#ifndef {upper}_OFFSETS_H",
        f"#define {upper}_OFFSETS_H",
        "",
        "#include <stdint.h>",
        "",
        f'#define {upper}_PROBLEM_DIGEST "{table.problem_digest}"',
        f'#define {upper}_PLAN_DIGEST "{table.plan_digest}"',
        "",
    ]
    values: list[tuple[str, int]] = []
    for arena in table.arenas:
        macro = f"{upper}_{_identifier(arena.name).upper()}"
        values += [(f"{macro}_BYTES", arena.bytes), (f"{macro}_ALIGNMENT", arena.alignment)]
    first = len(values)
    values += [(f"{upper}_OFFSET_{_identifier(row.name)}", row.offset) for row in table.rows]
    exact = {number for number, row in enumerate(table.rows, first) if _identifier(row.name) == row.name}
    macros = _distinct([macro for macro, _ in values], {*range(first), *exact})
    lines += [f"#define {macro} UINT64_C({value})" for macro, (_, value) in zip(macros, values, strict=True)]
    rows = macros[first:]
    lines += [f"#define {upper}_COUNT {len(rows)}", f"#define {upper}_RESULTS {len(table.results)}"]
    lines += [
        "",
        f"struct {lower}_row {{",
        "    const char *name;",
        "    uint64_t offset, size, alignment; /* bytes */",
        "    int64_t start, end; /* half-open */",
        "    int32_t arena; /* -1: takes nothing of any */",
        "};",
        "",
    ]
    if table.rows:
        lines.append(f"static const struct {lower}_row {lower}_rows[{upper}_COUNT] = {{")
        lines += [
            f"    {{{_string(row.name)}, {macro}, UINT64_C({row.size}), UINT64_C({row.alignment}), "
            f"{_signed(row.start)}, {_signed(row.end)}, {row.arena}}},"
            for row, macro in zip(table.rows, rows, strict=True)
        ]
        lines += ["};", ""]
    if table.results:
        numbers = ", ".join(map(str, table.results))
        lines += ["/* Rows of what the program returns, in its order. */"]
        lines += [f"static const int32_t {lower}_results[{upper}_RESULTS] = {{{numbers}}};", ""]
    lines += [f"#endif /* {upper}_OFFSETS_H */", ""]
    return "\n".join(lines).encode()


def _identifier(name: str) -> str:
    """The name with every character replaced that C does not allow in an identifier."""
    identifier = re.sub(r"[^0-9A-Za-z_]", "_", name) or "_"
    return f"n{identifier}" if identifier[0].isdigit() else identifier


def _distinct(names: list[str], first: set[int]) -> list[str]:
    """Makes names unique by appending numbers, and keeps their order.

    One of several equal names stays as it is: the first of those whose indices are in the set ``first``, or the first of all if
    none of their indices is in the set.
    """
    given_names = set(names)
    index_of: dict[str, int] = {}
    for at in sorted(range(len(names)), key=lambda at: at not in first):
        name, number = names[at], 1
        while name in index_of or (number > 1 and name in given_names):
            number += 1
            name = f"{names[at]}_{number}"
        index_of[name] = at
    return sorted(index_of, key=lambda name: index_of[name])


def _comment(text: str) -> str:
    """Text for a C comment: it cannot end the comment or the line."""
    return re.sub(r"[^ -~]", "?", text).replace("*/", "* /")


def _string(text: str) -> str:
    """A string literal in C.

    Quotation marks, backslashes, question marks and all bytes that are not printable ASCII become escapes of three octal
    digits. A character that follows an escape of this length cannot be taken for a part of it.
    """
    plain = {*range(32, 127)} - {*b'"\\?'}
    return '"' + "".join(chr(byte) if byte in plain else f"\\{byte:03o}" for byte in text.encode()) + '"'


def _signed(value: int) -> str:
    """A constant of the type ``int64_t`` in C."""
    return f"INT64_C({value})"


#: From the name of a format to its function, which takes a table and the prefix of C identifiers, and returns the file.
FORMATS: dict[str, Callable[[OffsetTable, str], bytes]] = {"c-header": _c_header, "json": _json, "csv": _csv}
