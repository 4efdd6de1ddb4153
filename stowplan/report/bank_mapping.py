"""Shows bank mappings: the bytes that they move, compared with other plans; the bytes on chip over time; and the layouts of the
largest tensors.

A *layout* of a tensor says along which dimension it is spread over the banks of the scratchpad; it is *unspread* if it is in
one bank, and a *view* is a rearranged copy. Tensors on chip are in the scratchpad, all others in main memory.

The presenter's methods override the methods of :class:`~stowplan.report.presenter.Presenter`, which explains their parameters
and errors. The functions expect a plan that :meth:`~stowplan.report.presenter.Presenter.check_fits` has accepted, and raise no
errors of their own.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError
from stowplan.models.bank_mapping.plan import BankCopy, Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.models.bank_mapping.verify import verify
from stowplan.report import scene
from stowplan.report.colours import PALETTE, TIER_COLOURS
from stowplan.report.inline import legend_html, plot_html
from stowplan.report.page import Details, Section, table
from stowplan.report.presenter import DrawingPresenter, Labelled
from stowplan.report.text import byte_unit, format_bytes, name_of, shorten
from stowplan.result import Result
from stowplan.tables import text_table
from stowplan.units import format_apart

#: Rows of each table in the report and in text; characters of a name in text.
TOP, LINES, _NAME = 20, 40, 28

_OFF_CHIP, _COPIES, _TENSORS = (scene.Style(fill=colour) for colour in TIER_COLOURS[:3])

_COPY = scene.Style(fill="#000000", stroke="#ffffff", width=0.6)

#: Maximum number of tensors with a row of their own, and of characters of a tensor's name.
MAX_TENSOR_ROWS, _LABEL = 24, 30

#: Heights in points of a bar, of the panel of bytes on chip, and of a tensor's row.
_BAR, _HIGH, _ROW = 18.0, 130.0, 12.0

#: If the peak is less than this part of the capacity, the axis ends at the peak, and the capacity is stated in the heading.
_FAR = 0.25

#: Violations that make a plan impossible to show. A plan that breaks other rules is shown.
_UNREADABLE = ("wrong_problem", "wrong_count", "unknown_option", "unknown_layout")


class BankMappingPresenter(DrawingPresenter):
    """Shows bank mappings next to both baselines of the kind."""

    plan_words, problem_words = "a bank mapping", "graph and target"

    def check_parts(self, problem: Problem, plan: Plan) -> None:
        """Raises InputError if the plan has a wrong number of entries, or a layout or an option that does not exist."""
        for violation in verify(problem, plan).violations:
            if violation.code in _UNREADABLE:
                raise InputError(violation.message)

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Totals of the plan and of other plans; then the copies and the tensors, the largest first."""
        space = int(bytes_on_chip(problem, plan).sum(axis=0).max(initial=0))
        rows = [
            (name_of(name, 13), format_bytes(copied), format_bytes(outside), together)
            for name, copied, outside, together in totals(problem, [("this plan", plan), *others])
        ]
        lines = [
            f"{problem.name} on {problem.target} ({problem.banks} banks): {len(problem.operators)} operators, "
            f"{len(problem.tensors)} tensors, {sum(plan.on_chip)} on chip",
            f"  scratchpad {format_bytes(space)} of {format_bytes(problem.capacity)} at the peak",
            *text_table(("", "copied between banks:r", "moved off chip:r", "together:r"), rows),
        ]
        top = None if everything else LINES
        return "\n".join([*lines, *_copy_lines(problem, plan, top), *_tensor_lines(problem, plan, top)])

    def drawn(self, problem: Problem, plans: Sequence[Labelled], *, seconds: bool) -> scene.Picture:
        """A picture of several plans.

        At the top is a bar of the bytes that each plan moves. Below, for the first plan, are the bytes on chip at each
        operator, and a row for each of the largest tensors: the span in which it is used, the dimension along which it is
        spread, whether it stays on chip, and its copies.
        """
        rows = [traffic(problem, plans), on_chip(problem, plans[0][1]), tensors(problem, plans[0][1])]
        return scene.Picture(f"{problem.name} on {problem.target}, {problem.banks} banks", [[plot] for plot in rows], 700)

    def sections(self, problem: Problem, result: Result, plans: Sequence[Labelled], details: Details) -> list[Section]:
        """Bytes moved, bytes on chip, layouts and copies."""
        plan = plans[0][1]
        return [
            _drawn("Bytes moved", traffic(problem, plans), ""),
            _drawn("On chip", on_chip(problem, plan), "Operators run from left to right."),
            _drawn(
                "Layouts",
                tensors(problem, plan),
                "Operators run from left to right. Filled: on chip for that time; pale: in main memory. "
                "A dark mark is a copy into another layout.",
            ),
            _largest_tensors(problem, plan),
            *_largest_copies(problem, plan),
        ]


