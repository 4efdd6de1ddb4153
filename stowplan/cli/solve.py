"""The command ``stowplan solve``."""

from __future__ import annotations

import shlex
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
import typer

from stowplan import arguments, cli, files
from stowplan.cli.options import CacheFolder, Input, Picture, Quiet, Report, option, setting, with_options
from stowplan.cli.output import ProgressPrinter, note, say, say_json
from stowplan.cli.outputs import Depfile, Emit, Outputs, named_paths, write_depfile
from stowplan.deadline import limit_after, read_within
from stowplan.errors import UsageError
from stowplan.frontends.formats import Opened
from stowplan.frontends.options import ReadOptions
from stowplan.kernel.context import SEARCH_OPTIONS, Options
from stowplan.result import Result
from stowplan.units import Unit


@with_options(search=SEARCH_OPTIONS)
def solve_command(
    source: Input,
    output: Annotated[
        Path | None,
        option(
            "-o --output",
            "FILE",
            "Write the plan to this file, as JSON. The offsets of buffers in one memory are written as a table if the name "
            "ends in .csv.",
        ),
    ] = None,
    existing: Annotated[
        list[str] | None,
        option(
            "--plan",
            "NAME=FILE",
            "Start from an existing plan for INPUT, a file that 'solve' wrote, and compare the result with it under this "
            "name. May be given several times. With the name xla, FILE is XLA's own plan: the module after memory-space "
            "assignment, such as a.hlo.txt.gz, with the offsets beside it in a.fastmem.txt.gz. The default of --baseline is "
            "then xla.",
        ),
    ] = None,
    hint: Annotated[
        Path | None,
        option(
            "--hint",
            "FILE",
            "Start the search from this plan, or from a hint file: numbers from 0 to 1 that say how likely each decision is "
            "(docs/reference/guidance.md). A bad hint costs a little time and does no other harm.",
        ),
    ] = None,
    hint_program: Annotated[
        Path | None,
        setting("FILE", "Earlier version of INPUT for which the file of --hint or --keep-close was made."),
    ] = None,
    keep_close: Annotated[
        Path | None,
        option(
            "--keep-close",
            "PLAN",
            "After the search, look among plans with the best objective for one that differs from this earlier plan as little "
            "as possible. 'keep_close_within' of --set allows a worse objective.",
        ),
    ] = None,
    keep_close_within: Annotated[
        str | None,
        setting(
            "PERCENT",
            "How much of the best objective may be given up for a plan that differs less from that of --keep-close: 1% or "
            "0.01; by default 0.",
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        option(
            "--certificate",
            "FILE",
            "Write a proof of the bound to this file. The option 'bound' of 'stowplan verify' checks it without a solver.",
        ),
    ] = None,
    report: Report = None,
    png: Picture = None,
    cache: CacheFolder = None,
    cache_bytes: Annotated[int | None, setting("SIZE", "Maximum size of the plan cache (--cache), 256MiB by default.")] = None,
    emit: Emit = None,
    depfile: Depfile = None,
    as_json: Annotated[bool, option("--json", "", "Print the whole result, with the plan in it, as JSON.")] = False,
    quiet: Quiet = False,
    *,
    search: Options,
    options: ReadOptions,
) -> None:
    """Find the best plan, and a proven bound on its objective.

    The objective is the number that a plan minimizes, such as bytes or time. It is proven that no valid plan has a smaller
    objective than the bound. Every plan is checked by a verifier, which contains no solver, before it is returned. The exit
    code is 0 if a plan was found, 1 if it is proven that there is none, 2 if an input or an option is wrong, and 3 if no plan
    was found within the time limit.
    """
    input_files = _InputFiles(
        source, named_paths("--plan", existing), hint, hint_program, keep_close, _fraction(keep_close_within), options
    )
    outputs = Outputs.of(output, emit, certificate=certificate, report=report, png=png, depfile=depfile)
    outputs.check(inputs=input_files.files)
    search = msgspec.structs.replace(search, certify=search.certify or certificate is not None)
    plan_cache = _open_cache(cache, cache_bytes, search)
    with files.recording_reads() as read:
        if cache is None:
            # With a cache, the result may be stored, so that no worker is needed.
            _preload_worker(source)
        inputs = input_files.read(search)
        # Drawing takes about as long as importing the modules for it, so the time of the import is set aside for it.
        before = time.monotonic()
        outputs.check_problem(inputs.problem, source)
        drawing = min(time.monotonic() - before, search.time_limit / 4)
        with cli.event_on_interrupt() as cancel:
            with ProgressPrinter(quiet, inputs.unit) as progress:
                result = _solve(inputs, search, drawing, on_progress=progress, cancel=cancel, cache=plan_cache)
            outputs.write(inputs.problem, result.plan, result.certificate, source)
            if as_json:
                has_plan = outputs.plan is not None and result.plan is not None
                say_json(result.to_dict() | {"plan_file": files.printable(str(outputs.plan)) if has_plan else None})
            else:
                say("\n".join((result.summary(), *inputs.remarks(result))))
        # Drawing comes last because it takes longest and may fail.
        outputs.draw(inputs.problem, result, inputs.plans)
    if depfile is not None and result.plan is not None:
        write_depfile(depfile, outputs.files, read)
    raise typer.Exit(result.exit_code)


class _SolveInputs(NamedTuple):
    """The problem to solve, with plans and hints."""

    opened: Opened
    hint: Any
    keep_close: Any
    plans: dict[str, Any]
    notes: tuple[str, ...]
    """Remarks about XLA's plan."""

    @property
    def problem(self) -> Any:
        return self.opened.problem

    def remarks(self, result: Result) -> Iterator[str]:
        """Lines that are printed below the summary of a result."""
        if "snapshot" in result.details:
            from stowplan.report.snapshot import lines

            yield from lines(result.details["snapshot"])
        yield from (f"  xla plan   {text}" for text in self.notes)

    @property
    def unit(self) -> Unit:
        from stowplan.kernel.kind import kind_of

        return kind_of(self.problem).unit_for(self.problem)


@dataclass(frozen=True)
class _InputFiles:
    """The files on the command line and how to read them."""

    source: Path
    plans: dict[str, Path]
    hint: Path | None
    hint_program: Path | None
    keep_close: Path | None
    within: float | None
    """How much worse the objective may become for fewer changes, as a fraction."""
    options: ReadOptions

    def __post_init__(self) -> None:
        if self.within is not None and self.keep_close is None:
            raise UsageError("--set keep_close_within says what --keep-close PLAN may cost, and there is no --keep-close")
        if self.hint_program is not None and self.hint is None and self.keep_close is None:
            raise UsageError("--set hint_program says what --hint FILE or --keep-close PLAN is for, and there is neither")

    @property
    def files(self) -> tuple[Path | None, ...]:
        return (self.source, *self.plans.values(), self.hint, self.hint_program, self.keep_close, *self.options.files)

    def read(self, search: Options) -> _SolveInputs:
        """Reads all files; reading programs counts towards the time limit."""
        # The result of a deterministic run must not depend on how long reading took.
        limit = None if search.deterministic else search.time_limit
        opened, earlier = read_within(limit, self._open, cli.began())
        problem = opened.problem
        hint = None if self.hint is None else _read_hint(self.hint, earlier, problem)
        close = None if self.keep_close is None else _read_keep_close(self.keep_close, self.within or 0.0, earlier, problem)
        return _SolveInputs(opened, hint, close, *self._read_plans(opened))

    def _open(self) -> tuple[Opened, Any]:
        """Reads the input, and the earlier version of the problem that a hint is for, if there is one."""
        from stowplan.frontends.read import NoTargetError, open_input

        options = self.options
        try:
            try:
                opened = open_input(self.source, options)
            except NoTargetError as error:
                names = [name for family in error.fitting for name in family.names()]
                if len(names) != 1:
                    raise
                note(
                    f"{files.printable(self.source)}: no target is named, solved for {names[0]} ({error.fitting[0].answers}); "
                    "'stowplan targets' lists all"
                )
                options = msgspec.structs.replace(options, target=names[0])
                opened = open_input(self.source, options)
            return opened, None if self.hint_program is None else open_input(self.hint_program, options).problem
        except NoTargetError as error:
            name = shlex.quote(files.printable(self.source))
            lines = [f"stowplan solve {name} --target {family.example}" for family in error.fitting]
            width = max(map(len, lines))
            rows = zip(lines, error.fitting, strict=True)
            error.advice = tuple(f"{line:<{width}}  # {family.kind}: {family.answers}" for line, family in rows)
            raise

    def _read_plans(self, opened: Opened) -> tuple[dict[str, Any], tuple[str, ...]]:
        """Plans by name, and remarks about XLA's plan."""
        from stowplan.frontends.read import read_plan
        from stowplan.kernel.given import XLA

        plans = {} if opened.findings is None else opened.findings.plans()
        plans |= {name: read_plan(path, opened.problem) for name, path in self.plans.items() if name != XLA}
        path, target = self.plans.get(XLA), self.options.target
        if path is None:
            return plans, ()
        from stowplan.frontends.xla_plan import import_xla_plan
        from stowplan.hardware.targets import load_target

        if opened.program is None:
            raise UsageError("--plan xla needs the compiled program itself: a problem file does not name its instructions")
        fast_space = None if target is None else load_target(target).fast_space
        imported = import_xla_plan(opened.problem, opened.program, path, fast_space=fast_space)
        return plans | {XLA: imported.plan}, tuple(imported.notes)


def _solve(inputs: _SolveInputs, search: Options, drawing: float, **callbacks: Any) -> Result:
    """Solves the problem and adds the reader's warnings to the result. ``drawing`` seconds of the limit are set aside for
    pictures."""
    from stowplan.kernel.given import XLA
    from stowplan.kernel.solve import solve

    solve_options = msgspec.structs.asdict(search)
    solve_options["baseline"] = search.baseline or (XLA if XLA in inputs.plans else None)
    if not search.deterministic:
        solve_options["time_limit"] = limit_after(cli.began(), search.time_limit - drawing)
    given_plans = {"plans": inputs.plans, "hint": inputs.hint, "keep_close": inputs.keep_close}
    before = time.monotonic() - cli.began()
    result = solve(inputs.problem, **solve_options, **given_plans, **callbacks).within(search.time_limit, before)
    details: dict[str, Any] = {"xla_plan": list(inputs.notes)} if inputs.notes else {}
    if inputs.opened.findings is not None:
        details |= inputs.opened.findings.details(result.objective, result.bound)
    warnings = (*inputs.opened.warnings, *result.warnings)
    return msgspec.structs.replace(result, warnings=warnings, details=result.details | details)


def _open_cache(folder: Path | None, most_bytes: int | None, search: Options) -> Any:
    """The plan cache to use, or None; raises UsageError if its size is not positive."""
    if most_bytes is not None:
        arguments.whole("a cache of {} bytes", most_bytes, 1)
    if folder is None:
        return None
    from stowplan.kernel.plan_cache import MAX_BYTES, PlanCache

    return PlanCache(folder, most_bytes or MAX_BYTES, search.time_limit)


#: Compressed size in bytes from which a compiled program will need a worker process: importing what the worker needs takes
#: about as long as reading such a file.
LARGE_FILE = 12_000


def _preload_worker(source: Path) -> None:
    """Starts a worker that imports large-neighbourhood search while a large program is being read."""
    from stowplan.kernel.workers.messages import CandidateId
    from stowplan.kernel.workers.warm import workers

    if source.name.endswith(".hlo.txt.gz") and source.is_file() and source.stat().st_size >= LARGE_FILE:
        workers().prepare(CandidateId.of("memory_mapping", "lns"))


def _read_hint(hint: Path, earlier: Any, problem: Any) -> Any:
    """Reads a hint. ``earlier`` is the problem that it is for, or None if it is for this one."""
    from stowplan.kernel.given import read_hint, read_hint_of_earlier

    return read_hint(hint, problem) if earlier is None else read_hint_of_earlier(hint, earlier, problem)


def _read_keep_close(path: Path, within: float, earlier: Any, problem: Any) -> Any:
    """Reads the plan to keep close to, which may be of the problem ``earlier``."""
    from stowplan.kernel.keep_close.earlier_plan import read_earlier_plan
    from stowplan.kernel.plan_changes import KeepClose

    plan = read_earlier_plan(path, problem)
    # A plan of this problem does not need the earlier version.
    return KeepClose(plan=plan, within=within, problem=None if plan.problem == problem.digest else earlier)


def _fraction(text: str | None) -> float | None:
    """Converts ``1%`` or ``0.01`` to a fraction; None stays None."""
    if text is None:
        return None
    try:
        value = float(text.rstrip().removesuffix("%")) / (100 if text.rstrip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"--set keep_close_within: found {text!r}, expected a part of the objective, such as 1% or 0.01")
    return value
