"""Modulo schedules drawn: tiles down, slots across, and the values that go between them as arrows."""

from __future__ import annotations

from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.report.colours import PALETTE, ink_on
from stowplan.report.modulo_scheduling.layout import HIGH, SLOT, WIDE, Layout, Row, Way, build_layout, slot_middle
from stowplan.report.scene import Arrow, Axis, Dot, Key, Line, Mark, Panel, Picture, Plot, Rect, Style, Text, patches
from stowplan.report.units import shorten

#: Points of a tile's height; the picture is no larger than the second.
_UNIT, _MOST = 39.0, 4300.0

#: Values of this iteration and of earlier ones, and each where it goes over the asynchronous fabric.
_THIS, _EARLIER = Style(stroke="soft", name="way this"), Style(stroke="stall", dash=(4, 2), name="way earlier")
_SENT = {style: Style(stroke=style.stroke, dash=(1, 1.8), name=f"{style.name} sent") for style in (_THIS, _EARLIER)}

_TILE, _IDLE = Style(stroke="grid", width=0.7, name="tile"), Style(fill="panel", stroke="grid", width=0.7, name="idle")


def picture(problem: Problem, plan: Plan) -> Picture:
    """A valid plan.

    An arrow leads from the producer to the consumer of a value, by way of the tiles it passes through. Values of this
    iteration are grey, those of earlier iterations red and dashed with their distance. What goes over the asynchronous fabric
    is dotted. A box says the instruction, its operation (which is its colour too), and the clock at which iteration 0 issues
    it; starts of flows have a thick edge. Tiles that do nothing share a low row.
    """
    layout = build_layout(problem, plan)
    colours = _operation_colours(problem)
    marks = _frame(layout, plan)
    words: list[Mark] = []
    for number in range(len(layout.boxes)):
        box, *written = _instruction(problem, plan, layout, number, colours[problem.instructions[number].op_name])
        marks.append(box)
        words += written
    # Where an arrow must cross a box, the words stay readable.
    marks += [mark for way in layout.ways for mark in _way(way)] + words
    unit = min(_UNIT, _MOST / max(layout.width, layout.height))
    rows = [(row.middle, _tile_name(problem, row)) for row in layout.rows]
    up = Axis(layout.height, 0, rows, "tile" if problem.machine.columns == 1 else "tile (row, column)")
    across = Axis(0, layout.width, [(slot_middle(slot), str(slot)) for slot in range(plan.ii)], "slot (clock modulo II)")
    panel = Panel(up, marks, layout.height * unit, spoken(plan), is_framed=False)
    title = shorten(f"{problem.name or 'loop'} on {problem.target}", 60)
    plot = Plot(across, [panel], legend=[*_legend(plan, layout), *patches((colour, name) for name, colour in colours.items())])
    title += f": II {plan.ii}, latency {plan.makespan} clocks"
    return Picture(title, [[plot]], max(300.0, layout.width * unit + 70))


def spoken(plan: Plan) -> str:
    """What the drawing shows, for those who cannot see it."""
    return f"Schedule: {len(plan.tiles)} instructions on {len(set(plan.tiles))} tiles, II {plan.ii}, latency {plan.makespan}"


def _operation_colours(problem: Problem) -> dict[str, str]:
    """A colour for each operation of the loop body."""
    operations = dict.fromkeys(instruction.op_name for instruction in problem.instructions)
    return {operation: PALETTE[number % len(PALETTE)] for number, operation in enumerate(operations)}


def _tile_name(problem: Problem, row: Row) -> str:
    """Number of a tile with its place in the grid; of several, the first and the last."""
    columns = problem.machine.columns
    if row.first != row.last:
        return f"{row.first} – {row.last}"
    return str(row.first) if columns == 1 else f"{row.first} ({row.first // columns}, {row.first % columns})"


def _frame(layout: Layout, plan: Plan) -> list[Mark]:
    marks: list[Mark] = []
    for row in layout.rows:
        marks.append(Rect(0, layout.width, row.top + row.height, row.top, _IDLE if row.is_idle else _TILE))
        if row.is_idle:
            marks.append(Text(layout.width / 2, row.middle, "nothing here", 7))
    top, bottom = layout.rows[0].top, layout.rows[-1].top + layout.rows[-1].height
    edges = (slot_middle(slot) - SLOT / 2 for slot in range(plan.ii + 1))
    return marks + [Line([(edge, top), (edge, bottom)], _TILE) for edge in edges]


def _instruction(problem: Problem, plan: Plan, layout: Layout, number: int, colour: str) -> list[Mark]:
    x, y = layout.boxes[number]
    instruction = problem.instructions[number]
    tip = f"{instruction.id}: {instruction.op_name}, tile {plan.tiles[number]}, clock {plan.times[number]}"
    if instruction.memory is not None:
        which = plan.interfaces[number]
        tip += "" if which is None else f", {instruction.memory} by {problem.machine.interfaces[which].name}"
    is_start = number in plan.starts
    edge = ("ink", 2.0, "start") if is_start else ("paper", 0.8, "box")
    style = Style(fill=colour, stroke=edge[0], width=edge[1], name=edge[2])
    name, op = shorten(instruction.id, 14), instruction.op_name
    name = name if op.lower() in name.lower() else f"{name}: {shorten(op, 8)}"
    return [
        Rect(x - WIDE / 2, x + WIDE / 2, y + HIGH / 2, y - HIGH / 2, style, tip),
        Text(x, y - 0.12, name, 7, ink_on(colour), halo=colour),
        Text(x, y + 0.13, f"t = {plan.times[number]}", 7, ink_on(colour), halo=colour),
    ]


def _way(way: Way) -> list[Mark]:
    """Arrow of one value, with its stops where it passes through tiles."""
    style = _EARLIER if way.distance else _THIS
    stop = Style(fill=style.stroke, name="stop")
    marks: list[Mark] = [Arrow(way.curves, _SENT[style] if way.is_sent else style)]
    marks += [Dot(*place, stop, 4) for place in way.stops]
    if way.distance:
        marks.append(Text(*way.label, f"−{way.distance}", 7, style.stroke, halo="paper"))
    return marks


def _legend(plan: Plan, layout: Layout) -> list[Key]:
    keys = [Key("value of this iteration", _THIS, "line")]
    if any(way.distance for way in layout.ways):
        keys.append(Key("value of an earlier iteration", _EARLIER, "line"))
    if any(way.is_sent for way in layout.ways):
        keys.append(Key("over the asynchronous fabric", _SENT[_THIS], "line"))
    if any(way.stops for way in layout.ways):
        keys.append(Key("passes through a tile", Style(fill="soft"), "circle"))
    if plan.starts:
        keys.append(Key("starts a flow", Style(fill="paper", stroke="ink", width=2)))
    return [*keys, Key("t: clock in iteration 0", Style())]
