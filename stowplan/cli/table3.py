"""``stowplan compare --table3``: speedups over a baseline, from batches that are there or are made now."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec

from stowplan import files
from stowplan.cli.options import option
from stowplan.cli.output import NONE, as_gap, as_quantity, as_ratio, note, render, say, say_json
from stowplan.cli.outputs import check_folder
from stowplan.errors import UsageError
from stowplan.result import format_percent

if TYPE_CHECKING:
    from stowplan.portfolio.batch import Record, Settings
    from stowplan.portfolio.batch.speedup_table import Entry, Instance, SpeedupTable

Table3 = Annotated[
    bool, option("--table3", "", "Speedups over the baseline, of the learned candidates and of all, and who made the plans.")
]
Output = Annotated[
    Path | None, option("-o --output", "FOLDER", "For --table3: solve the inputs given, into FOLDER; what is finished is kept.")
]
Without = Annotated[str, option("--without", "NAMES", "For -o: candidates of the second batch, none that learn.")]
Markdown = Annotated[bool, option("--markdown", "", "For --table3: print tables in Markdown.")]
Csv = Annotated[bool, option("--csv", "", "For --table3: print the inputs, one a line, as CSV.")]

#: Candidates of the second of two batches: all families but the one that learns.
DEFAULT_WITHOUT = "heuristic,exact"

#: Folders that the two batches of a suite go to: with the learned candidates, and without.
WITH, WITHOUT = "with-learned", "without-learned"

#: Writes a head and rows, of which so many columns are text.
Writer = Callable[[Sequence[str], Sequence[Sequence[str]], int], str]


def check_goes_with(what: str, is_there: bool, given: Mapping[str, bool]) -> None:
    """Raise UsageError for options that are given and do nothing here; ``given`` says of each whether it is."""
    idle = next((name for name, is_given in given.items() if is_given), None)
    if idle is not None and not is_there:
        raise UsageError(f"{idle}: goes with {what} alone")


def show_table(batches: dict[str, dict[str, Record]], baseline: str | None, style: str) -> None:
    """Print the table of some batches, by name, as ``text``, ``markdown``, ``csv`` (inputs alone) or ``json``."""
    from stowplan.portfolio.batch.speedup_table import speedup_table

    found = speedup_table(batches, baseline)
    if style == "json":
        say_json(found)
    elif style == "csv":
        say(_csv(*_instances(found, plain=True)).rstrip("\n"))
    else:
        say(_text(found, _markdown if style == "markdown" else render))


def read_batches(folders: Sequence[Path]) -> dict[str, dict[str, Record]]:
    """Records of folders that batches wrote, by the folders' names, or by their paths where two have one name."""
    from stowplan.portfolio.batch import read_records

    names = [folder.resolve().name for folder in folders]
    labels = names if len({*names}) == len(names) else [str(folder) for folder in folders]
    if len({*labels}) < len(labels):
        raise UsageError("found a folder twice, expected folders of different batches")
    return {files.printable(label): read_records(folder) for label, folder in zip(labels, folders, strict=True)}


def run_batches(
    suites: Sequence[Path], output: Path, settings: Settings, without: tuple[str, ...], *, quiet: bool
) -> dict[str, dict[str, Record]]:
    """Solve a suite twice, input by input, with all candidates and with those of ``without``; what is finished is read.

    Input by input, so that a machine that becomes busy slows both alike.
    """
    from stowplan.portfolio.batch import CANCELLED, find_inputs, run_batch

    check_folder(output)
    arms = {WITH: settings, WITHOUT: msgspec.structs.replace(settings, candidates=without)}
    found: dict[str, dict[str, Record]] = {label: {} for label in arms}
    items = find_inputs(suites)
    with ExitStack() as stack:
        # With one job, a batch solves an input whenever it is asked for the next one.
        batches = {label: stack.enter_context(closing(run_batch(items, output / label, each))) for label, each in arms.items()}
        for number, item in enumerate(items, 1):
            for label, batch in batches.items():
                if not quiet:
                    note(f"[{number}/{len(items)}] {files.printable(item.name)}, {label}")
                _, record, _ = next(batch)
                if record.exit_code == CANCELLED:
                    raise KeyboardInterrupt
                if record.error is not None:
                    note(f"    failed: {record.error}")
                found[label][files.printable(item.name)] = record
    return found


