"""The documentation: every link and picture is there, and the site builds without a warning."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.paths import ROOT
from tests.patience import HANG

DOCS = ROOT / "docs"
SITE = sorted(DOCS.rglob("*.md"))
PAGES = [
    ROOT / "README.md",
    ROOT / "SECURITY.md",
    ROOT / "instances" / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    *SITE,
]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


def without_code(text: str) -> str:
    """Text of a page without code blocks and inline code, which may hold brackets."""
    text = re.sub(r"^```.*?^```$", "", text, flags=re.MULTILINE | re.DOTALL)
    return re.sub(r"`[^`\n]*`", "code", text)


def anchors(page: Path) -> set[str]:
    """Anchors of a page's headings, as GitHub and mkdocs make them."""
    text = re.sub(r"^```.*?^```$", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    titles = re.findall(r"^#+ +(.*)$", text, flags=re.MULTILINE)
    return {re.sub(r"[\s-]+", "-", re.sub(r"[^\w\s-]", "", title).strip().lower()) for title in titles}


def dead_links(page: Path) -> Iterator[str]:
    """Links of a page that lead nowhere; those to the web are left alone."""
    for link in LINK.findall(without_code(page.read_text(encoding="utf-8"))):
        if re.match(r"[a-z]+:", link):
            continue
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        if not target.exists() or not target.is_relative_to(ROOT) or (anchor and anchor not in anchors(target)):
            yield link


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_and_pictures_are_there(page: Path) -> None:
    assert not list(dead_links(page))


def test_the_check_sees_dead_links(tmp_path: Path) -> None:
    page = ROOT / "docs" / "no such page.md"
    text = "[a](glossary.md) [b](glossary.md#learning) [c](glossary.md#nothing) ![d](none.png) [e](../LICENSE) `[f](none)` [g](https://x.org)"
    copy = tmp_path / page.name
    copy.write_text(text)
    links = LINK.findall(without_code(copy.read_text()))
    assert links == [
        "glossary.md",
        "glossary.md#learning",
        "glossary.md#nothing",
        "none.png",
        "../LICENSE",
        "https://x.org",
    ]
    assert "learning" in anchors(ROOT / "docs" / "glossary.md")
    assert "nothing" not in anchors(ROOT / "docs" / "glossary.md")
    assert list(dead_links(copy)) == [
        "glossary.md",
        "glossary.md#learning",
        "glossary.md#nothing",
        "none.png",
        "../LICENSE",
    ]


def test_the_changelog_names_files_that_are_there() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    named = {*re.findall(r"(?<![\w./-])((?:docs|benchmarks|stowplan|examples|tests)/[\w/-]+\.\w+)", text)}
    assert len(named) > 20
    assert not [name for name in named if not (ROOT / name).exists()]


def test_the_site_has_every_page() -> None:
    listed = re.findall(r": (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), flags=re.MULTILINE)
    assert sorted(listed) == sorted(["index.md", *(page.relative_to(DOCS).as_posix() for page in SITE)])


@pytest.mark.parametrize("shelf", ["guide", "reference", "results"])
def test_the_first_page_of_a_shelf_names_every_page_of_it(shelf: str) -> None:
    text = (DOCS / shelf / "index.md").read_text(encoding="utf-8")
    pages = [page.relative_to(DOCS / shelf).as_posix() for page in SITE if page.is_relative_to(DOCS / shelf)]
    assert not [page for page in pages if page != "index.md" and f"({page}" not in text]


def test_every_picture_of_the_gallery_has_its_command() -> None:
    page = (ROOT / "docs" / "guide" / "gallery.md").read_text(encoding="utf-8")
    shown = re.findall(r"!\[[^\]]*\]\(\.\./(\S+)\)", page)
    made = re.findall(r"--png docs/(\S+)", page)
    assert shown == made
    pictures = sorted((ROOT / "docs" / "gallery").iterdir())
    assert sorted(shown) == [path.relative_to(ROOT / "docs").as_posix() for path in pictures]
    assert sum(path.stat().st_size for path in pictures) <= 1_000_000


@pytest.mark.skipif(importlib.util.find_spec("material") is None, reason="needs mkdocs-material: pip install '.[docs]'")
def test_the_site_builds_strictly(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--site-dir", str(tmp_path / "site")]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    start = (tmp_path / "site" / "index.html").read_text(encoding="utf-8")
    assert "memory-mapping.html" in start
    # Every picture is there.
    pages = [*(tmp_path / "site").rglob("*.html")]
    pictures = [
        (page, src) for page in pages for src in re.findall(r'<img[^>]*src="([^":]+)"', page.read_text(encoding="utf-8"))
    ]
    assert any(page.name == "index.html" and page.parent.name == "site" for page, _ in pictures)
    assert not [(page, src) for page, src in pictures if not (page.parent / src).is_file()]
    # Nothing is fetched by whoever reads it.
    for page in (tmp_path / "site").rglob("*.html"):
        assert not re.findall(
            r'<(?:script|link|img)[^>]*(?:src|href)="(?:https?:)?//[^"]*"', page.read_text(encoding="utf-8")
        ), page
