"""Plans as text: names that do not steer the terminal, and tables. All kinds write theirs with it."""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.report.units import printable, shorten

#: Letters of a name in a table, and of the name of a plan.
_NAME, _PLAN = 32, 12


def name_of(name: str, most: int = _NAME) -> str:
    """A name from a file, in at most ``most`` letters."""
    return shorten(printable(name), most)


def plan_line(name: str, text: str) -> str:
    """What there is to say of another plan, in a line."""
    return f"  {name_of(name, _PLAN):<{_PLAN}}  {text}"


def text_table(head: Sequence[str], rows: Sequence[Sequence[str]], total: int | None = None, what: str = "more") -> list[str]:
    """Lines of a table; a column named ``"X:r"`` is set right, as in :func:`~stowplan.report.page.table`.

    Where there are ``total`` rows of which only some are given, a last line counts the rest.
    """
    columns = [name.partition(":") for name in head]
    cells = [[name for name, _, _ in columns], *rows]
    widths = [max(len(row[at]) for row in cells) for at in range(len(columns))]
    lines = []
    for row in cells:
        aligned = (
            cell.rjust(width) if kind == "r" else cell.ljust(width)
            for cell, width, (_, _, kind) in zip(row, widths, columns, strict=True)
        )
        lines.append("  " + "  ".join(aligned).rstrip())
    rest = 0 if total is None else total - len(rows)
    return [*lines, f"  … and {rest:,} {what}"] if rest else lines
