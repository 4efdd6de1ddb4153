"""Folders that tests read."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
EXAMPLES = ROOT / "examples" / "data"

#: Small files written for the tests.
DATA = ROOT / "tests" / "data"

TARGETS = ROOT / "stowplan" / "hardware" / "targets"
