"""How banked packings are shown."""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.banked_packing.plan import Plan
from stowplan.models.banked_packing.problem import Problem
from stowplan.report.banked_packing import drawing
from stowplan.report.boxes import assign_colours
from stowplan.report.packing.drawing import axis_top, plot
from stowplan.report.packing.presenter import layouts_section
from stowplan.report.page import Details, Overview, Section, table
from stowplan.report.presenter import DrawingPresenter, Labelled
from stowplan.report.scene import Picture
from stowplan.report.text import name_of, plan_line, text_table
from stowplan.report.units import format_bytes, printable
from stowplan.result import Result

#: Rows of the table of buffers in text.
LINES = 40


class BankedPackingPresenter(DrawingPresenter):
    """A layout for each bank."""

    most_plans = 2

    def check_fits(self, problem: Problem, plan: object) -> None:
        """Plans that break rules are shown as well: seeing what is wrong is what pictures are for."""
        drawing.check_fits(problem, plan)

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Cost and banks; costs of other plans; then the buffers, by bank and offset."""
        lines = [f"{printable(problem.name or 'buffers')}: {len(problem.buffers):,} buffers, cost {_cost(problem, plan):,}"]
        lines += [plan_line(name, f"cost {_cost(problem, other):,}") for name, other in others]
        head = ("bank:r", "cost:r", "used:r", "capacity:r", "buffers:r", "traffic:r")
        lines += text_table(head, drawing.bank_rows(problem, plan))
        order = sorted(range(len(problem.buffers)), key=lambda number: (plan.banks[number], plan.offsets[number], number))
        rows = []
        for number in order if everything else order[:LINES]:
            buffer, bank = problem.buffers[number], name_of(problem.banks[plan.banks[number]].name)
            life, size = f"[{buffer.lower}, {buffer.upper})", format_bytes(buffer.size)
            rows.append((bank, f"{plan.offsets[number]:,}", size, f"{buffer.uses:,}", life, name_of(buffer.id)))
        return "\n".join(
            [*lines, *text_table(("bank:r", "offset:r", "size:r", "uses:r", "time:r", "buffer"), rows, len(order))]
        )

    def picture(self, problem: Problem, plans: Sequence[Labelled], *, seconds: bool = False) -> Picture:
        """A layout for each bank; two plans side by side."""
        return drawing.picture(problem, self.distinct(problem, plans))

    def overview(self, problem: Problem, result: Result) -> Overview:
        """What is packed into which banks."""
        total = sum(buffer.size for buffer in problem.buffers)
        facts = [("Buffers", f"{len(problem.buffers):,}, {format_bytes(total)} in all")]
        facts += [(bank.name, f"{bank.capacity:,} bytes at a cost of {bank.cost:,} a byte") for bank in problem.banks]
        return Overview(facts=facts)

    def report_sections(
        self, problem: Problem, result: Result, others: Sequence[Labelled], details: Details, *, seconds: bool = False
    ) -> list[Section]:
        """The banks of the plan as a table, and the layout of each that is not empty."""
        if result.plan is None:
            return []
        head = ("Bank:n", "Cost:r", "Used:r", "Capacity:r", "Buffers:r", "Traffic:r")
        found = [Section("Banks", table("What each bank holds", head, drawing.bank_rows(problem, result.plan)))]
        layouts = drawing.bank_layouts(problem, result.plan)
        colours = assign_colours(layout.boxes for layout in layouts)
        for bank, layout in zip(problem.banks, layouts, strict=True):
            if layout.boxes:
                drawn = plot(bank.name, layout, axis_top([layout]), drawing.boxes_of(problem, layout, colours))
                found.append(layouts_section([layout], [drawn], details, f"Layout of {bank.name}"))
        return found


def _cost(problem: Problem, plan: Plan) -> int:
    """Bytes read and written, each times the cost of its bank."""
    return sum(problem.traffic(number) * problem.banks[bank].cost for number, bank in enumerate(plan.banks))
