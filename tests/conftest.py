"""Fixtures shared by all tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

_BESIDE = Path(__file__).resolve().parents[2] / "shared"


@pytest.fixture(scope="session")
def shared() -> Path:
    """Folder of third-party material; set STOWPLAN_SHARED where it is not beside the repository."""
    folder = Path(os.environ.get("STOWPLAN_SHARED", _BESIDE))
    if not folder.is_dir():
        pytest.skip("needs the shared corpus: put it beside the repository as ../shared, or name it in STOWPLAN_SHARED")
    return folder


@pytest.fixture(scope="session")
def corpus(shared: Path) -> Path:
    """Folder of compiled programs."""
    return shared / "corpus"
