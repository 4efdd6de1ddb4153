"""The table of the library: it is read as it was written, and errors name the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from stowplan.errors import InputError, UsageError
from stowplan.library import table
from stowplan.library.table import Library, read_table, text_of
from tests.library.cases import PROVEN, UNKNOWN, library


def test_a_table_is_read_as_it_was_written(tmp_path: Path) -> None:
    made = library(tmp_path / "one")
    assert [*made.rows.values()] == [PROVEN, UNKNOWN]
    assert Library.open(tmp_path / "one").rows == made.rows
    assert text_of(made.rows.values()) == (tmp_path / "one" / "table.csv").read_text()
    assert (PROVEN.is_proven, PROVEN.is_certified, UNKNOWN.is_proven, UNKNOWN.is_certified) == (True, True, False, False)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("id,kind", "name,kind", "line 1: found the columns name,kind,class"),
        ("two-open,packing", "two-open,bins", "line 3: found kind 'bins', expected one of memory_mapping, packing"),
        ("two-open", "Two", "line 3: found id 'Two', expected lower-case letters"),
        ("two-open", "two-proven", "line 3: found id two-proven again, expected every id once"),
        ("easy", "simple", "line 2: found class 'simple', expected one of easy, hard, open"),
        ("96,96,96", "96.5,96,96", "line 2: found objective '96.5', expected a whole number, or nothing"),
        ("96,96,96", "96,infinite,96", "line 2: found bound 'infinite'"),
        ("96,96,96", "infeasible,96,96", "line 2: found objective 'infeasible'"),
        ("2026-11-30", "yesterday", "line 2: found when 'yesterday', expected a date"),
        ("plans/two", "../two", "line 2: found plan '../two-proven.json', expected a file within the library"),
        (PROVEN.digest, PROVEN.digest[1:], "line 2: found digest '"),
        (",by hand,plans", ",plans", "line 2: found 12 values, expected 13"),
    ],
)
def test_errors_name_the_line(tmp_path: Path, old: str, new: str, said: str) -> None:
    library(tmp_path / "one")
    path = tmp_path / "one" / "table.csv"
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(InputError, match=r"table\.csv: line") as caught:
        read_table(path)
    assert said in str(caught.value)


def test_where_there_is_no_library_it_is_said_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(table.VARIABLE, raising=False)
    monkeypatch.setattr(table, "OWN_FOLDER", tmp_path / "none")
    with pytest.raises(UsageError, match="found no library of instances, expected --library FOLDER or STOWPLAN_LIBRARY with"):
        Library.open()
    with pytest.raises(UsageError, match=r"none: found no table\.csv, expected"):
        Library.open(tmp_path / "none")
    library(tmp_path / "one")
    monkeypatch.setenv(table.VARIABLE, str(tmp_path / "one"))
    assert len(Library.open().rows) == 2
    with pytest.raises(UsageError, match=r"found no instance 'two-opened', expected an id .*; perhaps two-open"):
        Library.open().row("two-opened")