def _drawn(heading: str, plot: scene.Plot, text: str) -> Section:
    """A section with a plot."""
    sentence = f"{plot.heading[:1].upper()}{plot.heading[1:]}. {text}".strip()
    return Section(heading, f"<p>{sentence}</p>\n{legend_html(plot.legend)}<figure>{plot_html(plot, heading)}</figure>")


def _largest_tensors(problem: Problem, plan: Plan) -> Section:
    """The table of the largest tensors."""
    copied = copied_bytes(problem, plan)
    touched = largest(problem)
    rows = []
    for number in touched[:TOP]:
        tensor, life = problem.tensors[number], problem.life(number)
        assert life is not None
        kind, place = layout_class(problem, number, plan.layouts[number]), "on chip" if plan.on_chip[number] else "off chip"
        copies = format_bytes(copied[number]) if copied[number] else "–"
        rows.append((tensor.name, format_bytes(tensor.bytes), kind, place, f"{life[0]} to {life[1] - 1}", copies))
    head = ("Tensor:n", "Size:r", "Spread along", "Place", "Operators:r", "Copies:r")
    caption = f"The {len(rows):,} largest of {len(touched):,} tensors"
    return Section("Largest tensors", table(caption, head, rows), follows_search=True)


def _largest_copies(problem: Problem, plan: Plan) -> list[Section]:
    """The table of the largest copies; empty if there are none."""
    rows = _copy_rows(problem, plan, TOP)
    caption = f"{len(rows):,} of {len(plan.copies):,} copies between banks"
    head = ("Copy of:n", "From", "To", "Before:n", "Size:r")
    return [Section("Largest copies", table(caption, head, rows), follows_search=True)] if rows else []


def _copy_rows(problem: Problem, plan: Plan, top: int | None) -> list[tuple[str, ...]]:
    """Tensor, its own layout, the layout of the copy, operator and bytes, for the largest copies."""

    def size(copy: BankCopy) -> int:
        return problem.tensors[copy.tensor].layout_bytes(copy.layout)

    rows: list[tuple[str, ...]] = []
    for copy in sorted(plan.copies, key=lambda copy: (-size(copy), copy.before, copy.tensor))[:top]:
        tensor = problem.tensors[copy.tensor]
        layouts = (tensor.layout_name(plan.layouts[copy.tensor]), tensor.layout_name(copy.layout))
        rows.append((tensor.name, *layouts, problem.operators[copy.before].name, format_bytes(size(copy))))
    return rows


def _copy_lines(problem: Problem, plan: Plan, top: int | None) -> list[str]:
    """The largest copies as text."""
    rows = [[name_of(cell, _NAME) for cell in row] for row in _copy_rows(problem, plan, top)]
    if not plan.copies:
        return ["  no copies between banks"]
    return text_table(("copy of", "from", "to", "before", "size:r"), rows, len(plan.copies), "more copies")


def _tensor_lines(problem: Problem, plan: Plan, top: int | None) -> list[str]:
    """The largest tensors as text."""
    copied = copied_bytes(problem, plan)
    order = sorted(range(len(problem.tensors)), key=lambda tensor: (-problem.tensors[tensor].bytes, tensor))
    rows = []
    for number in order[:top]:
        tensor, size = problem.tensors[number], copied[number]
        place = "on chip" if plan.on_chip[number] else "off chip"
        layout = tensor.layout_name(plan.layouts[number])
        rows.append(
            (name_of(tensor.name, _NAME), format_bytes(tensor.bytes), layout, place, format_bytes(size) if size else "-")
        )
    return text_table(("tensor", "size:r", "spread along", "place", "copies:r"), rows, len(order), "more tensors")


