"""``stowplan compare``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stowplan.cli.output import say, say_json
from stowplan.cli.table import NONE, as_gap, as_quantity, as_ratio, render

if TYPE_CHECKING:
    from stowplan.portfolio.batch import Record
    from stowplan.portfolio.compare import Comparison

#: What the table says of programs that are not compared.
_REMARKS = {
    "only_first": "only in the first",
    "only_second": "only in the second",
    "other_problem": "another problem",
    "no_objective": "no plan",
}


def compare_command(
    results: Annotated[Path, typer.Argument(metavar="RESULTS", help="Folder that 'stowplan batch' wrote.")],
    others: Annotated[Path | None, typer.Argument(metavar="RESULTS2", help="A second one, to set beside it.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Tables of a batch's results, or of two batches side by side.

    One folder: objective, bound, gap and the speedup over every baseline. Two folders: the ratio first / second of the
    objectives, which is the second's speedup over the first, with the second's wins, losses and ties.
    """
    from stowplan.portfolio.batch import read_records
    from stowplan.portfolio.compare import compare

    first = read_records(results)
    if others is None:
        rows = _rows(first)
        say_json(rows) if as_json else say(_one(rows))
    else:
        comparison = compare(first, read_records(others))
        say_json(comparison) if as_json else say(_two(comparison))


def _rows(records: Mapping[str, Record]) -> dict[str, Any]:
    from stowplan.portfolio.compare import geometric_mean, speedups

    programs: list[dict[str, Any]] = []
    for name, record in records.items():
        values = record.result or {}
        wanted = ("status", "objective", "bound", "gap", "unit", "seconds")
        programs.append(
            {"name": name, "error": record.error, **{key: values.get(key) for key in wanted}, "speedups": speedups(record)}
        )
    baselines = dict.fromkeys(name for program in programs for name in program["speedups"])
    means = {
        name: geometric_mean(each["speedups"][name] for each in programs if name in each["speedups"]) for name in baselines
    }
    return {"programs": programs, "geometric_mean_speedups": means}


def _one(values: dict[str, Any]) -> str:
    means = values["geometric_mean_speedups"]
    rows = [
        (
            each["name"],
            each["status"] or "failed",
            as_quantity(each["objective"], each["unit"]),
            as_quantity(each["bound"], each["unit"]),
            as_gap(each["gap"]),
            *(as_ratio(each["speedups"].get(name)) for name in means),
        )
        for each in values["programs"]
    ]
    rows.append(("geometric mean", "", "", "", "", *(as_ratio(mean) for mean in means.values())))
    return render(("program", "status", "objective", "bound", "gap", *(f"over {name}" for name in means)), rows, left=2)


def _two(comparison: Comparison) -> str:
    rows = [
        (
            pair.name,
            as_quantity(pair.first, pair.unit),
            as_quantity(pair.second, pair.unit),
            as_ratio(pair.ratio),
            _REMARKS.get(pair.outcome, pair.outcome),
        )
        for pair in comparison.pairs
    ]
    mean = NONE if comparison.geometric_mean is None else f"{comparison.geometric_mean:.4f}"
    return "\n".join(
        (
            render(("program", "first", "second", "ratio", "second"), rows),
            f"second: {comparison.wins} wins, {comparison.losses} losses, {comparison.ties} ties; "
            f"geometric mean of first / second {mean}",
        )
    )
