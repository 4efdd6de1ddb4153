"""``stowplan solve``."""

from __future__ import annotations

import shlex
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from stowplan import cli, files
from stowplan.cli.options import (
    MOST_BYTES,
    CacheBytes,
    CacheFolder,
    Input,
    Picture,
    Quiet,
    Report,
    Search,
    option,
    with_input_options,
)
from stowplan.cli.output import ProgressPrinter, say, say_json
from stowplan.cli.outputs import Depfile, Emit, check_outputs, check_picture, emissions, write_depfile, write_pictures
from stowplan.deadline import limit_after, read_within
from stowplan.errors import UsageError
from stowplan.frontends.options import ReadOptions

if TYPE_CHECKING:
    from stowplan.frontends.format import Opened
    from stowplan.report.presenter import Presenter


@with_input_options()
def solve_command(
    source: Input,
    output: Annotated[Path | None, option("-o --output", "FILE", "Write the plan here.")] = None,
    xla_plan: Annotated[
        Path | None,
        option(
            "--xla-plan",
            "FILE",
            "The same module after XLA's memory-space assignment: its plan becomes a candidate and a baseline. The "
            "offsets are read from NAME.fastmem.txt.gz beside it.",
        ),
    ] = None,
    hint: Annotated[
        Path | None,
        option(
            "--hint",
            "FILE",
            "What guides the search: a hint file, or a plan of this problem.",
        ),
    ] = None,
    hint_program: Annotated[
        Path | None,
        option(
            "--hint-program",
            "FILE",
            "What the hint, or the plan of --keep-close, is for where it is not INPUT: an earlier version of it.",
        ),
    ] = None,
    keep_close: Annotated[
        Path | None,
        option(
            "--keep-close",
            "PLAN",
            "An earlier plan, maybe of an earlier version of INPUT: change as little of it as can be, and be never worse.",
        ),
    ] = None,
    keep_close_within: Annotated[
        str | None,
        option(
            "--keep-close-within",
            "PERCENT",
            "What little change may cost, of the best objective found: 1% or 0.01.  [default: 0]",
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        option("--certificate", "FILE", "Write a certificate of the bound here: a proof for 'stowplan verify --bound'."),
    ] = None,
    report: Report = None,
    png: Picture = None,
    config: Annotated[Path | None, option("--config", "FILE", "Write the tables of all tiles here, as JSON.")] = None,
    cache: CacheFolder = None,
    cache_bytes: CacheBytes = MOST_BYTES,
    emit: Emit = None,
    depfile: Depfile = None,
    as_json: Annotated[bool, option("--json", "", "Print the whole result as JSON.")] = False,
    quiet: Quiet = False,
    *,
    search: Search,
    options: ReadOptions,
) -> None:
    """Find the best plan, verified, with a proven bound."""
    began = cli.began()
    settings, time_limit = search.settings(), search.time_limit
    settings["certify"] |= certificate is not None
    wanted = emissions(output, emit)
    others = tuple(path for path in (certificate, report, png, config) if path is not None)
    if depfile is not None and not (wanted.outputs or others):
        raise UsageError("--depfile says what outputs depend on, and none is asked for: expected -o FILE or another")
    inputs = (source, xla_plan, hint, hint_program, keep_close, *options.files)
    check_outputs((*wanted.outputs, *others, depfile), inputs=inputs)
    within = _part(keep_close_within)
    if keep_close_within is not None and keep_close is None:
        raise UsageError("--keep-close-within says what --keep-close PLAN may cost, and there is no --keep-close")
    if hint_program is not None and hint is None and keep_close is None:
        raise UsageError("--hint-program says what --hint FILE or --keep-close PLAN is for, and there is neither")
    from stowplan.portfolio.kind import kind_of
    from stowplan.portfolio.plan_cache import PlanCache
    from stowplan.portfolio.solve import solve

    with files.noting_reads() as read:
        # A deterministic run must not depend on how long reading took.
        if cache is None:
            # Else the plan may be there already.
            _load_ahead(source)
        limit = None if search.deterministic else time_limit
        opened, earlier = read_within(limit, lambda: _open(source, hint_program, options), began)
        problem = opened.problem
        wanted.check(problem, source)
        if config is not None:
            _presenter(problem).check_configurable("--config")
        guess = _read_hint(hint, earlier, problem)
        close = None if keep_close is None else _read_keep_close(keep_close, within, earlier, problem)
        before = time.monotonic()
        check_picture(problem, png)
        # To draw takes about as long as to load what draws.
        time_limit_of_run = time_limit - min(time.monotonic() - before, max(0.0, time_limit / 4))
        plans, notes = _import_xla(problem, opened.program, xla_plan, options.target)
        with cli.stopping() as cancel:
            with ProgressPrinter(quiet, kind_of(problem).unit) as progress:
                if not search.deterministic:
                    settings["time_limit"] = limit_after(began, time_limit_of_run)
                result = solve(
                    problem,
                    **settings | {"baseline": settings["baseline"] or ("xla" if "xla" in plans else None)},
                    plans=plans,
                    hint=guess,
                    keep_close=close,
                    on_progress=progress,
                    cancel=cancel,
                    cache=None if cache is None else PlanCache(cache, cache_bytes, time_limit),
                ).within(time_limit)
            result = msgspec.structs.replace(result, warnings=(*opened.warnings, *result.warnings))
            if notes:
                result = msgspec.structs.replace(result, details=result.details | {"xla_plan": list(notes)})
            if result.plan is not None:
                wanted.write(problem, result.plan, source)
                if config is not None:
                    _presenter(problem).configuration(problem, result.plan).save(config)
            if certificate is not None and result.certificate is not None:
                result.certificate.save(certificate)
            if as_json:
                say_json(result.to_dict(None if wanted.plan is None or result.plan is None else files.printable(wanted.plan)))
            else:
                say("\n".join((result.summary(), *(f"  xla plan   {text}" for text in notes))))
        # Last, for it is what takes longest, and what may fail.
        write_pictures(problem, result, plans, report, png)
    if depfile is not None and result.plan is not None:
        write_depfile(depfile, (*wanted.outputs, *others), read)
    raise typer.Exit(result.exit_code)


#: Files of compiled programs of so many bytes, packed, are for workers: what these load takes as long as reading does.
LARGE_FILE = 12_000


def _load_ahead(source: Path) -> None:
    """Have a worker load what the search of a large program needs, while it is read."""
    from stowplan.portfolio.run.warm_workers import workers

    if source.name.endswith(".hlo.txt.gz") and source.is_file() and source.stat().st_size >= LARGE_FILE:
        workers().prepare("stowplan.portfolio.memory_mapping.candidates:search")


def _open(source: Path, hint_program: Path | None, options: ReadOptions) -> tuple[Opened, Any]:
    """The input, and the problem that a hint is for where that is another."""
    from stowplan.frontends.read import NoTargetError, open_input

    try:
        return open_input(source, options), None if hint_program is None else open_input(hint_program, options).problem
    except NoTargetError as error:
        lines = [f"stowplan solve {shlex.quote(files.printable(source))} --target {each.example}" for each in error.fitting]
        width = max(map(len, lines))
        told = zip(lines, error.fitting, strict=True)
        error.advice = tuple(f"{line:<{width}}  # {each.kind}: {each.answers}" for line, each in told)
        raise


def _presenter(problem: Any) -> Presenter:
    from stowplan.report.presenter import presenter_for

    return presenter_for(problem)


def _read_hint(hint: Path | None, earlier: Any, problem: Any) -> Any:
    """What guides the search; ``earlier`` is the problem that it is for, None where it is this one."""
    from stowplan.portfolio.arguments import read_hint, read_hint_of_earlier

    if hint is None:
        return None
    return read_hint(hint, problem) if earlier is None else read_hint_of_earlier(hint, earlier, problem)


def _read_keep_close(path: Path, within: float, earlier: Any, problem: Any) -> Any:
    """The plan to keep close to, of ``earlier`` where that is not None."""
    from stowplan.portfolio.keep_close.earlier_plan import KeepClose, read_earlier_plan

    plan = read_earlier_plan(path, problem)
    # A plan of this very problem needs no other.
    return KeepClose(plan=plan, within=within, problem=None if plan.problem == problem.digest else earlier)


def _part(text: str | None) -> float:
    """A part: ``1%`` or ``0.01``."""
    if text is None:
        return 0.0
    try:
        value = float(text.rstrip().removesuffix("%")) / (100 if text.rstrip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"--keep-close-within: found {text!r}, expected a part of the objective, such as 1% or 0.01")
    return value


def _import_xla(
    problem: Any, program: Any, path: Path | None, target: str | Path | None
) -> tuple[dict[str, Any], tuple[str, ...]]:
    """XLA's plan by its name, and remarks on it; nothing where none is given."""
    if path is None:
        return {}, ()
    from stowplan.frontends.xla_plan import import_xla_plan
    from stowplan.hardware.targets import load_target

    if program is None:
        raise UsageError("--xla-plan needs the compiled program itself: a problem file does not name its instructions")
    imported = import_xla_plan(problem, program, path, fast_space=None if target is None else load_target(target).fast_space)
    return {"xla": imported.plan}, tuple(imported.notes)
