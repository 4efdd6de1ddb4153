"""How banked packings are shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stowplan.models.banked_packing.plan import Plan
from stowplan.models.banked_packing.problem import Problem
from stowplan.report.banked_packing.picture import save_picture
from stowplan.report.banked_packing.scene import bank_scenes, check_fits
from stowplan.report.banked_packing.text import bank_rows, summarize
from stowplan.report.boxes import assign_colours
from stowplan.report.packing import sections
from stowplan.report.page import Details, Overview, Section, table
from stowplan.report.presenter import DrawingPresenter, Labelled, merge_equal
from stowplan.report.units import format_bytes
from stowplan.result import Result


class BankedPackingPresenter(DrawingPresenter):
    """A layout for each bank."""

    most_plans = 2

    def check_fits(self, problem: Problem, plan: object) -> None:
        """Plans that break rules are shown as well: seeing what is wrong is what pictures are for."""
        check_fits(problem, plan)

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Costs, banks, and buffers by bank and offset."""
        return summarize(problem, plan, others, top=None if everything else 40)

    def draw(self, problem: Problem, plans: Sequence[Labelled], path: str | Path, *, seconds: bool = False) -> None:
        """A layout for each bank; two plans side by side."""
        save_picture(problem, _merged(plans)[: self.most_plans], path)

    def overview(self, problem: Problem, result: Result) -> Overview:
        """What is packed into which banks."""
        total = sum(buffer.size for buffer in problem.buffers)
        facts = [("Buffers", f"{len(problem.buffers):,}, {format_bytes(total)} in all")]
        facts += [(bank.name, f"{bank.capacity:,} bytes at a cost of {bank.cost:,} a byte") for bank in problem.banks]
        return Overview(facts=facts)

    def report_sections(
        self, problem: Problem, result: Result, others: Sequence[Labelled], details: Details, *, seconds: bool = False
    ) -> list[Section]:
        """The banks of the plan as a table, and the layout of each."""
        if result.plan is None:
            return []
        head = ("Bank:n", "Cost:r", "Used:r", "Capacity:r", "Buffers:r", "Traffic:r")
        found = [Section("Banks", table("What each bank holds", head, bank_rows(problem, result.plan)))]
        scenes = bank_scenes(problem, result.plan)
        colours = assign_colours([scene.boxes for scene in scenes])

        def describe(owner: int) -> tuple[str, int]:
            return problem.buffers[owner].id, problem.buffers[owner].size

        for bank, scene in zip(problem.banks, scenes, strict=True):
            if not scene.boxes:
                # The table says that nothing is in it.
                continue
            section = sections.layouts([(bank.name, scene)], colours, details, describe)
            found.append(Section(f"Layout of {bank.name}", section.body))
        return found


def _merged(plans: Sequence[Labelled]) -> list[Labelled]:
    return merge_equal(plans, lambda plan: (plan.banks, plan.offsets))


PRESENTER = BankedPackingPresenter
