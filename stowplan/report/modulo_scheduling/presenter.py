"""How modulo schedules are shown."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from stowplan.errors import InputError, VerificationError
from stowplan.hardware.se import Configuration, compare, configure
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.verify import verify
from stowplan.report.modulo_scheduling import sections
from stowplan.report.modulo_scheduling.picture import save_schedule_picture
from stowplan.report.modulo_scheduling.text import summarize_schedule
from stowplan.report.page import Details, Overview, Section
from stowplan.report.presenter import DrawingPresenter, Labelled
from stowplan.result import Result


class ModuloSchedulingPresenter(DrawingPresenter):
    """Schedules, each alone: only a valid one has tables to show."""

    most_plans = 1
    # An objective is two numbers in one.
    has_ratios = False

    def check_fits(self, problem: Problem, plan: object) -> None:
        """Raise VerificationError for a plan that is not valid."""
        if not isinstance(plan, Plan):
            raise InputError(f"found a {type(plan).__name__} of another kind, expected a modulo schedule")
        found = verify(problem, plan)
        if not found.ok:
            first = found.violations[0]
            more = f" (and {len(found.violations) - 1} more)" if len(found.violations) > 1 else ""
            raise VerificationError(f"not a valid plan: {first.code}: {first.message}{more}")

    def check_configurable(self, option: str) -> None:
        """A machine with tiles."""

    def configuration(self, problem: Problem, plan: Plan) -> Configuration:
        """Tables of all tiles."""
        return configure(problem, plan)

    def simulate(self, problem: Problem, plan: Plan, iterations: int) -> str:
        """On random numbers, clock by clock, beside NumPy; where messages are sent, with random latencies as well."""
        run = compare(problem, plan, iterations)
        results = iterations * len(problem.instructions)
        words = f"simulated {iterations} iterations in {run.clocks} clocks: all {results} results are those of NumPy"
        if problem.is_synchronous:
            return words
        slow = compare(problem, plan, iterations, wandering=True)
        return f"{words}; and in {slow.clocks} clocks with random latencies of the asynchronous fabric"

    def references(self, problem: Problem) -> list[Labelled]:
        """None: a schedule is drawn alone."""
        return []

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Numbers, grid and tables of the tiles."""
        return summarize_schedule(problem, plan)

    def draw(self, problem: Problem, plans: Sequence[Labelled], path: str | Path, *, seconds: bool = False) -> None:
        """The first schedule."""
        save_schedule_picture(problem, plans[0][1], path)

    def overview(self, problem: Problem, result: Result) -> Overview:
        """Machine and rules."""
        return sections.overview(problem, result.details.get("interval"))

    def report_sections(
        self, problem: Problem, result: Result, others: Sequence[Labelled], details: Details, *, seconds: bool = False
    ) -> list[Section]:
        """The schedule as a drawing, and its instructions."""
        if result.plan is None:
            return []
        return [sections.schedule(problem, result.plan), sections.instructions(problem, result.plan)]


PRESENTER = ModuloSchedulingPresenter
