"""Tables in plain text. Everything that prints a table uses these functions."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], total: int | None = None, what: str = "more") -> list[str]:
    """Lines of a table. A column named ``"X:r"`` is aligned to the right, as in :func:`stowplan.report.page.table`.

    Parameters
    ----------
    head
        Names of the columns.
    rows
        The cells of each row.
    total
        Number of all rows, if ``rows`` are only the first of them; a last line then says how many are left out. None means that
        no row is left out.
    what
        Word for the rows that are left out, at the end of that line.
    """
    names, _, kinds = zip(*(name.partition(":") for name in head), strict=True)
    lines = [f"  {line}" for line in aligned((names, *rows), kinds)]
    rest = 0 if total is None else total - len(rows)
    return [*lines, f"  … and {rest:,} {what}"] if rest else lines


def aligned(rows: Sequence[Sequence[str]], kinds: Sequence[str]) -> list[str]:
    """Lines of rows with columns two spaces apart; columns of the kind ``r`` are aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if kind == "r" else cell.ljust(width)
            for cell, width, kind in zip(row, widths, kinds, strict=True)
        ).rstrip()
        for row in rows
    ]
