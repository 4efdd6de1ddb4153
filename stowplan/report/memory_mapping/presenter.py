"""How memory-mapping plans are shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stowplan.errors import InputError
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.report.boxes import assign_colours
from stowplan.report.memory_mapping import sections
from stowplan.report.memory_mapping.picture import save_picture
from stowplan.report.memory_mapping.scene import build_scene, check_fits
from stowplan.report.memory_mapping.text import summarize_plan
from stowplan.report.page import Details, Overview, Section
from stowplan.report.presenter import DrawingPresenter, Labelled, merge_equal
from stowplan.result import Result


class MemoryMappingPresenter(DrawingPresenter):
    """Layouts of fast memory over steps or seconds."""

    most_plans = 2
    has_seconds = True

    def check_fits(self, problem: Problem, plan: object) -> None:
        """Plans that break rules are shown as well: seeing what is wrong is what pictures are for."""
        if not isinstance(plan, Plan):
            raise InputError(f"found a {type(plan).__name__} of another kind, expected a memory mapping")
        check_fits(problem, plan)

    def references(self, problem: Problem) -> list[Labelled]:
        """None: everything in slow memory is an empty picture."""
        return []

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Figures, residencies and copies."""
        return summarize_plan(problem, plan, others=others, top=None if everything else 40)

    def draw(self, problem: Problem, plans: Sequence[Labelled], path: str | Path, *, seconds: bool = False) -> None:
        """One layout, or two side by side."""
        drawn = merge_equal(plans, lambda plan: (plan.residencies, plan.copies, plan.fast_uses))
        save_picture(problem, drawn[: self.most_plans], path, time="seconds" if seconds else "steps")

    def overview(self, problem: Problem, result: Result) -> Overview:
        """The normalised return, and what is known of program and machine."""
        return sections.overview(problem, result)

    def report_sections(
        self, problem: Problem, result: Result, others: Sequence[Labelled], details: Details, *, seconds: bool = False
    ) -> list[Section]:
        """Layouts; tensors by saving and steps by latency."""
        labelled: list[Labelled] = [(result.provenance.candidate, result.plan)] if result.plan is not None else []
        scenes = [
            (label, build_scene(problem, plan, "seconds" if seconds else "steps"))
            for label, plan in merge_equal([*labelled, *others], lambda plan: (plan.residencies, plan.copies, plan.fast_uses))
        ]
        colours = assign_colours([scene.boxes for _, scene in scenes])
        found = [sections.layouts(scenes, colours, details)] if scenes else []
        if result.plan is not None:
            found += [*sections.tensors(problem, result.plan, colours), *sections.steps(problem, result.plan)]
        return found


PRESENTER = MemoryMappingPresenter