def _text(found: SpeedupTable, write: Writer) -> str:
    rows = [
        (
            row.player,
            str(row.instances),
            *(f"{value:.4f}" for value in (row.mean, row.median, row.max, row.min)),
            *(str(value) for value in (row.improved, row.same, row.worse)),
        )
        for row in found.rows
    ]
    baselines = ", ".join(dict.fromkeys(each.baseline_name for each in found.instances if each.baseline is not None))
    head = (f"speedup over {baselines}", "inputs", "mean", "median", "max", "min", "improved", "same", "worse")
    parts = [write(head, rows, 1), write(*_instances(found, plain=False), 1)]
    returned = []
    for label, counts in found.winners.items():
        each = ", ".join(f"{source} {count}" for source, count in counts.items()) or "none"
        returned.append(f"{label}: plans returned are of {each}")
    return "\n\n".join([*parts, "\n".join([*returned, *(f"note: {text}" for text in found.notes)])])


def _instances(found: SpeedupTable, *, plain: bool) -> tuple[list[str], list[list[str]]]:
    """Head and rows of the inputs; ``plain`` for machines."""
    labels = list(found.winners)
    head = ["program", "baseline", "objective"]
    with_learned = {label for label in labels if any(_learned(each, label) is not None for each in found.instances)}
    for label in labels:
        head += [f"{label}: learned"] if label in with_learned else []
        head += [f"{label}: objective", "gain %", "returned", "gap"]
    rows = []
    for each in found.instances:
        row = [each.name, each.baseline_name, _value(each.baseline, each.unit, plain)]
        for label in labels:
            entry = each.entries.get(label)
            row += [_ratio(each, _learned(each, label), plain)] if label in with_learned else []
            row += ["" if plain else NONE] * 4 if entry is None else _cells(each, entry, plain)
        rows.append(row)
    return head, rows


def _cells(instance: Instance, entry: Entry, plain: bool) -> list[str]:
    gain = entry.gain_percent
    shown = "" if plain else NONE
    if gain is not None:
        shown = repr(gain) if plain else format_percent(gain).removesuffix(" %")
    guided = ", guided" if entry.guides else ""
    gap = None
    if entry.objective and instance.bound is not None:
        gap = max(0.0, (entry.objective - instance.bound) / entry.objective)
    returned = f"{entry.winner} ({entry.family}{guided})" if entry.winner else ""
    return [
        _value(entry.objective, instance.unit, plain),
        shown,
        returned if plain or returned else NONE,
        as_gap(gap) if not plain else "" if gap is None else repr(gap),
    ]


def _learned(instance: Instance, label: str) -> int | None:
    entry = instance.entries.get(label)
    return None if entry is None else entry.learned


def _ratio(instance: Instance, objective: int | None, plain: bool) -> str:
    from stowplan.portfolio.batch.speedup_table import speedup

    ratio = speedup(instance.baseline, objective, instance.unit)
    if plain:
        return "" if ratio is None else repr(ratio)
    return as_ratio(ratio)


def _value(value: int | None, unit: str, plain: bool) -> str:
    if plain:
        return "" if value is None else str(value)
    return as_quantity(value, unit)


def _markdown(head: Sequence[str], rows: Sequence[Sequence[str]], left: int = 1) -> str:
    marks = ["---"] * left + ["--:"] * (len(head) - left)
    return "\n".join(f"| {' | '.join(cell.replace('|', '&#124;') for cell in row)} |" for row in (head, marks, *rows))


def _csv(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows([head, *rows])
    return text.getvalue()
