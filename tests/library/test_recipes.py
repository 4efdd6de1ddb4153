"""Recipes: files of others become instances if they are the ones that the recipe means."""

from __future__ import annotations

import hashlib
import sys
from pathlib import Path

import pytest

from benchmarks.instances import recipes
from stowplan.library.check import faults
from stowplan.library.table import Library
from tests.library.cases import library

CSV = "id,lower,upper,size\na,0,3,64\nb,2,5,32\n"


@pytest.fixture
def made(tmp_path: Path) -> Library:
    """A library with a recipe, and a copy of the files that it is about."""
    (tmp_path / "copy").mkdir()
    (tmp_path / "copy" / "two.csv").write_text(CSV)
    found = library(tmp_path / "library")
    (found.folder / "recipes.toml").write_text(
        '[others]\nsource = "https://example.org"\nlicence = "MIT"\nhow = "git clone"\n[[others.instances]]\n'
        f'id = "pack-others"\nfile = "two.csv"\nsha256 = "{hashlib.sha256(CSV.encode()).hexdigest()}"\n'
    )
    return found


def run(made: Library, *arguments: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["recipes", *arguments, "--library", str(made.folder)])
    recipes.main()


def test_a_recipe_makes_its_instances(made: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    copy = str(tmp_path / "copy")
    with pytest.raises(SystemExit, match=r"found no row for pack-others in .*table.csv, expected one: --add makes it"):
        run(made, "others", copy, monkeypatch=monkeypatch)
    run(made, "others", copy, "--add", monkeypatch=monkeypatch)
    opened = Library.open(made.folder)
    row = opened.row("pack-others")
    assert (row.source, row.kind, row.is_recipe, [*faults(opened, row)]) == ("recipe others", "packing", True, [])
    assert [buffer.id for buffer in opened.problem(row).buffers] == ["a", "b"]
    # Again, without its file: the same.
    before = made.folder / "packing" / "pack-others.json.gz"
    data = before.read_bytes()
    before.unlink()
    run(made, "others", copy, monkeypatch=monkeypatch)
    assert before.read_bytes() == data


def test_other_files_are_refused(made: Library, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "copy" / "two.csv"
    path.write_text(CSV.replace("32", "33"))
    with pytest.raises(SystemExit, match=r"two.csv: found SHA-256 .*, expected .* of https://example.org"):
        run(made, "others", str(path.parent), "--add", monkeypatch=monkeypatch)
    path.unlink()
    with pytest.raises(SystemExit, match=r"two.csv: cannot read: No such file"):
        run(made, "others", str(path.parent), monkeypatch=monkeypatch)
    with pytest.raises(SystemExit, match="found 'nothing', expected one of others and the folder of its copy"):
        run(made, "nothing", monkeypatch=monkeypatch)
    (made.folder / "recipes.toml").write_text("[others]\nsource = 1\n")
    with pytest.raises(SystemExit, match=r"recipes.toml: "):
        run(made, monkeypatch=monkeypatch)
