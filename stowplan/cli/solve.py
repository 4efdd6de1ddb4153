"""``stowplan solve``."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import Annotated, Any

import typer

from stowplan.cli.common import Capacity, CostModel, Cycles, Input, StallMode, TargetOption
from stowplan.cli.progress import ProgressPrinter
from stowplan.errors import UsageError
from stowplan.result import Result

#: Exit code of each status that is not a success.
_CODES = {"infeasible": 1, "no_plan": 3}


def solve_command(
    source: Input,
    target: TargetOption = None,
    output: Annotated[Path | None, typer.Option("-o", "--output", help="Write the plan here.")] = None,
    time_limit: Annotated[float, typer.Option("--time-limit", help="Seconds, reading the input included.")] = 30.0,
    candidates: Annotated[
        str, typer.Option("--candidates", help="Families or names of candidates, separated by commas.")
    ] = "heuristic,learned,exact",
    xla_plan: Annotated[
        Path | None,
        typer.Option(
            "--xla-plan",
            help="The same module after XLA's memory-space assignment: its plan becomes a candidate and a baseline. "
            "The offsets are read from NAME.fastmem.txt.gz beside it.",
        ),
    ] = None,
    baseline: Annotated[str | None, typer.Option("--baseline", help="Baseline of the speedup: greedy, all_slow, xla.")] = None,
    gap: Annotated[float, typer.Option("--gap", help="Stop at this gap between plan and bound, e.g. 0.01.")] = 0.0,
    deterministic: Annotated[
        bool, typer.Option("--deterministic", help="Limit work, not time: the same plan, byte for byte, on every run.")
    ] = False,
    seed: Annotated[int, typer.Option("--seed", help="Seed of everything random.")] = 0,
    workers: Annotated[int, typer.Option("--workers", help="Processes side by side, at most.")] = 2,
    capacity: Capacity = None,
    cost_model: CostModel = None,
    stalls: StallMode = None,
    cycles: Cycles = None,
    report: Annotated[Path | None, typer.Option("--report", help="Write an HTML report here.")] = None,
    png: Annotated[Path | None, typer.Option("--png", help="Write a picture of the plan here (needs the viz extra).")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("-q", "--quiet", help="No progress on standard error.")] = False,
) -> None:
    """Find the best plan within a time limit, verified, with a proven bound."""
    began = time.monotonic()
    _check_folders(output, report, png)
    from stowplan.portfolio.read import open_input
    from stowplan.portfolio.solve import solve

    opened = open_input(source, target, capacity=capacity, cost_model=cost_model, stalls=stalls, cycles=cycles)
    plans: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    if xla_plan is not None:
        plans["xla"], notes = _import_xla(opened.problem, opened.program, xla_plan)
    # A deterministic run must not depend on how long reading took.
    limit = time_limit if deterministic else max(min(time_limit, 0.2), time_limit - (time.monotonic() - began))
    with ProgressPrinter(quiet) as progress:
        result = solve(
            opened.problem,
            time_limit=limit,
            candidates=candidates,
            seed=seed,
            workers=workers,
            deterministic=deterministic,
            gap=gap,
            plans=plans,
            baseline=baseline or ("xla" if "xla" in plans else None),
            on_progress=progress,
        )
    if result.plan is not None and output is not None:
        result.plan.save(output)
    _write_pictures(opened.problem, result, plans, report, png)
    if as_json:
        values = result.to_dict(None if output is None or result.plan is None else str(output))
        json.dump(values, sys.stdout, indent=1)
        sys.stdout.write("\n")
    else:
        typer.echo(result.summary())
        for note in notes:
            typer.echo(f"  xla plan   {note}")
    if result.stop_reason == "cancelled":
        raise typer.Exit(130)
    raise typer.Exit(_CODES.get(result.status, 0))


def _check_folders(*paths: Path | None) -> None:
    """Find out now, not after the time limit, that an output cannot be written."""
    for path in paths:
        if path is not None and not path.absolute().parent.is_dir():
            raise UsageError(f"{path}: cannot write: there is no folder {path.absolute().parent}")


def _import_xla(problem: Any, program: Any, path: Path) -> tuple[Any, tuple[str, ...]]:
    from stowplan.hardware.frontends.xla_plan import import_xla_plan

    if program is None:
        raise UsageError("--xla-plan needs the compiled program itself: a problem file does not name its instructions")
    imported = import_xla_plan(problem, program, path)
    return imported.plan, tuple(imported.notes)


def _write_pictures(problem: Any, result: Result, plans: dict[str, Any], report: Path | None, png: Path | None) -> None:
    other = next(iter(plans.items()), None)
    if report is not None:
        from stowplan.report.html import write_report

        write_report(problem, result, report, compare=other)
    if png is not None and result.plan is not None:
        from stowplan.report.layout import save_picture

        drawn = [(result.provenance.candidate, result.plan)]
        if other is not None and result.plan != other[1]:
            drawn.append(other)
        save_picture(problem, drawn, png)
