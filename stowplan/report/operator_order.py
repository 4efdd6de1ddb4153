"""Shows operator orders: the live bytes while each operator runs, with other plans as lines.

The presenter's methods override the methods of :class:`~stowplan.report.presenter.Presenter`, which explains their parameters
and errors. The functions expect a plan that :meth:`~stowplan.report.presenter.Presenter.check_fits` has accepted, and raise no
errors of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError
from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Problem
from stowplan.models.operator_order.structure import build
from stowplan.portfolio.operator_order.arena import Lives
from stowplan.report import scene
from stowplan.report.boxes import assign_colours
from stowplan.report.inline import legend_html, plot_html
from stowplan.report.packing import Layout, arena, build_layout, layouts_section, plots
from stowplan.report.page import Details, Overview, Section, table
from stowplan.report.presenter import DrawingPresenter, Labelled
from stowplan.report.text import byte_unit, format_bytes, name_of, plan_line, printable, shorten
from stowplan.report.trace import Group, Slice, Trace
from stowplan.result import Result
from stowplan.tables import text_table

#: Rows of the table in the report and in text; characters of an operator's name and kind in text.
TOP, LINES, _NAME, _KIND = 40, 40, 44, 20

_HIGH = 260.0


class OrderPresenter(DrawingPresenter):
    """Shows the live bytes over the order, next to the live bytes of another order, usually the order in which the problem
    lists the operators."""

    max_plans = 2
    plan_words, problem_words = "an operator order", "operators and tensors"

    def check_parts(self, problem: Problem, plan: Plan) -> None:
        """Raises InputError unless every operator is in the order once, and every tensor has an offset."""
        if sorted(plan.order) != list(range(len(problem.ops))):
            raise InputError(
                f"found an order of {len(plan.order)} entries, expected each of the {len(problem.ops)} operators once"
            )
        if len(plan.offsets) != len(problem.tensors):
            raise InputError(f"found {len(plan.offsets)} offsets, expected one for each of the {len(problem.tensors)} tensors")

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Peak and arena of the plan and of other plans, and the operators in order with the live bytes."""
        profile = build_profile(problem, plan)
        above = plan.arena / profile.peak - 1 if profile.peak else 0.0
        lines = [
            f"{printable(problem.name or 'graph')}: {len(problem.ops):,} operators, {len(problem.tensors):,} tensors",
            f"  peak   {profile.peak:,} bytes live at once",
            f"  arena  {plan.arena:,} bytes, {above:.1%} above the peak",
        ]
        for name, other in others:
            lines.append(plan_line(name, f"peak {build_profile(problem, other).peak:,}, arena {other.arena:,} bytes"))
        rows = []
        for at, number in enumerate(plan.order if everything else plan.order[:LINES]):
            op, live = problem.ops[number], int(profile.live[at])
            kind = f" ({name_of(op.kind, _KIND)})" if op.kind else ""
            mark = "  <- peak" if live == profile.peak else ""
            rows.append((f"{at:,}", format_bytes(live), name_of(op.id, _NAME) + kind + mark))
        return "\n".join([*lines, *text_table(("step:r", "live:r", "operator"), rows, len(plan.order))])

    def drawn(self, problem: Problem, plans: Sequence[Labelled], *, seconds: bool) -> scene.Picture:
        """Live bytes of one plan, or of two."""
        profiles = [(label, build_profile(problem, plan)) for label, plan in plans]
        return scene.Picture(f"{problem.name or 'graph'}: {len(problem.ops):,} operators", [[plot(profiles)]], 560)

    def trace(self, problem: Problem, plan: Plan) -> Trace:
        """The operators, the live bytes, and the arena. Each operator takes one step."""
        profile = build_profile(problem, plan)
        ops = [
            Slice(problem.ops[op].id, at, at + 1, {"kind": problem.ops[op].kind, "live bytes": int(live)})
            for at, (op, live) in enumerate(zip(plan.order, profile.live, strict=True))
        ]
        names = [buffer.id for buffer in profile.lives.packing.buffers]
        live = {"live": (range(len(ops) + 1), profile.live.tolist())}
        return Trace("step", [Group("operators", {"operators": ops}, live), arena("arena", profile.layout(), names)])

    def overview(self, problem: Problem, result: Result) -> Overview:
        """The graph."""
        total = sum(tensor.size for tensor in problem.tensors if tensor.alias_of is None)
        views = sum(tensor.alias_of is not None for tensor in problem.tensors)
        places = sum(len(op.in_place) for op in problem.ops)
        facts = [
            ("Operators", f"{len(problem.ops):,}"),
            ("Tensors", f"{len(problem.tensors):,}, {format_bytes(total)} in all"),
            ("Inputs", "free after their last reader" if problem.free_inputs else "kept to the end"),
        ]
        facts += [("Views", f"{views:,}")] if views else []
        facts += [("Results that may overwrite an operand", f"{places:,}")] if places else []
        return Overview(facts=facts)

    def sections(self, problem: Problem, result: Result, plans: Sequence[Labelled], details: Details) -> list[Section]:
        """Live bytes, with the live bytes of the given order as a line; the layout; and the tensors that are live at the
        peak."""
        profiles = [(label, build_profile(problem, plan)) for label, plan in plans]
        label, profile = profiles[0]
        layout = profile.layout()
        drawn = plots([(label, layout)], assign_colours([layout.boxes]))
        return [_live_bytes(profiles, result.bound), layouts_section([layout], drawn, details), _at_the_peak(profile)]


