"""How modulo schedules are shown."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from stowplan.errors import InputError, VerificationError
from stowplan.hardware.se import Configuration, compare, configure
from stowplan.models.modulo_scheduling.bounds import recurrence_mii, resource_mii
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.verify import verify
from stowplan.report.modulo_scheduling import drawing
from stowplan.report.page import Details, Overview, Section, table
from stowplan.report.paper import lay_out
from stowplan.report.presenter import DrawingPresenter, Labelled
from stowplan.report.scene import Picture
from stowplan.report.svg import svg_inline
from stowplan.report.text import text_table
from stowplan.report.units import shorten
from stowplan.result import Result

#: Rows of the table of instructions.
TOP = 200

#: Letters of an instruction in the grid of slots, and slots of it; longer intervals have the table of entries only.
_CELL, _MOST_SLOTS = 12, 12


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
        """Interval, latency and what bounds them; the grid of tiles and slots; instruction and spoke RAM of each tile."""
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
            lines.append(_linked(problem, plan))
        if plan.ii <= _MOST_SLOTS:
            lines += ["", *_grid(problem, plan)]
        lines += ["", "Spoke RAM and instruction RAM:", *entries]
        memory = [(tile.tile, each.address, each.words, each.variable) for tile in tables.tiles for each in tile.memory]
        memory += [
            (tile.tile, each.address, each.words, f"{each.value}, from the asynchronous fabric")
            for tile in tables.tiles
            for each in tile.received
        ]
        if memory:
            rows = [[str(cell) for cell in row] for row in memory]
            lines += ["", "Tile memory:", *text_table(("tile:r", "address:r", "words:r", "variable"), rows)]
        return "\n".join(lines)

    def picture(self, problem: Problem, plans: Sequence[Labelled], *, seconds: bool = False) -> Picture:
        """The first schedule."""
        return drawing.picture(problem, self.distinct(problem, plans)[0][1])

    def overview(self, problem: Problem, result: Result) -> Overview:
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
        interval = result.details.get("interval")
        return Overview(facts=[*facts, *([("Initiation interval", str(interval))] if interval else [])])

    def report_sections(
        self, problem: Problem, result: Result, others: Sequence[Labelled], details: Details, *, seconds: bool = False
    ) -> list[Section]:
        """The schedule as a drawing, and its instructions."""
        if result.plan is None:
            return []
        return [_schedule(problem, result.plan), _instructions(problem, result.plan)]


def _schedule(problem: Problem, plan: Plan) -> Section:
    """Tiles down, slots across, values as arrows."""
    drawn = svg_inline(lay_out(drawing.picture(problem, plan)), drawing.spoken(plan))
    return Section(
        "Schedule",
        "<p>Tiles down, slots (clocks modulo II) across; t is the clock at which iteration 0 issues an instruction. An arrow "
        "is a value; red and dashed, one of an earlier iteration, with its distance; dotted, one that goes over the "
        "asynchronous fabric; a dot, a tile it passes through. A thick edge starts a flow.</p>\n"
        f'<div class="scroll" tabindex="0" role="group" aria-label="Schedule">{drawn}</div>',
    )


def _instructions(problem: Problem, plan: Plan) -> Section:
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


def _linked(problem: Problem, plan: Plan) -> str:
    """Flows, what links them, and what memory is asked."""
    sent = sum(edge.asynchronous for edge in problem.edges)
    asked = Counter(problem.machine.interfaces[which].name for which in plan.interfaces if which is not None)
    by = "".join(f"; {count} of {name}" for name, count in sorted(asked.items()))
    memory = f", {len(problem.accesses)} memory accesses{by}" if problem.accesses else ""
    return f"  {len(set(problem.flows))} flows linked by {sent} values over the asynchronous fabric{memory}"


def _grid(problem: Problem, plan: Plan) -> list[str]:
    """Tiles down, slots across; with each instruction its round, in which it issues for iteration 0."""
    cells = {
        (tile, slot): f"{shorten(problem.instructions[number].id, _CELL - 4)}"
        + (f"+{time // plan.ii}" if time >= plan.ii else "")
        for number, (tile, slot, time) in enumerate(zip(plan.tiles, plan.slots, plan.times, strict=True))
    }
    rows = [[str(tile), *(cells.get((tile, slot), ".") for slot in range(plan.ii))] for tile in sorted(set(plan.tiles))]
    lines = text_table(("tile:r", *(f"slot {slot}" for slot in range(plan.ii))), rows)
    return [*lines, "(+r: first issued r intervals after the first iteration began)"]
