"""How operator orders are shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stowplan.models.operator_order.plan import Plan
from stowplan.models.operator_order.problem import Problem
from stowplan.report.boxes import assign_colours
from stowplan.report.operator_order import sections
from stowplan.report.operator_order.picture import save_order_picture
from stowplan.report.operator_order.profile import build_profile, check_fits
from stowplan.report.operator_order.text import summarize_order
from stowplan.report.packing.sections import layouts
from stowplan.report.page import Details, Overview, Section
from stowplan.report.presenter import DrawingPresenter, Labelled, merge_equal
from stowplan.result import Result


class OrderPresenter(DrawingPresenter):
    """Live bytes over the order, beside those of the order given."""

    most_plans = 2

    def check_fits(self, problem: Problem, plan: object) -> None:
        """Plans that break rules are shown as well."""
        check_fits(problem, plan)

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Peaks, arenas, and operators in order."""
        return summarize_order(problem, plan, others, top=None if everything else 40)

    def draw(self, problem: Problem, plans: Sequence[Labelled], path: str | Path, *, seconds: bool = False) -> None:
        """Live bytes over the order; those of a second plan as a line."""
        save_order_picture(problem, merge_equal(plans, _key)[: self.most_plans], path)

    def overview(self, problem: Problem, result: Result) -> Overview:
        """What is to be ordered."""
        return sections.overview(problem)

    def report_sections(
        self, problem: Problem, result: Result, others: Sequence[Labelled], details: Details, *, seconds: bool = False
    ) -> list[Section]:
        """Live bytes with the given order's beside them, the layout, and what is live at the peak."""
        if result.plan is None:
            return []
        labelled = [(result.provenance.candidate, result.plan), *(others or self.references(problem))]
        profiles = [(label, build_profile(problem, plan)) for label, plan in merge_equal(labelled, _key)]
        scene = profiles[0][1].scene()
        colours = assign_colours([scene.boxes])
        return [
            sections.live_bytes(profiles[:2], result.bound),
            layouts([(profiles[0][0], scene)], colours, details),
            sections.at_the_peak(profiles[0][1]),
        ]


def _key(plan: Plan) -> object:
    return plan.order, plan.offsets


PRESENTER = OrderPresenter
