"""Writes a model as an MPS or LP file, for solvers that stowplan does not call itself (``stowplan export``).

The constant of the objective is written as the cost of a column named ``constant`` that is fixed at 1. Solvers interpret
constants differently, but all of them read such a column in the same way. Columns that occur in no row and cost nothing are
left out, since their values do not matter. Numbers are written with all their digits, so that reading the file gives the same
model.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from stowplan import files
from stowplan.errors import UsageError
from stowplan.models.mip.matrix import MatrixModel

#: Name of the column for the constant of the objective.
CONSTANT = "constant"

#: Name of the row of the objective.
_OBJECTIVE = "objective"

#: Largest number of characters in a line of an LP file, unless a single word is longer.
_WIDTH = 120


def format_of(path: str | Path) -> str:
    """The format of a file, ``mps`` or ``lp``, by its name, which may also end in ``.gz``.

    Raises UsageError for other names.
    """
    name = str(path).lower().removesuffix(".gz")
    for ending in ("mps", "lp"):
        if name.endswith(f".{ending}"):
            return ending
    raise UsageError(f"{path}: found an unknown kind of file, expected a name that ends in .mps or .lp, and .gz to pack it")


def save(model: MatrixModel, path: str | Path, remarks: Sequence[str] = ()) -> None:
    """Write a model to a file in the format of its name, compressed by gzip if the name ends in ``.gz``.

    Equal models give equal files. ``remarks`` are written as comments at the top, one on each line; a remark must be a single
    line. Characters other than ASCII are replaced by ``?``.

    Raises
    ------
    UsageError
        The name does not end in ``.mps`` or ``.lp``, with or without ``.gz``.
    InputError
        The file cannot be written; an existing file stays unchanged.
    """
    is_mps = format_of(path) == "mps"
    head = "".join(f"{'*' if is_mps else chr(92)} {remark}\n" for remark in remarks)
    data = (head + (mps(model) if is_mps else lp(model))).encode("ascii", errors="replace")
    files.write_atomic(path, gzip.compress(data, mtime=0) if str(path).lower().endswith(".gz") else data)


def mps(model: MatrixModel) -> str:
    """The model as text in free MPS format."""
    return "\n".join(_mps_lines(_without_idle(model))) + "\n"


def _without_idle(model: MatrixModel) -> MatrixModel:
    """The model without rows that have no limits, and without columns that cost nothing and occur in no row.

    Solvers handle such rows and columns differently. CBC, for example, drops such columns and then fails at their bounds.
    """
    limited_rows = np.flatnonzero(np.isfinite(model.row_lower) | np.isfinite(model.row_upper))
    matrix = model.matrix[limited_rows]
    matrix.eliminate_zeros()
    used_columns = np.flatnonzero((model.cost != 0) | (np.bincount(matrix.indices, minlength=model.columns) > 0))
    return replace(
        model,
        cost=model.cost[used_columns],
        lower=model.lower[used_columns],
        upper=model.upper[used_columns],
        is_integer=model.is_integer[used_columns],
        column_names=[model.column_name(column) for column in used_columns.tolist()],
        matrix=matrix[:, used_columns].tocsr(),
        row_lower=model.row_lower[limited_rows],
        row_upper=model.row_upper[limited_rows],
        row_names=[model.row_name(row) for row in limited_rows.tolist()],
    )


def _mps_lines(model: MatrixModel) -> Iterator[str]:
    """Lines of an MPS file."""
    low, high = model.row_lower, model.row_upper
    kinds = [_row_kind(one, two) for one, two in zip(low.tolist(), high.tolist(), strict=True)]
    names = [model.row_name(row) for row in range(model.rows)]
    # The word FREE keeps CBC from reading lines with short names as fixed-column MPS.
    yield f"NAME {plain(model.name)} FREE"
    yield "ROWS"
    yield f" N {_OBJECTIVE}"
    for kind, name in zip(kinds, names, strict=True):
        yield f" {kind} {name}"
    yield "COLUMNS"
    by_column = model.matrix.tocsc()
    starts, rows, data = by_column.indptr.tolist(), by_column.indices.tolist(), by_column.data.tolist()
    in_integers = False
    for column in range(model.columns):
        if bool(model.is_integer[column]) != in_integers:
            in_integers = not in_integers
            yield _marker(in_integers)
        name = model.column_name(column)
        cost = float(model.cost[column])
        if cost:
            yield f" {name} {_OBJECTIVE} {cost!r}"
        for place in range(starts[column], starts[column + 1]):
            yield f" {name} {names[rows[place]]} {data[place]!r}"
    if in_integers:
        yield _marker(False)
    if model.offset:
        yield f" {CONSTANT} {_OBJECTIVE} {float(model.offset)!r}"
    yield "RHS"
    for row, kind in enumerate(kinds):
        side = float(high[row] if kind == "L" else low[row])
        if side:
            yield f" RHS {names[row]} {side!r}"
    if any(kind == "G" and np.isfinite(high[row]) for row, kind in enumerate(kinds)):
        yield "RANGES"
        for row, kind in enumerate(kinds):
            if kind == "G" and np.isfinite(high[row]):
                yield f" RANGE {names[row]} {float(high[row] - low[row])!r}"
    yield "BOUNDS"
    for column in range(model.columns):
        yield from _mps_bounds(model.column_name(column), float(model.lower[column]), float(model.upper[column]))
    if model.offset:
        yield f" FX BOUND {CONSTANT} 1"
    yield "ENDATA"


def _marker(begins: bool) -> str:
    """The line of an MPS file before the first, or after the last, of several integer columns."""
    return f" MARKER 'MARKER' '{'INTORG' if begins else 'INTEND'}'"


def _row_kind(low: float, high: float) -> str:
    """The type of a row in MPS format; ``G`` for a row with two different finite limits."""
    if low == high:
        return "E"
    return "G" if np.isfinite(low) else "L"


def _mps_bounds(name: str, low: float, high: float) -> Iterator[str]:
    """The lines of a column's bounds. All bounds are written, since readers have different defaults, mostly for integers."""
    if low == high:
        yield f" FX BOUND {name} {low!r}"
        return
    if not np.isfinite(low) and not np.isfinite(high):
        yield f" FR BOUND {name}"
        return
    yield f" LO BOUND {name} {low!r}" if np.isfinite(low) else f" MI BOUND {name}"
    yield f" UP BOUND {name} {high!r}" if np.isfinite(high) else f" PL BOUND {name}"


