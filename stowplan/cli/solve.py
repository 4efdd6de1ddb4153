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
            "Write the plan to this file, as JSON. A plan that consists of offsets in a single memory (packing) is written "
            "as a table if the name ends in .csv.",
        ),
    ] = None,
    existing: Annotated[
        list[str] | None,
        option(
            "--plan",
            "NAME=FILE",
            "Start the search from an existing plan for INPUT, which is read from FILE, and compare the result with it "
            "under the name NAME. May be given several times. The name xla stands for XLA's own plan: FILE is then the HLO "
            "module after memory-space assignment, for example a.hlo.txt.gz, and the offsets must be beside it, in "
            "a.fastmem.txt.gz (docs/reference/xla.md). In this case, --baseline is xla by default.",
        ),
    ] = None,
    hint: Annotated[
        Path | None,
        option(
            "--hint",
            "FILE",
            "Start the search from the plan or the hint in this file. A hint states how likely each decision of a plan is, "
            "as a number from 0 to 1 (docs/reference/guidance.md). A bad hint costs a little time and does no other harm.",
        ),
    ] = None,
    hint_program: Annotated[
        Path | None,
        setting("FILE", "Earlier version of INPUT. Give it if the file of --hint or --keep-close was made for that version."),
    ] = None,
    keep_close: Annotated[
        Path | None,
        option(
            "--keep-close",
            "PLAN",
            "After the search, look among the plans with the best objective for one that differs as little as possible "
            "from this earlier plan. With --set keep_close_within=1% the objective may be 1 % worse than the best one.",
        ),
    ] = None,
    keep_close_within: Annotated[
        str | None,
        setting(
            "PERCENT",
            "By how much the objective may be worse than the best one that the search has found, so that the plan differs "
            "less from the plan of --keep-close. For example, 1% and 0.01 mean the same. The default is 0.",
        ),
    ] = None,
    certificate: Annotated[
        Path | None,
        option(
            "--certificate",
            "FILE",
            "Write a proof of the bound to this file. 'stowplan verify' can check such a proof without a solver.",
        ),
    ] = None,
    report: Report = None,
    png: Picture = None,
    cache: CacheFolder = None,
    cache_bytes: Annotated[
        int | None, setting("SIZE", "Maximum size of the plan cache (the folder of --cache). The default is 256MiB.")
    ] = None,
    emit: Emit = None,
    depfile: Depfile = None,
    as_json: Annotated[
        bool, option("--json", "", "Print the result as JSON instead of a summary. The JSON contains the plan.")
    ] = False,
    quiet: Quiet = False,
    *,
    search: Options,
    options: ReadOptions,
) -> None:
    """Find the best plan, and a proven bound on the objective.

    A plan answers a question of memory planning, for example at which offset each tensor of a model starts. The objective is
    the number that a plan minimizes, such as bytes or time. The bound is a proven limit: no valid plan has a smaller objective.
    Before a plan is returned, a verifier checks it; the verifier contains no solver.

    The exit code is 0 if a plan was found, 1 if it is proven that there is none, 2 if an input or an option is wrong, and 3 if
    no plan was found within the time limit.
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
            # With a cache, the result may be stored already, and then no worker is needed.
            _preload_worker(source)
        inputs = input_files.read(search)
        # Drawing takes about as long as importing the modules for it, so as much time as the import took is set aside for it.
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
        # Drawing comes last, because it takes the most time and may fail.
        outputs.draw(inputs.problem, result, inputs.plans)
    if depfile is not None and result.plan is not None:
        write_depfile(depfile, outputs.files, read)
    raise typer.Exit(result.exit_code)


class _SolveInputs(NamedTuple):
    """The problem to solve, with plans and hints."""

    opened: Opened
    """The problem, and what the front end says about its file."""
    hint: Any
    """The hint or plan from which the search starts; None without ``--hint``."""
    keep_close: Any
    """The earlier plan from which the new one should differ as little as possible; None without ``--keep-close``."""
    plans: dict[str, Any]
    """Existing plans for the problem, by name."""
    notes: tuple[str, ...]
    """Remarks about how XLA's plan was imported."""

    @property
    def problem(self) -> Any:
        return self.opened.problem

    def remarks(self, result: Result) -> Iterator[str]:
        """The lines to print below the summary of a result."""
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
    """The files that the command line names, and how to read them."""

    source: Path
    """The input."""
    plans: dict[str, Path]
    """Files of ``--plan``, by name."""
    hint: Path | None
    """File of ``--hint``."""
    hint_program: Path | None
    """An earlier version of the input, for which the hint or the earlier plan was made."""
    keep_close: Path | None
    """File of ``--keep-close``."""
    within: float | None
    """By which fraction the objective may be worse than the best one if the plan then changes less."""
    options: ReadOptions
    """How the input is read."""

    def __post_init__(self) -> None:
        if self.within is not None and self.keep_close is None:
            raise UsageError("--set keep_close_within says what --keep-close PLAN may cost, and there is no --keep-close")
        if self.hint_program is not None and self.hint is None and self.keep_close is None:
            raise UsageError("--set hint_program says what --hint FILE or --keep-close PLAN is for, and there is neither")

    @property
    def files(self) -> tuple[Path | None, ...]:
        """All files that are read; None stands for a file that is not named."""
        return (self.source, *self.plans.values(), self.hint, self.hint_program, self.keep_close, *self.options.files)

    def read(self, search: Options) -> _SolveInputs:
        """Reads all files. The time for reading the input counts towards the time limit."""
        # The result of a deterministic run must not depend on how long reading took.
        limit = None if search.deterministic else search.time_limit
        opened, earlier = read_within(limit, self._open, cli.began())
        problem = opened.problem
        hint = None if self.hint is None else _read_hint(self.hint, earlier, problem)
        close = None if self.keep_close is None else _read_keep_close(self.keep_close, self.within or 0.0, earlier, problem)
        return _SolveInputs(opened, hint, close, *self._read_plans(opened))

    def _open(self) -> tuple[Opened, Any]:
        """Reads the input, and the earlier version of the problem that a hint is for, if there is one.

        If the input needs a target and none is named, the only target that fits is used. If several fit, the error's advice has
        a command for each.
        """
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
        """The existing plans by name, and remarks about XLA's plan."""
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
    """Solves the problem, and adds the reader's warnings to the result. ``drawing`` is the number of seconds of the time limit
    that are set aside for drawing."""
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
    """The plan cache to use; None if no folder is named. Raises UsageError if the size of the cache is not positive."""
    if most_bytes is not None:
        arguments.whole("a cache of {} bytes", most_bytes, 1)
    if folder is None:
        return None
    from stowplan.kernel.plan_cache import MAX_BYTES, PlanCache

    return PlanCache(folder, most_bytes or MAX_BYTES, search.time_limit)