def moved(problem: Problem, plan: Plan) -> tuple[int, int]:
    """(bytes copied between banks, bytes moved to and from main memory)."""
    figures = verify(problem, plan).figures
    return figures.get("copied_bytes", 0), figures.get("off_chip_bytes", 0)


def totals(problem: Problem, plans: Sequence[tuple[str, Plan]]) -> list[tuple[str, int, int, str]]:
    """For each plan its name, the bytes copied between banks, the bytes moved off chip, and the text of their sum.

    Texts of different sums differ.
    """
    bars = [(label, *moved(problem, plan)) for label, plan in plans]
    texts = format_apart((copied + outside for _, copied, outside in bars), format_bytes)
    return [(label, copied, outside, texts[copied + outside]) for label, copied, outside in bars]


def bytes_on_chip(problem: Problem, plan: Plan) -> NDArray[np.int64]:
    """Bytes on chip at each operator, ``[2, operators]``: row 0 counts tensors, and row 1 copies."""
    change = np.zeros((2, len(problem.operators) + 1), np.int64)
    copied = copied_bytes(problem, plan)
    for tensor, stays in enumerate(plan.on_chip):
        life = problem.life(tensor)
        if not stays or life is None:
            continue
        for row, size in enumerate((problem.tensors[tensor].bytes, copied[tensor])):
            change[row, life[0]] += size
            change[row, life[1]] -= size
    return np.cumsum(change, axis=1)[:, :-1]


def copied_bytes(problem: Problem, plan: Plan) -> list[int]:
    """Bytes of the copies of each tensor."""
    copied = [0] * len(problem.tensors)
    for copy in plan.copies:
        copied[copy.tensor] += problem.tensors[copy.tensor].layout_bytes(copy.layout)
    return copied


def largest(problem: Problem) -> list[int]:
    """Numbers of the tensors that at least one operator reads or writes, the largest first."""
    touched = (number for number in range(len(problem.tensors)) if problem.life(number) is not None)
    return sorted(touched, key=lambda number: (-problem.tensors[number].bytes, number))


def layout_class(problem: Problem, tensor: int, layout: int) -> str:
    """A layout as it is named in a legend: ``unspread``, ``dimension 0`` and so on, or ``a view``."""
    return problem.tensors[tensor].layout_name(layout) if layout < problem.tensors[tensor].rank else "a view"


def traffic(problem: Problem, plans: Sequence[tuple[str, Plan]]) -> scene.Plot:
    """A bar of the bytes moved by each plan."""
    rows = totals(problem, plans)
    most = max(1, *(copied + outside for _, copied, outside, _ in rows))
    across = scene.byte_axis(most, byte_unit(most)[0])
    across = scene.Axis(0, most * 1.1, across.ticks, across.title)
    panels = []
    for label, copied, outside, together in rows:
        text = f"{format_bytes(outside)} off chip, {format_bytes(copied)} between banks"
        marks: list[scene.Mark] = [
            scene.Rect(0, outside, 0, 1, _OFF_CHIP, text),
            scene.Rect(outside, outside + copied, 0, 1, _COPIES, text),
            scene.Text(outside + copied + 0.005 * most, 0.5, together, colour="ink", align="start"),
        ]
        panels.append(
            scene.Panel(scene.Axis(0, 1, [(0.5, shorten(label, 24))]), marks, _BAR, f"{label}: {text}", is_framed=False)
        )
    legend = [scene.Key("moved off chip", _OFF_CHIP), scene.Key("copied between banks", _COPIES)]
    return scene.Plot(across, panels, "bytes moved", legend, gap=5)