def lp(model: MatrixModel) -> str:
    """The model as text in CPLEX's LP format. A row with two different limits becomes two rows."""
    return "\n".join(_lp_lines(_without_idle(model))) + "\n"


def _lp_lines(model: MatrixModel) -> Iterator[str]:
    """Lines of an LP file."""
    names = [model.column_name(column) for column in range(model.columns)]
    yield f"\\ {plain(model.name)}"
    yield "Minimize"
    nonzero = np.flatnonzero(model.cost).tolist()
    terms = [_term(float(model.cost[column]), names[column]) for column in nonzero]
    uses_constant = bool(model.offset) or not terms
    if uses_constant:
        terms.append(_term(float(model.offset), CONSTANT))
    yield from _wrapped(f" {_OBJECTIVE}:", terms)
    yield "Subject To"
    for name, entries, sense, side in model.one_sided():
        terms = [_term(value, names[column]) for column, value in entries]
        if not terms:
            # An empty row is infeasible if 0 does not satisfy it, so it is written with the constant column.
            uses_constant = True
            terms = [f"+ 0.0 {CONSTANT}"]
        yield from _wrapped(f" {name}:", [*terms, f"{sense} {side!r}"])
    yield "Bounds"
    for name, low, high in zip(names, model.lower.tolist(), model.upper.tolist(), strict=True):
        if low == high:
            yield f" {name} = {low!r}"
        elif not np.isfinite(low) and not np.isfinite(high):
            yield f" {name} free"
        else:
            above = f" <= {high!r}" if np.isfinite(high) else ""
            yield f" {low!r} <= {name}{above}" if np.isfinite(low) else f" -inf <= {name}{above}"
    if uses_constant:
        yield f" {CONSTANT} = 1"
    integers = np.flatnonzero(model.is_integer).tolist()
    if integers:
        yield "Generals"
        yield from _wrapped("", [names[column] for column in integers])
    yield "End"


def _term(value: float, name: str) -> str:
    """A term of an LP file, with its sign."""
    return f"{'-' if value < 0 else '+'} {abs(value)!r} {name}"


def _wrapped(head: str, words: list[str]) -> Iterator[str]:
    """The words in lines of limited width, of which the first begins with ``head``."""
    line = head
    for word in words:
        if len(line) + 1 + len(word) > _WIDTH and line.strip():
            yield line
            line = " "
        line += f" {word}"
    yield line


def plain(name: str) -> str:
    """A name in which ``_`` replaces all but ASCII letters and digits, since solvers reject some characters; ``model`` if the
    name is empty."""
    return "".join(letter if letter.isascii() and letter.isalnum() else "_" for letter in name) or "model"
