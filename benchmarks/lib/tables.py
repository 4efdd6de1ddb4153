"""Tables of the benchmarks, in Markdown."""

from __future__ import annotations

import re
import statistics
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from stowplan import files
from stowplan.errors import InputError


def table(rows: Iterable[Sequence[object]], head: Sequence[str]) -> str:
    """A Markdown table."""
    first, *others = ("| " + " | ".join(str(cell) for cell in line) + " |" for line in (head, *rows))
    return "\n".join([first, "|" + "---|" * len(head), *others])


def mean_and_deviation(values: Sequence[float], digits: int = 3) -> str:
    """Mean and sample standard deviation; the mean alone of a single value, nothing of none."""
    if not values:
        return ""
    mean = f"{statistics.fmean(values):.{digits}f}"
    return mean if len(values) < 2 else f"{mean} ± {statistics.stdev(values):.{digits}f}"


def write_into(page: Path, texts: Mapping[str, str]) -> None:
    """Put texts between the markers ``<!-- NAME -->`` and ``<!-- end of NAME -->`` of a page.

    Raises
    ------
    InputError
        The page lacks the markers of a text; nothing is written then.
    """
    content = page.read_text(encoding="utf-8")
    for name, text in texts.items():
        between = re.compile(rf"(<!-- {re.escape(name)} -->\n).*?(<!-- end of {re.escape(name)} -->)", re.DOTALL)
        if len(between.findall(content)) != 1:
            raise InputError(f"expected '<!-- {name} -->' and '<!-- end of {name} -->' once, each on a line", source=page)

        def put(found: re.Match[str], text: str = text) -> str:
            return f"{found[1]}\n{text}\n\n{found[2]}"

        content = between.sub(put, content)
    files.write_atomic(page, content.encode())
