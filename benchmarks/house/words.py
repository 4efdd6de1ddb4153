"""Words of the documentation by page, as ``wc -w`` counts them, and those that hold a letter or a digit.

python -m benchmarks.house.words
"""

from __future__ import annotations

import re
from pathlib import Path

from benchmarks.lib.tables import table

DOCS = Path(__file__).resolve().parents[2] / "docs"


def count(text: str) -> tuple[int, int]:
    """What stands between blanks; less bars of tables, dashes and signs."""
    found = text.split()
    return len(found), sum(re.search(r"\w", each) is not None for each in found)


def by_page(folder: Path = DOCS) -> dict[str, tuple[int, int]]:
    """The pages, the longest first."""
    pages = {page.relative_to(folder).as_posix(): count(page.read_text(encoding="utf-8")) for page in folder.rglob("*.md")}
    return dict(sorted(pages.items(), key=lambda item: -item[1][0]))


def main() -> None:
    """Print the table."""
    pages = by_page()
    total = [sum(words) for words in zip(*pages.values(), strict=True)]
    rows = [*((page, *words) for page, words in pages.items()), ("**total**", *total)]
    print(table(rows, ["page", "words", "without signs"]))


if __name__ == "__main__":
    main()