def on_chip(problem: Problem, plan: Plan) -> scene.Plot:
    """Bytes on chip at each operator, up to the capacity, or up to the peak if the capacity is far above it."""
    used = bytes_on_chip(problem, plan)
    both = used.sum(axis=0)
    peak = int(both.max(initial=0))
    is_far = peak < _FAR * problem.capacity
    text = f"on chip: at most {format_bytes(peak)} of {format_bytes(problem.capacity)}"
    text += f" ({peak / problem.capacity:.2%})" if problem.capacity else ""
    text += ", the capacity is far above this axis" if is_far else ""
    across = _operators(problem)
    edges = list(range(len(problem.operators) + 1))
    marks: list[scene.Mark] = [
        scene.area(scene.steps(edges, values.tolist()), style) for values, style in ((both, _COPIES), (used[0], _TENSORS))
    ]
    legend = [scene.Key("tensors on chip", _TENSORS), scene.Key("their copies", _COPIES)]
    if not is_far:
        marks.append(scene.level(across, problem.capacity, scene.DASHED))
        legend.append(scene.Key("capacity", scene.DASHED, "line"))
    top = max(1, peak if is_far else max(peak, problem.capacity))
    up = scene.byte_axis(top, byte_unit(top)[0])
    panel = scene.Panel(up, marks, _HIGH, f"Bytes on chip over {max(1, len(problem.operators))} operators")
    return scene.Plot(across, [panel], text, legend)


def tensors(problem: Problem, plan: Plan) -> scene.Plot:
    """The largest tensors from first to last use, by the dimension along which they are spread, with their copies."""
    touched = largest(problem)
    shown = touched[:MAX_TENSOR_ROWS]
    colours = _layout_colours(problem, plan)
    panels = [_tensor(problem, plan, number, colours) for number in shown]
    used = {layout_class(problem, number, plan.layouts[number]) for number in shown}
    legend = scene.patches((colour, name) for name, colour in colours.items() if name in used)
    if not all(plan.on_chip[number] for number in shown):
        legend.append(scene.Key("off chip", scene.Style(stroke="ink", dash=(3, 2))))
    if plan.copies:
        legend.append(scene.Key("copied before this operator", _COPY, "diamond"))
    rest = f" (the {len(shown)} largest of {len(touched)})" if len(touched) > len(shown) else ""
    heading = f"tensors from first to last use, by the dimension they are spread along{rest}"
    return scene.Plot(_operators(problem), panels, heading, legend, gap=3)


def _tensor(problem: Problem, plan: Plan, number: int, colours: dict[str, str]) -> scene.Panel:
    """The row of one tensor."""
    tensor, life = problem.tensors[number], problem.life(number)
    assert life is not None
    kind = layout_class(problem, number, plan.layouts[number])
    # A tensor off chip is drawn pale, because it occupies no scratchpad between its uses.
    pale = {} if plan.on_chip[number] else {"opacity": 0.22, "dash": (3.0, 2.0)}
    style = scene.Style(fill=colours[kind], stroke=colours[kind], **pale)  # type: ignore[arg-type]
    place = "on chip" if plan.on_chip[number] else "off chip"
    first, last = (problem.operators[at].name for at in (life[0], life[1] - 1))
    title = f"{tensor.name}: {kind}, {place}, from {first} to {last}"
    marks: list[scene.Mark] = [scene.Rect(life[0], life[1], 0, 1, style, title)]
    for copy in plan.copies:
        if copy.tensor == number:
            tip = f"copied before {problem.operators[copy.before].name}"
            marks.append(scene.Dot(copy.before + 0.5, 0.5, _COPY, 7, "diamond", tip))
    # The end of a name is kept because names of one network have the same beginning.
    name = tensor.name if len(tensor.name) <= _LABEL else f"…{tensor.name[-_LABEL + 1 :]}"
    return scene.Panel(scene.Axis(0, 1, [(0.5, f"{name}, {format_bytes(tensor.bytes)}")]), marks, _ROW, title, is_framed=False)


def _layout_colours(problem: Problem, plan: Plan) -> dict[str, str]:
    """Colours of the tensors' own layouts, unspread first."""
    classes = {layout_class(problem, number, layout) for number, layout in enumerate(plan.layouts)}
    ordered = sorted(classes, key=lambda name: (name != "unspread", name))
    return {name: "#9aa7b5" if name == "unspread" else PALETTE[at % len(PALETTE)] for at, name in enumerate(ordered)}


def _operators(problem: Problem) -> scene.Axis:
    """The axis of operators: with names if there is space, otherwise with numbers."""
    count = len(problem.operators)
    if 0 < count <= 12:
        return scene.Axis(
            0, count, [(at + 0.5, shorten(operator.name, 12)) for at, operator in enumerate(problem.operators)], "operator"
        )
    return scene.number_axis(0, max(1, count), "operator")


PRESENTER = BankMappingPresenter
