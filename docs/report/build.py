"""Builds the report as PDF: ``python docs/report/build.py OUT.pdf``, or ``make report``.

The text is ``report.md``. A line ``<!-- table: PAGE # HEADING # NUMBER -->`` stands for a table of a page of results: the first
one below the heading, or the one of this number. Tables are taken from these pages, so that report and pages cannot differ.
"""

from __future__ import annotations

import re
import sys
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPORT = HERE / "report.md"
SITE = "https://stowplan.github.io/stowplan/"

DIRECTIVE = re.compile(r"^<!-- table: (\S+) # (.+?)(?: # (\d+))? -->$", re.MULTILINE)
_TABLE = re.compile(r"(?:^\|.*\n?)+", re.MULTILINE)

STYLE = """
@page { size: A4; margin: 19mm 19mm 18mm; @bottom-center { content: counter(page); font: 8pt sans-serif } }
body { font: 9.4pt/1.38 "DejaVu Serif", serif; hyphens: auto }
h1 { font: bold 17pt/1.2 "DejaVu Sans", sans-serif; margin: 0 0 2mm }
h2 { font: bold 12.5pt "DejaVu Sans", sans-serif; margin: 6mm 0 1.5mm; break-after: avoid }
h3 { font: bold 10pt "DejaVu Sans", sans-serif; margin: 4mm 0 1mm; break-after: avoid }
p { margin: 0 0 2mm; text-align: justify; orphans: 3; widows: 3 }
li { margin-bottom: .8mm }
a { color: #1a4f8b; text-decoration: none }
code { font: 8pt "DejaVu Sans Mono", monospace }
pre { background: #f3f3f3; padding: 1.5mm 2mm; margin: 1mm 0 2mm; white-space: pre-wrap; break-after: avoid }
table { border-collapse: collapse; margin: 2mm auto 3mm; font-size: 8pt; break-inside: avoid }
th { border-bottom: .3mm solid #333; text-align: left; font-weight: bold }
td, th { padding: .5mm 2mm; vertical-align: top }
tr:nth-child(even) td { background: #f6f6f6 }
"""


def table_of(page: Path, heading: str, number: int = 1) -> str:
    """A table of a page in Markdown.

    Raises
    ------
    LookupError
        The page has no such heading, or not so many tables below it.
    """
    _, found, below = page.read_text(encoding="utf-8").partition(f"\n## {heading}\n")
    tables = _TABLE.findall(below.partition("\n## ")[0])
    if not found or len(tables) < number:
        raise LookupError(f"{page}: found {len(tables)} tables below '## {heading}', expected {number}")
    return tables[number - 1].rstrip("\n")


def whole(text: str, folder: Path = HERE) -> str:
    """The text of the report with its tables, and with links to the site."""

    def table(found: re.Match[str]) -> str:
        return table_of(folder / found[1], found[2], int(found[3] or 1))

    def link(found: re.Match[str]) -> str:
        return f"]({SITE}{found[1].replace('.md', '.html')})"

    return re.sub(r"\]\(\.\./([^)]+)\)", link, DIRECTIVE.sub(table, text))


def html() -> str:
    """The report as a page of HTML."""
    import markdown

    text = whole(REPORT.read_text(encoding="utf-8"))
    body = markdown.markdown(text, extensions=["tables", "sane_lists"])
    head = f"<meta charset='utf-8'><title>stowplan</title><style>{STYLE}</style>"
    return f"<!doctype html><html lang='en'><head>{head}</head><body>{body}</body></html>"


def main() -> None:
    """Writes the PDF."""
    if len(sys.argv) != 2:
        sys.exit("usage: python docs/report/build.py OUT.pdf")
    try:
        from weasyprint import HTML
    except ImportError:
        sys.exit("docs/report/build.py: needs weasyprint and markdown: pip install '.[release]' in a clone of stowplan")
    HTML(string=html()).write_pdf(sys.argv[1])


if __name__ == "__main__":
    main()
