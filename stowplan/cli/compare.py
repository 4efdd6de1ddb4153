"""The command ``stowplan compare``."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stowplan import kinds
from stowplan.cli.options import TARGET_OF_PLAN, option, with_options
from stowplan.cli.output import NONE, as_gap, as_quantity, as_ratio, render, say, say_json
from stowplan.errors import InputError, UsageError
from stowplan.frontends.options import ReadOptions, spelt_all

if TYPE_CHECKING:
    from stowplan.models.decisions import Part
    from stowplan.portfolio.batch.compare import Comparison, Interval, PairedStatistics
    from stowplan.portfolio.batch.records import Record
    from stowplan.portfolio.plan_comparison import PlanComparison

#: Remarks about inputs whose results cannot be compared, by outcome.
_REMARKS = {
    "only_first": "only in the first",
    "only_second": "only in the second",
    "other_problem": "another problem (the digests differ)",
    "first_unsolved": "the first has no plan",
    "second_unsolved": "the second has no plan",
    "unsolved": "neither has a plan",
}

#: Maximum number of rows in each table of changes, without ``--all``.
_MAX_ROWS = 40


@with_options(texts=TARGET_OF_PLAN)
def compare_command(
    results: Annotated[
        Path,
        typer.Argument(metavar="RESULTS|PLAN", help="Folder that 'stowplan batch' wrote, or a plan file."),
    ],
    others: Annotated[
        Path | None,
        typer.Argument(metavar="RESULTS2|PLAN2", help="Second folder of 'stowplan batch', or second plan for the same input."),
    ] = None,
    source: Annotated[
        Path | None,
        typer.Argument(metavar="INPUT", help="Input for which both plans were made. It is needed to compare two plans."),
    ] = None,
    everything: Annotated[
        bool, option("--all", "", "With two plans: print all changes. By default, the first 40 of each table are printed.")
    ] = False,
    seed: Annotated[
        int | None,
        option(
            "--seed",
            "N",
            "With two folders: seed of the bootstrap, which draws random samples of the inputs for the confidence intervals. "
            "The default is 0.",
        ),
    ] = None,
    as_json: Annotated[bool, option("--json", "", "Print the comparison as JSON instead of tables.")] = False,
    *,
    options: ReadOptions,
) -> None:
    """Compare the results of batches, or two plans for one input.

    With one folder that 'stowplan batch' wrote, the command prints for each input the objective, its proven bound and the gap
    between them. It also prints the speedup over each baseline: the objective of the baseline, divided by that of the result. A
    baseline is the plan of a simple heuristic, or a plan that was given to 'stowplan batch'.

    With two folders, it prints for each input the objectives and their ratio, first / second. It also prints for how many
    inputs the second folder is better, worse or equal; the mean and the median of (second - first) / first, with confidence
    intervals; and the p-values of the Wilcoxon signed-rank test and of the sign test.

    With two plans and their INPUT, it verifies both plans. It prints the decisions that the second plan changes, adds or drops,
    and the difference between the objectives. Only this form takes --all and the options that say how INPUT is read.
    """
    is_of_plans = source is not None and others is not None
    if seed is not None and (others is None or is_of_plans):
        found = "two plans" if is_of_plans else "one folder"
        raise UsageError(f"--seed: for two folders of results only, found {found}: there is no bootstrap to draw samples for")
    if source is not None and others is not None:
        _compare_plans(results, others, source, options, everything=everything, as_json=as_json)
        return
    _check_folders([results, *([] if others is None else [others])], options, everything=everything)
    from stowplan.portfolio.batch.compare import compare
    from stowplan.portfolio.batch.records import read_records

    first = read_records(results)
    if others is None:
        rows = _rows(first)
        say_json(rows) if as_json else say(_folder_table(rows))
    else:
        comparison = compare(first, read_records(others), seed=seed or 0)
        say_json(comparison) if as_json else say(_two_folders_table(comparison))


def _check_folders(paths: list[Path], options: ReadOptions, *, everything: bool) -> None:
    """Raises UsageError if a path is a file, or if options are given that are only for the comparison of two plans."""
    for path in paths:
        if path.is_file():
            raise UsageError(f"{path}: is a file: expected folders of results, or two plans and their input: PLAN PLAN2 INPUT")
    given = [*options.given(), *(["target"] if options.target is not None else [])]
    if given or everything:
        names = spelt_all(dict.fromkeys(given)) if given else "--all"
        raise UsageError(f"{names}: for two plans and their input only; folders of results have been read already")


def _compare_plans(first: Path, second: Path, source: Path, options: ReadOptions, *, everything: bool, as_json: bool) -> None:
    """Compares two plans for one input."""
    for path in (first, second):
        if path.is_dir():
            raise UsageError(f"{path}: is a folder, expected a plan: an INPUT is given, which two plans are compared for")
    from stowplan.cli.inspect import open_both, target_hint
    from stowplan.frontends.read import read_plan
    from stowplan.portfolio.plan_comparison import compare_plans

    problem, before, assumed = open_both(source, first, options)
    after = read_plan(second, problem)
    try:
        comparison = compare_plans(problem, before, after, (str(first), str(second)))
    except InputError as error:
        is_other = any(plan.problem != problem.digest for plan in (before, after))
        raise InputError(f"{error.message}{target_hint(assumed) if is_other else ''}", source=error.source) from None
    say_json(comparison) if as_json else say(_plans_text(comparison, everything))


def _plans_text(comparison: PlanComparison, everything: bool) -> str:
    """Tables of the differences between two plans."""
    pair = (comparison.first, comparison.second)
    shown = kinds.unit(comparison.unit).write_apart(pair)
    rows = [("objective", *(shown[value] for value in pair), _cost(comparison))]
    for name, values in comparison.facts.items():
        rows.append((name.replace("_", " "), *(_figure(value) for value in values), ""))
    lines = [render(("", "first", "second", "change"), rows)]
    counts = [
        (part.what, *(f"{count:,}" for count in (part.total, *(part.count(name) for name in ("moved", "added", "dropped")))))
        for part in comparison.parts
    ]
    if counts:
        lines.append(render(("", "in all", "moved", "added", "dropped"), counts))
    if comparison.is_same:
        lines.append("nothing moved")
    lines.extend(_changes(part, everything) for part in comparison.parts if part.changes)
    return "\n\n".join(lines)


def _cost(comparison: PlanComparison) -> str:
    """The difference between two objectives as text."""
    value = comparison.difference
    if value == 0:
        return "the same"
    word = "more" if value > 0 else "less"
    unit = kinds.unit(comparison.unit)
    if not unit.has_ratios:
        return "worse" if value > 0 else "better"
    percent = "" if comparison.percent is None else f" ({comparison.percent:+.3g} %)"
    return f"{unit.write(abs(value))} {word}{percent}"


def _figure(value: float | None) -> str:
    """A number that describes a plan, as text."""
    return NONE if value is None else f"{value:,}" if isinstance(value, int) else f"{value:.6g}"


def _changes(part: Part, everything: bool) -> str:
    """Table of the decisions of one sort that differ between two plans."""
    max_rows = len(part.changes) if everything else _MAX_ROWS
    rows = [(change.name, change.change, _values(change.before), _values(change.after)) for change in part.changes[:max_rows]]
    text = render((part.what, "change", "first", "second"), rows, left=4)
    left_out = len(part.changes) - len(rows)
    return f"{text}\n... and {left_out:,} more (--all lists them)" if left_out else text


def _values(values: Mapping[str, int | str | bool] | None) -> str:
    """The values of a decision as text, for example ``start 2, end 5``."""

    def plain(value: int | str | bool) -> str:
        return ("no", "yes")[value] if isinstance(value, bool) else f"{value:,}" if isinstance(value, int) else value

    return ", ".join(f"{name.replace('_', ' ')} {plain(value)}" for name, value in (values or {}).items()) or NONE


def _rows(records: Mapping[str, Record]) -> dict[str, Any]:
    """The results in one folder, with the speedup over each baseline, and the geometric means of the speedups."""
    from stowplan.portfolio.batch.compare import geometric_mean, speedups

    programs: list[dict[str, Any]] = []
    for name, record in records.items():
        values = record.result or {}
        wanted = ("status", "objective", "bound", "gap", "unit", "seconds", "seconds_before")
        programs.append(
            {"name": name, "error": record.error, **{key: values.get(key) for key in wanted}, "speedups": speedups(record)}
        )
    baselines = dict.fromkeys(name for program in programs for name in program["speedups"])
    means = {
        name: geometric_mean(program["speedups"][name] for program in programs if name in program["speedups"])
        for name in baselines
    }
    return {"programs": programs, "geometric_mean_speedups": means}


def _folder_table(values: dict[str, Any]) -> str:
    """Table of the results in one folder."""
    means = values["geometric_mean_speedups"]
    rows = [
        (
            program["name"],
            program["status"] or "failed",
            as_quantity(program["objective"], program["unit"]),
            as_quantity(program["bound"], program["unit"]),
            as_gap(program["gap"]),
            *(as_ratio(program["speedups"].get(name)) for name in means),
        )
        for program in values["programs"]
    ]
    rows.append(("geometric mean", "", "", "", "", *(as_ratio(mean) for mean in means.values())))
    return render(("program", "status", "objective", "bound", "gap", *(f"over {name}" for name in means)), rows, left=2)


def _two_folders_table(comparison: Comparison) -> str:
    """Table that compares the results in two folders, and lines about all of them together."""
    rows = [
        (
            pair.name,
            as_quantity(pair.first, pair.unit),
            as_quantity(pair.second, pair.unit),
            as_ratio(pair.ratio),
            NONE if pair.percent is None else f"{pair.percent:+.2f} %",
            _REMARKS.get(pair.outcome, pair.outcome),
        )
        for pair in comparison.pairs
    ]
    mean = NONE if comparison.geometric_mean is None else f"{comparison.geometric_mean:.4f}"
    lines = [
        render(("program", "first", "second", "ratio", "difference", "outcome of second"), rows),
        f"second: {comparison.wins} wins, {comparison.losses} losses, {comparison.ties} ties; "
        f"geometric mean of first / second {mean}",
    ]
    lines += [] if comparison.statistics is None else _statistics(comparison.statistics)
    for outcome, remark in _REMARKS.items():
        names = [pair.name for pair in comparison.pairs if pair.outcome == outcome]
        if names:
            lines.append(f"not compared, {remark}: {', '.join(names)}")
    return "\n".join(lines)


def _statistics(paired: PairedStatistics) -> list[str]:
    """Lines about the differences between the results in two folders: means, medians and p-values."""

    def shown(value: float | None, interval: Interval | None) -> str:
        within = "" if interval is None else f" ({interval.low:+.3f} to {interval.high:+.3f})"
        return NONE if value is None else f"{value:+.3f} %{within}"

    def p_value(value: float | None) -> str:
        return NONE if value is None else f"{value:.2g}"

    return [
        f"(second - first) / first: mean {shown(paired.mean_percent, paired.mean_interval)}, "
        f"median {shown(paired.median_percent, paired.median_interval)}; 95 % intervals by bootstrap, seed {paired.seed}",
        f"two-sided p-values: Wilcoxon signed-rank {p_value(paired.wilcoxon_p)}, sign test {p_value(paired.sign_p)}",
        *(f"note: {note}" for note in paired.notes),
    ]
