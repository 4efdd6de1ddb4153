"""Shows modulo schedules: tiles down, slots across, and arrows for the values between instructions.

A value goes over links between neighbouring tiles, and may pass through tiles on its way. Or it is sent over the *asynchronous
fabric*, a network that connects all tiles and the memory. The *distance* of a value is the number of iterations between its
producer and its consumer. A *flow* is a set of instructions that values over links connect; the plan's *starts* are the
instructions that the hardware starts at a set time, for example one of each flow. The *spoke RAM* of a tile says which
instruction it executes in each slot. An *interface* serves accesses of some tiles to memory.

The presenter's methods override the methods of :class:`~stowplan.report.presenter.Presenter`, which explains their parameters
and errors. The functions expect a valid plan, and raise no errors of their own.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stowplan.errors import InputError, VerificationError
from stowplan.hardware.se import Configuration, compare, configure
from stowplan.models.modulo_scheduling.bounds import recurrence_mii, resource_mii
from stowplan.models.modulo_scheduling.machine import Registers
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.verify import verify
from stowplan.report.colours import PALETTE, ink_on
from stowplan.report.figures import svg_inline
from stowplan.report.modulo_scheduling_layout import HIGH, SLOT, WIDE, Layout, Row, Way, build_layout, slot_middle
from stowplan.report.page import Details, Overview, Section, table
from stowplan.report.paper import lay_out
from stowplan.report.presenter import DrawingPresenter, Labelled
from stowplan.report.scene import Arrow, Axis, Dot, Key, Line, Mark, Panel, Picture, Plot, Rect, Style, Text, patches
from stowplan.report.text import shorten
from stowplan.report.trace import Group, Slice, Trace
from stowplan.result import Result
from stowplan.tables import text_table

#: Number of rows of the table of instructions.
TOP = 200

#: Characters of an instruction in the grid of slots, and the largest initiation interval for which the grid is printed.
_CELL, _MAX_GRID_SLOTS = 12, 12

#: Height of a tile, and maximum size of the picture, in points.
_UNIT, _MAX_SIZE = 39.0, 4300.0

#: Styles of values of the same iteration and of earlier iterations, and of both if they are sent over the asynchronous fabric.
_THIS, _EARLIER = Style(stroke="soft", name="way this"), Style(stroke="stall", dash=(4, 2), name="way earlier")

_SENT = {style: Style(stroke=style.stroke, dash=(1, 1.8), name=f"{style.name} sent") for style in (_THIS, _EARLIER)}

_TILE, _IDLE = Style(stroke="grid", width=0.7, name="tile"), Style(fill="panel", stroke="grid", width=0.7, name="idle")


class ModuloSchedulingPresenter(DrawingPresenter):
    """Shows schedules one at a time. Only valid schedules are shown, because the tables that configure the tiles exist only for
    them."""

    max_plans = 1

    def check_fits(self, problem: Problem, plan: object) -> None:
        """Raises InputError for a plan of another kind, and VerificationError for a plan that is not valid."""
        if not isinstance(plan, Plan):
            raise InputError(f"found a {type(plan).__name__} of another kind, expected a modulo schedule")
        verdict = verify(problem, plan)
        if not verdict.ok:
            more = f" (and {len(verdict.violations) - 1} more)" if len(verdict.violations) > 1 else ""
            raise VerificationError(f"not a valid plan: {verdict.violations[0]}{more}")

    def check_configurable(self, option: str) -> None:
        """Accepts all problems: plans configure the tiles of the machine."""

    def configuration(self, problem: Problem, plan: Plan) -> Configuration:
        """The tables of all tiles."""
        return configure(problem, plan)

    def simulate(self, problem: Problem, plan: Plan, iterations: int) -> str:
        """Simulates the machine clock by clock on random numbers and compares the results with NumPy's. If messages are sent
        over the asynchronous fabric, it also does so with random latencies."""
        run = compare(problem, plan, iterations)
        results = iterations * len(problem.instructions)
        words = f"simulated {iterations} iterations in {run.clocks} clocks: all {results} results are those of NumPy"
        if problem.is_synchronous:
            return words
        slow = compare(problem, plan, iterations, wandering=True)
        return f"{words}; and in {slow.clocks} clocks with random latencies of the asynchronous fabric"

    def references(self, problem: Problem) -> list[Labelled]:
        """Returns no plans, because a schedule is drawn alone."""
        return []

    def summarize(self, problem: Problem, plan: Plan, *, others: Sequence[Labelled] = (), everything: bool = False) -> str:
        """Interval, latency and their bounds; the grid of tiles and slots; instructions and spoke RAM of each tile."""
        machine = problem.machine
        tables = configure(problem, plan)
        head, *entries = tables.table().splitlines()
        resources, recurrences = resource_mii(problem), recurrence_mii(problem)
        used = Counter(plan.tiles)
        lines = [head]
        lines.append(f"  MII {max(resources, recurrences)} (resources {resources}, recurrences {recurrences})")
        busy = len(plan.tiles) / (machine.tiles * plan.ii)
        waits = (delay for edge, delay in zip(problem.edges, plan.delays, strict=True) if not edge.asynchronous)
        longest = max(waits, default=0)
        lines.append(
            f"  {len(used)} of {machine.tiles} tiles used, {busy:.0%} of all slots; values wait {longest} clocks at most"
        )
        if plan.starts:
            ids = [problem.instructions[number].id for number in plan.starts]
            lines.append(f"  started by {', '.join(ids)}")
        if not problem.is_synchronous:
            lines.append(_flows_text(problem, plan))
        if plan.ii <= _MAX_GRID_SLOTS:
            lines += ["", *_grid(problem, plan)]
        lines += ["", "Spoke RAM and instruction RAM:", *entries]
        memory = [(tile.tile, word.address, word.words, word.variable) for tile in tables.tiles for word in tile.memory]
        memory += [
            (tile.tile, word.address, word.words, f"{word.value}, from the asynchronous fabric")
            for tile in tables.tiles
            for word in tile.received
        ]
        if memory:
            rows = [[str(cell) for cell in row] for row in memory]
            lines += ["", "Tile memory:", *text_table(("tile:r", "address:r", "words:r", "variable"), rows)]
        return "\n".join(lines)

    def drawn(self, problem: Problem, plans: Sequence[Labelled], *, seconds: bool) -> Picture:
        """The first schedule."""
        return picture(problem, plans[0][1])

    def trace(self, problem: Problem, plan: Plan) -> Trace:
        """The tiles over clocks, from the first iteration until one has ended while all later ones are on their way."""
        iterations = -(-plan.makespan // plan.ii) + 1
        rows: dict[str, list[Slice]] = {}
        for number in sorted(range(len(plan.tiles)), key=lambda number: (plan.tiles[number], plan.times[number])):
            instruction, begin = problem.instructions[number], plan.times[number]
            facts = {"operation": instruction.op_name, "latency": problem.latencies[number], "slot": plan.slots[number]}
            # A tile issues one instruction in a clock; the result may take several.
            rows.setdefault(f"tile {_tile_name(problem, plan.tiles[number])}", []).extend(
                Slice(instruction.id, begin + at * plan.ii, begin + at * plan.ii + 1, {"iteration": at, **facts})
                for at in range(iterations)
            )
        return Trace("clock", [Group("tiles", rows)])

    def overview(self, problem: Problem, result: Result) -> Overview:
        """The machine, the rules, and what is proven about the initiation interval."""
        machine, rules = problem.machine, problem.rules
        facts = [
            ("Machine", f"{problem.target}: {machine.tiles} tiles, latency {machine.latency} clocks"),
            ("Loop body", f"{len(problem.instructions):,} instructions, {len(problem.edges):,} values between them"),
            ("Waiting of values", "any time" if rules.max_delay is None else f"at most {rules.max_delay} clocks"),
            *([("Registers", _registers_text(machine.registers))] if machine.registers else []),
            ("Passing through tiles", "allowed" if rules.pass_through else "not allowed"),
        ]
        fabric = machine.asynchronous
        if fabric is not None and not problem.is_synchronous:
            sent = sum(edge.asynchronous for edge in problem.edges)
            facts.append(("Flows", f"{len(set(problem.flows))}, linked by {sent} values over the asynchronous fabric"))
            ports = sum(interface.ports for interface in fabric.interfaces)
            access = f"{len(problem.accesses)} accesses an iteration, {ports} ports; nominal {fabric.memory_latency} clocks"
            facts.append(("Memory", access))
        interval = result.details.get("interval")
        return Overview(facts=[*facts, *([("Initiation interval", str(interval))] if interval else [])])

    def sections(self, problem: Problem, result: Result, plans: Sequence[Labelled], details: Details) -> list[Section]:
        """The schedule as a drawing, and its instructions."""
        plan = plans[0][1]
        return [_schedule(problem, plan), _instructions(problem, plan)]


def _registers_text(registers: Registers) -> str:
    """Text about the registers: their number in a tile, and which values they hold for how long."""
    where = "for other tiles in one that the next result overwrites" if registers.output else "in the tile of the consumer"
    return f"{'any number' if registers.count is None else registers.count} a tile, for less than an interval; {where}"


def _schedule(problem: Problem, plan: Plan) -> Section:
    """Tiles down, slots across, values as arrows."""
    drawn = svg_inline(lay_out(picture(problem, plan)), spoken(plan))
    return Section(
        "Schedule",
        "<p>Rows are tiles and columns are slots (clocks modulo II); t is the clock at which iteration 0 issues an "
        "instruction. An arrow is a value. If it is red and dashed, the value is of an earlier iteration, at the given "
        "distance; if it is dotted, the value goes over the asynchronous fabric; a dot is a tile that it passes through. A box "
        "with a thick edge starts a flow.</p>\n"
        f'<div class="scroll" tabindex="0" role="group" aria-label="Schedule">{drawn}</div>',
    )


def _instructions(problem: Problem, plan: Plan) -> Section:
    """The instructions in the order of their clocks, with their tiles."""
    order = sorted(range(len(plan.tiles)), key=lambda number: (plan.times[number], plan.tiles[number]))
    waits = [0] * len(plan.tiles)
    for edge, delay in zip(problem.edges, plan.delays, strict=True):
        waits[edge.target] = max(waits[edge.target], delay)
    rows = []
    for number in order[:TOP]:
        instruction = problem.instructions[number]
        reads = ", ".join(
            f"{operand.instruction}{f' (−{operand.distance})' if operand.distance else ''}"
            for operand in instruction.operands
            if operand.instruction is not None
        )
        place = (str(plan.times[number]), str(plan.slots[number]), str(plan.tiles[number]))
        rows.append((instruction.id, instruction.op_name, *place, reads or "–", str(waits[number])))
    head = ("Instruction:n", "Operation", "Clock:r", "Slot:r", "Tile:r", "Reads:n", "Operands wait:r")
    caption = f"{len(rows):,} of {len(order):,} instructions by the clock of iteration 0; how long operands wait at most"
    return Section("Instructions", table(caption, head, rows), follows_search=True)


def _flows_text(problem: Problem, plan: Plan) -> str:
    """Text about the flows, the values that link them, and accesses to memory."""
    sent = sum(edge.asynchronous for edge in problem.edges)
    requests = Counter(problem.machine.interfaces[which].name for which in plan.interfaces if which is not None)
    by = "".join(f"; {count} of {name}" for name, count in sorted(requests.items()))
    memory = f", {len(problem.accesses)} memory accesses{by}" if problem.accesses else ""
    return f"  {len(set(problem.flows))} flows linked by {sent} values over the asynchronous fabric{memory}"


def _grid(problem: Problem, plan: Plan) -> list[str]:
    """Tiles down, slots across. A suffix ``+r`` says how many intervals after the first iteration began an instruction is first
    issued."""
    cells = {
        (tile, slot): f"{shorten(problem.instructions[number].id, _CELL - 4)}"
        + (f"+{time // plan.ii}" if time >= plan.ii else "")
        for number, (tile, slot, time) in enumerate(zip(plan.tiles, plan.slots, plan.times, strict=True))
    }
    rows = [[str(tile), *(cells.get((tile, slot), ".") for slot in range(plan.ii))] for tile in sorted(set(plan.tiles))]
    lines = text_table(("tile:r", *(f"slot {slot}" for slot in range(plan.ii))), rows)
    return [*lines, "(+r: first issued r intervals after the first iteration began)"]


def picture(problem: Problem, plan: Plan) -> Picture:
    """A picture of a valid plan.

    An arrow leads from the producer to the consumer of a value through the tiles that it passes. Values of the same iteration
    are grey. Values of earlier iterations are red and dashed, with their distance. Values that are sent over the asynchronous
    fabric are dotted. A box names the instruction, its operation, which also determines its colour, and the clock at which
    iteration 0 issues it. Starts of flows have a thick edge. Idle tiles share a low row.
    """
    layout = build_layout(problem, plan)
    colours = _operation_colours(problem)
    marks = _frame(layout, plan)
    words: list[Mark] = []
    for number in range(len(layout.boxes)):
        box, *written = _instruction(problem, plan, layout, number, colours[problem.instructions[number].op_name])
        marks.append(box)
        words += written
    # Texts are drawn last, so that they stay readable where an arrow crosses a box.
    marks += [mark for way in layout.ways for mark in _way(way)] + words
    unit = min(_UNIT, _MAX_SIZE / max(layout.width, layout.height))
    rows = [(row.middle, _row_name(problem, row)) for row in layout.rows]
    up = Axis(layout.height, 0, rows, "tile" if problem.machine.columns == 1 else "tile (row, column)")
    across = Axis(0, layout.width, [(slot_middle(slot), str(slot)) for slot in range(plan.ii)], "slot (clock modulo II)")
    panel = Panel(up, marks, layout.height * unit, spoken(plan), is_framed=False)
    title = shorten(f"{problem.name or 'loop'} on {problem.target}", 60)
    plot = Plot(across, [panel], legend=[*_legend(plan, layout), *patches((colour, name) for name, colour in colours.items())])
    title += f": II {plan.ii}, latency {plan.makespan} clocks"
    return Picture(title, [[plot]], max(300.0, layout.width * unit + 70))


def spoken(plan: Plan) -> str:
    """A description of the drawing for readers who cannot see it."""
    return f"Schedule: {len(plan.tiles)} instructions on {len(set(plan.tiles))} tiles, II {plan.ii}, latency {plan.makespan}"


def _operation_colours(problem: Problem) -> dict[str, str]:
    """A colour for each operation of the loop body."""
    operations = dict.fromkeys(instruction.op_name for instruction in problem.instructions)
    return {operation: PALETTE[number % len(PALETTE)] for number, operation in enumerate(operations)}


def _row_name(problem: Problem, row: Row) -> str:
    """Name of the tile of a row; for several tiles, the numbers of the first and the last."""
    return _tile_name(problem, row.first) if row.first == row.last else f"{row.first} – {row.last}"


def _tile_name(problem: Problem, tile: int) -> str:
    """Number of a tile with its position in the grid."""
    columns = problem.machine.columns
    return str(tile) if columns == 1 else f"{tile} ({tile // columns}, {tile % columns})"


def _frame(layout: Layout, plan: Plan) -> list[Mark]:
    """The rows of tiles and the edges of slots."""
    marks: list[Mark] = []
    for row in layout.rows:
        marks.append(Rect(0, layout.width, row.top + row.height, row.top, _IDLE if row.is_idle else _TILE))
        if row.is_idle:
            marks.append(Text(layout.width / 2, row.middle, "nothing here", 7))
    top, bottom = layout.rows[0].top, layout.rows[-1].top + layout.rows[-1].height
    edges = (slot_middle(slot) - SLOT / 2 for slot in range(plan.ii + 1))
    return marks + [Line([(edge, top), (edge, bottom)], _TILE) for edge in edges]


def _instruction(problem: Problem, plan: Plan, layout: Layout, number: int, colour: str) -> list[Mark]:
    """The box of an instruction, followed by its texts."""
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
    """The arrow of one value, with dots where it passes through tiles."""
    style = _EARLIER if way.distance else _THIS
    stop = Style(fill=style.stroke, name="stop")
    marks: list[Mark] = [Arrow(way.curves, _SENT[style] if way.is_sent else style)]
    marks += [Dot(*place, stop, 4) for place in way.stops]
    if way.distance:
        marks.append(Text(*way.label, f"−{way.distance}", 7, style.stroke, halo="paper"))
    return marks


def _legend(plan: Plan, layout: Layout) -> list[Key]:
    """Explanations of the marks, as far as they occur."""
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


PRESENTER = ModuloSchedulingPresenter
