"""Opens pages in a headless Chromium, without network, and says what it found there."""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tests.patience import HANG

_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")

CHROMIUM = next((found for name in _NAMES if (found := shutil.which(name))), "")

needs_browser = pytest.mark.skipif(not CHROMIUM, reason="no chromium or chrome at hand")

#: Runs before everything else of the page: errors, what is asked for, what the page's own policy forbids.
_WATCH = """<script>
window.__found = {errors: [], refused: []};
addEventListener("error", (event) => __found.errors.push(String(event.message || event.target.tagName)), true);
addEventListener("unhandledrejection", (event) => __found.errors.push(String(event.reason)));
addEventListener("securitypolicyviolation", (event) => __found.refused.push(event.blockedURI || event.violatedDirective));
</script>"""

#: Runs when the page is there. A mark is a shape or letters of some size, or a dot: a stroke without length.
_LOOK = """<pre id="found"></pre><script>
%s
{
  const marks = (svg) => [...svg.querySelectorAll("path, rect, circle, line, polygon, polyline, text")].filter((each) => {
    const box = each.getBBox();
    return (box.width > 0 || box.height > 0 || getComputedStyle(each).strokeLinecap === "round")
      && !each.closest(".grid, .rule, .tile, .idle");
  }).length;
  __found.figures = [...document.querySelectorAll("svg")].map((svg) => {
    const box = svg.getBoundingClientRect();
    const frame = svg.parentElement.getBoundingClientRect();
    return {name: svg.getAttribute("aria-label") || "", width: box.width, height: box.height, marks: marks(svg)};
  });
  __found.pictures = [...document.querySelectorAll("img")].map((img) => ({width: img.naturalWidth, height: img.naturalHeight}));
  __found.asked = performance.getEntriesByType("resource").map((each) => each.name).filter((each) => !each.startsWith("data:"));
  __found.wide = document.documentElement.scrollWidth - innerWidth;
  __found.text = document.body.innerText;
  document.getElementById("found").textContent = JSON.stringify(__found);
}
</script>"""


class Figure(NamedTuple):
    """A drawing of the page."""

    name: str
    width: float
    height: float
    marks: int
    """Shapes in it that can be seen, without grid and frames."""


class Seen(NamedTuple):
    """What the browser has to say of a page."""

    errors: list[str]
    """Of scripts, and all else that went to the console."""
    asked: list[str]
    """What it asked for, or would have, had its policy allowed that."""
    figures: list[Figure]
    pictures: list[tuple[int, int]]
    """Width and height of raster pictures."""
    too_wide: float
    """Pixels by which it is wider than the window."""
    text: str

    def figure(self, beginning: str) -> list[Figure]:
        """The drawings whose names begin so."""
        return [each for each in self.figures if each.name.startswith(beginning)]


def look_at(page: str, folder: Path, *, width: int = 1000, script: str = "") -> Seen:
    """Open a page of this text in a window of so many pixels; ``script`` is run in it before it is looked at."""
    assert "<head>" in page
    assert "</body>" in page
    page = page.replace("<head>", "<head>" + _WATCH, 1)
    before, _, after = page.rpartition("</body>")
    path = folder / "page.html"
    path.write_text(before + _LOOK % script + "</body>" + after, encoding="utf-8")
    command = [
        CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage", "--no-first-run",
        "--disable-background-networking", "--disable-extensions", "--host-resolver-rules=MAP * ~NOTFOUND",
        "--enable-logging=stderr", "--v=0", f"--window-size={width},2000", f"--user-data-dir={folder / 'profile'}",
        "--virtual-time-budget=2000", "--dump-dom", path.as_uri(),
    ]  # fmt: skip
    environment = {**os.environ, "HOME": str(folder)}
    done = subprocess.run(command, capture_output=True, text=True, timeout=HANG, check=False, env=environment)
    answer = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert answer is not None, f"the browser gave no answer ({done.returncode}): {done.stderr[-2000:]}"
    found: dict[str, Any] = json.loads(html.unescape(answer[1]))
    said = re.findall(r":CONSOLE[(:][^\]]*\] (.*)", done.stderr)
    return Seen(
        errors=[*found["errors"], *said],
        asked=[*found["asked"], *found["refused"]],
        figures=[Figure(each["name"], each["width"], each["height"], each["marks"]) for each in found["figures"]],
        pictures=[(each["width"], each["height"]) for each in found["pictures"]],
        too_wide=found["wide"],
        text=found["text"],
    )
