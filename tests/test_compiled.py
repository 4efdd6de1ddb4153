"""The compile cache: one folder for each state of the sources, and no claim that it is complete before it is."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from stowplan import compiled


@pytest.fixture
def fresh(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """A cache of its own."""
    monkeypatch.setenv("STOWPLAN_CACHE", str(tmp_path / "cache"))
    compiled.cache_folder.cache_clear()
    yield tmp_path / "cache"
    compiled.cache_folder.cache_clear()


@pytest.mark.parametrize("room", compiled.SOURCES)
def test_every_compiled_source_is_part_of_the_digest(room: str) -> None:
    root = Path(compiled.__file__).parent / room
    decorated = {str(path.relative_to(root)) for path in root.rglob("*.py") if "\n@njit" in path.read_text()}
    assert decorated <= set(compiled.SOURCES[room])
    assert decorated or room != compiled.HEURISTICS


def test_rooms_keep_their_code_apart(fresh: Path) -> None:
    assert compiled.cache_folder("learned_guidance") != compiled.cache_folder("portfolio")


def test_warm_only_once_marked(fresh: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert compiled.cache_folder().parent == fresh
    assert not compiled.is_warm()
    monkeypatch.setenv(compiled.INTERPRET, "1")
    compiled.mark_warm()
    assert not compiled.is_warm()  # interpreted functions leave nothing behind
    monkeypatch.delenv(compiled.INTERPRET)
    compiled.mark_warm()
    assert compiled.is_warm()


def test_a_cache_that_cannot_be_written_is_replaced(fresh: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fresh.write_text("a file where the folder should be")
    monkeypatch.setattr(compiled.tempfile, "gettempdir", lambda: str(tmp_path))
    folder = compiled.cache_folder()
    assert folder.is_dir()
    assert fresh not in folder.parents


def test_interpreted_functions_stay_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    def double(number: int) -> int:
        return 2 * number

    monkeypatch.setenv(compiled.INTERPRET, "1")
    assert compiled.njit(double) is double


def test_asking_whether_it_is_warm_does_not_import_numba() -> None:
    code = "import sys; from stowplan.compiled import is_warm; is_warm(); assert 'numba' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True, env=os.environ)
