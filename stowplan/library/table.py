"""The table of the library: a row for each instance, with its best known objective and bound, and who found them and how.

The library is the folder ``instances`` of a clone; wheels do not have it. docs/reference/library.md explains its files and the
columns of the table. A *certificate* is a proof of a bound that can be checked without a solver. An instance that may not be
shipped is made by a *recipe* from files of others.
"""

from __future__ import annotations

import csv
import difflib
import io
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec

from stowplan import files, kinds
from stowplan.certificates.certificate import Certificate
from stowplan.checks import expect
from stowplan.document import PlanDocument
from stowplan.errors import InputError, UsageError

#: Environment variable with the folder of the library.
VARIABLE = "STOWPLAN_LIBRARY"

#: The folder of the library if this package is in a clone of the repository.
OWN_FOLDER = Path(__file__).resolve().parents[2] / "instances"

#: Name of the table in the folder.
TABLE = "table.csv"

#: The value of a bound if it is proven that no plan exists.
INFEASIBLE: Final = "infeasible"

#: How difficult it was to prove the optimum of an instance; docs/reference/library.md defines the classes.
Class = Literal["easy", "hard", "open"]

#: A bound in the unit of the kind, or INFEASIBLE; None if no bound is known.
Bound = int | Literal["infeasible"] | None

#: The form of an instance's id.
_ID = re.compile(r"[a-z0-9]+(?:[-.][a-z0-9]+)*")


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """An instance, and what is known about it. The fields are the columns of the table."""

    id: str
    """Name of the instance, which never changes."""
    kind: str
    """Name of the kind of problem, as in the file formats, such as ``packing``."""
    class_: Class
    """``open`` if the optimum is not proven, otherwise ``easy`` or ``hard``."""
    source: str
    """Function and arguments that made the instance, or ``recipe`` followed by the recipe that makes it."""
    digest: str
    """SHA-256 of the problem in the canonical form of certificates (:func:`stowplan.certificates.checker.reading.digest`)."""
    objective: int | None
    """Objective of the best known plan, in the unit of the kind; None if no plan is known."""
    bound: Bound
    """Best known bound, from a certificate or from a solver without one."""
    certified: Bound
    """Bound that the certificate proves; None if there is none."""
    who: str
    """Who found the plan or the bound, whichever changed last."""
    when: str
    """Day on which that plan or bound was found, as YYYY-MM-DD; empty if it is not known."""
    how: str
    """Command or method by which it was found."""
    plan: str
    """File of the plan within the library; empty if no plan is known."""
    certificate: str
    """File of the certificate within the library; empty if there is none."""

    @property
    def is_proven(self) -> bool:
        """Whether it is proven, with or without a certificate, that the plan is optimal or that no plan exists."""
        return self.bound == INFEASIBLE or (self.objective is not None and self.bound == self.objective)

    @property
    def is_certified(self) -> bool:
        """Whether a certificate proves that the plan is optimal, or that no plan exists."""
        return self.certified == INFEASIBLE or (self.objective is not None and self.certified == self.objective)

    @property
    def is_recipe(self) -> bool:
        """Whether the instance is not shipped: a recipe makes it from files of others."""
        return self.source.startswith("recipe ")


#: Columns of the table.
COLUMNS = tuple(name.rstrip("_") for name in Row.__struct_fields__)