def _live_bytes(profiles: Sequence[tuple[str, Profile]], bound: int | None) -> Section:
    """Live bytes of the plan and of other plans over the order, and the bound."""
    drawn = plot(profiles, bound)
    named = " and ".join(escape(label) for label, _ in profiles[1:])
    lines = f" The line is {named}." if named else ""
    return Section(
        "Live bytes over the order",
        "<p>Operators run from left to right; the area is the live bytes while each runs, under "
        f"{escape(profiles[0][0])}.{lines}</p>\n{legend_html(drawn.legend)}{plot_html(drawn, 'Live bytes over the order')}",
    )


def _at_the_peak(profile: Profile) -> Section:
    """The tensors that are live when the peak is first reached."""
    moment = int(profile.live.argmax()) if len(profile.live) else 0
    live = [
        (buffer, offset)
        for buffer, offset in zip(profile.lives.packing.buffers, profile.lives.offsets(profile.plan).offsets, strict=True)
        if buffer.lower <= moment < buffer.upper and buffer.size
    ]
    live.sort(key=lambda placed: (-placed[0].size, placed[0].id))
    rows = [
        (buffer.id, f"{buffer.size:,}", f"{offset:,}", f"[{buffer.lower:,}, {buffer.upper:,})") for buffer, offset in live[:TOP]
    ]
    name = profile.problem.ops[profile.plan.order[moment]].id if profile.plan.order else ""
    caption = f"{len(rows):,} of {len(live):,} tensors that are live while {name} runs, step {moment:,}: the peak"
    return Section("At the peak", table(caption, ("Tensor:n", "Bytes:r", "Offset:r", "Steps:r"), rows), follows_search=True)


@dataclass(frozen=True)
class Profile:
    """A plan with the figures that are drawn."""

    problem: Problem
    plan: Plan
    live: NDArray[np.int64]
    """[operators] bytes that are live while each operator of the order runs."""
    lives: Lives
    """The life spans of the tensors in this order, as a packing problem."""

    @property
    def peak(self) -> int:
        """The largest number of live bytes."""
        return int(self.live.max(initial=0))

    def layout(self) -> Layout:
        """The tensors over the order as boxes; tensors that follow each other at the same place are one box."""
        return build_layout(self.lives.packing, self.lives.offsets(self.plan))


def build_profile(problem: Problem, plan: Plan) -> Profile:
    """Live bytes of a plan. The plan need not be valid, because a picture may show what is wrong with it."""
    structure = build(problem)
    return Profile(problem, plan, structure.profile(plan.order), Lives(problem, structure, plan.order))


def plot(profiles: Sequence[tuple[str, Profile]], bound: int | None = None) -> scene.Plot:
    """Live bytes of the first plan as an area and of the others as lines, and the bound."""
    top = max(1, *(profile.peak for _, profile in profiles))
    count = len(profiles[0][1].live)
    across = scene.number_axis(0, max(1, count), "operator")
    edges = list(range(count + 1))
    marks: list[scene.Mark] = [scene.area(scene.steps(edges, profiles[0][1].live.tolist()), scene.USAGE)]
    marks += [scene.Line(scene.steps(edges, profile.live.tolist()), scene.RULE) for _, profile in profiles[1:]]
    legend = [
        scene.Key(
            shorten(f"{label}: peak {format_bytes(profile.peak, 6)}, arena {format_bytes(profile.plan.arena, 6)}", 60),
            scene.RULE if number else scene.USAGE,
            "line" if number else "patch",
        )
        for number, (label, profile) in enumerate(profiles)
    ]
    if bound is not None:
        marks.append(scene.level(across, bound, scene.DASHED))
        legend.append(scene.Key(f"the proven bound, {format_bytes(bound, 6)}", scene.DASHED, "line"))
    up = scene.byte_axis(max(top, bound or 0), f"live ({byte_unit(top)[0]})")
    return scene.Plot(across, [scene.Panel(up, marks, _HIGH, f"Live bytes over the order of {count} operators")], legend=legend)


PRESENTER = OrderPresenter
