"""The command ``stowplan validate``."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import msgspec
import typer

from stowplan import files, kinds
from stowplan.cli import event_on_interrupt
from stowplan.cli.options import FAST_MEMORY, SHARED, Quiet, Report, Suites, Targets, option, setting, settings_of, with_options
from stowplan.cli.output import NONE, as_gap, as_quantity, note, note_missing_code, note_unless_quiet, render, say, say_json
from stowplan.cli.outputs import check_outputs
from stowplan.frontends.options import ReadOptions
from stowplan.kernel.context import Options

if TYPE_CHECKING:
    from stowplan.backends.xla.score import CompiledCycles
    from stowplan.portfolio.validation.records import Outcome, ProblemReport, Summary, Validation
    from stowplan.portfolio.validation.statistics import Spread


#: Help texts that replace the general ones.
_TEXTS = FAST_MEMORY | {
    "time_limit": "Time limit for each problem. Reading the input, finding the optimum, and making the plans of the "
    "policy and of the untrained network are included."
}


@with_options(SHARED, search=("time_limit", "gap", "deterministic", "seed", "workers"), texts=_TEXTS)
def validate_command(
    suites: Suites,
    policies: Annotated[
        list[Path] | None,
        option(
            "--policy",
            "FILE",
            "Policy to validate: a file that --policy of 'stowplan train' wrote. Give the option once for each "
            "kind of problem. By default, the policies that come with the package are validated.",
        ),
    ] = None,
    targets: Targets = None,
    games: Annotated[
        int,
        setting(
            "N",
            "Number of plans that the policy and the untrained network each make in addition to their most likely plan. The "
            "decisions of these plans are drawn at random, with the probabilities that the network states. The default is 16.",
        ),
    ] = 16,
    solves: Annotated[
        int,
        setting(
            "N",
            "Maximum number of exact solves for each problem, which the command needs to find the decisions that make the "
            "policy's plan worse than the optimum. With 0, it does not look for them. The default is 24.",
        ),
    ] = 24,
    compiled: Annotated[
        Path | None,
        setting(
            "FOLDER",
            "Folder that 'stowplan tune-xla --folder' filled with compilations of the programs. The command then also "
            "prints, for memory mapping, the correlation between the rewards of plans, which the policy is trained to "
            "maximize, and their clock cycles, which are computed from XLA's estimates in these compilations.",
        ),
    ] = None,
    output: Annotated[Path | None, option("-o --output", "FILE", "Write all results to this file, as JSON.")] = None,
    report: Report = None,
    as_json: Annotated[bool, option("--json", "", "Print all results as JSON instead of tables.")] = False,
    quiet: Quiet = False,
    *,
    search: Options,
    options: ReadOptions,
) -> None:
    """Compare plans made by neural networks with exact optima.

    A policy is a trained neural network that makes a plan decision by decision. There are policies for three kinds of problem:
    which tensors of a compiled program are in fast memory (memory mapping), in which level of memory the tensors of a network
    are (tier placement), and where and when the instructions of a loop run (modulo scheduling).

    For each problem, exact solvers find the optimum. Then the policy makes plans; for comparison, an untrained network of the
    same architecture makes plans, too. The command prints how far these plans are from the optimum, and which decisions make
    the policy's plan worse than the optimum. Before a plan is finished, some policies predict how good it will be; for these,
    the command prints the rank correlation between this prediction and the quality of the finished plan. The exit code is 0 if
    all problems were validated. Otherwise, it is the highest of the exit codes that 'stowplan solve' would have for the single
    problems.
    """
    check_outputs((output, report), inputs=(*suites, *(policies or ())))
    from stowplan.kernel.kind import kind
    from stowplan.portfolio.batch.records import CANCELLED
    from stowplan.portfolio.batch.task import find_inputs
    from stowplan.portfolio.validation.policies import Policies
    from stowplan.portfolio.validation.records import Validation, summarize
    from stowplan.portfolio.validation.suite import EXACT_CANDIDATES, validate

    settings = settings_of(options, targets or (), **msgspec.structs.asdict(search) | {"candidates": EXACT_CANDIDATES})
    items = find_inputs(suites)
    compiled_cycles = None if compiled is None else _measured(compiled)
    loaded_policies = Policies(policies or (), search.seed)
    tell = note_unless_quiet(quiet)
    note_missing_code(quiet)
    finished: list[ProblemReport] = []
    with event_on_interrupt() as cancel:
        for problem in validate(
            items,
            settings,
            loaded_policies,
            games=games,
            solves=solves,
            compiled=compiled_cycles,
            on_start=lambda item: tell(f"[{len(finished) + 1}/{len(items)}] {files.printable(item.name)}"),
            on_stage=lambda stage: tell(f"    {stage}"),
            cancel=cancel,
        ):
            finished.append(problem)
            tell(f"    {_outcome(problem)}")
        if len(items) == 1 and finished and finished[0].error is not None:
            # If there is only one input, its error is reported as other commands report errors.
            note(f"stowplan: {finished[0].error}")
            raise typer.Exit(finished[0].exit_code)
        validation = Validation(
            settings=settings,
            games=games,
            solves=solves,
            problems=tuple(finished),
            summaries=summarize(finished, lambda name: loaded_policies.of(kind(name))),
            asked=len(items),
            interrupted=cancel.is_set(),
        )
        if output is not None:
            validation.save(output)
        say_json(validation) if as_json else say(text_of(validation))
        if report is not None:
            # The report comes last, because writing it may fail.
            from stowplan.report.validation import save_validation_report

            save_validation_report(report, validation)
    idle = [] if validation.interrupted else loaded_policies.idle({summary.kind for summary in validation.summaries})
    for error in idle:
        note(f"stowplan: {error}")
    codes = [problem.exit_code for problem in finished] + [error.exit_code for error in idle]
    raise typer.Exit(CANCELLED if validation.interrupted else max(codes, default=0))


def _measured(folder: Path) -> CompiledCycles:
    """The cycles that XLA estimated for the compilations in a folder."""
    from stowplan.backends.xla.score import CompiledCycles

    return CompiledCycles(folder)


def _outcome(problem: ProblemReport) -> str:
    """The outcome for one problem in a few words."""
    if problem.error is not None or problem.exact is None or problem.policy is None:
        return f"failed: {problem.error}"
    proven = "optimum" if problem.exact.is_proven else "best known"
    return (
        f"{proven} {as_quantity(problem.exact.objective, problem.unit)}, "
        f"policy {as_quantity(problem.policy.likeliest.objective, problem.unit)}, gap {_gap(problem.policy.likeliest)}"
    )


def text_of(validation: Validation) -> str:
    """All results as tables."""
    lines = []
    validated = [problem for problem in validation.problems if problem.error is None]
    if validated:
        lines += [render(_HEAD, [_problem_row(problem) for problem in validated]), ""]
    if any(problem.exact is not None and not problem.exact.is_proven for problem in validated):
        lines[-1:] = [
            "* The optimum was not proven within the limit, so that the gap is a range: from the gap to the best known plan to "
            "the gap to the bound.",
            "",
        ]
    for summary in validation.summaries:
        lines += [*_summary_lines(summary), ""]
    costly = [problem for problem in validated if problem.decisions is not None and problem.decisions.explained is not None]
    if costly:
        lines += [
            "decisions that cost most, along the likeliest game",
            *(line for problem in costly for line in _decisions(problem)),
            "",
        ]
    failed = [problem for problem in validation.problems if problem.error is not None]
    lines += [f"failed (exit code {problem.exit_code}): {problem.name}: {problem.error}" for problem in failed]
    unfinished = validation.asked - len(validation.problems)
    lines.append(f"{len(validated)} of {validation.asked} validated{f', {unfinished} not finished' if unfinished else ''}")
    return "\n".join(lines)


#: Columns of the table of problems. ``policy`` is the objective of the policy's most likely plan. The three columns after it
#: are gaps of plans of the policy: the most likely one, the best of those drawn at random, and that of a search that the policy
#: guides. ``untrained`` and the two columns after it are the same gaps for an untrained network of the same shape. The last
#: column is the rank correlation between predicted and real quality, among states that are equally many decisions from the
#: start.
_HEAD = (
    "program",
    "optimum",
    "bound",
    "certified",
    "policy",
    "gap",
    "best sample",
    "with search",
    "untrained",
    "best sample",
    "with search",
    "baseline",
    "value corr. at equal",
)


def _problem_row(problem: ProblemReport) -> tuple[str, ...]:
    """The row of the table for one problem."""
    exact, policy, control, unit = problem.exact, problem.policy, problem.control, problem.unit
    assert exact is not None
    assert policy is not None
    assert control is not None
    mark = "" if exact.is_proven else "*"
    return (
        problem.name,
        f"{as_quantity(exact.objective, unit)}{mark}",
        as_quantity(exact.bound, unit),
        as_quantity(exact.certified_bound, unit) if exact.proof else "none",
        as_quantity(policy.likeliest.objective, unit),
        _gap(policy.likeliest),
        *(_gap(outcome) for outcome in (policy.best, policy.searched, control.likeliest, control.best, control.searched)),
        _gap(problem.baseline),
        as_correlation(None if problem.values is None else problem.values.at_equal_positions),
    )


def _gap(outcome: Outcome | None) -> str:
    """Text of the gap of an outcome, that is, of one way of making a plan. If the optimum is not known, it is a range from the
    smallest to the largest gap that is possible. If there is no plan, it is a note that says why; without an outcome,
    :data:`NONE`."""
    if outcome is None:
        return NONE
    if outcome.objective is None:
        return outcome.note.partition(":")[0] or NONE
    second = "" if not outcome.second_gap else f" + {as_gap(outcome.second_gap)}"
    # The smallest and the largest gap that are possible.
    smallest = "" if outcome.least_gap in (None, outcome.gap) else f"{as_gap(outcome.least_gap)} to "
    return f"{smallest}{as_gap(outcome.gap)}{second}"


def as_correlation(value: float | None) -> str:
    """Text of a correlation. It is ``none`` if there were no values to correlate."""
    return "none" if value is None else f"{value:.3f}"


def _summary_lines(summary: Summary) -> list[str]:
    """Lines about one kind of problem."""
    title = f"{summary.agent} on {summary.kind.replace('_', ' ')}: {summary.problems} problems, {summary.proven} proven optima"
    optimal = f"optimal, {summary.second} too" if summary.second else "optimal"
    head = ("gap", "plans", "lost", "mean", "quartile", "median", "quartile", "worst", optimal, "<= 1%", "<= 5%")
    rows = [_spread_row(row.name, row.gaps) for row in summary.rows]
    rows += [_spread_row(f"{summary.second}: {row.name}", row.second_gaps) for row in summary.rows if row.second_gaps]
    training = f": {summary.training}" if summary.training else ""
    lines = [title, f"policy {summary.policy} ({summary.digest[:12]}){training}", render(head, rows)]
    # Over all positions, the correlation mostly reflects how much of the game is left, which every estimate knows.
    equal, within = as_correlation(summary.at_equal_positions), as_correlation(summary.correlation)
    rest = f" ({summary.values_note})" if summary.values_note else f"; over all positions {within}"
    lines.append(f"values and returns, rank correlation at equal positions: {equal}{rest}")
    for reward in summary.rewards:
        what = {"simulated": "simulated latency", "compiled": "the compiler's cycles"}[reward.measured]
        lines.append(f"reward and {what}, Pearson: {as_correlation(reward.correlation)} ({reward.count} plans)")
    return lines


def _spread_row(name: str, spread: Spread) -> tuple[str, ...]:
    """The row of the table with statistics about the gaps of one way of making plans, which has this name."""
    moments = (spread.mean, spread.lower_quartile, spread.median, spread.upper_quartile, spread.worst)
    shares = (spread.optimal, spread.within_1, spread.within_5)
    return (
        name,
        str(spread.count),
        str(spread.lost),
        *(as_gap(moment) for moment in moments),
        *(NONE if share is None else f"{share:.0%}" for share in shares),
    )


def _decisions(problem: ProblemReport) -> Sequence[str]:
    """Lines about the decisions that cost the most in the plan for one problem."""
    decisions = problem.decisions
    assert decisions is not None
    assert decisions.explained is not None
    exact = "" if decisions.exact else f"; not exact{f', {decisions.note}' if decisions.note else ''}"
    lines = [
        f"{problem.name}: {decisions.explained:.0%} of the difference "
        f"in {len(decisions.costly)} of {decisions.count} decisions{exact}"
    ]
    ends = (value for decision in decisions.costly for value in (decision.before, decision.after))
    shown = kinds.unit(problem.unit).write_apart(ends)
    for decision in decisions.costly:
        before, after = shown[decision.before], shown[decision.after]
        at = str(decision.first + 1) if decision.first == decision.last else f"{decision.first + 1} to {decision.last + 1}"
        lines.append(f"    {decision.share:6.1%}  {at}: {decision.name}  ({before} -> {after})")
    if decisions.rest:
        lines.append(f"    {decisions.rest:6.1%}  {decisions.rest_name}")
    return lines
