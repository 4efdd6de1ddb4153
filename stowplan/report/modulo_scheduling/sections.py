"""The part of the HTML report that is about modulo scheduling: the schedule as a drawing, and its instructions in a table."""

from __future__ import annotations

import math
from html import escape

from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.report.colours import ink_on
from stowplan.report.modulo_scheduling.picture import EARLIER, box_text, operation_colours, tile_name
from stowplan.report.modulo_scheduling.scene import HIGH, SLOT, WIDE, Scene, Way, build_scene, slot_middle
from stowplan.report.page import Overview, Section, legend, table

#: Pixels of a tile's height, of the column of names, and of the line with slots.
_UNIT, _NAMES, _HEAD = 54, 84, 26

#: Rows of the table of instructions.
TOP = 200


def overview(problem: Problem, interval: str | None) -> Overview:
    """Machine and rules; and what is proven of the initiation interval."""
    machine, rules = problem.machine, problem.rules
    facts = [
        ("Machine", f"{problem.target}: {machine.tiles} tiles, latency {machine.latency} clocks"),
        ("Loop body", f"{len(problem.instructions):,} instructions, {len(problem.edges):,} values between them"),
        ("Waiting at consumers", "any time" if rules.max_delay is None else f"at most {rules.max_delay} clocks"),
        ("Passing through tiles", "allowed" if rules.pass_through else "not allowed"),
    ]
    fabric = machine.asynchronous
    if fabric is not None and not problem.is_synchronous:
        sent = sum(edge.asynchronous for edge in problem.edges)
        facts.append(("Flows", f"{len(set(problem.flows))}, linked by {sent} values over the asynchronous fabric"))
        ports = sum(interface.ports for interface in fabric.interfaces)
        access = f"{len(problem.accesses)} accesses an iteration, {ports} ports; nominal {fabric.memory_latency} clocks"
        facts.append(("Memory", access))
    return Overview(facts=[*facts, *([("Initiation interval", interval)] if interval else [])])


def schedule(problem: Problem, plan: Plan) -> Section:
    """Tiles down, slots across, values as arrows."""
    scene = build_scene(problem, plan)
    colours = operation_colours(problem)
    wide, high = scene.width * _UNIT + _NAMES + 8, scene.height * _UNIT + _HEAD + 4
    drawn = [_frame(problem, plan, scene), *(_instruction(problem, plan, scene, number) for number in range(len(scene.boxes)))]
    drawn += [_way(way) for way in scene.ways]
    spoken = f"Schedule: {len(plan.tiles)} instructions on {len(set(plan.tiles))} tiles, II {plan.ii}, latency {plan.makespan}"
    return Section(
        "Schedule",
        "<p>Tiles down, slots (clocks modulo II) across; t is the clock at which iteration 0 issues an instruction. An arrow "
        "is a value; red and dashed, one of an earlier iteration, with its distance; dotted, one that goes over the "
        "asynchronous fabric; a dot, a tile it passes through. A thick "
        f"edge starts a flow.</p>\n{legend((colour, operation) for operation, colour in colours.items())}"
        f'<div class="scroll" tabindex="0" role="group" aria-label="Schedule"><svg class="schedule" width="{wide:.0f}" '
        f'height="{high:.0f}" viewBox="0 0 {wide:.0f} {high:.0f}" role="img" aria-label="{escape(spoken)}">'
        f"{''.join(drawn)}</svg></div>",
    )


def instructions(problem: Problem, plan: Plan) -> Section:
    """Where and when everything is issued, in the order of time."""
    order = sorted(range(len(plan.tiles)), key=lambda number: (plan.times[number], plan.tiles[number]))
    waits = [0] * len(plan.tiles)
    for edge, delay in zip(problem.edges, plan.delays, strict=True):
        waits[edge.target] = max(waits[edge.target], delay)
    rows = []
    for number in order[:TOP]:
        each = problem.instructions[number]
        reads = ", ".join(
            f"{operand.instruction}{f' (−{operand.distance})' if operand.distance else ''}"
            for operand in each.operands
            if operand.instruction is not None
        )
        place = (str(plan.times[number]), str(plan.slots[number]), str(plan.tiles[number]))
        rows.append((each.id, each.op_name, *place, reads or "–", str(waits[number])))
    head = ("Instruction:n", "Operation", "Clock:r", "Slot:r", "Tile:r", "Reads:n", "Operands wait:r")
    caption = f"{len(rows):,} of {len(order):,} instructions by the clock of iteration 0; how long operands wait at most"
    return Section("Instructions", table(caption, head, rows), follows_search=True)


