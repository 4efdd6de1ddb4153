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
from stowplan.cli.output import LinePrinter, note, open_with_notes, say, say_json
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


#: Help texts for this command, whose problems are all of one kind.
_TEXTS = {
    "target": "Give 'rematerialization' here, unless INPUT is a problem file.",
    "baseline": "Never return a worse plan than this baseline: greedy, a heuristic, which is also called prod. By default, "
    "baselines are only compared with the result.",
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
            help="Problem file of rematerialization; or, with --target rematerialization, a graph of operators: an ONNX or "
            "TensorFlow Lite model, a program of torch.export (.pt2), XLA's HLO as text, or JSON.",
        ),
    ],
    limits: Annotated[
        str,
        option(
            "--limits",
            "N|SIZES",
            "Limits on the peak, separated by commas: 2GB,3GB. Or their number, from 1 to 1000: they are then spread evenly "
            "from a lower bound on the peak of all plans to the peak of INPUT in its own order, without recomputation.",
        ),
    ] = "8",
    host_limits: Annotated[
        str | None,
        option(
            "--host-limits",
            "SIZES",
            "Limits on the bytes that the memory of the host may hold, separated by commas: 4GB,16GB. All --limits are solved "
            "for each of them. INPUT must be a problem file whose field 'host' describes this second memory "
            "(docs/reference/rematerialization.md); the default is the limit in this field.",
        ),
    ] = None,
    output: Annotated[
        Path | None, option("-o --output", "FILE", "Write the limits, peaks, costs, bounds and plans to this file, as JSON.")
    ] = None,
    png: Annotated[
        Path | None,
        option(
            "--png",
            "FILE",
            "Draw the added cost over the limits to this file: .svg, or .png or .pdf, which need the Python extra 'viz'.",
        ),
    ] = None,
    as_json: Annotated[bool, option("--json", "", "Print as JSON what -o writes, without the plans.")] = False,
    quiet: Quiet = False,
    *,
    search: Options,
    options: ReadOptions,
) -> None:
    """Find what must be recomputed under several memory limits.

    Rematerialization frees memory by running operators again instead of keeping their results. The peak is the largest number
    of bytes that are live at once. For each of several limits on the peak, the command finds which operators to run again at
    the least added cost, the cost of all additional runs. A problem file states the cost of each operator, in any unit; for a
    model, a run of an operator costs the number of bytes that it writes. --time-limit is for all limits together.
    """
    began = cli.began()
    check_outputs((output, png), inputs=(source, *options.files))
    limit_values = _limits(limits)
    hosts = [] if host_limits is None else _sizes("--host-limits", host_limits, "sizes separated by commas")
    settings = msgspec.structs.asdict(search)
    from stowplan.models.rematerialization.problem import Problem
    from stowplan.portfolio.rematerialization.frontier import frontier

    reading = None if search.deterministic else search.time_limit
    problem = read_within(reading, lambda: open_with_notes(source, options), began)
    if not isinstance(problem, Problem):
        raise UsageError(
            f"{files.printable(source)}: found no problem of rematerialization, expected one: operators with costs"
        )
    check_picture(problem, png)
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
        # The same exit codes as for a single limit for which no plan was found.
        raise typer.Exit(1 if all(point.is_infeasible for point in points) else 3)


def _steps(plan: Plan | None) -> dict[str, Any]:
    """The plan of a point, as it is written to a file."""
    steps: dict[str, Any] = {"sequence": None if plan is None else plan.sequence}
    return steps if plan is None or not plan.moves else steps | {"moves": plan.moves}


def _limits(text: str) -> int | list[int]:
    """The number of limits, or the limits in bytes."""
    expected = "a number from 1 to 1000, or sizes separated by commas"
    if "," in text or not text.strip().isdecimal():
        return _sizes("--limits", text, expected)
    if not 1 <= int(text) <= 1000:
        raise UsageError(f"--limits: found {text!r}, expected {expected}")
    return int(text)


def _sizes(name: str, text: str, expected: str) -> list[int]:
    """Sizes in bytes, separated by commas."""
    try:
        return [size(part.strip()) for part in text.split(",")]
    except typer.BadParameter:
        raise UsageError(f"{name}: found {text!r}, expected {expected}") from None


def _fits(point: Point) -> bool | None:
    """Whether there is a plan within the limit; None if that is not known."""
    return True if point.plan is not None else False if point.is_infeasible else None


def _line(point: Point) -> str:
    """One line of the table."""
    head = f"limit {point.limit:>16,}"
    if point.host_limit is not None:
        head += f"  host {point.host_limit:>16,}"
    if point.plan is None:
        return f"{head}  {'no plan is within it' if point.is_infeasible else 'no plan found'}"
    assert point.added_cost is not None
    gap = (point.added_cost - (point.bound or 0)) / point.added_cost if point.added_cost else 0.0
    proof = "proven" if gap <= 0 else f"bound {point.bound or 0:,}, gap {format_gap(gap)}"
    return f"{head}  peak {point.peak:>16,}  added cost {point.added_cost:>16,}  {proof}"
