"""Parts of the HTML report that all kinds of problems use: sections, tables, lists of facts, and data for the page's script.
Only :func:`table` raises errors."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape
from importlib import resources

from stowplan.report.colours import theme_css

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:"


@dataclass(frozen=True)
class Section:
    """A section of the page with its own heading."""

    heading: str
    """The heading as plain text."""
    body: str
    """The content as HTML."""
    follows_search: bool = False
    """Whether it is placed after the sections about the search (convergence, candidates) and not before them."""

    def html(self) -> str:
        """The section as HTML."""
        return f"<section><h2>{escape(self.heading)}</h2>\n{self.body}</section>"


@dataclass
class Details:
    """The descriptions that the page's script shows when the pointer is on a box, that is, on the rectangle of one tensor in
    the plot of a plan."""

    tensors: dict[int, tuple[str, str]] = field(default_factory=dict)
    """Name and size of each tensor, by its number."""
    plans: list[list[tuple[float, float, str, str]]] = field(default_factory=list)
    """For each plan, its boxes; each is (begin, end, offset as text, note)."""
    time: str = "steps"
    """Unit of ``begin`` and ``end``."""

    def to_json(self) -> str:
        """JSON that is safe inside a ``<script>`` element."""
        text = json.dumps({"tensors": self.tensors, "plans": self.plans, "time": self.time}, separators=(",", ":"))
        return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@dataclass(frozen=True)
class Overview:
    """The key numbers at the top of the page that depend on the kind of problem."""

    cards: Sequence[tuple[str, str, str]] = ()
    """Numbers in large type, as (name, value, note), all plain text."""
    facts: Sequence[tuple[str, str]] = ()
    """Numbers in small type, as (name, value), both plain text."""


def whole_page(title: str, parts: Iterable[str], details: Details) -> str:
    """A complete page: a heading, and the given parts (HTML) without the empty ones. It loads no external resources."""
    return (
        f'<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{_POLICY}">\n'
        f'<meta name="viewport" content="width=device-width, initial-scale=1">\n<title>{escape(title)} – stowplan</title>\n'
        f"<style>\n{theme_css()}{_asset('page.css')}</style>\n</head>\n<body>\n<main>\n<h1>{escape(title)}</h1>\n"
        + "\n".join(part for part in parts if part)
        + '\n</main>\n<div id="tip" role="tooltip"></div>\n'
        f'<script id="data" type="application/json">{details.to_json()}</script>\n'
        f"<script>\n{_asset('page.js')}</script>\n</body>\n</html>\n"
    )


def _asset(name: str) -> str:
    """The text of a file in this folder."""
    return resources.files("stowplan.report").joinpath(name).read_text(encoding="utf-8")


def cards_list(cards: Iterable[tuple[str, str, str]]) -> str:
    """Numbers in large type as HTML. Each is (name, value, note). Name and value are plain text; the note is HTML, so the
    caller escapes it if it is plain text."""
    items = "".join(
        f'<div class="card"><dt>{escape(name)}</dt><dd class="num">{escape(value)}<small>{note}</small></dd></div>'
        for name, value, note in cards
    )
    return f'<dl class="cards">{items}</dl>\n'


def warnings_box(warnings: Sequence[str]) -> str:
    """A box with warnings; empty if there are none."""
    items = "".join(f"<li>{escape(warning)}</li>" for warning in warnings)
    box = f'<section class="warnings" aria-label="Warnings"><strong>Warnings</strong><ul>{items}</ul></section>'
    return box if warnings else ""


def facts_list(facts: Iterable[tuple[str, str]]) -> str:
    """Numbers in small type as HTML. Each is (name, value), both plain text."""
    rows = "".join(f'<div><dt>{escape(name)}</dt><dd class="num">{escape(value)}</dd></div>' for name, value in facts)
    return f'<dl class="facts">{rows}</dl>'


def table(
    caption: str,
    head: Sequence[str],
    rows: Sequence[Sequence[str]],
    best: Sequence[int] = (),
    marks: Sequence[tuple[int, str]] = (),
) -> str:
    """A table as HTML. The first cell of each row is its header.

    Parameters
    ----------
    caption
        Caption of the table.
    head
        Titles of the columns. A suffix says how a column is shown, and is not part of the title: ``"Size:r"`` is aligned to the
        right, ``"Tensor:n"`` contains names, and ``"Remark:o"`` contains notes.
    rows
        Cells of the rows as plain text, one for each column.
    best
        Indices of rows to highlight.
    marks
        For each row, the tensor or buffer that it is about: the number that this has in the plots, and its colour there. Empty
        if the rows are about something else.

    Raises
    ------
    ValueError
        If a row has more or fewer cells than the table has columns.
    IndexError
        If ``marks`` is shorter than ``rows``, but not empty; or if a row has no cells.
    """
    columns = [
        (
            name.partition(":")[0],
            {"r": ' class="r"', "n": ' class="name"', "o": ' class="note"'}.get(name.partition(":")[2], ""),
        )
        for name in head
    ]
    lines = "".join(f'<th scope="col"{kind.replace("name", "")}>{escape(name)}</th>' for name, kind in columns)
    body = []
    for index, row in enumerate(rows):
        attributes = ' class="best"' if index in best else ""
        swatch = ""
        if marks:
            attributes += f' data-t="{marks[index][0]}"'
            swatch = f'<span class="swatch" style="background:{marks[index][1]}"></span>'
        cells = [f'<th scope="row"{columns[0][1]}>{swatch}{escape(row[0])}</th>']
        cells += [f"<td{kind}>{escape(cell)}</td>" for cell, (_, kind) in zip(row[1:], columns[1:], strict=True)]
        body.append(f"<tr{attributes}>{''.join(cells)}</tr>")
    return (
        f'<div class="scroll" tabindex="0" role="group" aria-label="{escape(caption)}"><table>'
        f"<caption>{escape(caption)}</caption><thead><tr>{lines}</tr></thead><tbody>{''.join(body)}</tbody></table></div>"
    )


def code_box(text: str) -> str:
    """A box of text, with a button that copies it."""
    return f'<div class="code"><button type="button" class="copy">Copy</button><pre tabindex="0">{escape(text)}</pre></div>\n'


def zoom_buttons() -> str:
    """Buttons that stretch the time axis of all plots in their section; the plots must be in an element of class ``plans``."""
    zooms = "".join(
        f'<button type="button" data-zoom="{zoom}" aria-pressed="{str(zoom == 1).lower()}">{zoom}×</button>'
        for zoom in (1, 2, 4, 8)
    )
    return f'<div class="tools"><span id="zoom">Zoom</span><span role="group" aria-labelledby="zoom">{zooms}</span></div>\n'
