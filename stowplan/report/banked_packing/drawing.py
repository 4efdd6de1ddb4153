"""Banked packings drawn: each bank as a packing of its own, in its own scale, time across and offsets up."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from stowplan.errors import InputError
from stowplan.models.banked_packing.plan import Plan
from stowplan.models.banked_packing.problem import Problem
from stowplan.models.packing import plan as packing_plan
from stowplan.models.packing import problem as packing
from stowplan.report.boxes import Boxes, assign_colours
from stowplan.report.packing.drawing import WIDE, Layout, build_layout, layout_panel
from stowplan.report.scene import Panel, Picture, Plot, number_axis
from stowplan.report.text import name_of

#: Points of a bank's height in a picture of all.
_HIGH = 150.0

#: A bank is drawn whole unless it is larger than this multiple of what is in it.
_FAR = 3


def check_fits(problem: Problem, plan: object) -> Plan:
    """The plan, where it can be shown for this problem; raises :class:`~stowplan.errors.InputError` where it cannot."""
    if not isinstance(plan, Plan):
        raise InputError(f"found a {type(plan).__name__} of another kind, expected a banked packing")
    if plan.problem != problem.digest:
        raise InputError("the plan is for another problem: expected the same buffers and banks")
    if not len(plan.banks) == len(plan.offsets) == len(problem.buffers):
        raise InputError(f"found {len(plan.banks)} banks and {len(plan.offsets)} offsets for {len(problem.buffers)} buffers")
    if any(not 0 <= bank < len(problem.banks) for bank in plan.banks):
        raise InputError(f"found a buffer in none of the {len(problem.banks)} banks")
    return plan


def bank_layouts(problem: Problem, plan: Plan) -> list[Layout]:
    """A layout for each bank; the owners of its boxes are numbers of the problem's buffers. All have the same span of time."""
    check_fits(problem, plan)
    start = min((buffer.lower for buffer in problem.buffers), default=0)
    end = max((buffer.upper for buffer in problem.buffers), default=1)
    found = []
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
                    size=problem.taken(number, bank),
                )
                for number in numbers
            ),
        )
        offsets = tuple(plan.offsets[number] for number in numbers)
        layout = build_layout(inside, packing_plan.Plan(problem=inside.digest, objective=0, offsets=offsets))
        boxes = tuple(replace(box, owner=numbers[box.owner]) for box in layout.boxes)
        found.append(replace(layout, boxes=boxes, start=start, end=end))
    return found


def boxes_of(problem: Problem, layout: Layout, colours: dict[int, int]) -> Boxes:
    """The mark for the boxes of a bank."""
    return Boxes(layout.boxes, colours, lambda owner: (problem.buffers[owner].id, problem.buffers[owner].size))


def bank_rows(problem: Problem, plan: Plan) -> list[tuple[str, str, str, str, str, str]]:
    """Name, cost, bytes used, capacity, number of buffers and share of the traffic of each bank."""
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


def picture(problem: Problem, plans: Sequence[tuple[str, Plan]]) -> Picture:
    """Labelled plans side by side with the same colours; the cheapest bank is on top."""
    columns = [bank_layouts(problem, plan) for _, plan in plans]
    colours = assign_colours(layout.boxes for layouts in columns for layout in layouts)
    plots = []
    for (label, plan), layouts in zip(plans, columns, strict=True):
        rows = bank_rows(problem, plan)
        panels: list[Panel] = []
        for bank in sorted(range(len(problem.banks)), key=lambda bank: (problem.banks[bank].cost, bank)):
            capacity, highest = problem.banks[bank].capacity, max(1, *(each[bank].height for each in columns))
            top = max(capacity, 1) if capacity <= _FAR * highest else highest
            title = f"{rows[bank][0]}: {rows[bank][5]} of the traffic, {rows[bank][2]} of {rows[bank][3]} bytes"
            boxes = boxes_of(problem, layouts[bank], colours)
            panels.append(layout_panel(layouts[bank], top, boxes, title=title, height=_HIGH))
        across = number_axis(layouts[0].start, layouts[0].end, "time")
        plots.append(Plot(across, panels, label, gap=14))
    return Picture(f"{problem.name or 'banked packing'}: {len(problem.buffers):,} buffers", [plots], WIDE * len(plans))
