"""The commands of ``stowplan library``: they list, show, check and extend the library of instances."""

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
from stowplan.cli.outputs import check_csv, check_outputs
from stowplan.errors import UsageError, VerificationError
from stowplan.units import counted

if TYPE_CHECKING:
    from stowplan.library.table import Bound, Row

Folder = Annotated[
    Path | None,
    option(
        "--library",
        "FOLDER",
        "Folder of the library. The default is the folder that the environment variable STOWPLAN_LIBRARY names or, in a "
        "clone of the repository, its folder 'instances'.",
    ),
]
Name = Annotated[str, typer.Argument(metavar="ID", help="Name of the instance, as 'stowplan library list' prints it.")]


def library_list_command(
    kind: Annotated[
        str | None,
        option(
            "--kind",
            "KIND",
            "List only instances of this kind of problem, for example packing. 'stowplan schema --help' lists the kinds.",
        ),
    ] = None,
    class_: Annotated[
        Literal["easy", "hard", "open"] | None,
        option(
            "--class",
            "CLASS",
            "List only instances of this class: open (the optimum is not proven), easy (a run of stowplan proved it within "
            "2 seconds) or hard (the proof took longer, or was found in another way).",
        ),
    ] = None,
    as_json: Annotated[bool, option("--json", "", "Print the list as JSON.")] = False,
    folder: Folder = None,
) -> None:
    """List the instances with their best known objectives and bounds.

    The objective is that of the best known plan, and no plan has a smaller objective than the bound. An asterisk marks a bound
    without a certificate, that is, without a proof that can be checked: you have to trust the solver that found this bound.
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
    say(f"\n{counted(len(rows), 'instance')}: {counts}; {proven} proven, {certified} of them with a certificate")


def library_show_command(
    name: Name,
    output: Annotated[
        Path | None,
        option(
            "-o --output",
            "FILE",
            "Write the problem to this file, as JSON. A packing problem, which is a list of buffers, is written as CSV, "
            "in the format of the allocator minimalloc, if the name ends in .csv.",
        ),
    ] = None,
    as_json: Annotated[bool, option("--json", "", "Print the row as JSON.")] = False,
    folder: Folder = None,
) -> None:
    """Print what is known about an instance, or write its problem.

    The output is the row of the table for this instance: its kind and class, the best known objective and bound, and who found
    them, when and how (docs/reference/library.md). With -o, the problem itself is written to a file instead.
    """
    from stowplan.library.table import Library

    library = Library.open(folder)
    row = library.row(name)
    if output is not None:
        check_outputs((output,), inputs=(library.instance(row),))
        check_csv(output, kinds.by_name(row.kind), name)
        if output.suffix.lower() == ".csv":
            library.problem(row).save(output)
        else:
            # The file is copied byte for byte, because the digest is computed from the fields that are in it.
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
        list[str] | None,
        typer.Argument(
            metavar="[ID]...",
            help="Names of the instances to check. By default, all instances are checked, and files that belong to no "
            "instance are reported.",
        ),
    ] = None,
    as_json: Annotated[bool, option("--json", "", "Print what is wrong as JSON.")] = False,
    folder: Folder = None,
) -> None:
    """Check the whole library, or single instances, without a solver.

    The command compares the digest (hash) of each problem with the table, verifies each plan, and checks each certificate,
    which is a proof of a bound. The exit code is 4 if anything is wrong.
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
            f"{counted(len(rows), 'instance')}: {counted(sum(bool(row.plan) for row in here), 'plan')} and "
            f"{counted(sum(bool(row.certificate) for row in here), 'certificate')} checked in {time.monotonic() - began:.1f} s"
            + _missing(missing)
        )
    if found:
        raise VerificationError(
            f"{library.folder}: found {counted(len(found), 'fault')}, expected none: {': '.join(filter(None, found[0]))}"
        )


def _missing(count: int) -> str:
    """The end of a line about instances whose files their recipes have not made yet."""
    are = "is not here, its recipe makes it" if count == 1 else "are not here, their recipes make them"
    return f"; {counted(count, 'instance')} {are}" if count else ""


def library_add_command(
    name: Name,
    path: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            help="Plan or certificate, from stowplan or from any other program. For packing, it may also be a table of "
            "offsets as CSV, in the format of the allocator minimalloc.",
        ),
    ],
    who: Annotated[
        str,
        option(
            "--who",
            "NAME",
            "Who found the plan or the certificate. --write needs this name, which is written into the table of the library.",
        ),
    ] = "",
    how: Annotated[str, option("--how", "TEXT", "Command or method by which it was found. --write needs this text, too.")] = "",
    when: Annotated[str, option("--when", "DATE", "Date on which it was found, as YYYY-MM-DD. The default is today.")] = "",
    write: Annotated[
        bool, option("--write", "", "Change the library if the plan or the certificate is better than what it has.")
    ] = False,
    folder: Folder = None,
) -> None:
    """Verify a plan or a proof of a bound; add it if it is better.

    A certificate is a proof of a bound. The library has a table with a row for each instance. The command prints the row that
    the instance would have with this plan or certificate, and says whether it is better than what the library has. It changes
    the library only if --write is given. The exit code is 4 if the plan is not valid, or if the certificate does not prove its
    bound.
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
    """A date in the form YYYY-MM-DD; today (in UTC) if the text is empty. Raises UsageError if the text is not a date."""
    if not text:
        return datetime.now(UTC).date().isoformat()
    try:
        return datetime.strptime(text, "%Y-%m-%d").date().isoformat()
    except ValueError:
        raise UsageError(f"--when: found {text!r}, expected a date such as 2026-01-31") from None


def _fields(row: Row) -> dict[str, Any]:
    """The columns of a row by name."""
    return {name.rstrip("_"): value for name, value in msgspec.structs.asdict(row).items()}


def _value(kind: str, value: Bound) -> str:
    """Text of an objective or a bound, which may be a word such as ``infeasible``; :data:`NONE` for None. ``kind`` is the name
    of the kind of problem, which decides the unit."""
    return value if isinstance(value, str) else NONE if value is None else kinds.by_name(kind).unit.write(value)


def _bound(row: Row) -> str:
    """Text of the best known bound. An asterisk marks a bound that no certificate proves."""
    is_trusted = row.bound is not None and row.bound != row.certified
    return _value(row.kind, row.bound) + ("*" if is_trusted else "")


def _gap(row: Row) -> str:
    """Text of the gap between the best known objective and bound; :data:`NONE` if there is none."""
    has_ratios = kinds.by_name(row.kind).unit.has_ratios
    if not row.objective or not isinstance(row.bound, int) or not has_ratios:
        return NONE
    return as_gap(1 - row.bound / row.objective)