def _place(point: tuple[float, float]) -> str:
    return f"{point[0] * _UNIT + _NAMES:.1f} {point[1] * _UNIT + _HEAD:.1f}"


def _frame(problem: Problem, plan: Plan, scene: Scene) -> str:
    wide, last = scene.width * _UNIT, scene.rows[-1]
    high, low = scene.rows[0].top * _UNIT + _HEAD, (last.top + last.height) * _UNIT + _HEAD
    edges = [(slot_middle(slot) - SLOT / 2) * _UNIT + _NAMES for slot in range(plan.ii + 1)]
    parts = [
        f'<text x="{edge + SLOT / 2 * _UNIT:.1f}" y="16" class="axis-name">slot {slot}</text>'
        for slot, edge in enumerate(edges[:-1])
    ]
    for row in scene.rows:
        top, deep = row.top * _UNIT + _HEAD, row.height * _UNIT
        kind = "idle" if row.is_idle else "tile"
        name = f"tile{'s' if row.first != row.last else ''} {tile_name(problem, row)}"
        parts.append(f'<rect class="{kind}" x="{_NAMES}" y="{top:.1f}" width="{wide:.1f}" height="{deep:.1f}"/>')
        parts.append(f'<text x="{_NAMES - 8}" y="{top + deep / 2 + 4:.1f}" class="tile-name">{escape(name)}</text>')
        if row.is_idle:
            parts.append(
                f'<text x="{_NAMES + wide / 2:.1f}" y="{top + deep / 2 + 4:.1f}" class="axis-name">nothing here</text>'
            )
    return "".join([*parts, *(f'<path class="tile" d="M{edge:.1f} {high:.1f}V{low:.1f}"/>' for edge in edges)])


def _instruction(problem: Problem, plan: Plan, scene: Scene, number: int) -> str:
    colour = operation_colours(problem)[problem.instructions[number].op_name]
    x, y = scene.boxes[number][0] * _UNIT + _NAMES, scene.boxes[number][1] * _UNIT + _HEAD
    left, top = x - WIDE / 2 * _UNIT, y - HIGH / 2 * _UNIT
    start = ' class="start"' if number in plan.starts else ""
    ink = ink_on(colour)
    instruction = problem.instructions[number]
    title = f"{instruction.id}: {instruction.op_name}, tile {plan.tiles[number]}, clock {plan.times[number]}"
    if instruction.memory is not None:
        which = plan.interfaces[number]
        title += "" if which is None else f", {instruction.memory} by {problem.machine.interfaces[which].name}"
    return (
        f'<rect{start} x="{left:.1f}" y="{top:.1f}" width="{WIDE * _UNIT:.1f}" height="{HIGH * _UNIT:.1f}" rx="6" '
        f'fill="{colour}"><title>{escape(title)}</title></rect>'
        f'<text x="{x:.1f}" y="{y - 3:.1f}" fill="{ink}">{escape(box_text(problem, number))}</text>'
        f'<text x="{x:.1f}" y="{y + 11:.1f}" fill="{ink}">t = {plan.times[number]}</text>'
    )


def _way(way: Way) -> str:
    kind = ("earlier" if way.distance else "this") + (" sent" if way.is_sent else "")
    path = f"M{_place(way.curves[0][0])}" + "".join(
        f"{'Q' if len(curve) == 3 else 'C'}{' '.join(map(_place, curve[1:]))}" for curve in way.curves
    )
    drawn = (
        f'<path class="way {kind}" d="{path}"/><path class="tip {kind}" d="{_tip(way.curves[-1][-2], way.curves[-1][-1])}"/>'
    )
    drawn += "".join(f'<path class="stop {kind}" d="M{_place(stop)}h0"/>' for stop in way.stops)
    if way.distance:
        x, y = _place(way.label).split()
        drawn += f'<text x="{x}" y="{float(y) + 4:.1f}" fill="{EARLIER}" class="distance">−{way.distance}</text>'
    return drawn


def _tip(before: tuple[float, float], end: tuple[float, float], long: float = 0.14, wide: float = 0.055) -> str:
    """Head of an arrow."""
    across, down = end[0] - before[0], end[1] - before[1]
    length = math.hypot(across, down) or 1.0
    across, down = across / length, down / length
    back = (end[0] - long * across, end[1] - long * down)
    sides = ((back[0] - wide * down, back[1] + wide * across), (back[0] + wide * down, back[1] - wide * across))
    return f"M{_place(end)}L{_place(sides[0])}L{_place(sides[1])}z"
