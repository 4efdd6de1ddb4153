"""Writes the instances of the library that are not there yet, with rows that say nothing about them, and its JSON Schemas.

    python -m benchmarks.instances.make

An instance that is there is made again and compared, and the command ends with exit code 1 if it differs: instances never
change.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.instances.families import instances
from benchmarks.lib.places import ROOT
from stowplan import files, kinds
from stowplan.certificates.checker.reading import digest, parse
from stowplan.kernel.kind import kind_of
from stowplan.library.check import MAX_PLAIN_BYTES, write
from stowplan.library.schema import json_schema
from stowplan.library.table import TABLE, Library, Row

FOLDER = ROOT / "instances"


def opened(folder: Path) -> Library:
    """The library, or an empty one."""
    return Library.open(folder) if (folder / TABLE).exists() else Library(folder, {})


def unknown(name: str, source: str, problem: object) -> Row:
    """The row of an instance about which nothing is known."""
    return Row(
        id=name,
        kind=kind_of(problem).name,
        class_="open",
        source=source,
        digest=digest(parse(files.encode(problem), "problem")),
        objective=None,
        bound=None,
        certified=None,
        who="",
        when="",
        how="",
        plan="",
        certificate="",
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--library", type=Path, default=FOLDER)
    options = parser.parse_args()
    options.library.mkdir(exist_ok=True)
    library, different = opened(options.library), []
    for instance in instances():
        problem = instance.problem()
        row = unknown(instance.id, instance.source, problem)
        if row.id in library.rows:
            different += [row.id] if library.rows[row.id].digest != row.digest else []
            continue
        ending = ".json.gz" if len(files.encode(problem)) > MAX_PLAIN_BYTES else ".json"
        (library.folder / row.kind).mkdir(exist_ok=True)
        write(library.folder / row.kind / f"{row.id}{ending}", problem)
        library = library.changed(row)
        print(f"{row.id}: written")
    library.save_table()
    (library.folder / "schemas").mkdir(exist_ok=True)
    for kind in kinds.registered():
        for what, document in (("problem", kind.problem), ("plan", kind.plan)):
            write(library.folder / "schemas" / f"{kind.name}.{what}.json", json_schema(document))
    if different:
        print(f"these families now make other problems: {', '.join(different)}")
        sys.exit(1)


if __name__ == "__main__":
    main()
