"""Runs the commands of guide/gallery.md, from the root of the repository: ``make gallery``."""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
#: Bytes that the pictures may have, together.
MOST_BYTES = 1_000_000


def commands(page: str) -> list[list[str]]:
    """Words of every command in the shell blocks of a page."""
    blocks = re.findall(r"^```sh\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    return [shlex.split(line) for block in blocks for line in block.splitlines()]


def main() -> int:
    """Make all pictures; returns the exit code."""
    page = ROOT / "docs" / "guide" / "gallery.md"
    for folder in (ROOT / "out" / "gallery", ROOT / "docs" / "gallery"):
        folder.mkdir(parents=True, exist_ok=True)
    for words in commands(page.read_text(encoding="utf-8")):
        print(shlex.join(words), file=sys.stderr, flush=True)
        done = subprocess.run(
            [sys.executable, "-c", "from stowplan.cli import main; main()", *words[1:]],
            cwd=ROOT,
            stdout=subprocess.DEVNULL,
            check=False,
        )
        if done.returncode:
            return done.returncode
    size = sum(path.stat().st_size for path in (ROOT / "docs" / "gallery").iterdir())
    print(f"{size:,} bytes of pictures, at most {MOST_BYTES:,}", file=sys.stderr)
    return int(size > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