#: Compressed size in bytes from which a worker is started while a compiled program is read. Importing what the worker needs
#: takes about as long as reading a file of this size.
LARGE_FILE = 12_000


def _preload_worker(source: Path) -> None:
    """Starts a worker for a large program while the program is being read. The worker imports the candidate for
    large-neighbourhood search."""
    from stowplan.kernel.workers.messages import CandidateId
    from stowplan.kernel.workers.warm import workers

    if source.name.endswith(".hlo.txt.gz") and source.is_file() and source.stat().st_size >= LARGE_FILE:
        workers().prepare(CandidateId.of("memory_mapping", "lns"))


def _read_hint(hint: Path, earlier: Any, problem: Any) -> Any:
    """Reads a hint. ``earlier`` is the earlier version of the problem for which the hint was made; None if it was made for this
    problem."""
    from stowplan.kernel.given import read_hint, read_hint_of_earlier

    return read_hint(hint, problem) if earlier is None else read_hint_of_earlier(hint, earlier, problem)


def _read_keep_close(path: Path, within: float, earlier: Any, problem: Any) -> Any:
    """Reads the plan that the result is to differ little from. It may be a plan for ``earlier``, an earlier version of the
    problem."""
    from stowplan.kernel.keep_close.earlier_plan import read_earlier_plan
    from stowplan.kernel.plan_changes import KeepClose

    plan = read_earlier_plan(path, problem)
    # A plan of this problem does not need the earlier version.
    return KeepClose(plan=plan, within=within, problem=None if plan.problem == problem.digest else earlier)


def _fraction(text: str | None) -> float | None:
    """Converts ``1%`` or ``0.01`` to a fraction. None stays None. Raises UsageError for any other text."""
    if text is None:
        return None
    try:
        value = float(text.rstrip().removesuffix("%")) / (100 if text.rstrip().endswith("%") else 1)
    except ValueError:
        value = -1.0
    if not 0 <= value < float("inf"):
        raise UsageError(f"--set keep_close_within: found {text!r}, expected a part of the objective, such as 1% or 0.01")
    return value
