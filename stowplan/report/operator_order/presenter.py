"""How operator orders are shown."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Problem
from stowplan.report.boxes import assign_colours
from stowplan.report.inline import legend_html, plot_html
from stowplan.report.operator_order import drawing
from stowplan.report.operator_order.drawing import Profile, build_profile
from stowplan.report.packing.drawing import plots
from stowplan.report.packing.presenter import layouts_section
from stowplan.report.page import Details, Overview, Section, table
from stowplan.report.presenter import DrawingPresenter, Labelled
from stowplan.report.scene import Picture
from stowplan.report.text import name_of, plan_line, text_table
from stowplan.report.units import format_bytes, printable
from stowplan.result import Result

#: Rows of the table, and of that in text; letters of an operator's name and kind there.
TOP, LINES, _NAME, _KIND = 40, 40, 44, 20


class OrderPresenter(DrawingPresenter):
    """Live bytes over the order, beside those of the order given."""

    most_plans = 2

    def check_fits(self, problem: Problem, plan: object) -> None:
        """Plans that break rules are shown as well."""
        drawing.check_fits(problem, plan)

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Peak and arena beside those of other plans; then the operators in order with what is live."""
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

    def picture(self, problem: Problem, plans: Sequence[Labelled], *, seconds: bool = False) -> Picture:
        """Live bytes over the order; those of a second plan as a line."""
        return drawing.picture(problem, self.distinct(problem, plans))

    def overview(self, problem: Problem, result: Result) -> Overview:
        """What is to be ordered."""
        total = sum(tensor.size for tensor in problem.tensors if tensor.alias_of is None)
        views = sum(tensor.alias_of is not None for tensor in problem.tensors)
        places = sum(len(op.in_place) for op in problem.ops)
        facts = [
            ("Operators", f"{len(problem.ops):,}"),
            ("Tensors", f"{len(problem.tensors):,}, {format_bytes(total)} in all"),
            ("Inputs", "free after their last reader" if problem.free_inputs else "there to the end"),
        ]
        facts += [("Views", f"{views:,}")] if views else []
        facts += [("Results that may take an operand's place", f"{places:,}")] if places else []
        return Overview(facts=facts)

    def report_sections(
        self, problem: Problem, result: Result, others: Sequence[Labelled], details: Details, *, seconds: bool = False
    ) -> list[Section]:
        """Live bytes with the given order's beside them, the layout, and what is live at the peak."""
        if result.plan is None:
            return []
        plans = self.distinct(problem, [(result.provenance.candidate, result.plan), *(others or self.references(problem))])
        profiles = [(label, build_profile(problem, plan)) for label, plan in plans]
        label, profile = profiles[0]
        layout = profile.layout()
        drawn = plots([(label, layout)], assign_colours([layout.boxes]))
        return [_live_bytes(profiles, result.bound), layouts_section([layout], drawn, details), _at_the_peak(profile)]


def _live_bytes(profiles: Sequence[tuple[str, Profile]], bound: int | None) -> Section:
    """Live bytes of the plan over its order, those of other plans beside them, and the bound."""
    drawn = drawing.plot(profiles, bound)
    named = " and ".join(escape(label) for label, _ in profiles[1:])
    lines = f" The line is {named}." if named else ""
    return Section(
        "Live bytes over the order",
        f"<p>Operators run from left to right; the area is what is live while each runs under {escape(profiles[0][0])}.{lines}"
        f"</p>\n{legend_html(drawn.legend)}{plot_html(drawn, 'Live bytes over the order')}",
    )


def _at_the_peak(profile: Profile) -> Section:
    """The tensors that are live at the first moment of the peak."""
    moment = int(profile.live.argmax()) if len(profile.live) else 0
    live = [
        (buffer, offset)
        for buffer, offset in zip(profile.lives.packing.buffers, profile.lives.offsets(profile.plan).offsets, strict=True)
        if buffer.lower <= moment < buffer.upper and buffer.size
    ]
    live.sort(key=lambda each: (-each[0].size, each[0].id))
    rows = [
        (buffer.id, f"{buffer.size:,}", f"{offset:,}", f"[{buffer.lower:,}, {buffer.upper:,})") for buffer, offset in live[:TOP]
    ]
    name = profile.problem.ops[profile.plan.order[moment]].id if profile.plan.order else ""
    caption = f"{len(rows):,} of {len(live):,} tensors that are live while {name} runs, step {moment:,}: the peak"
    return Section("At the peak", table(caption, ("Tensor:n", "Bytes:r", "Offset:r", "Steps:r"), rows), follows_search=True)