@dataclass(frozen=True)
class Library:
    """The folder of a library, and the rows of its table by id."""

    folder: Path
    """The folder, which has the table and the files that it names."""
    rows: dict[str, Row]
    """From the id of an instance to its row, in the order of the table."""

    @classmethod
    def open(cls, folder: Path | None = None) -> Library:
        """Reads the table of a library.

        Parameters
        ----------
        folder
            The folder. If it is None, the environment variable ``STOWPLAN_LIBRARY`` names the folder; if that is not set or
            empty, it is the folder of the clone.

        Raises
        ------
        UsageError
            The folder does not exist or has no table.
        InputError
            The table is not valid; the message names the line and the column.
        """
        user_folder = folder or (Path(os.environ[VARIABLE]) if os.environ.get(VARIABLE) else None)
        library_folder = user_folder or OWN_FOLDER
        if not (library_folder / TABLE).is_file():
            finding = f"{library_folder}: found no {TABLE}, " if user_folder else "found no library of instances, "
            raise UsageError(
                f"{finding}expected --library FOLDER or {VARIABLE} with the folder 'instances' of a clone of stowplan"
            )
        return cls(library_folder, read_table(library_folder / TABLE))

    def row(self, name: str) -> Row:
        """Returns the row of an instance; raises UsageError if there is no instance with this id."""
        if name not in self.rows:
            close = difflib.get_close_matches(name, self.rows, 1, 0.5)
            meant = f"; perhaps {close[0]}" if close else ""
            raise UsageError(f"found no instance {name!r}, expected an id that 'stowplan library list' prints{meant}")
        return self.rows[name]

    def instance(self, row: Row) -> Path | None:
        """Returns the file of an instance, compressed or not; None if it is missing."""
        path = self.folder / row.kind / f"{row.id}.json"
        return next((each for each in (path, path.with_name(f"{path.name}.gz")) if each.is_file()), None)

    def data(self, row: Row) -> bytes:
        """Returns the instance as JSON, byte for byte as in its file, decompressed if necessary.

        Raises
        ------
        InputError
            The file is missing or cannot be read.
        """
        path = self.instance(row)
        if path is None:
            expected = f"made by '{row.source}', see instances/README.md" if row.is_recipe else "an instance"
            raise InputError(f"found no file, expected {expected}", source=self.folder / row.kind / f"{row.id}.json")
        return files.read_bytes(path)

    def problem(self, row: Row) -> Any:
        """Returns the problem of an instance; raises InputError if its file is missing or invalid."""
        return kinds.by_name(row.kind).problem.decode(self.data(row), self.instance(row))

    def plan(self, row: Row) -> PlanDocument | None:
        """Returns the best known plan, None if there is none; raises InputError if its file is missing or invalid."""
        if not row.plan:
            return None
        path = self.folder / row.plan
        plan: PlanDocument = kinds.by_name(row.kind).plan.decode(files.read_bytes(path), path)
        return plan

    def certificate(self, row: Row) -> Certificate | None:
        """Returns the certificate of a bound, None if there is none; raises InputError if its file is missing or invalid."""
        return Certificate.load(self.folder / row.certificate) if row.certificate else None

    def changed(self, row: Row) -> Library:
        """Returns a library in which this row replaces the row with the same id, or follows all others if there is none.

        No file is written.
        """
        return Library(self.folder, self.rows | {row.id: row})

    def save_table(self) -> None:
        """Write the table to its file; raises InputError if that fails."""
        files.write_atomic(self.folder / TABLE, text_of(self.rows.values()).encode())


def read_table(path: Path) -> dict[str, Row]:
    """Reads the rows of a table by id, in the order of the file.

    Raises InputError, with the line and the column, if the file cannot be read or is not valid.
    """
    lines = csv.reader(io.StringIO(files.read_text(path)))
    head = tuple(next(lines, ()))
    if head != COLUMNS:
        raise InputError(f"found the columns {','.join(head)}, expected {','.join(COLUMNS)}", source=path, place="line 1")
    rows: dict[str, Row] = {}
    for cells in lines:
        place = f"line {lines.line_num}"
        try:
            expect(len(cells) == len(COLUMNS), place, f"{len(cells)} values", f"{len(COLUMNS)}: {','.join(COLUMNS)}")
            row = _row(dict(zip(COLUMNS, cells, strict=True)), place)
            expect(row.id not in rows, place, f"id {row.id} again", "every id once")
        except InputError as error:
            raise error.within(path) from None
        rows[row.id] = row
    return rows


def text_of(rows: Iterable[Row], *, head: bool = True) -> str:
    """Returns rows as CSV; with ``head``, the first line has the names of the columns."""
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    if head:
        writer.writerow(COLUMNS)
    for row in rows:
        writer.writerow(["" if value is None else value for value in msgspec.structs.astuple(row)])
    return out.getvalue()


def _row(cells: dict[str, str], place: str) -> Row:
    """A row of the table from the texts of its columns; raises InputError if one is not valid."""

    def check(column: str, holds: bool, expected: str) -> None:
        expect(holds, place, f"{column} {cells[column]!r}", expected)

    check("id", _ID.fullmatch(cells["id"]) is not None, "lower-case letters, digits, hyphens and points")
    check("kind", cells["kind"] in kinds.import_paths(), f"one of {', '.join(kinds.import_paths())}")
    check("class", cells["class"] in get_args(Class), f"one of {', '.join(get_args(Class))}")
    check("digest", re.fullmatch("[0-9a-f]{64}", cells["digest"]) is not None, "64 hexadecimal digits")
    check("when", re.fullmatch(r"(\d{4}-\d\d-\d\d)?", cells["when"]) is not None, "a date such as 2026-01-31")
    for column in ("objective", "bound", "certified"):
        is_word = column != "objective" and cells[column] == INFEASIBLE
        check(column, is_word or re.fullmatch(r"-?\d{1,30}|", cells[column]) is not None, "a whole number, or nothing")
    for column in ("plan", "certificate"):
        is_inside = not Path(cells[column]).is_absolute() and ".." not in Path(cells[column]).parts
        check(column, is_inside, "a file within the library, or nothing")
    numbers = {name: _bound(cells[name]) for name in ("objective", "bound", "certified")}
    values: dict[str, Any] = cells | numbers
    values["class_"] = values.pop("class")
    return Row(**values)


def _bound(text: str) -> Bound:
    """An objective or a bound from its text, which must have been checked; None for an empty text."""
    return INFEASIBLE if text == INFEASIBLE else int(text) if text else None
