"""Tables in text: rows of cells whose columns stand below each other. Everything that prints one does so here."""

from __future__ import annotations

from collections.abc import Sequence


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], total: int | None = None, what: str = "more") -> list[str]:
    """Lines of a table; a column named ``"X:r"`` is set right, as in :func:`stowplan.report.page.table`.

    Where there are ``total`` rows of which only some are given, a last line counts the rest.
    """
    names, _, kinds = zip(*(name.partition(":") for name in head), strict=True)
    lines = [f"  {line}" for line in aligned((names, *rows), kinds)]
    rest = 0 if total is None else total - len(rows)
    return [*lines, f"  … and {rest:,} {what}"] if rest else lines


def aligned(rows: Sequence[Sequence[str]], kinds: Sequence[str]) -> list[str]:
    """Lines of rows whose columns stand two spaces apart, those of the kind ``r`` set right."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return [
        "  ".join(
            cell.rjust(width) if kind == "r" else cell.ljust(width)
            for cell, width, kind in zip(row, widths, kinds, strict=True)
        ).rstrip()
        for row in rows
    ]
