"""A log of what came of the loops, as a table in which each loop is one row."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any

from benchmarks.lib.tables import table
from benchmarks.torch_memory.loops import scripts

#: Columns: part of eager's largest step, and whether there is host memory.
PLACES = [(part, has_host) for part in (0.85, 0.95) for has_host in (False, True)]


def cell(line: dict[str, Any] | None) -> str:
    """A run within a limit: its largest step in parts of the limit, what its last plans add, and how it ended otherwise."""
    if line is None:
        return "-"
    share = f"{line['largest'] / line['limit']:.2f}" if line["largest"] else ""
    added = line.get("added", "")
    sent = f", {max(line['host_peaks']):,} B sent" if line["host"] and max(line["host_peaks"], default=0) else ""
    values = "" if line["values"] == "eager" else f", as {line['values']}"
    if line["outcome"] == "runs":
        return f"{share}{f' +{added}' if added else ''}{sent}{values}"
    if line["outcome"] == "torch's":
        return "torch's error"
    if line["outcome"] == "refused":
        return f"refused; {line['follow'].rpartition(': ')[2].partition(' does not')[0]}"
    return str(line["outcome"])


def log(lines: dict[Any, dict[str, Any]], names: Iterable[str]) -> str:
    """The table, in Markdown."""
    rows = []
    for name in names:
        text = importlib.import_module(f"{scripts.__name__}.{name}").__doc__ or ""
        what, _, source = text.partition("\n\nAfter ")
        address, _, why = " ".join(source.split()).removesuffix(".").partition(" (")
        cells = [lines.get((name, *place)) for place in PLACES]
        eager = next((f"{line['eager']:,}" for line in cells if line), "-")
        stands = f"{what.strip()} [{why.removesuffix(')')}]({address})"
        rows.append((f"`{name}`", stands, eager, *(cell(line) for line in cells)))
    places = [f"{part}{', host' if has_host else ''}" for part, has_host in PLACES]
    return str(table(rows, ["loop", "what it stands for", "eager", *places]))
