"""The command ``stowplan batch``."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from stowplan import files
from stowplan.cli import event_on_interrupt
from stowplan.cli.options import SHARED, Quiet, Suites, Targets, option, setting, settings_of, with_options
from stowplan.cli.output import as_gap, as_quantity, as_ratio, note_missing_code, note_unless_quiet, render, say, say_json
from stowplan.cli.outputs import check_outputs
from stowplan.errors import UsageError
from stowplan.frontends.options import ReadOptions
from stowplan.kernel.context import SEARCH_OPTIONS, Options

if TYPE_CHECKING:
    from stowplan.portfolio.batch.records import Record
    from stowplan.portfolio.batch.task import Item

#: Help texts that replace the general ones.
_TEXTS = {
    "time_limit": "Time limit for each input. Reading the input is included.",
    "workers": "Maximum number of processes that search at the same time for the plan of one input.",
}


@with_options(SHARED, search=SEARCH_OPTIONS, texts=_TEXTS)
def batch_command(
    suites: Suites,
    output: Annotated[
        Path, option("-o --output", "FOLDER", "Folder for plans and results. The folder is created if it does not exist.")
    ],
    targets: Targets = None,
    existing: Annotated[
        list[str] | None,
        option(
            "--plan",
            "xla=FOLDER",
            "Folder with XLA's own plans, which the results are compared with. The folder has two files for each input: "
            "the HLO module after memory-space assignment, which has the same name as the input, and the offsets, in "
            "NAME.fastmem.txt.gz (docs/reference/xla.md). If there are several folders, give the option once for each.",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        option(
            "--jobs",
            "N",
            "Number of inputs that are solved at the same time, each by as many processes as --workers says. 0 stands for "
            "the number of processor cores divided by --workers. The default is 1, or with --scheduler the number of "
            "threads of the cluster.",
            min=0,
        ),
    ] = None,
    memory_budget: Annotated[
        int | None,
        setting(
            "SIZE",
            "Budget for the total memory of all inputs that are solved at the same time, for example 16GB. With memory_limit, "
            "no more inputs are solved at the same time than fit into the budget. Without memory_limit, each process gets an "
            "equal part of the budget. By default, there is no budget.",
        ),
    ] = None,
    scheduler: Annotated[
        str | None,
        option(
            "--scheduler",
            "ADDRESS",
            "Address of a Dask scheduler, such as tcp://host:8786. The workers of this cluster then read and solve the "
            "inputs. By default, this machine does.",
        ),
    ] = None,
    jsonl: Annotated[
        Path | None,
        setting(
            "FILE", "Write one line of JSON for each result to this file. The default is results.jsonl in the folder of -o."
        ),
    ] = None,
    fresh: Annotated[bool, option("--fresh", "", "Solve all inputs again, even those that are finished.")] = False,
    as_json: Annotated[bool, option("--json", "", "Print all results as one JSON list.")] = False,
    quiet: Quiet = False,
    *,
    search: Options,
    options: ReadOptions,
) -> None:
    """Solve many inputs, and write the results to a folder.

    For each input, the folder gets the plan (NAME.plan.json), the result with its objective and proven bound
    (NAME.result.json), and a line in results.jsonl; with --set certify=yes also a proof of the bound (NAME.proof.json). If the
    command is given again, it skips the inputs that are finished, unless they or the options have changed. At the end, it
    prints a table of the results and the inputs that failed. The exit code is 0 if all inputs were solved. Otherwise, it is
    the highest of the exit codes that 'stowplan solve' would have for the single inputs.
    """
    from stowplan.portfolio.batch.records import CANCELLED, worst_code
    from stowplan.portfolio.batch.run import run_batch
    from stowplan.portfolio.batch.task import find_inputs

    settings = settings_of(options, targets or (), **msgspec.structs.asdict(search), xla_plans=xla_folders(existing or ()))
    if jsonl is not None:
        check_outputs((jsonl,), inputs=suites)
    items = find_inputs(suites)
    order = {item.name: number for number, item in enumerate(items)}
    finished: list[tuple[Item, Record]] = []
    # The machines of a cluster may have machine code that this one lacks, and the other way round.
    note_missing_code(quiet or scheduler is not None)
    in_turn = jobs in (None, 1) and scheduler is None
    progress = _Progress(len(items), in_turn=in_turn, quiet=quiet)
    try:
        # If inputs are solved one after another, Ctrl-C must also interrupt the reading of an input.
        with contextlib.nullcontext() if in_turn else event_on_interrupt() as cancel:
            for item, record, was_finished in run_batch(
                items,
                output,
                settings,
                fresh=fresh,
                on_start=progress.begin,
                jobs=jobs,
                memory_budget=memory_budget,
                scheduler=scheduler,
                journal=jsonl,
                cancel=cancel,
            ):
                finished.append((item, record))
                progress.end(item, record, was_finished)
            interrupted = cancel is not None and cancel.is_set()
    except KeyboardInterrupt:
        interrupted = True
    finished.sort(key=lambda pair: order[pair[0].name])
    if as_json:
        say_json([{"name": files.printable(item.name), "record": record} for item, record in finished])
    else:
        say(_summary(finished, len(items)))
    raise typer.Exit(CANCELLED if interrupted else worst_code([record for _, record in finished]))


def xla_folders(texts: Sequence[str]) -> tuple[str, ...]:
    """The folders in texts of the form ``xla=FOLDER``. Raises UsageError for other texts."""
    for text in texts:
        if not text.removeprefix("xla=") or not text.startswith("xla="):
            raise UsageError(f"--plan: found {text!r}, expected xla=FOLDER")
    return tuple(text.removeprefix("xla=") for text in texts)


class _Progress:
    """Prints progress on standard error: a line for each input when it ends and, if inputs are solved one after another
    (``in_turn``), also when it begins. ``total`` is the number of inputs."""

    def __init__(self, total: int, *, in_turn: bool, quiet: bool):
        self._total, self._in_turn, self._tell = total, in_turn, note_unless_quiet(quiet)
        self._began = time.monotonic()
        self._done = self._solved = 0

    def begin(self, item: Item) -> None:
        """Reports that an input begins."""
        if self._in_turn:
            self._tell(f"[{self._done + 1}/{self._total}] {files.printable(item.name)}")

    def end(self, item: Item, record: Record, was_finished: bool) -> None:
        """Reports that an input has ended."""
        self._done += 1
        self._solved += not was_finished
        text = f"{_outcome(record)}{', finished before' if was_finished else ''}"
        if self._in_turn:
            self._tell(f"    {text}")
        else:
            self._tell(f"[{self._done}/{self._total}] {files.printable(item.name)}: {text}{self._time_left()}")

    def _time_left(self) -> str:
        """Text that estimates the remaining time from the inputs that were solved. It is empty if less than a minute is
        left."""
        if not self._solved:
            return ""
        seconds = (self._total - self._done) * (time.monotonic() - self._began) / self._solved
        if seconds < 60:
            return ""
        return f" (about {seconds / 60:.0f} min left)" if seconds < 5400 else f" (about {seconds / 3600:.1f} h left)"


def _outcome(record: Record) -> str:
    """The outcome of one input in a few words."""
    if record.result is None:
        return f"failed: {record.error}"
    from stowplan.result import STOPPED

    result = record.result
    if result["objective"] is None:
        # Records of earlier versions have no entry ``stopped``.
        return f"{result['status']}, {result.get('stopped') or STOPPED[result['stop_reason']]}"
    return f"{result['status']}, {as_quantity(result['objective'], result['unit'])}, gap {as_gap(result['gap'])}"


def _summary(finished: list[tuple[Item, Record]], total: int) -> str:
    """The table of all results, a line for each input that failed, and how many inputs were solved."""
    rows = []
    failures = []
    is_certified = any(record.settings.certify for _, record in finished)
    for item, record in finished:
        name, result = files.printable(item.name), record.result
        if result is None:
            failures.append(f"failed (exit code {record.exit_code}): {name}: {record.error}")
            continue
        unit = result["unit"]
        cells = (as_quantity(result["certified_bound"], unit), result["proof"] or "none") if "proof" in result else ("", "")
        rows.append(
            (
                name,
                result["status"] if result["stop_reason"] != "cancelled" else "interrupted",
                as_quantity(result["objective"], unit),
                as_quantity(result["bound"], unit),
                as_gap(result["gap"]),
                *(cells if is_certified else ()),
                as_ratio(result["speedup"]),
                f"{result['seconds'] + result.get('seconds_before', 0.0):.1f}",
            )
        )
    certified = ("certified", "proof") if is_certified else ()
    head = ("program", "status", "objective", "bound", "gap", *certified, "speedup", "seconds")
    solved = sum(record.exit_code == 0 for _, record in finished)
    lines = [render(head, rows, left=2)] if rows else []
    lines += failures
    left_out = f", {total - len(finished)} not done" if len(finished) < total else ""
    lines.append(f"{solved} of {total} solved{left_out}")
    return "\n".join(lines)
