"""Speedups over a baseline in the form of table 3 of Wang et al. 2023, from the records of batches of any kind.

A player is what made plans: all of a batch's candidates, or its learned ones alone. *Alone* it counts as it is; as ``-prod`` it
is the better of its plan and the baseline's. The batches are there, or made now, with learned candidates and without.
"""

from __future__ import annotations

import csv
import io
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

import msgspec

from stowplan import files, kinds
from stowplan.cli.output import NONE, as_gap, as_quantity, as_ratio, note, render
from stowplan.cli.outputs import check_folder
from stowplan.errors import InputError, UsageError
from stowplan.portfolio.batch.records import CANCELLED, Record, Settings, read_records
from stowplan.portfolio.batch.run import run_batch
from stowplan.portfolio.batch.task import find_inputs
from stowplan.result_text import format_percent

#: The family of candidates that have learned from other programs.
LEARNED = "learned"

#: Folders that the two batches of a suite go to: with the learned candidates, and without.
WITH, WITHOUT = "with-learned", "without-learned"

#: Writes a head and rows, of which so many columns are text.
Writer = Callable[[Sequence[str], Sequence[Sequence[str]], int], str]


class Entry(msgspec.Struct, frozen=True, kw_only=True):
    """What a batch made of an input."""

    objective: int | None
    """Of the plan that was returned."""
    learned: int | None
    """Best of the learned candidates' own plans; None where none ran to a plan."""
    speedup: float | None
    """Baseline / objective; of units of two numbers, of the first."""
    gain_percent: float | None
    """What the plan saves of the baseline's objective."""
    winner: str
    """What made the plan that was returned; empty where there is none."""
    family: str
    """Of the winner; empty in results of earlier versions."""
    guides: tuple[str, ...]
    """Learned guides that candidates followed."""
    seconds: float


class Instance(msgspec.Struct, frozen=True, kw_only=True):
    """One input."""

    name: str
    unit: str
    baseline_name: str
    baseline: int | None
    """Its objective; None where no batch has it: the input is left out of the rows."""
    bound: int | None
    """The best of the batches'."""
    entries: dict[str, Entry]
    """By the name of the batch."""


class Row(msgspec.Struct, frozen=True, kw_only=True):
    """A player over all inputs that it has a plan for."""

    player: str
    instances: int
    mean: float
    median: float
    max: float
    min: float
    improved: int
    same: int
    worse: int


class SpeedupTable(msgspec.Struct, frozen=True, kw_only=True):
    """The table, and what it is made of."""

    rows: tuple[Row, ...]
    instances: tuple[Instance, ...]
    winners: dict[str, dict[str, int]]
    """Of each batch: how many returned plans each source made, as ``source (family)``."""
    notes: tuple[str, ...]


def read_batches(folders: Sequence[Path]) -> dict[str, dict[str, Record]]:
    """Records of folders that batches wrote, by the folders' names, or by their paths where two have one name."""
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


def speedup_table(batches: Mapping[str, Mapping[str, Record]], baseline: str | None = None) -> SpeedupTable:
    """The table of some batches over one suite.

    Parameters
    ----------
    batches
        Records by name, of each batch by its name.
    baseline
        Name of the baseline to compare with; None takes that of each result, the first batch's where they have several.

    Raises
    ------
    InputError
        No input with a plan and a baseline.
    """
    notes: list[str] = []
    names = sorted({name for records in batches.values() for name in records})
    of_each = ({label: records.get(name) for label, records in batches.items()} for name in names)
    found = [_instance(name, records, baseline, notes) for name, records in zip(names, of_each, strict=True)]
    instances = [each for each in found if each is not None]
    compared = [each for each in instances if each.baseline is not None]
    without = [each.name for each in instances if each.baseline is None]
    if not compared:
        what = "a baseline" if baseline is None else f"the baseline {baseline}"
        raise InputError(f"found no result with {what} to compare with: solve the suite with --baseline NAME")
    if without:
        notes.append(f"left out of the rows, without a baseline: {', '.join(without)}")
    return SpeedupTable(
        rows=tuple(_rows(compared, list(batches))),
        instances=tuple(instances),
        winners={label: _winners(instances, label) for label in batches},
        notes=tuple(notes),
    )


