"""What a benchmark takes from the package, and from other benchmarks, is there."""

from __future__ import annotations

import subprocess
import sys

from tests.paths import ROOT
from tests.patience import HANG

#: Imports every module that is named, and prints those that cannot be; what they need besides may be missing.
IMPORT_ALL = """
import importlib, sys
for name in sys.argv[1:]:
    try:
        importlib.import_module(name)
    except ImportError as error:
        if (error.name or "").partition(".")[0] in ("stowplan", "benchmarks", "tests"):
            print(f"{name}: {error}")
"""


def test_every_benchmark_can_be_imported() -> None:
    paths = sorted((ROOT / "benchmarks").rglob("*.py"))
    names = [".".join(path.relative_to(ROOT).with_suffix("").parts) for path in paths]
    assert len(names) > 100
    done = subprocess.run(
        [sys.executable, "-c", IMPORT_ALL, *names], cwd=ROOT, capture_output=True, text=True, timeout=HANG, check=True
    )
    assert done.stdout == ""
