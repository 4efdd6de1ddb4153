"""The HTML page about a validation of policies: gaps, value estimates, rewards, and the decisions that cost most.

A validation lets a trained policy make plans, and compares them with exact optima and with the plans of an untrained network.
Making one plan decision by decision is called a *game*. It is *lost* if it ends without a plan, and a *position* is its state
between two decisions. The policy and the untrained network make plans in the same three ways. The *likeliest* game takes the
most likely decision each time. *Samples* are games whose decisions are drawn from the network's probabilities. In *search*,
decisions are made by a search that the network guides, such as a tree search; which search it is depends on the *agent*, the
method that trains and uses the policy. A *value estimate* is the network's guess of the *return*, the sum of the later rewards
of a game. Positions are *equal* if they are equally many decisions from the start of their games. A *gap* is
``(objective - optimum) / objective``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Literal

from stowplan import files, kinds
from stowplan.portfolio.validation.records import Outcome, ProblemReport, Row, Summary, Validation, outcomes_of
from stowplan.portfolio.validation.statistics import Spread
from stowplan.report.colours import PALETTE
from stowplan.report.inline import legend_html, plot_html
from stowplan.report.page import Details, Section, cards_list, facts_list, table, warnings_box, whole_page
from stowplan.report.scene import RULE, Axis, Dot, Key, Line, Mark, Panel, Plot, Rect, Style
from stowplan.report.text import format_tick, format_value, format_values, nice_ticks
from stowplan.result_text import format_gap
from stowplan.units import Unit

_NOTHING = "–"

#: Minimum width of the gap axis.
_MIN_GAP_WIDTH = 1e-4

#: Space at the edges of a plot, as a part of its range.
_MARGIN = 0.04

#: Heights in points of a row for one way to plan, and of a scatter plot.
_ROW, _HIGH = 32.0, 260.0

#: Style of a larger dark dot below each coloured dot, which gives it a rim: light colours would be hard to see on white.
_RIM = Style(fill="ink", name="rim")


def save_validation_report(path: str | Path, validation: Validation) -> None:
    """Writes the page about a validation. Equal validations give equal bytes.

    Raises
    ------
    InputError
        The file cannot be written.
    """
    files.write_atomic(path, render_validation_report(validation).encode("utf-8", errors="replace"))


def render_validation_report(validation: Validation) -> str:
    """The text of the page that :func:`save_validation_report` writes. Problems that failed are named in a warning."""
    validated = [problem for problem in validation.problems if problem.error is None]
    parts = [_warnings(validation)]
    for summary in validation.summaries:
        problems = [problem for problem in validated if problem.kind == summary.kind]
        parts.append(_cards(summary))
        parts += [section.html() for section in _sections(summary, problems)]
    parts.append(Section("How to reproduce this validation", _settings(validation)).html())
    agents = " and ".join(summary.agent for summary in validation.summaries) or "nothing"
    return whole_page(f"{agents} against exact optima", parts, Details())


def _warnings(validation: Validation) -> str:
    """Warnings about failed, unfinished and unproven problems."""
    warnings = [f"{problem.name} failed: {problem.error}" for problem in validation.problems if problem.error is not None]
    if len(validation.problems) < validation.asked:
        warnings.append(f"{validation.asked - len(validation.problems)} of {validation.asked} problems were not finished")
    warnings += [
        f"{summary.problems - summary.proven} of {summary.problems} problems of {_words(summary.kind)} have no proven optimum: "
        "their gaps are to the proven bound, and may be less than they seem"
        for summary in validation.summaries
        if summary.proven < summary.problems
    ]
    return warnings_box(warnings)


def _cards(summary: Summary) -> str:
    """The heading of one kind, and its most important numbers in large type."""
    # The policy and the untrained network have four rows each (``outcomes_of``): likeliest game, all samples, best sample, and
    # search. Rows 0 and 4 are therefore their likeliest games.
    policy = summary.rows[0].gaps
    medians, means = ([_with_second(row, part) for row in (summary.rows[0], summary.rows[4])] for part in ("median", "mean"))
    optimal = _NOTHING if policy.optimal is None else f"{policy.optimal:.0%}"
    return f"<h2>{escape(summary.agent)} on {escape(_words(summary.kind))}</h2>\n" + cards_list(
        [
            ("Median gap, likeliest plan", medians[0], f"untrained {medians[1]}"),
            ("Mean gap", means[0], f"untrained {means[1]}"),
            (_optimum(summary), optimal, f"{summary.proven} of {summary.problems} optima are proven"),
            (
                "Values and returns at equal positions",
                _correlation(summary.at_equal_positions),
                escape(summary.values_note) or f"rank correlation; over all positions {_correlation(summary.correlation)}",
            ),
        ]
    )


def _sections(summary: Summary, problems: Sequence[ProblemReport]) -> Iterator[Section]:
    """The sections of one kind."""
    outcomes = outcomes_of(problems)
    rows = [(row.name, row.gaps) for row in summary.rows]
    what = "gap" if not summary.second else "gap of the interval"
    body = _drawn(gaps_plot(rows, outcomes, lambda outcome: outcome.gap, what), what)
    second = [(row.name, row.second_gaps) for row in summary.rows if row.second_gaps is not None]
    if second:
        title = f"gap of the {summary.second}, where the first number is the optimum's"
        body += _drawn(gaps_plot(second, outcomes, lambda outcome: outcome.second_gap, title), title)
    body += _spreads(what, rows, _optimum(summary))
    if second:
        body += _spreads(f"gap of the {summary.second}", second, _optimum(summary))
    yield Section("Gaps to the optimum", body)
    yield Section("Problems", _problems(problems))
    yield Section("Value estimates", _values(summary, problems))
    if summary.rewards:
        yield Section("Reward and latency", _rewards(summary, problems))
    yield Section("Decisions that cost most", _decisions(problems))


def _optimum(summary: Summary) -> str:
    """Name of the share of plans that are at the optimum.

    Some objectives encode two numbers, such as the initiation interval and the latency of a loop. The share then counts the
    plans in which both numbers are optimal, and the name says so.
    """
    return f"At the optimum, {summary.second} too" if summary.second else "At the optimum"


def _spreads(what: str, rows: Sequence[tuple[str, Spread]], optimum: str) -> str:
    """The table of statistics of gaps."""
    head = ("Method", "Plans:r", "Lost:r", "Mean:r", "Quartile:r", "Median:r", "Quartile:r", "Worst:r", f"{optimum}:r")
    lines = [
        (
            name,
            str(row.count),
            str(row.lost),
            *(_gap(value) for value in (row.mean, row.lower_quartile, row.median, row.upper_quartile, row.worst)),
            *(_share(value) for value in (row.optimal, row.within_1, row.within_5)),
        )
        for name, row in rows
    ]
    caption = f"{what.capitalize()}: (objective − optimum) / objective; shares are of all plans, lost games among them"
    return table(caption, (*head, "≤ 1%:r", "≤ 5%:r"), lines)


def _problems(problems: Sequence[ProblemReport]) -> str:
    """The table of problems."""
    rows = []
    for problem in problems:
        exact, unit = problem.exact, kinds.unit(problem.unit)
        bound = _NOTHING if exact is None else "proven" if exact.is_proven else format_value(exact.bound, unit)
        certified = _NOTHING if exact is None or not exact.proof else format_value(exact.certified_bound, unit)
        played = [
            outcome
            for way in (problem.policy, problem.control)
            for outcome in ((None,) * 3 if way is None else (way.likeliest, way.best, way.searched))
        ]
        rows.append(
            (
                problem.name,
                format_value(None if exact is None else exact.objective, unit),
                bound,
                f"{certified} ({exact.proof})" if exact is not None and exact.proof else certified,
                *(_outcome(outcome, unit) for outcome in (*played, problem.baseline)),
            )
        )
    ways = ("Best sample:r", "With search:r")
    head = ("Problem:n", "Best known:r", "Bound:r", "Certified:r", "Policy:r", *ways, "Untrained:r", *ways, "Baseline:r")
    return table(
        "Objectives, with the gap to the optimum or, where that is not proven, to the best plan known and to the bound",
        head,
        rows,
    )


def _values(summary: Summary, problems: Sequence[ProblemReport]) -> str:
    """Value estimates and returns, as a plot and a table."""
    series = [(problem.name, problem.values.points) for problem in problems if problem.values is not None]
    drawn = _drawn(scatter_plot(series, "estimate", "return"), "return over estimate")
    rows = [
        (
            problem.name,
            _correlation(problem.values.at_equal_positions),
            _correlation(problem.values.correlation),
            f"{problem.values.positions:,}",
            str(problem.values.games),
            problem.values.note,
        )
        for problem in problems
        if problem.values is not None
    ]
    pooled = (_correlation(summary.at_equal_positions), _correlation(summary.correlation))
    rows.append(("within problems, pooled", *pooled, "", "", ""))
    head = ("Problem:n", "Rank correlation at equal positions:r", "Over all:r", "Positions:r", "Games:r", "Note:o")
    caption = "Spearman's rank correlation of value estimates with the returns of the games; none where either is constant"
    return drawn + table(caption, head, rows)


def _rewards(summary: Summary, problems: Sequence[ProblemReport]) -> str:
    """Rewards and latencies, as plots and tables."""
    body = ""
    for mean in summary.rewards:
        of = [(problem.name, reward) for problem in problems for reward in problem.rewards if reward.measured == mean.measured]
        latency = {"simulated": "simulated latency", "compiled": "cycles"}[mean.measured]
        series = [(name, reward.points) for name, reward in of]
        across = "reward of each plan, from the least to the most of its problem"
        body += _drawn(scatter_plot(series, across, latency, scaled=True), f"{latency} over reward")
        rows = [(name, _correlation(reward.correlation), str(reward.count)) for name, reward in of]
        rows.append(("mean", _correlation(mean.correlation), str(mean.count)))
        body += table(f"Pearson's correlation of the reward with {latency}", ("Problem:n", "Correlation:r", "Plans:r"), rows)
    return body


def _decisions(problems: Sequence[ProblemReport]) -> str:
    """The table of the decisions that cost most.

    Each decision of a game rules out some plans. Its cost is the best objective that is possible after the decision, less the
    best one before it. A share is a cost as a part of the difference between the objective of the game and the optimum.
    """
    rows = []
    for problem in problems:
        decisions = problem.decisions
        if decisions is None or decisions.explained is None:
            why = problem.decisions_note or ("at the optimum" if decisions is not None else "")
            rows.append((problem.name, "", "", "", "", why))
            continue
        ends = (value for step in decisions.costly for value in (step.before, step.after))
        shown = format_values(ends, kinds.unit(problem.unit))
        for at, step in enumerate(decisions.costly):
            number = str(step.first + 1) if step.first == step.last else f"{step.first + 1} to {step.last + 1}"
            cost = f"{shown[step.before]} → {shown[step.after]}"
            exact = "proven" if step.exact else "not proven"
            name = "" if at else problem.name
            rows.append((name, f"{number} of {decisions.count}", step.name, _share(step.share), cost, exact))
        if decisions.rest:
            name = "" if decisions.costly else problem.name
            # The note of a game without decisions is not about the search.
            note = "" if decisions.count else decisions.note
            rows.append((name, "", decisions.rest_name, _share(decisions.rest), "", note))
        if decisions.note and decisions.count:
            rows.append(("", "", f"the search was {decisions.note}", "", "", ""))
    head = ("Problem:n", "Decision:r", "What:n", "Share of the difference:r", "Best objective before and after:r", "Note:o")
    return table("Decisions of the likeliest game, the most costly first", head, rows)


def _settings(validation: Validation) -> str:
    """The settings of the validation."""
    settings = validation.settings
    facts = [
        ("Time limit", f"{settings.time_limit:g} s for each problem"),
        ("Sampled games", str(validation.games)),
        ("Solves for decisions, at most", str(validation.solves)),
        ("Seed", str(settings.seed)),
        ("Deterministic", "yes" if settings.deterministic else "no"),
        ("Targets", ", ".join(settings.targets) or "none"),
    ]
    for summary in validation.summaries:
        training = f": {summary.training}" if summary.training else ""
        facts.append((f"Policy for {_words(summary.kind)}", f"{summary.policy} ({summary.digest[:16]}){training}"))
    return facts_list(facts)


def _drawn(plot: Plot | None, name: str) -> str:
    """A plot below its legend; empty if there is no plot."""
    return "" if plot is None else (legend_html(plot.legend) if plot.legend else "") + plot_html(plot, name)


def _outcome(outcome: Outcome | None, unit: Unit) -> str:
    """Objective and gap of an outcome."""
    if outcome is None:
        return _NOTHING
    if outcome.objective is None:
        return outcome.note
    least = "" if outcome.least_gap in (None, outcome.gap) else f"{_gap(outcome.least_gap)} to "
    gaps = [least + _gap(outcome.gap), *([_gap(outcome.second_gap)] if outcome.second_gap else [])]
    return f"{format_value(outcome.objective, unit)} ({' + '.join(gaps)})"


def _with_second(row: Row, part: Literal["median", "mean"]) -> str:
    """The mean or the median of the gaps of one way to plan, followed by that of the second number if there is one."""
    second = "" if row.second_gaps is None else f" + {_gap(getattr(row.second_gaps, part))}"
    return f"{_gap(getattr(row.gaps, part))}{second}"


def _gap(value: float | None) -> str:
    return _NOTHING if value is None else format_gap(value)


def _share(value: float | None) -> str:
    return _NOTHING if value is None else f"{value:.0%}"


def _correlation(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def _words(kind: str) -> str:
    return kind.replace("_", " ")


def gaps_plot(
    rows: Sequence[tuple[str, Spread]],
    outcomes: Mapping[str, Sequence[tuple[str, Outcome]]],
    part: Callable[[Outcome], float | None],
    title: str,
) -> Plot | None:
    """A row for each way to plan, with a dot for each plan, a box from quartile to quartile, and the median.

    Returns None if every plan is at the optimum, or if there is no gap to draw.

    Parameters
    ----------
    rows
        Name and statistics of each way to plan.
    outcomes
        (problem, outcome) pairs of each way to plan, by its name.
    part
        The gap of an outcome that is drawn.
    title
        Title of the axis.
    """
    worst = max((spread.worst for _, spread in rows if spread.worst is not None), default=0.0)
    if not worst:
        return None
    top = max(worst * (1 + _MARGIN), _MIN_GAP_WIDTH)
    across = Axis(-0.01 * top, top, [(tick / 100, f"{format_tick(tick)}%") for tick in nice_ticks(0.0, 100 * top, 8)], title)
    marks: list[Mark] = []
    for number, (name, spread) in enumerate(rows):
        middle, colour = number + 0.5, PALETTE[number % len(PALETTE)]
        low, high, median = spread.lower_quartile, spread.upper_quartile, spread.median
        if low is not None and high is not None and median is not None:
            box = Style(fill=colour, opacity=0.35)
            marks.append(Rect(low, max(high, low + 0.002 * top), middle + 0.3, middle - 0.3, box))
            marks.append(Line([(median, middle + 0.3), (median, middle - 0.3)], RULE))
        for problem, outcome in outcomes.get(name, ()):
            gap = part(outcome)
            if gap is not None:
                marks.append(Dot(gap, middle, _RIM, 10))
                marks.append(Dot(gap, middle, Style(fill=colour), 8, tip=f"{problem}\n{name}: {format_gap(gap)}"))
    up = Axis(len(rows), 0, [(number + 0.5, name) for number, (name, _) in enumerate(rows)])
    spoken = f"{title} of {len(rows)} ways to plan; the table below has the numbers"
    return Plot(across, [Panel(up, marks, _ROW * len(rows), spoken)])


def scatter_plot(
    series: Sequence[tuple[str, Sequence[tuple[float, float]]]], across_title: str, up_title: str, *, scaled: bool = False
) -> Plot | None:
    """Points of several problems, each in its own colour; None if there are no points.

    Parameters
    ----------
    series
        Name and points of each problem.
    across_title, up_title
        Titles of the axes.
    scaled
        Whether the points of each problem are scaled to the range 0 to 1, for problems with different units.
    """
    shown = [(name, _unit_range(points) if scaled else list(points)) for name, points in series if points]
    every = [point for _, points in shown for point in points]
    if not every:
        return None
    (left, right), (bottom, top) = (_range([point[part] for point in every]) for part in range(2))
    marks: list[Mark] = []
    legend = []
    for number, (name, points) in enumerate(shown):
        style = Style(fill=PALETTE[number % len(PALETTE)])
        marks += [Dot(x, y, style, 6, tip=name) for x, y in points]
        legend.append(Key(name, style))
    across, up = (
        Axis(low, high, [(tick, format_tick(tick)) for tick in nice_ticks(low, high, most)], title)
        for low, high, most, title in ((left, right, 8, across_title), (bottom, top, 5, up_title))
    )
    spoken = f"{up_title} over {across_title}, {len(every)} points"
    # If there are more problems than colours, a legend could not tell them apart.
    return Plot(across, [Panel(up, marks, _HIGH, spoken)], legend=legend if len(shown) <= len(PALETTE) else [])


def _range(values: Sequence[float]) -> tuple[float, float]:
    """Ends of an axis for these values, with some space."""
    low, high = min(values), max(values)
    margin = _MARGIN * (high - low) or max(abs(high), 1.0) * _MARGIN
    return low - margin, high + margin


def _unit_range(points: Sequence[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points, scaled to the range 0 to 1 in both coordinates."""
    ends = [(min(values), max(values)) for values in ([point[part] for point in points] for part in range(2))]

    def scaled(value: float, part: int) -> float:
        low, high = ends[part]
        return (value - low) / (high - low) if high > low else 0.5

    return [(scaled(x, 0), scaled(y, 1)) for x, y in points]
