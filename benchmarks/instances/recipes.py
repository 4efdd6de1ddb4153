"""Recipes of the library: makes instances of files of others, which are not shipped, from a copy of what they publish.

    git clone https://github.com/google/minimalloc
    python -m benchmarks.instances.recipes minimalloc minimalloc

``instances/recipes.toml`` says for each recipe where its files are published, under which licence, and their SHA-256. A file
with another digest is refused, because the rows of the table are about this one.
"""

from __future__ import annotations

import argparse
import hashlib
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec

import stowplan
from benchmarks.instances.make import FOLDER, unknown
from stowplan import files
from stowplan.certificates.checker.reading import digest, parse
from stowplan.errors import InputError, StowplanError, UsageError
from stowplan.library.check import write
from stowplan.library.table import TABLE, Library


class Part(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One instance of a recipe."""

    id: str
    file: str
    """Path within the copy."""
    sha256: str
    """Of the file, as hexadecimal digits."""
    options: dict[str, Any] = {}
    """Options of :func:`stowplan.read`, for example the target."""


class Recipe(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """Where the files of some instances come from."""

    source: str
    """Address, and the version of what is there."""
    licence: str
    how: str
    """What to do to get a copy, in a line of shell."""
    instances: list[Part]


def recipes(folder: Path) -> dict[str, Recipe]:
    """All recipes of a library by name."""
    path = folder / "recipes.toml"
    try:
        return msgspec.convert(tomllib.loads(files.read_text(path)), dict[str, Recipe])
    except (tomllib.TOMLDecodeError, msgspec.ValidationError) as error:
        raise InputError(str(error), source=path) from None


def converted(recipe: Recipe, copy: Path) -> Iterator[tuple[Part, Any]]:
    """The problems of a recipe; raises InputError for a file that is missing, or that is not the one that the recipe means."""
    for part in recipe.instances:
        path = copy / part.file
        found = hashlib.sha256(_bytes(path)).hexdigest()
        if found != part.sha256:
            raise InputError(f"found SHA-256 {found[:12]}..., expected {part.sha256[:12]}... of {recipe.source}", source=path)
        problem = stowplan.read(path, **part.options)
        yield part, msgspec.structs.replace(problem, name=part.id)


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", source=path) from None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("recipe", nargs="?", help="by default, recipes are listed")
    parser.add_argument("copy", type=Path, nargs="?", help="folder of the copy")
    parser.add_argument("--library", type=Path, default=FOLDER)
    parser.add_argument("--add", action="store_true", help="add rows to the table for instances that it lacks")
    options = parser.parse_args()
    try:
        library, known = Library.open(options.library), recipes(options.library)
        if options.recipe is None:
            for name, recipe in known.items():
                print(f"{name}: {len(recipe.instances)} instances of {recipe.source} ({recipe.licence})\n  {recipe.how}")
            return
        if options.recipe not in known or options.copy is None:
            raise UsageError(f"found {options.recipe!r}, expected one of {', '.join(known)} and the folder of its copy")
        # All are converted before one is written.
        for part, problem in [*converted(known[options.recipe], options.copy)]:
            library = kept(library, options.recipe, part, problem, may_add=options.add)
        if options.add:
            library.save_table()
    except StowplanError as error:
        sys.exit(f"recipes: {error}")


def kept(library: Library, recipe: str, part: Part, problem: Any, *, may_add: bool) -> Library:
    """Writes an instance, whose digest must be that of its row; with ``may_add``, a row is added if there is none."""
    found = digest(parse(files.encode(problem), "problem"))
    row = library.rows.get(part.id)
    if row is None:
        if not may_add:
            raise UsageError(f"found no row for {part.id} in {library.folder / TABLE}, expected one: --add makes it")
        row = unknown(part.id, f"recipe {recipe}", problem)
    if row.digest != found:
        raise InputError(f"found the problem {found[:12]}, expected {row.digest[:12]}", source=part.file)
    path = library.folder / row.kind / f"{row.id}.json.gz"
    files.make_folder(path.parent)
    write(path, problem)
    print(f"{row.id}: {path}")
    return library.changed(row)


if __name__ == "__main__":
    main()
