"""``stowplan solve``."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated, Any

import msgspec
import typer

from stowplan import files
from stowplan.cli.common import (
    DEFAULT_CANDIDATES,
    DEFAULT_TIME_LIMIT,
    DEFAULT_WORKERS,
    Baseline,
    Candidates,
    Deterministic,
    Gap,
    Input,
    Quiet,
    Seed,
    TimeLimit,
    Workers,
    check_outputs,
    files_of,
    with_input_options,
)
from stowplan.cli.output import say, say_json
from stowplan.cli.pictures import check_picture, write_pictures
from stowplan.cli.progress import ProgressPrinter
from stowplan.cli.signals import stopping
from stowplan.deadline import limit_after, reading_within
from stowplan.errors import UsageError
from stowplan.frontends.options import ReadOptions


@with_input_options()
def solve_command(
    source: Input,
    output: Annotated[Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write the plan here.")] = None,
    time_limit: TimeLimit = DEFAULT_TIME_LIMIT,
    candidates: Candidates = DEFAULT_CANDIDATES,
    xla_plan: Annotated[
        Path | None,
        typer.Option(
            "--xla-plan",
            metavar="FILE",
            help="The same module after XLA's memory-space assignment: its plan becomes a candidate and a baseline. "
            "The offsets are read from NAME.fastmem.txt.gz beside it.",
        ),
    ] = None,
    hint: Annotated[
        Path | None,
        typer.Option(
            "--hint",
            metavar="FILE",
            help="What guides the search: a hint file, or a plan of this problem. A bad one costs a little time, nothing else.",
        ),
    ] = None,
    hint_program: Annotated[
        Path | None,
        typer.Option(
            "--hint-program",
            metavar="FILE",
            help="The earlier version of the program that the hint is for, where it is not INPUT.",
        ),
    ] = None,
    baseline: Baseline = None,
    gap: Gap = 0.0,
    deterministic: Deterministic = False,
    seed: Seed = 0,
    workers: Workers = DEFAULT_WORKERS,
    report: Annotated[Path | None, typer.Option("--report", metavar="FILE", help="Write an HTML report here.")] = None,
    png: Annotated[
        Path | None,
        typer.Option("--png", metavar="FILE", help="Draw the plan here: .png, .svg or .pdf (needs the viz extra)."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="FILE", help="For data-flow graphs: write the tables of all tiles here, as JSON."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the whole result as JSON.")] = False,
    quiet: Quiet = False,
    *,
    options: ReadOptions,
) -> None:
    """Find the best plan, verified, with a proven bound."""
    began = time.monotonic()
    check_outputs((output, report, png, config), inputs=(source, xla_plan, hint, hint_program, *files_of(options)))
    from stowplan.frontends.read import open_input
    from stowplan.portfolio.hints import read_hint, read_hint_of_earlier
    from stowplan.portfolio.kind import kind_of
    from stowplan.portfolio.solve import solve
    from stowplan.report.presenter import presenter_for

    # A deterministic run must not depend on how long reading took.
    with reading_within(None if deterministic else time_limit):
        opened = open_input(source, options)
        earlier = None if hint_program is None else open_input(hint_program, options).problem
    if config is not None:
        presenter_for(opened.problem).check_configurable("--config")
    guess = None
    if hint is not None:
        guess = read_hint(hint, opened.problem) if earlier is None else read_hint_of_earlier(hint, earlier, opened.problem)
    elif earlier is not None:
        raise UsageError("--hint-program says what --hint FILE is for, and there is no --hint")
    check_picture(opened.problem, png)
    plans: dict[str, Any] = {}
    notes: tuple[str, ...] = ()
    if xla_plan is not None:
        plans["xla"], notes = _import_xla(opened.problem, opened.program, xla_plan)
    with stopping() as cancel:
        with ProgressPrinter(quiet, kind_of(opened.problem).unit) as progress:
            result = solve(
                opened.problem,
                time_limit=time_limit if deterministic else limit_after(began, time_limit),
                candidates=candidates,
                seed=seed,
                workers=workers,
                deterministic=deterministic,
                gap=gap,
                plans=plans,
                hint=guess,
                baseline=baseline or ("xla" if "xla" in plans else None),
                on_progress=progress,
                cancel=cancel,
            )
        if notes:
            result = msgspec.structs.replace(result, details=result.details | {"xla_plan": list(notes)})
        if result.plan is not None and output is not None:
            result.plan.save(output)
        if config is not None and result.plan is not None:
            presenter_for(opened.problem).configuration(opened.problem, result.plan).save(config)
        if as_json:
            say_json(result.to_dict(None if output is None or result.plan is None else files.printable(output)))
        else:
            say("\n".join((result.summary(), *(f"  xla plan   {text}" for text in notes))))
    # Last, for it is what takes longest, and what may fail.
    write_pictures(opened.problem, result, plans, report, png)
    raise typer.Exit(result.exit_code)


def _import_xla(problem: Any, program: Any, path: Path) -> tuple[Any, tuple[str, ...]]:
    from stowplan.frontends.xla_plan import import_xla_plan

    if program is None:
        raise UsageError("--xla-plan needs the compiled program itself: a problem file does not name its instructions")
    imported = import_xla_plan(problem, program, path)
    return imported.plan, tuple(imported.notes)
