"""Plain tables, for people and for ``column``-minded scripts alike."""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.result import format_gap, format_quantity

#: What stands for a value there is none of.
NONE = "-"


def render(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    """Columns two spaces apart; the first ``left`` of them flush left, the others flush right."""
    widths = [max(len(row[column]) for row in (head, *rows)) for column in range(len(head))]
    return "\n".join(
        "  ".join(
            cell.ljust(width) if column < left else cell.rjust(width)
            for column, (cell, width) in enumerate(zip(row, widths, strict=True))
        ).rstrip()
        for row in (head, *rows)
    )


def as_quantity(value: int | None, unit: str) -> str:
    """An objective or bound."""
    return NONE if value is None else format_quantity(value, unit)


def as_gap(value: float | None) -> str:
    """A gap in per cent."""
    return NONE if value is None else format_gap(value)


def as_ratio(value: float | None) -> str:
    """A speedup."""
    return NONE if value is None else f"{value:.3f}"
