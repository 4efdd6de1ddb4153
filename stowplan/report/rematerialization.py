"""Shows rematerialization plans: live bytes over the runs of operators, repeated runs, and peak against added cost.

The presenter's methods override the methods of :class:`~stowplan.report.presenter.Presenter`, which explains their parameters
and errors. The functions expect a plan that :meth:`~stowplan.report.presenter.Presenter.check_fits` has accepted, and raise no
errors of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from html import escape
from itertools import cycle
from typing import TYPE_CHECKING

from stowplan.errors import InputError
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import build
from stowplan.models.rematerialization.timeline import timeline
from stowplan.models.rematerialization.verify import load_bytes, verify
from stowplan.report import scene
from stowplan.report.colours import PALETTE, TIER_COLOURS
from stowplan.report.inline import legend_html, plot_html
from stowplan.report.page import Details, Overview, Section, table
from stowplan.report.presenter import DrawingPresenter, Labelled
from stowplan.report.text import byte_unit, format_bytes, name_of, plan_line, printable, shorten
from stowplan.report.trace import Group, Slice, Trace, in_rows
from stowplan.result import Result
from stowplan.tables import text_table

if TYPE_CHECKING:
    from stowplan.portfolio.rematerialization.frontier import Point

#: Number of rows of the table of repeated operators.
ROWS = 40

_HIGH = 260.0


class RematerializationPresenter(DrawingPresenter):
    """Shows the live bytes over the runs of operators, next to the live bytes of another plan."""

    max_plans = 2
    plan_words, problem_words = "a plan of rematerialization", "operators and tensors"

    def check_parts(self, problem: Problem, plan: Plan) -> None:
        """Raises InputError unless every run is of an operator whose inputs are in memory."""
        if "peak" not in verify(problem, plan).figures:
            raise InputError("found a run that cannot take place, expected each to find what it reads")

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Added cost and peak of the plan and of other plans, and the repeated operators, the most expensive first."""
        verification = verify(problem, plan)
        once = sum(op.cost for op in problem.ops)
        limit = "no limit" if problem.limit is None else f"limit {problem.limit:,} bytes"
        lines = [
            f"{printable(problem.name or 'graph')}: {len(problem.ops):,} operators, {len(problem.tensors):,} tensors, {limit}",
            f"  added cost  {verification.objective or 0:,} on {once:,} of every operator once",
            f"  peak        {verification.figures.get('peak', 0):,} bytes {_occupied(problem)} at once",
            f"  runs        {len(plan.sequence):,}",
        ]
        if problem.channel is not None:
            host, stalls = (verification.figures.get(name, 0) for name in ("host_peak", "stalls"))
            lines.append(f"  host        {host:,} of {problem.channel.limit:,} bytes, waits of {stalls:,}")
        for name, other in others:
            lines.append(plan_line(name, f"added cost {other.objective:,}, peak {other.peak:,} bytes"))
        rows = _repeated_rows(problem, plan)
        shown = rows if everything else rows[:ROWS]
        lines += text_table(("runs:r", "added cost:r", "operator"), shown, len(rows))
        if plan.moves:
            copies = _copy_rows(problem, plan)
            head = ("copy", "bytes:r", "begin:r", "end:r", "tensor")
            lines += text_table(head, copies if everything else copies[:ROWS], len(copies))
        return "\n".join(lines)

    def drawn(self, problem: Problem, plans: Sequence[Labelled], *, seconds: bool) -> scene.Picture:
        """Live bytes of one plan, or of two."""
        return scene.Picture(f"{problem.name or 'graph'}: {len(problem.ops):,} operators", [[_plot(problem, plans)]], 560)

    def trace(self, problem: Problem, plan: Plan) -> Trace:
        """The runs of operators, and the bytes that count towards the limit. If values may be sent to a host, time is in units
        of cost, and the copies are shown; otherwise each run takes one step."""
        steps, groups = list(plan.steps()), list[Group]()
        begin: Sequence[int] = range(len(steps) + 1)
        if problem.channel is not None:
            times = timeline(build(problem), plan)
            begin = (*times.begin, times.end)
            copies: dict[str, Sequence[Slice]] = {}
            for action in ("send", "fetch"):
                parts = [copy for copy in times.transfers if copy.action == action]
                tensors = [problem.tensors[copy.tensor] for copy in parts]
                slices = (
                    Slice(tensor.id, copy.begin, copy.end, {"bytes": tensor.size, "issued": copy.issued})
                    for copy, tensor in zip(parts, tensors, strict=True)
                )
                copies |= in_rows(slices, action)
            groups.append(Group("copies", copies))
        counts: Counter[int] = Counter()
        runs = []
        for at, (action, op) in enumerate(steps):
            if action == "run":
                counts[op] += 1
                # The step after a run may wait for copies, so a run ends by its own cost.
                end = at + 1 if problem.channel is None else begin[at] + problem.ops[op].cost
                facts = {"kind": problem.ops[op].kind, "cost": problem.ops[op].cost, "run": counts[op]}
                runs.append(Slice(problem.ops[op].id, begin[at], end, facts))
        used = {_occupied(problem): (begin, load_bytes(problem, plan))}
        unit = "step" if problem.channel is None else "unit of cost"
        return Trace(unit, [Group("operators", {"operators": runs}, used), *groups])

    def overview(self, problem: Problem, result: Result) -> Overview:
        """The graph and the limit."""
        facts = [
            ("Operators", f"{len(problem.ops):,}, {sum(op.once for op in problem.ops):,} of which may run once only"),
            ("Tensors", f"{len(problem.tensors):,}"),
            ("Limit", "none" if problem.limit is None else format_bytes(problem.limit)),
        ]
        return Overview(facts=facts)

    def sections(self, problem: Problem, result: Result, plans: Sequence[Labelled], details: Details) -> list[Section]:
        """Live bytes, and the repeated operators."""
        drawn = _plot(problem, plans)
        text = f"<p>Runs go from left to right; the area is the live bytes during each, under {escape(plans[0][0])}.</p>\n"
        live = Section("Live bytes", f"{text}{legend_html(drawn.legend)}{plot_html(drawn, 'Live bytes over the runs')}")
        rows = _repeated_rows(problem, plans[0][1])
        caption = f"{min(len(rows), ROWS):,} of {len(rows):,} operators that run again"
        repeated = Section("Operators that run again", table(caption, ("Runs:r", "Added cost:r", "Operator:n"), rows[:ROWS]))
        return [live, repeated]


