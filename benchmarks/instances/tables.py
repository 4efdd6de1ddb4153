"""Tables of the library in Markdown: how many instances there are of each kind and class, and all that are open.

python -m benchmarks.instances.tables [--write docs/results/open-problems.md]
"""

from __future__ import annotations

import argparse
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

from benchmarks.instances.make import FOLDER
from benchmarks.lib.tables import table, write_into
from stowplan import kinds
from stowplan.library.table import Library, Row
from stowplan.result_text import format_gap


def counts(rows: Iterable[Row]) -> str:
    """A row for each kind."""
    found = [*rows]
    cells = []
    for name in [*kinds.import_paths(), ""]:
        own = [row for row in found if row.kind == name or not name]
        classes = Counter(row.class_ for row in own)
        proven = sum(row.is_proven for row in own)
        certified = sum(row.is_certified for row in own)
        label = kinds.by_name(name).title if name else "**all**"
        cells.append((label, len(own), *(classes[each] for each in ("easy", "hard", "open")), proven, certified))
    return table(cells, ("kind", "instances", "easy", "hard", "open", "proven", "with a certificate"))


def open_instances(rows: Iterable[Row]) -> str:
    """A row for each open instance, in the order of the table."""
    cells = []
    for row in rows:
        if row.class_ != "open":
            continue
        unit = kinds.by_name(row.kind).unit
        has_gap = bool(row.objective) and isinstance(row.bound, int) and unit.has_ratios
        gap = format_gap(1 - row.bound / row.objective) if has_gap else "-"  # type: ignore[operator]
        values = ("none" if value is None else unit.write(int(value)) for value in (row.objective, row.bound))
        cells.append((f"`{row.id}`", *values, gap))
    return table(cells, ("instance", "best plan", "best bound", "gap"))


def texts(library: Library) -> dict[str, str]:
    """The tables by name."""
    rows = library.rows.values()
    return {"counts": counts(rows), "open instances": open_instances(rows)}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, default=FOLDER)
    parser.add_argument("--write", metavar="PAGE", type=Path, help="put the tables into this page")
    options = parser.parse_args()
    found = texts(Library.open(options.library))
    if options.write is not None:
        write_into(options.write, found)
        return
    print("\n\n".join(found.values()))


if __name__ == "__main__":
    main()
