"""Shows banked packings: each bank as a packing of its own, on its own scale, with time across and offsets up.

The *traffic* of a buffer is its size times its number of uses: the bytes that are read and written.

The presenter's methods override the methods of :class:`~stowplan.report.presenter.Presenter`, which explains their parameters
and errors. The functions expect a plan that :meth:`~stowplan.report.presenter.Presenter.check_fits` has accepted, and raise no
errors of their own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stowplan.errors import InputError
from stowplan.models.banked_packing.plan import Plan
from stowplan.models.banked_packing.problem import Problem
from stowplan.models.packing import plan as packing_plan
from stowplan.models.packing import problem as packing
from stowplan.report.boxes import Boxes, assign_colours
from stowplan.report.packing import WIDE, Layout, arena, axis_top, build_layout, layout_panel, layouts_section, plot
from stowplan.report.page import Details, Overview, Section, table
from stowplan.report.presenter import DrawingPresenter, Labelled
from stowplan.report.scene import Panel, Picture, Plot, number_axis
from stowplan.report.text import format_bytes, name_of, plan_line, printable
from stowplan.report.trace import Trace
from stowplan.result import Result
from stowplan.tables import text_table

#: Number of rows of the table of buffers in text.
LINES = 40

#: Height of a bank in points, in a picture of all banks.
_HIGH = 150.0

#: A bank is drawn up to its capacity, unless that is more than this multiple of the bytes in use.
_MAX_EMPTY_FACTOR = 3


class BankedPackingPresenter(DrawingPresenter):
    """Shows a layout for each bank."""

    max_plans = 2
    plan_words, problem_words = "a banked packing", "buffers and banks"

    def check_parts(self, problem: Problem, plan: Plan) -> None:
        """Raises InputError unless every buffer has an offset, and a bank that exists."""
        if not len(plan.banks) == len(plan.offsets) == len(problem.buffers):
            raise InputError(
                f"found {len(plan.banks)} banks and {len(plan.offsets)} offsets for {len(problem.buffers)} buffers"
            )
        if any(not 0 <= bank < len(problem.banks) for bank in plan.banks):
            raise InputError(f"found a buffer in none of the {len(problem.banks)} banks")

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Cost and banks, the costs of other plans, and the buffers by bank and offset."""
        lines = [f"{printable(problem.name or 'buffers')}: {len(problem.buffers):,} buffers, cost {_cost(problem, plan):,}"]
        lines += [plan_line(name, f"cost {_cost(problem, other):,}") for name, other in others]
        head = ("bank:r", "cost:r", "used:r", "capacity:r", "buffers:r", "traffic:r")
        lines += text_table(head, bank_rows(problem, plan))
        order = sorted(range(len(problem.buffers)), key=lambda number: (plan.banks[number], plan.offsets[number], number))
        rows = []
        for number in order if everything else order[:LINES]:
            buffer, bank = problem.buffers[number], name_of(problem.banks[plan.banks[number]].name)
            life, size = f"[{buffer.lower}, {buffer.upper})", format_bytes(buffer.size)
            rows.append((bank, f"{plan.offsets[number]:,}", size, f"{buffer.uses:,}", life, name_of(buffer.id)))
        return "\n".join(
            [*lines, *text_table(("bank:r", "offset:r", "size:r", "uses:r", "time:r", "buffer"), rows, len(order))]
        )

    def drawn(self, problem: Problem, plans: Sequence[Labelled], *, seconds: bool) -> Picture:
        """Plans side by side with the same colours; the cheapest bank is at the top."""
        columns = [bank_layouts(problem, plan) for _, plan in plans]
        colours = assign_colours(layout.boxes for layouts in columns for layout in layouts)
        plots = []
        for (label, plan), layouts in zip(plans, columns, strict=True):
            rows = bank_rows(problem, plan)
            panels: list[Panel] = []
            for bank in sorted(range(len(problem.banks)), key=lambda bank: (problem.banks[bank].cost, bank)):
                capacity, highest = problem.banks[bank].capacity, max(1, *(its_layouts[bank].height for its_layouts in columns))
                top = max(capacity, 1) if capacity <= _MAX_EMPTY_FACTOR * highest else highest
                title = f"{rows[bank][0]}: {rows[bank][5]} of the traffic, {rows[bank][2]} of {rows[bank][3]} bytes"
                boxes = boxes_of(problem, layouts[bank], colours)
                panels.append(layout_panel(layouts[bank], top, boxes, title=title, height=_HIGH))
            across = number_axis(layouts[0].start, layouts[0].end, "time")
            plots.append(Plot(across, panels, label, gap=14))
        return Picture(f"{problem.name or 'banked packing'}: {len(problem.buffers):,} buffers", [plots], WIDE * len(plans))

    def trace(self, problem: Problem, plan: Plan) -> Trace:
        """Each bank over the problem's own time."""
        names = [buffer.id for buffer in problem.buffers]
        layouts = zip(problem.banks, bank_layouts(problem, plan), strict=True)
        return Trace("moment", [arena(bank.name, layout, names) for bank, layout in layouts])

    def overview(self, problem: Problem, result: Result) -> Overview:
        """The buffers and the banks."""
        total = sum(buffer.size for buffer in problem.buffers)
        facts = [("Buffers", f"{len(problem.buffers):,}, {format_bytes(total)} in all")]
        facts += [(bank.name, f"{bank.capacity:,} bytes at a cost of {bank.cost:,} a byte") for bank in problem.banks]
        return Overview(facts=facts)

    def sections(self, problem: Problem, result: Result, plans: Sequence[Labelled], details: Details) -> list[Section]:
        """A table of the banks, and the layout of each bank that is not empty."""
        plan = plans[0][1]
        head = ("Bank:n", "Cost:r", "Used:r", "Capacity:r", "Buffers:r", "Traffic:r")
        sections = [Section("Banks", table("What each bank holds", head, bank_rows(problem, plan)))]
        layouts = bank_layouts(problem, plan)
        colours = assign_colours(layout.boxes for layout in layouts)
        for bank, layout in zip(problem.banks, layouts, strict=True):
            if layout.boxes:
                drawn = plot(bank.name, layout, axis_top([layout]), boxes_of(problem, layout, colours))
                sections.append(layouts_section([layout], [drawn], details, f"Layout of {bank.name}"))
        return sections