def frontier_picture(problem: Problem, points: Sequence[Point]) -> scene.Picture:
    """A picture of added cost over the limit in bytes: the cost of the plan that was found for each limit, and its proven
    bound. ``points`` are in the order of increasing limits; a point without a plan is left out."""
    solved = [point for point in points if point.added_cost is not None]
    hosts = dict.fromkeys(point.host_limit for point in solved)
    lines: dict[str, list[tuple[int, float]]] = {}
    for host in hosts:
        of = f", host {format_bytes(host or 0, 4)}" if len(hosts) > 1 else ""
        within = [point for point in solved if point.host_limit == host]
        lines[f"added cost{of}"] = [(point.limit, point.added_cost or 0) for point in within]
        lines[f"bound{of}"] = [(point.limit, point.bound or 0) for point in within]
    title = f"{problem.name or 'graph'}: {len(problem.ops):,} operators"
    most = max((point.limit for point in points), default=1)
    plot = steps_plot("Added cost over the limit on the peak", ("limit", "added cost"), lines, most=most)
    return scene.Picture(title, [[plot]], 560)


def steps_plot(
    spoken: str,
    axes: tuple[str, str],
    lines: Mapping[str, Sequence[tuple[int, float]]],
    dots: Mapping[str, Sequence[tuple[int, float]]] | None = None,
    most: int = 1,
) -> scene.Plot:
    """Costs over bytes as step functions. Every second line is dashed, and each pair of lines has its own colour.

    Parameters
    ----------
    spoken
        Description for readers who cannot see it.
    axes
        Titles of the horizontal axis, which is in bytes, and of the vertical one.
    lines
        Points of each line by name, with increasing bytes. A value holds up to the next point.
    dots
        Single points by name.
    most
        Minimum length of the horizontal axis in bytes.
    """
    every = [point for points in (*lines.values(), *(dots or {}).values()) for point in points]
    most = max([most, *(size for size, _ in every)])
    across = scene.byte_axis(most, f"{axes[0]} ({byte_unit(most)[0]})")
    marks: list[scene.Mark] = []
    legend = []
    for number, (name, rows) in enumerate(lines.items()):
        style = scene.DASHED if number % 2 else scene.RULE
        if len(lines) > 2:
            style = replace(style, stroke=TIER_COLOURS[number // 2 % len(TIER_COLOURS)])
        if rows:
            marks.append(scene.Line(scene.steps([*(size for size, _ in rows), most], [value for _, value in rows]), style))
            legend.append(scene.Key(name, style, "line"))
    for (name, rows), colour in zip((dots or {}).items(), cycle(PALETTE), strict=False):
        style = scene.Style(fill=colour)
        marks += [scene.Dot(size, value, style, tip=name) for size, value in rows]
        legend.append(scene.Key(name, style, "circle"))
    up = scene.number_axis(0, max((value for _, value in every), default=0) or 1, axes[1])
    panel = scene.Panel(up, marks, _HIGH, spoken)
    return scene.Plot(across, [panel], legend=legend)


def _repeated_rows(problem: Problem, plan: Plan) -> list[tuple[str, str, str]]:
    """(runs, added cost, operator) for each operator that runs more than once, the most expensive first."""
    counts = {op: count for op, count in Counter(plan.sequence).items() if count > 1}
    order = sorted(counts, key=lambda op: (-(counts[op] - 1) * problem.ops[op].cost, op))
    return [(f"{counts[op]:,}", f"{(counts[op] - 1) * problem.ops[op].cost:,}", name_of(problem.ops[op].id)) for op in order]


def _copy_rows(problem: Problem, plan: Plan) -> list[tuple[str, str, str, str, str]]:
    """(send or fetch, bytes, begin, end, tensor) for each copy of a valid plan, in the order in which they are issued."""
    rows = []
    for copy in timeline(build(problem), plan).transfers:
        tensor = problem.tensors[copy.tensor]
        rows.append((copy.action, f"{tensor.size:,}", f"{copy.begin:,}", f"{copy.end:,}", name_of(tensor.id)))
    return rows


def _occupied(problem: Problem) -> str:
    """The word for the bytes that the limit applies to."""
    return "live and reserved" if problem.reservations else "live"


def _plot(problem: Problem, plans: Sequence[Labelled]) -> scene.Plot:
    """Live bytes of the first plan as an area and of another as a line, and the limit."""
    lives = [(label, plan, load_bytes(problem, plan)) for label, plan in plans]
    most = max(1, problem.limit or 0, *(max(live, default=0) for _, _, live in lives))
    what = "run or move" if any(plan.moves for _, plan, _ in lives) else "run"
    across = scene.number_axis(0, max(1, *(len(live) for _, _, live in lives)), what)
    marks: list[scene.Mark] = []
    legend = []
    for number, (label, plan, live) in enumerate(lives):
        steps = scene.steps(list(range(len(live) + 1)), list(live))
        marks.append(scene.Line(steps, scene.RULE) if number else scene.area(steps, scene.USAGE))
        text = shorten(
            f"{label}: peak {format_bytes(max(live, default=0), 6)}, added cost {verify(problem, plan).objective or 0:,}", 60
        )
        legend.append(scene.Key(text, scene.RULE if number else scene.USAGE, "line" if number else "patch"))
    if problem.limit is not None:
        marks.append(scene.level(across, problem.limit, scene.DASHED))
        legend.append(scene.Key(f"the limit, {format_bytes(problem.limit, 6)}", scene.DASHED, "line"))
    up = scene.byte_axis(most, f"{_occupied(problem)} ({byte_unit(most)[0]})")
    return scene.Plot(across, [scene.Panel(up, marks, _HIGH, "Live bytes over the runs")], legend=legend)


PRESENTER = RematerializationPresenter
