"""``stowplan library``: the instances with their best known objectives and bounds, checks of these, and additions."""

from __future__ import annotations

import time
from collections import Counter
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import typer

from stowplan import files, kinds
from stowplan.cli.options import option
from stowplan.cli.output import NONE, as_gap, note, render, say, say_json
from stowplan.cli.outputs import check_outputs
from stowplan.errors import UsageError, VerificationError

if TYPE_CHECKING:
    from stowplan.library.table import Bound, Row

Folder = Annotated[
    Path | None,
    option("--library", "FOLDER", "The library; by default STOWPLAN_LIBRARY, or the folder 'instances' of the clone."),
]
Name = Annotated[str, typer.Argument(metavar="ID", help="Instance, as 'stowplan library list' names it.")]


def library_list_command(
    kind: Annotated[str | None, option("--kind", "KIND", "Only instances of this kind, for example packing.")] = None,
    class_: Annotated[
        Literal["easy", "hard", "open"] | None, option("--class", "CLASS", "Only instances of this class: easy, hard or open.")
    ] = None,
    as_json: Annotated[bool, option("--json", "", "Print the rows as JSON.")] = False,
    folder: Folder = None,
) -> None:
    """List the instances with their best known objectives and bounds.

    An asterisk marks a bound that no certificate proves, so that it rests on trusting a solver.
    """
    from stowplan.library.table import Library

    if kind is not None:
        kind = kinds.by_words(kind).name
    rows = [row for row in Library.open(folder).rows.values() if kind in (None, row.kind) and class_ in (None, row.class_)]
    if as_json:
        say_json([_fields(row) for row in rows])
        return
    head = ("instance", "class", "objective", "bound", "gap")
    cells = [(row.id, row.class_, _value(row.kind, row.objective), _bound(row), _gap(row)) for row in rows]
    say(render(head, cells, left=2) if rows else "no such instance")
    classes = Counter(row.class_ for row in rows)
    proven, certified = (sum(getattr(row, name) for row in rows) for name in ("is_proven", "is_certified"))
    counts = ", ".join(f"{classes[name]} {name}" for name in ("easy", "hard", "open"))
    say(f"\n{len(rows)} instances: {counts}; {proven} proven, {certified} of them with a certificate")


def library_show_command(
    name: Name,
    output: Annotated[
        Path | None,
        option(
            "-o --output", "FILE", "Write the problem to this file: JSON, or minimalloc's CSV if it ends in .csv (packing)."
        ),
    ] = None,
    as_json: Annotated[bool, option("--json", "", "Print the row as JSON.")] = False,
    folder: Folder = None,
) -> None:
    """Print all that is known about an instance, or write its problem to a file."""
    from stowplan.library.table import Library

    library = Library.open(folder)
    row = library.row(name)
    if output is not None:
        check_outputs((output,), inputs=(library.instance(row),))
        if output.suffix.lower() == ".csv":
            if row.kind != "packing":
                raise UsageError(f"{output}: CSV is for packing, and {name} is a problem of {row.kind}: write JSON")
            library.problem(row).save(output)
        else:
            # Byte for byte, because the digest is that of the file.
            files.write_atomic(output, library.data(row))
        note(f"{output}: {name}, a problem of {row.kind}")
        return
    if as_json:
        say_json(_fields(row))
        return
    shown = _fields(row) | {
        "objective": _value(row.kind, row.objective),
        "bound": _bound(row),
        "certified": _value(row.kind, row.certified),
        "file": str(library.instance(row) or "not here: its recipe makes it, see instances/README.md"),
    }
    say("\n".join(f"{column:<12} {NONE if value in ('', None) else value}" for column, value in shown.items()))


def library_check_command(
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[ID]...", help="Instances; by default all, and that no file is left over.")
    ] = None,
    as_json: Annotated[bool, option("--json", "", "Print the faults as JSON.")] = False,
    folder: Folder = None,
) -> None:
    """Check the library without any solver: digests, plans and certificates of its table.

    Every plan passes the verifier of its kind, and every certificate the checker. The exit code is 4 if anything is wrong.
    """
    from stowplan.library.check import faults, strays
    from stowplan.library.table import Library

    began = time.monotonic()
    library = Library.open(folder)
    rows = [library.row(name) for name in names] if names else [*library.rows.values()]
    found = [(row.id, text) for row in rows for text in faults(library, row)]
    found += [] if names else [("", text) for text in strays(library)]
    missing = sum(row.is_recipe and library.instance(row) is None for row in rows)
    if as_json:
        say_json({"instances": len(rows), "missing": missing, "faults": [{"id": name, "fault": text} for name, text in found]})
    else:
        for name, text in found:
            say(f"{name}: {text}" if name else text)
        here = [row for row in rows if library.instance(row) is not None]
        say(
            f"{len(rows)} instances: {sum(bool(row.plan) for row in here)} plans and "
            f"{sum(bool(row.certificate) for row in here)} certificates checked in {time.monotonic() - began:.1f} s"
            + (f"; {missing} instances are not here, their recipes make them" if missing else "")
        )
    if found:
        raise VerificationError(
            f"{library.folder}: found {len(found)} faults, expected none: {': '.join(filter(None, found[0]))}"
        )


def library_add_command(
    name: Name,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE", help="Plan or certificate from any source; of packing also offsets in minimalloc's CSV."
        ),
    ],
    who: Annotated[str, option("--who", "NAME", "Who found it, for the table.")] = "",
    how: Annotated[str, option("--how", "TEXT", "The command or method by which it was found, for the table.")] = "",
    when: Annotated[str, option("--when", "DATE", "Date on which it was found (YYYY-MM-DD); today by default.")] = "",
    write: Annotated[bool, option("--write", "", "Add it to the library if it is better than what is there.")] = False,
    folder: Folder = None,
) -> None:
    """Verify a plan or certificate for an instance, say whether it is better than the best known, and print its row.

    The exit code is 4 if the plan is not valid or the certificate does not prove its bound.
    """
    from stowplan.library.check import added
    from stowplan.library.table import Library, text_of

    if write and not (who and how):
        raise UsageError("--write: found no --who or no --how, expected both: the table says who found it, and how")
    day = _date(when)
    library = Library.open(folder)
    addition = added(library, library.row(name), path, who=who, when=day, how=how)
    say(text_of([addition.row]).rstrip("\n"))
    note(f"{name}: {addition.verdict}")
    if write and addition.is_better:
        addition.save(library)
        note(f"{library.folder}: {name} is updated")


def _date(text: str) -> str:
    if not text:
        return datetime.now(UTC).date().isoformat()
    try:
        return datetime.strptime(text, "%Y-%m-%d").date().isoformat()
    except ValueError:
        raise UsageError(f"--when: found {text!r}, expected a date such as 2026-01-31") from None


def _fields(row: Row) -> dict[str, Any]:
    """Columns of a row by name."""
    return {name.rstrip("_"): value for name, value in msgspec.structs.asdict(row).items()}


def _value(kind: str, value: Bound) -> str:
    return value if isinstance(value, str) else NONE if value is None else kinds.by_name(kind).unit.write(value)


def _bound(row: Row) -> str:
    is_trusted = row.bound is not None and row.bound != row.certified
    return _value(row.kind, row.bound) + ("*" if is_trusted else "")


def _gap(row: Row) -> str:
    has_ratios = kinds.by_name(row.kind).unit.has_ratios
    if not row.objective or not isinstance(row.bound, int) or not has_ratios:
        return NONE
    return as_gap(1 - row.bound / row.objective)
