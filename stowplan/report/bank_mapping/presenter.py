"""How bank mappings are shown."""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.bank_mapping.plan import BankCopy, Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.report.bank_mapping import drawing
from stowplan.report.bank_mapping.drawing import bytes_on_chip, copied_bytes, largest, layout_class, totals
from stowplan.report.inline import legend_html, plot_html
from stowplan.report.page import Details, Section, table
from stowplan.report.presenter import DrawingPresenter, Labelled
from stowplan.report.scene import Picture, Plot
from stowplan.report.text import name_of, text_table
from stowplan.report.units import format_bytes
from stowplan.result import Result

#: Rows of each table, and of those in text; letters of a name there.
TOP, LINES, _NAME = 20, 40, 28


class BankMappingPresenter(DrawingPresenter):
    """Bank mappings beside both baselines."""

    def check_fits(self, problem: Problem, plan: object) -> None:
        """Layouts and options must exist."""
        drawing.check_fits(problem, plan)

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Totals beside those of the others, copies, and tensors, the largest first."""
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

    def picture(self, problem: Problem, plans: Sequence[Labelled], *, seconds: bool = False) -> Picture:
        """Totals of all plans; the scratchpad and the tensors of the first."""
        return drawing.picture(problem, self.distinct(problem, plans))

    def report_sections(
        self, problem: Problem, result: Result, others: Sequence[Labelled], details: Details, *, seconds: bool = False
    ) -> list[Section]:
        """Bytes moved, what is on chip, layouts and copies."""
        if result.plan is None:
            return []
        plans = self.distinct(problem, [(result.provenance.candidate, result.plan), *others])
        return [
            _drawn("Bytes moved", drawing.traffic(problem, plans), ""),
            _drawn("On chip", drawing.on_chip(problem, result.plan), "Operators run from left to right."),
            _drawn(
                "Layouts",
                drawing.tensors(problem, result.plan),
                "From first to last use, operators from left to right. Filled: on chip for that time; pale: in main memory. "
                "A dark mark is a copy into another layout.",
            ),
            _largest_tensors(problem, result.plan),
            *_largest_copies(problem, result.plan),
        ]


def _drawn(heading: str, plot: Plot, text: str) -> Section:
    told = f"{plot.heading[:1].upper()}{plot.heading[1:]}. {text}".strip()
    return Section(heading, f"<p>{told}</p>\n{legend_html(plot.legend)}<figure>{plot_html(plot, heading)}</figure>")


def _largest_tensors(problem: Problem, plan: Plan) -> Section:
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
    rows = _copy_rows(problem, plan, TOP)
    caption = f"{len(rows):,} of {len(plan.copies):,} copies between banks"
    head = ("Copy of:n", "From", "To", "Before:n", "Size:r")
    return [Section("Largest copies", table(caption, head, rows), follows_search=True)] if rows else []


def _copy_rows(problem: Problem, plan: Plan, top: int | None) -> list[tuple[str, ...]]:
    """Tensor, layout of its own, layout of the copy, operator and bytes of the largest copies."""

    def size(copy: BankCopy) -> int:
        return problem.tensors[copy.tensor].layout_bytes(copy.layout)

    rows: list[tuple[str, ...]] = []
    for copy in sorted(plan.copies, key=lambda copy: (-size(copy), copy.before, copy.tensor))[:top]:
        tensor = problem.tensors[copy.tensor]
        layouts = (tensor.layout_name(plan.layouts[copy.tensor]), tensor.layout_name(copy.layout))
        rows.append((tensor.name, *layouts, problem.operators[copy.before].name, format_bytes(size(copy))))
    return rows


def _copy_lines(problem: Problem, plan: Plan, top: int | None) -> list[str]:
    rows = [[name_of(cell, _NAME) for cell in row] for row in _copy_rows(problem, plan, top)]
    if not rows:
        return ["  no copies between banks"]
    return text_table(("copy of", "from", "to", "before", "size:r"), rows, len(plan.copies), "more copies")


def _tensor_lines(problem: Problem, plan: Plan, top: int | None) -> list[str]:
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
