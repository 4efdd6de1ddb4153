"""What tests of the benchmarks share."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Any

import pytest

from tests.paths import ROOT


class Modules:
    """Modules of the folder of benchmarks, by name."""

    def __getattr__(self, name: str) -> ModuleType:
        return importlib.import_module(name)


@pytest.fixture(scope="module")
def benchmarks() -> Iterator[Any]:
    """Modules of the benchmarks, which import each other as commands do."""
    sys.path.insert(0, str(ROOT / "benchmarks"))
    yield Modules()
    sys.path.remove(str(ROOT / "benchmarks"))
