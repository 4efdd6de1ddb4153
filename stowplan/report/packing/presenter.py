"""How packings are shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem
from stowplan.report.boxes import assign_colours
from stowplan.report.packing import sections
from stowplan.report.packing.picture import save_packing_picture
from stowplan.report.packing.scene import build_scene, check_fits
from stowplan.report.packing.text import summarize_packing
from stowplan.report.page import Details, Overview, Section
from stowplan.report.presenter import DrawingPresenter, Labelled, merge_equal
from stowplan.result import Result


class PackingPresenter(DrawingPresenter):
    """Layouts of buffers over time."""

    most_plans = 2

    def check_fits(self, problem: Problem, plan: object) -> None:
        """Plans that break rules are shown as well: seeing what is wrong is what pictures are for."""
        check_fits(problem, plan)

    def references(self, problem: Problem) -> list[Labelled]:
        """None: every buffer at bytes of its own is no picture to compare with."""
        return []

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Heights, and buffers by offset."""
        return summarize_packing(problem, plan, others, top=None if everything else 40)

    def draw(self, problem: Problem, plans: Sequence[Labelled], path: str | Path, *, seconds: bool = False) -> None:
        """One layout, or two side by side."""
        save_packing_picture(problem, merge_equal(plans, lambda plan: plan.offsets)[: self.most_plans], path)

    def overview(self, problem: Problem, result: Result) -> Overview:
        """What is packed into what."""
        return sections.overview(problem)

    def report_sections(
        self, problem: Problem, result: Result, others: Sequence[Labelled], details: Details, *, seconds: bool = False
    ) -> list[Section]:
        """The layout, and the largest buffers."""
        if result.plan is None:
            return []
        labelled = [(result.provenance.candidate, result.plan), *others]
        scenes = [(label, build_scene(problem, plan)) for label, plan in merge_equal(labelled, lambda plan: plan.offsets)]
        colours = assign_colours([scene.boxes for _, scene in scenes])
        return [sections.layouts(scenes, colours, details), sections.buffers(problem, result.plan, colours)]


PRESENTER = PackingPresenter
