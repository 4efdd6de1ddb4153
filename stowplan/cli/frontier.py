"""The command ``stowplan frontier``: the added cost of recomputation for several limits on the peak."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import msgspec
import typer

from stowplan import cli, files
from stowplan.cli import INTERRUPTED, event_on_interrupt
from stowplan.cli.options import Quiet, option, size, with_options
from stowplan.cli.output import LinePrinter, note, note_missing_code, open_with_notes, say, say_json
from stowplan.cli.outputs import check_outputs, check_picture
from stowplan.deadline import read_within
from stowplan.errors import UsageError
from stowplan.frontends.options import ReadOptions
from stowplan.kernel.context import SEARCH_OPTIONS, Options
from stowplan.result_text import format_gap

if TYPE_CHECKING:
    from stowplan.models.rematerialization.plan import Plan
    from stowplan.portfolio.rematerialization.frontier import Point

FORMAT = "stowplan.rematerialization.frontier"
VERSION = 1


#: Help texts that replace the general ones, because all problems of this command are of one kind.
_TEXTS = {
    "time_limit": "Time limit for all memory limits together, counted from the start of the command. Reading the input is "
    "included.",
    "target": "The target must be 'rematerialization', unless INPUT is a problem file, which needs no target.",
    "baseline": "Never return a plan that is worse than this baseline. NAME is greedy, which is the only heuristic "
    "that serves as a baseline here, or prod, which is another name for it. Without the option, the "
    "results are only compared with the baseline.",
    "gap": "Stop the search for a limit once the gap is at most this number; 0.01 is 1 %. The gap is (added cost - bound) / "
    "added cost, where the bound is a proven lower bound on the added cost. With the default, the search ends before its share "
    "of the time limit is over only if the plan is proven optimal, or if all methods have finished.",
}


@with_options(
    ("target", "dim", "shape", "keep", "in_place"),
    search=[name for name in SEARCH_OPTIONS if name != "certify"],
    texts=_TEXTS,
)
def frontier_command(
    source: Annotated[
        Path,
        typer.Argument(
            metavar="INPUT",
            help="Problem file of rematerialization. With --target rematerialization it may also be a graph of operators: "
            "an ONNX or TensorFlow Lite model, a program of torch.export (.pt2), XLA's HLO as text, or JSON "
            "(docs/reference/operator-order.md).",
        ),
    ],
    limits: Annotated[
        str,
        option(
            "--limits",
            "N|SIZES",
            "Limits on the peak, separated by commas, for example 2GB,3GB; or the number of limits, from 1 to 1000. If you "
            "give a number, the limits are spread evenly. The smallest one is then a lower bound on the peak, which no plan "
            "can go below; the largest one is the peak of INPUT in its own order, without recomputation.",
        ),
    ] = "8",
    host_limits: Annotated[
        str | None,
        option(
            "--host-limits",
            "SIZES",
            "Limits on the number of bytes that a plan may keep in the memory of the host, separated by commas, for example "
            "4GB,16GB. Results that are copied there and back need not be computed again. Each of these limits is combined "
            "with each of --limits. INPUT must be a problem file that describes this second memory in its field 'host' "
            "(docs/reference/rematerialization.md). The default is the limit that this field states.",
        ),
    ] = None,
    output: Annotated[
        Path | None,
        option(
            "-o --output",
            "FILE",
            "Write a list to this file, as JSON. For each limit, it has the plan, its peak, its added cost, and a proven "
            "lower bound on the added cost of all plans within the limit.",
        ),
    ] = None,
    png: Annotated[
        Path | None,
        option(
            "--png",
            "FILE",
            "Draw a diagram with the added cost for each limit to this file. The ending of its name chooses the format: "
            ".svg, .png or .pdf. The last two need matplotlib, which the Python extra 'viz' installs.",
        ),
    ] = None,
    as_json: Annotated[bool, option("--json", "", "Print as JSON what -o writes, except for the plans.")] = False,
    quiet: Quiet = False,
    *,
    search: Options,
    options: ReadOptions,
) -> None:
    """Find what to recompute under each of several memory limits.

    Rematerialization (recomputation) frees memory: operators run again, so that their results need not be kept. The peak is the
    largest number of bytes that are live at the same time. For each limit on the peak, the command chooses which operators run
    again, such that the added cost is as small as possible. The added cost is the cost of all additional runs. A problem file
    states what a run of each operator costs, in any unit; for all other inputs, it is the number of bytes that the operator
    writes.

    The exit code is 0 if a plan was found for at least one limit, 1 if it is proven for every limit that there is no plan, 2 if
    an input or an option is wrong, and 3 if no plan was found within the time limit.
    """
    began = cli.began()
    check_outputs((output, png), inputs=(source, *options.files))
    limit_values = _limits(limits)
    hosts = [] if host_limits is None else _sizes("--host-limits", host_limits, "sizes separated by commas")
    settings = msgspec.structs.asdict(search)
    from stowplan.models.rematerialization.problem import Problem
    from stowplan.portfolio.rematerialization.frontier import frontier

    reading = None if search.deterministic else search.time_limit
    problem = read_within(reading, lambda: open_with_notes(source, options, "rematerialization"), began)
    if not isinstance(problem, Problem):
        raise UsageError(
            f"{files.printable(source)}: found no problem of rematerialization, expected one: operators with costs"
        )
    check_picture(problem, png)
    note_missing_code(quiet, "rematerialization")
    count = (limit_values if isinstance(limit_values, int) else len(limit_values)) * max(1, len(hosts))
    settings["time_limit"] = max(0.1, search.time_limit - (time.monotonic() - began)) / count
    with event_on_interrupt() as cancel, LinePrinter(quiet) as progress:
        callbacks: dict[str, Any] = {"on_point": lambda point: progress.show(_line(point)), "cancel": cancel}
        points = frontier(problem, limit_values, host_limits=hosts, **callbacks, **settings)
    rows: list[dict[str, Any]] = [
        {"limit": point.limit, "peak": point.peak, "added_cost": point.added_cost, "bound": point.bound, "fits": _fits(point)}
        | ({} if point.host_limit is None else {"host_limit": point.host_limit})
        for point in points
    ]
    document: dict[str, Any] = {"format": FORMAT, "version": VERSION, "name": problem.name, "points": rows}
    if as_json:
        say_json(document)
    else:
        say("\n".join(map(_line, points)))
    if output is not None:
        plans = [_steps(point.plan) for point in points]
        full_document = document | {"points": [row | plan for row, plan in zip(rows, plans, strict=True)]}
        files.write_atomic(output, files.encode(full_document))
        note(str(output))
    if png is not None:
        from stowplan.report.figures import save_picture
        from stowplan.report.rematerialization import frontier_picture

        save_picture(frontier_picture(problem, points), png)
        note(str(png))
    if cancel.is_set():
        raise typer.Exit(INTERRUPTED)
    if not any(map(_fits, points)):
        # These are the exit codes of 'stowplan solve' for a problem without a plan.
        raise typer.Exit(1 if all(point.is_infeasible for point in points) else 3)


def _steps(plan: Plan | None) -> dict[str, Any]:
    """The plan for one limit, as it is written to a file."""
    steps: dict[str, Any] = {"sequence": None if plan is None else plan.sequence}
    return steps if plan is None or not plan.moves else steps | {"moves": plan.moves}


def _limits(text: str) -> int | list[int]:
    """Parses the option ``--limits``: returns either the number of limits, or the limits in bytes.

    Raises UsageError if it is neither.
    """
    expected = "a number from 1 to 1000, or sizes separated by commas"
    if "," in text or not text.strip().isdecimal():
        return _sizes("--limits", text, expected)
    if not 1 <= int(text) <= 1000:
        raise UsageError(f"--limits: found {text!r}, expected {expected}")
    return int(text)


def _sizes(name: str, text: str, expected: str) -> list[int]:
    """Parses sizes in bytes that are separated by commas. Of equal sizes, only the first is returned, because each size is
    solved once, for its share of the time limit.

    Raises UsageError if one of them is not a size. The error message begins with ``name``, the name of the option, and ends
    with ``expected``, a description of what the option takes.
    """
    try:
        return [*dict.fromkeys(size(part.strip()) for part in text.split(","))]
    except typer.BadParameter:
        raise UsageError(f"{name}: found {text!r}, expected {expected}") from None


def _fits(point: Point) -> bool | None:
    """Whether a plan within the limit exists; None if that is not known."""
    return True if point.plan is not None else False if point.is_infeasible else None


def _line(point: Point) -> str:
    """The line of the table for one limit."""
    head = f"limit {point.limit:>16,}"
    if point.host_limit is not None:
        head += f"  host {point.host_limit:>16,}"
    if point.plan is None:
        return f"{head}  {'no plan is within it' if point.is_infeasible else 'no plan found'}"
    assert point.added_cost is not None
    gap = (point.added_cost - (point.bound or 0)) / point.added_cost if point.added_cost else 0.0
    proof = "proven" if gap <= 0 else f"bound {point.bound or 0:,}, gap {format_gap(gap)}"
    return f"{head}  peak {point.peak:>16,}  added cost {point.added_cost:>16,}  {proof}"
