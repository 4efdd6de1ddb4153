"""``stowplan batch``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from stowplan import files
from stowplan.cli.common import (
    DEFAULT_CANDIDATES,
    DEFAULT_TIME_LIMIT,
    DEFAULT_WORKERS,
    NOT_SHARED,
    Baseline,
    Candidates,
    Deterministic,
    Gap,
    Prod,
    Quiet,
    Seed,
    Suites,
    Targets,
    TimeLimit,
    Workers,
    named_baseline,
    one_or_all,
    with_input_options,
)
from stowplan.cli.output import note, say, say_json
from stowplan.cli.table import as_gap, as_quantity, as_ratio, render
from stowplan.frontends.options import ReadOptions

if TYPE_CHECKING:
    from stowplan.portfolio.batch import Item, Record


@with_input_options(without=NOT_SHARED)
def batch_command(
    suites: Suites,
    output: Annotated[
        Path, typer.Option("-o", "--output", metavar="FOLDER", help="Write plans and results here; made where it is missing.")
    ],
    targets: Targets = None,
    time_limit: TimeLimit = DEFAULT_TIME_LIMIT,
    candidates: Candidates = DEFAULT_CANDIDATES,
    baseline: Baseline = None,
    prod: Prod = False,
    gap: Gap = 0.0,
    deterministic: Deterministic = False,
    seed: Seed = 0,
    workers: Workers = DEFAULT_WORKERS,
    fresh: Annotated[bool, typer.Option("--fresh", help="Solve everything again, also what is finished.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print all results as one JSON list.")] = False,
    quiet: Quiet = False,
    *,
    options: ReadOptions,
) -> None:
    """Solve a suite of inputs, one after the other, into a folder.

    Each input gives NAME.plan.json and NAME.result.json. A second run with the same options skips what is finished; an input
    that fails is left out and named at the end. The exit code is 0 where all were solved, else the highest of theirs.
    """
    from stowplan.portfolio.batch import CANCELLED, Settings, find_inputs, run_batch, worst_code

    settings = Settings(
        target=one_or_all(targets),
        **options.given(),
        time_limit=time_limit,
        candidates=tuple(candidates.split(",")),
        seed=seed,
        workers=workers,
        deterministic=deterministic,
        gap=gap,
        baseline=named_baseline(baseline, prod),
    )
    items = find_inputs(suites)
    done: list[tuple[Item, Record]] = []
    interrupted = False

    def announce(item: Item) -> None:
        if not quiet:
            note(f"[{len(done) + 1}/{len(items)}] {files.printable(item.name)}")

    try:
        for item, record, was_finished in run_batch(items, output, settings, fresh=fresh, on_start=announce):
            done.append((item, record))
            if not quiet:
                note(f"    {_outcome(record)}{', finished before' if was_finished else ''}")
    except KeyboardInterrupt:
        interrupted = True
    if as_json:
        say_json([{"name": files.printable(item.name), "record": record} for item, record in done])
    else:
        say(_summary(done, len(items)))
    raise typer.Exit(CANCELLED if interrupted else worst_code([record for _, record in done]))


def _outcome(record: Record) -> str:
    if record.result is None:
        return f"failed: {record.error}"
    result = record.result
    if result["objective"] is None:
        return f"{result['status']}, stopped by {result['stop_reason']}"
    return f"{result['status']}, {as_quantity(result['objective'], result['unit'])}, gap {as_gap(result['gap'])}"


def _summary(done: list[tuple[Item, Record]], total: int) -> str:
    rows = []
    failures = []
    for item, record in done:
        name, result = files.printable(item.name), record.result
        if result is None:
            failures.append(f"failed (exit code {record.exit_code}): {name}: {record.error}")
            continue
        unit = result["unit"]
        rows.append(
            (
                name,
                result["status"] if result["stop_reason"] != "cancelled" else "interrupted",
                as_quantity(result["objective"], unit),
                as_quantity(result["bound"], unit),
                as_gap(result["gap"]),
                as_ratio(result["speedup"]),
                f"{result['seconds']:.1f}",
            )
        )
    head = ("program", "status", "objective", "bound", "gap", "speedup", "seconds")
    solved = sum(record.exit_code == 0 for _, record in done)
    lines = [render(head, rows, left=2)] if rows else []
    lines += failures
    left_out = f", {total - len(done)} not begun" if len(done) < total else ""
    lines.append(f"{solved} of {total} solved{left_out}")
    return "\n".join(lines)