def _cost(problem: Problem, plan: Plan) -> int:
    """The cost of a plan: bytes read and written, each multiplied by the cost of its bank."""
    return sum(problem.traffic(number) * problem.banks[bank].cost for number, bank in enumerate(plan.banks))


def bank_layouts(problem: Problem, plan: Plan) -> list[Layout]:
    """A layout for each bank, all with the same span of time. The owners of boxes are numbers of the problem's buffers."""
    start = min((buffer.lower for buffer in problem.buffers), default=0)
    end = max((buffer.upper for buffer in problem.buffers), default=1)
    layouts = []
    for bank, memory in enumerate(problem.banks):
        numbers = [number for number, at in enumerate(plan.banks) if at == bank]
        inside = packing.Problem(
            name=memory.name,
            capacity=memory.capacity,
            buffers=tuple(
                packing.Buffer(
                    id=problem.buffers[number].id,
                    lower=problem.buffers[number].lower,
                    upper=problem.buffers[number].upper,
                    size=problem.size_in(number, bank),
                )
                for number in numbers
            ),
        )
        offsets = tuple(plan.offsets[number] for number in numbers)
        layout = build_layout(inside, packing_plan.Plan(problem=inside.digest, objective=0, offsets=offsets))
        boxes = tuple(replace(box, owner=numbers[box.owner]) for box in layout.boxes)
        layouts.append(replace(layout, boxes=boxes, start=start, end=end))
    return layouts


def boxes_of(problem: Problem, layout: Layout, colours: dict[int, int]) -> Boxes:
    """The mark with the boxes of a bank. ``colours`` maps each owner to a colour of the palette."""
    return Boxes(layout.boxes, colours, lambda owner: (problem.buffers[owner].id, problem.buffers[owner].size))


def bank_rows(problem: Problem, plan: Plan) -> list[tuple[str, str, str, str, str, str]]:
    """Name, cost, bytes in use, capacity, number of buffers and share of the traffic of each bank."""
    traffic = [0] * len(problem.banks)
    for number, bank in enumerate(plan.banks):
        traffic[bank] += problem.traffic(number)
    total = sum(traffic)
    return [
        (
            name_of(memory.name),
            f"{memory.cost:,}",
            f"{layout.height:,}",
            f"{memory.capacity:,}",
            f"{plan.banks.count(bank):,}",
            f"{traffic[bank] / total:.1%}" if total else "0.0%",
        )
        for bank, (memory, layout) in enumerate(zip(problem.banks, bank_layouts(problem, plan), strict=True))
    ]


PRESENTER = BankedPackingPresenter
