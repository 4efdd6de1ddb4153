"""Shows placements of language models: a bar for each memory, whose length is its bytes, with its layers in their colours.

The *request time* is the objective: the time in which the machine reads a prompt and generates an answer. The presenter's
methods override the methods of :class:`~stowplan.report.presenter.Presenter`, which explains their parameters and errors. The
functions expect a plan that :meth:`~stowplan.report.presenter.Presenter.check_fits` has accepted, and raise no errors of their
own.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from stowplan.errors import InputError
from stowplan.models.llm_placement.plan import Plan, times_of
from stowplan.models.llm_placement.problem import HOST, Problem, layer_bytes
from stowplan.report.colours import PALETTE
from stowplan.report.inline import legend_html, plot_figure
from stowplan.report.page import Details, Overview, Section, table
from stowplan.report.presenter import DrawingPresenter, Labelled
from stowplan.report.scene import Axis, Key, Line, Panel, Picture, Plot, Rect, Style, Text, byte_axis, patches
from stowplan.report.text import byte_unit, format_bytes, name_of, plan_line, printable
from stowplan.result import Result
from stowplan.tables import text_table
from stowplan.units import format_ps

#: Colours of the parts of a bar that are not layers: intermediate results, spilled parts of layers on devices, and the input
#: embeddings, which are always on the host.
COMPUTE, SPILLED, INPUT = "#9aa7b5", "#1b1f24", "#d4d9df"

#: Number of consecutive layers with the same colour; the colours show the order of the layers.
_BAND = 8

#: Height of a bar, and distance between bars, in points.
_HIGH, _GAP = 34.0, 12.0

#: The vertical axis of a bar, which has no scale.
_ROW = Axis(0, 1)


class LlmPlacementPresenter(DrawingPresenter):
    """Shows a placement as a bar for each memory."""

    max_plans = 2
    plan_words, problem_words = "a placement of a language model", "model, machine and request"

    def check_parts(self, problem: Problem, plan: Plan) -> None:
        """Raises InputError unless every layer has a memory that exists, and the micro-batch exists."""
        if not len(plan.memories) == len(plan.spilled) == len(problem.layers):
            raise InputError(f"found {len(plan.memories)} memories for {len(problem.layers)} layers")
        if any(not 0 <= memory < len(problem.memories) for memory in plan.memories):
            raise InputError(f"found a layer in none of the {len(problem.memories)} memories")
        if not 0 <= plan.micro_batch < len(problem.micro_batches):
            raise InputError(f"found micro-batch {plan.micro_batch} of {len(problem.micro_batches)}")

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """The request time and its components; the request times of other plans; then the memories."""
        size = problem.micro_batches[plan.micro_batch].size
        lines = [
            f"{printable(problem.name or 'model')}: {len(problem.layers):,} layers, {format_ps(plan.objective)} "
            f"for the request, micro-batch {size:,}"
        ]
        lines += [plan_line(name, format_ps(other.objective)) for name, other in others]
        lines += text_table(("memory", "layers:r", "bytes:r", "may be used:r", "spilled:r"), memory_rows(problem, plan))
        lines += [
            f"  {name.replace('_', ' '):<16}  {format_ps(value)}" for name, value in times_of(problem, plan)._asdict().items()
        ]
        return "\n".join(lines)

    def drawn(self, problem: Problem, plans: Sequence[Labelled], *, seconds: bool) -> Picture:
        """Labelled plans above each other, with one scale of bytes."""
        rows = [[plot] for plot in _plots(problem, plans)]
        return Picture(f"{problem.name or 'model'} on {problem.target or 'the machine'}", rows)

    def overview(self, problem: Problem, result: Result) -> Overview:
        """The model, the request and the memories."""
        total = problem.host_bytes + sum(map(layer_bytes, problem.layers))
        facts = [("Layers", f"{len(problem.layers):,}, {format_bytes(total)} with caches"), ("Steps", f"{problem.steps:,}")]
        facts += [
            (memory.name, f"{format_bytes(memory.capacity)}, {memory.weight_rate / 1e9:,.4g} GB/s")
            for memory in problem.memories
        ]
        return Overview(facts=facts)

    def sections(self, problem: Problem, result: Result, plans: Sequence[Labelled], details: Details) -> list[Section]:
        """The memories of each plan as bars and of the plan as a table, and the components of the request time of each plan."""
        plan = plans[0][1]
        head = ("Memory:n", "Layers:r", "Bytes:r", "May be used:r", "Spilled:r")
        plots = _plots(problem, plans)
        bars = legend_html(plots[0].legend) + "".join(map(plot_figure, plots))
        sections = [Section("Memories", bars + table("What each memory holds", head, memory_rows(problem, plan)))]
        parts = [times_of(problem, other)._asdict() for _, other in plans]
        rows = [(name.replace("_", " "), *(format_ps(part[name]) for part in parts)) for name in parts[0]]
        columns = ("Part:n", *(f"{name}:r" for name, _ in plans))
        sections.append(Section("Time of the request", table("What the time consists of", columns, rows)))
        return sections


def boxes(problem: Problem, plan: Plan, memory: int) -> Iterator[tuple[str, int, str]]:
    """Yields name, bytes and colour of everything that a memory holds: layers, and other data."""
    if memory == HOST and problem.host_bytes:
        yield "input embeddings", problem.host_bytes, INPUT
    spilled = 0
    for number, (layer, at, parts) in enumerate(zip(problem.layers, plan.memories, plan.spilled, strict=True)):
        spilled += layer_bytes(layer) - layer_bytes(layer, parts)
        if at == memory:
            yield layer.name, layer_bytes(layer, parts), PALETTE[number // _BAND % len(PALETTE)]
    if memory == HOST and spilled:
        yield "parts of layers on devices", spilled, SPILLED
    if memory == HOST or memory in plan.memories:
        yield "intermediate results", problem.memories[memory].compute_bytes[plan.micro_batch], COMPUTE


def memory_rows(problem: Problem, plan: Plan) -> list[tuple[str, str, str, str, str]]:
    """For each memory its name, number of layers, bytes, usable bytes, and number of spilled parts of its layers."""
    rows = []
    for memory, device in enumerate(problem.memories):
        size = sum(size for _, size, _ in boxes(problem, plan, memory))
        parts = sum(count for count, at in zip(plan.spilled, plan.memories, strict=True) if at == memory)
        usable = format_bytes(device.capacity - device.margin)
        rows.append((name_of(device.name), str(plan.memories.count(memory)), format_bytes(size), usable, str(parts)))
    return rows


def _plots(problem: Problem, plans: Sequence[Labelled]) -> list[Plot]:
    """The bars of each plan, with one scale of bytes."""
    used = max(
        sum(size for _, size, _ in boxes(problem, plan, memory)) for _, plan in plans for memory in range(len(problem.memories))
    )
    # If the host has much more memory than is used, a scale up to its capacity would make the devices' bars short.
    most = min(
        max(memory.capacity for memory in problem.memories),
        max(used * 5 // 4, max((device.capacity for device in problem.devices), default=0)),
    )
    return [_plot(problem, label, plan, most) for label, plan in plans]


def _plot(problem: Problem, label: str, plan: Plan, most: int) -> Plot:
    """The bars of one plan, on a scale of ``most`` bytes."""
    across = byte_axis(most, byte_unit(most)[0])
    panels = []
    for memory, device in enumerate(problem.memories):
        marks: list[Rect | Line | Text] = []
        at = 0
        for name, size, colour in boxes(problem, plan, memory):
            style = Style(fill=colour, stroke="paper", width=0.4)
            marks.append(Rect(at, min(at + size, most), 0.1, 0.9, style, f"{name}: {format_bytes(size)}"))
            at += size
        usable = device.capacity - device.margin
        if usable <= most:
            marks.append(
                Line([(usable, 0.0), (usable, 1.0)], Style(stroke="stall", width=1.2), f"{format_bytes(usable)} may be used")
            )
        spoken = f"{device.name}: {format_bytes(at)} of {format_bytes(usable)}"
        panels.append(
            Panel(
                _ROW, marks, _HIGH, spoken, f"{name_of(device.name)}: {plan.memories.count(memory)} layers, {format_bytes(at)}"
            )
        )
    legend: list[Key] = [
        *patches([(PALETTE[0], f"layers, a colour for every {_BAND}"), (SPILLED, "parts of layers on devices")]),
        *patches([(COMPUTE, "intermediate results"), (INPUT, "input embeddings")]),
        Key("what may be used", Style(stroke="stall", width=1.2), "line"),
    ]
    return Plot(across, panels, f"{label}: {format_ps(plan.objective)}", legend, gap=_GAP)


PRESENTER = LlmPlacementPresenter