def _instance(name: str, records: Mapping[str, Record | None], baseline: str | None, notes: list[str]) -> Instance | None:
    results = {label: record.result for label, record in records.items() if record is not None and record.result is not None}
    if not results:
        notes.append(f"failed in every batch: {name}")
        return None
    first = next(iter(results.values()))
    digest = first["provenance"]["problem_digest"]
    for label, each in list(results.items()):
        if each["provenance"]["problem_digest"] != digest:
            notes.append(f"left out of {label}, another problem there (the digests differ): {name}")
            del results[label]
    wanted = baseline or first["baseline_name"]
    known = [each["baselines"][wanted] for each in results.values() if wanted in each["baselines"]]
    objective = known[0] if known else None
    bounds = [each["bound"] for each in results.values() if each["bound"] is not None]
    unit = str(first["unit"])
    return Instance(
        name=name,
        unit=unit,
        baseline_name=wanted,
        baseline=objective,
        bound=max(bounds, default=None),
        entries={label: _entry(each, objective, unit) for label, each in results.items()},
    )


def _entry(result: Mapping[str, Any], baseline: int | None, unit: str) -> Entry:
    learned = [
        each["objective"] for each in result["candidates"] if each.get("family") == LEARNED and each["objective"] is not None
    ]
    objective, made = result["objective"], result["provenance"]
    has_gain = baseline and objective is not None and kinds.unit(unit).has_ratios
    return Entry(
        objective=objective,
        learned=min(learned, default=None),
        speedup=speedup(baseline, objective, unit),
        gain_percent=100 * (baseline - objective) / baseline if has_gain and baseline else None,
        winner=made["candidate"],
        family=made.get("family", ""),
        guides=tuple(made.get("guides", ())),
        seconds=result["seconds"],
    )


def speedup(baseline: int | None, objective: int | None, unit: str) -> float | None:
    """Baseline / objective; of units of two numbers, of the first. None where there is none."""
    if baseline is None or objective is None:
        return None
    (baseline, _), (objective, _) = map(kinds.unit(unit).split, (baseline, objective))
    return baseline / objective if objective else 1.0 if not baseline else None


def _rows(instances: Sequence[Instance], labels: Sequence[str]) -> Iterable[Row]:
    for label in labels:
        entries = {each.name: each.entries[label] for each in instances if label in each.entries}
        learned = {name: entry.learned for name, entry in entries.items()}
        returned = {name: entry.objective for name, entry in entries.items()}
        yield from _both(f"{label}: learned", instances, learned)
        yield from _both(label, instances, returned)


def _both(player: str, instances: Sequence[Instance], objectives: Mapping[str, int | None]) -> Iterable[Row]:
    """The player alone and as ``-prod``; only that where it is never worse, for the baseline took part."""
    played = [(each, value) for each in instances if (value := objectives.get(each.name)) is not None]
    if not played:
        return
    if any(each.baseline is not None and value > each.baseline for each, value in played) or player.endswith(": learned"):
        yield _row(player, played)
    yield _row(f"{player}-prod", [(each, min(value, each.baseline or value)) for each, value in played])


def _row(player: str, played: Sequence[tuple[Instance, int]]) -> Row:
    ratios = [ratio for each, value in played if (ratio := speedup(each.baseline, value, each.unit)) is not None]
    signs = Counter((value > (each.baseline or 0)) - (value < (each.baseline or 0)) for each, value in played)
    return Row(
        player=player,
        instances=len(played),
        mean=statistics.fmean(ratios) if ratios else 1.0,
        median=statistics.median(ratios) if ratios else 1.0,
        max=max(ratios, default=1.0),
        min=min(ratios, default=1.0),
        improved=signs[-1],
        same=signs[0],
        worse=signs[1],
    )


def _winners(instances: Sequence[Instance], label: str) -> dict[str, int]:
    entries = [each.entries[label] for each in instances if label in each.entries]
    found = Counter(f"{each.winner} ({each.family or 'unknown'})" for each in entries if each.winner)
    return dict(found.most_common())


def as_text(found: SpeedupTable, style: str = "text") -> str:
    """The table as ``text``, ``markdown``, ``csv`` (inputs alone) or ``json``."""
    if style == "json":
        return files.encode(found).decode().rstrip("\n")
    if style == "csv":
        return _csv(*_instances(found, plain=True)).rstrip("\n")
    return _text(found, _markdown if style == "markdown" else render)


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
