"""How tier placements are shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem
from stowplan.report.page import Details, Section
from stowplan.report.presenter import DrawingPresenter, Labelled, merge_equal
from stowplan.report.tier_placement import sections
from stowplan.report.tier_placement.maps import check_fits, decisions
from stowplan.report.tier_placement.picture import save_map_picture
from stowplan.report.tier_placement.text import summarize_map
from stowplan.result import Result


class TierPlacementPresenter(DrawingPresenter):
    """Memory maps beside the compiler's own."""

    most_plans = 2

    def check_fits(self, problem: Problem, plan: object) -> None:
        """Any tier for each layer will do."""
        check_fits(problem, plan)

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Tiers, contiguity, transitions from the first of the others, and layers."""
        return summarize_map(problem, plan, next(iter(others), None), top=None if everything else 40)

    def draw(self, problem: Problem, plans: Sequence[Labelled], path: str | Path, *, seconds: bool = False) -> None:
        """One map, or two with the transitions between them."""
        save_map_picture(problem, self._distinct(problem, plans), path)

    def report_sections(
        self, problem: Problem, result: Result, others: Sequence[Labelled], details: Details, *, seconds: bool = False
    ) -> list[Section]:
        """Bands of tiers, transitions from another map where it differs, layers."""
        if result.plan is None:
            return []
        drawn = self._distinct(problem, [(result.provenance.candidate, result.plan), *others])
        return [sections.bands(problem, drawn), *sections.sections(problem, result.plan, next(iter(drawn[1:]), None))]

    def _distinct(self, problem: Problem, plans: Sequence[Labelled]) -> list[Labelled]:
        """The first plan and another, where it differs; the name of the first tells of those that are like it."""
        return merge_equal(plans, lambda plan: decisions(problem, plan))[: self.most_plans]


PRESENTER = TierPlacementPresenter
