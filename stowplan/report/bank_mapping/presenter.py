"""How bank mappings are shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stowplan.models.bank_mapping.plan import Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.report.bank_mapping import sections
from stowplan.report.bank_mapping.mapping import check_fits
from stowplan.report.bank_mapping.picture import save_mapping_picture
from stowplan.report.bank_mapping.text import summarize_mapping
from stowplan.report.page import Details, Section
from stowplan.report.presenter import DrawingPresenter, Labelled, merge_equal
from stowplan.result import Result


class BankMappingPresenter(DrawingPresenter):
    """Bank mappings beside both baselines."""

    def check_fits(self, problem: Problem, plan: object) -> None:
        """Layouts and options must exist."""
        check_fits(problem, plan)

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Totals beside those of the others, copies, tensors."""
        return summarize_mapping(problem, plan, others, top=None if everything else 40)

    def draw(self, problem: Problem, plans: Sequence[Labelled], path: str | Path, *, seconds: bool = False) -> None:
        """Totals of all plans; the scratchpad and the tensors of the first."""
        save_mapping_picture(problem, merge_equal(plans, _decisions), path)

    def report_sections(
        self, problem: Problem, result: Result, others: Sequence[Labelled], details: Details, *, seconds: bool = False
    ) -> list[Section]:
        """Bytes moved, what is on chip, layouts and copies."""
        if result.plan is None:
            return []
        plans = merge_equal([(result.provenance.candidate, result.plan), *others], _decisions)
        return [
            sections.traffic(problem, plans),
            sections.on_chip(problem, result.plan),
            *sections.layouts(problem, result.plan),
        ]


def _decisions(plan: Plan) -> tuple[object, ...]:
    """What a plan decides."""
    return plan.layouts, plan.on_chip, plan.copies


PRESENTER = BankMappingPresenter
