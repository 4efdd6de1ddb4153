"""Where things are: the checkout, its examples, and the corpus beside it."""

from __future__ import annotations

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXAMPLES = ROOT / "examples" / "data"

#: Programs and graphs that are no part of the project; ``STOWPLAN_SHARED`` names another folder.
SHARED = Path(os.environ.get("STOWPLAN_SHARED", ROOT.parent / "shared"))
