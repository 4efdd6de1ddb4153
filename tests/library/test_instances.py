"""The library that the repository has: its check passes, its instances are those that their families make, and it is small."""

from __future__ import annotations

from collections import Counter

import pytest

from benchmarks.instances import families, recipes, tables
from benchmarks.instances.make import FOLDER, unknown
from stowplan import kinds
from stowplan.library.check import faults, strays
from stowplan.library.table import Library
from tests.paths import ROOT

LIBRARY = Library.open(FOLDER)

#: Bytes of all files of the library in the repository.
MAX_BYTES = 3_000_000


@pytest.mark.parametrize("kind", kinds.import_paths())
def test_the_check_passes(kind: str) -> None:
    rows = [row for row in LIBRARY.rows.values() if row.kind == kind]
    assert {row.id: [*faults(LIBRARY, row)] for row in rows if any(faults(LIBRARY, row))} == {}
    assert 10 <= len(rows) <= 40
    # Classes change when an optimum is proven, so that a kind may have no open instance any more.
    assert "easy" in {row.class_ for row in rows} <= {"easy", "hard", "open"}
    assert len({row.class_ for row in rows}) > 1


def test_no_file_is_left_over_or_missing() -> None:
    assert strays(LIBRARY) == []


def test_it_is_small() -> None:
    names = {row.id for row in LIBRARY.rows.values() if row.is_recipe}
    shipped = [
        path
        for path in FOLDER.rglob("*")
        if path.is_file() and not (path.parent.name == "packing" and path.name.split(".")[0] in names)
    ]
    assert sum(path.stat().st_size for path in shipped) < MAX_BYTES


def test_optima_have_certificates() -> None:
    certified = Counter(row.kind for row in LIBRARY.rows.values() if row.is_certified)
    assert {*certified} == {*kinds.import_paths()}


FIRST = {(instance.kind, instance.family): instance for instance in reversed([*families.instances()])}


def test_every_instance_has_a_row_that_says_how_it_was_made() -> None:
    made = {instance.id: (instance.kind, instance.source) for instance in families.instances()}
    assert made == {row.id: (row.kind, row.source) for row in LIBRARY.rows.values() if not row.is_recipe}


@pytest.mark.parametrize("instance", FIRST.values(), ids=lambda instance: instance.id)
def test_families_make_the_same_problems_as_ever(instance: families.Instance) -> None:
    assert unknown(instance.id, instance.source, instance.problem()).digest == LIBRARY.row(instance.id).digest


@pytest.mark.slow
def test_all_instances_are_those_that_their_families_make() -> None:
    for instance in families.instances():
        assert unknown(instance.id, instance.source, instance.problem()).digest == LIBRARY.row(instance.id).digest, instance.id


def test_recipes_and_rows_agree() -> None:
    named = {part.id: f"recipe {name}" for name, recipe in recipes.recipes(FOLDER).items() for part in recipe.instances}
    assert named == {row.id: row.source for row in LIBRARY.rows.values() if row.is_recipe}


def test_the_page_has_the_tables() -> None:
    page = (ROOT / "docs" / "results" / "open-problems.md").read_text(encoding="utf-8")
    for text in tables.texts(LIBRARY).values():
        assert text in page, "stale: python -m benchmarks.instances.tables --write docs/results/open-problems.md"
