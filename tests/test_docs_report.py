"""The report: its tables and figures are those of the pages of results, and its PDF has about eight pages."""

from __future__ import annotations

import importlib.util
import re
from types import ModuleType

import pytest

from tests.paths import ROOT

FOLDER = ROOT / "docs" / "report"

#: A figure: digits with a decimal point or with commas, or three digits and more.
FIGURE = re.compile(r"(?<![\w.,:/-])\d+(?:[.,]\d+)+(?![\w-])|(?<![\w.,:/-])\d{2,}(?![\w.,:-]*\d)(?!\w)")

#: Figures that are no results: years and versions, and sizes that the text itself explains.
OTHERS = {"2026", "0.2.0", "2021", "2305.07440", "2205.13675", "2002.12798", "10", "40"}


@pytest.fixture(scope="module")
def build() -> ModuleType:
    spec = importlib.util.spec_from_file_location("report_build", FOLDER / "build.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def text() -> str:
    return (FOLDER / "report.md").read_text(encoding="utf-8")


def unsupported(text: str) -> list[str]:
    """Figures of paragraphs, each with its paragraph, that no page has to which the paragraph links."""
    wrong = []
    for paragraph in re.split(r"\n\n+", text):
        if paragraph.startswith(("    ", "|", "<!--", "#")):
            continue
        pages = re.findall(r"\]\((\.\./[^)#]+\.md)", paragraph)
        below = " ".join((FOLDER / page).read_text(encoding="utf-8") for page in pages)
        words = re.sub(r"`[^`]*`|\]\([^)]*\)", " ", paragraph)
        figures = {found.rstrip(".,") for found in FIGURE.findall(words)} - OTHERS
        missing = [each for each in figures if not re.search(rf"(?<![\d.,]){re.escape(each)}(?![\d]|[.,]\d)", below)]
        wrong += [f"{figure}: {' '.join(paragraph.split())[:80]}" for figure in missing]
    return wrong


def test_every_figure_is_on_a_page_that_the_paragraph_links_to(text: str) -> None:
    assert unsupported(text) == []


def test_the_check_sees_figures_that_no_page_has() -> None:
    assert unsupported("It is 1.0379 times as fast ([mapping](../results/memory-mapping.md)).") == []
    assert unsupported("It is 1.0380 times as fast ([mapping](../results/memory-mapping.md)).")[0].startswith("1.0380: ")
    assert unsupported("It takes 1.5 s.") == ["1.5: It takes 1.5 s."]


def test_every_command_is_on_a_page(text: str) -> None:
    pages = "".join(path.read_text(encoding="utf-8") for path in (ROOT / "docs" / "results").glob("*.md"))
    pages = " ".join(pages.replace("\\\n", " ").split())
    commands = re.findall(r"^    (python .*)$", text, re.MULTILINE)
    assert len(commands) > 8
    assert [command for command in commands if command not in pages] == []


def test_hours_are_runs_times_seconds(text: str) -> None:
    rows = re.findall(r"^\| [\w ]+ \| (\d+) \| (\d+) \| ([\d.]+) \|$", text, re.MULTILINE)
    assert len(rows) > 4
    assert [hours for _, _, hours in rows] == [f"{int(runs) * int(seconds) / 3600:.2f}" for runs, seconds, _ in rows]


def test_tables_come_from_pages(build: ModuleType, text: str) -> None:
    named = build.DIRECTIVE.findall(text)
    assert len(named) > 6
    whole = build.whole(text)
    assert "<!-- table" not in whole
    page = (ROOT / "docs" / "results" / "packing.md").read_text(encoding="utf-8")
    assert next(line for line in page.splitlines() if line.startswith("| A | 154 |")) in whole
    assert "](../" not in whole
    with pytest.raises(LookupError, match="found 1 tables below '## The table', expected 2"):
        build.whole("<!-- table: ../results/attacks.md # The table # 2 -->")


@pytest.mark.skipif(importlib.util.find_spec("weasyprint") is None, reason="needs weasyprint: pip install '.[release]'")
def test_the_pdf_has_about_eight_pages(build: ModuleType) -> None:
    from weasyprint import HTML

    assert 7 <= len(HTML(string=build.html()).render().pages) <= 9
