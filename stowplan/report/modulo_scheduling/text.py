"""A modulo schedule for people to read: its numbers, which tile does what in which slot, and the tables of the tiles."""

from __future__ import annotations

from collections import Counter

from stowplan.hardware.se.configuration import configure
from stowplan.models.modulo_scheduling.bounds import recurrence_mii, resource_mii
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.report.units import shorten

#: Letters of an instruction in the grid of slots.
_CELL = 12

#: Slots of the grid; longer intervals have the table of entries only.
_MOST_SLOTS = 12


def summarize_schedule(problem: Problem, plan: Plan) -> str:
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
    lines.append(f"  {len(used)} of {machine.tiles} tiles used, {busy:.0%} of all slots; values wait {longest} clocks at most")
    if plan.starts:
        ids = [problem.instructions[number].id for number in plan.starts]
        lines.append(f"  started by {', '.join(ids)}")
    if not problem.is_synchronous:
        lines.append(_linked(problem, plan))
    if plan.ii <= _MOST_SLOTS:
        lines += ["", *_grid(problem, plan)]
    lines += ["", "Spoke RAM and instruction RAM:", *entries]
    memory = [
        f"{tile.tile:>4}  {each.address:>7} {each.words:>6}  {each.variable}" for tile in tables.tiles for each in tile.memory
    ]
    memory += [
        f"{tile.tile:>4}  {each.address:>7} {each.words:>6}  {each.value}, from the asynchronous fabric"
        for tile in tables.tiles
        for each in tile.received
    ]
    if memory:
        lines += ["", "Tile memory:", "tile  address  words  variable", *memory]
    return "\n".join(lines)


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
    width = max([len(text) for text in cells.values()] + [len("slot 99")])
    lines = ["tile  " + "  ".join(f"slot {slot}".ljust(width) for slot in range(plan.ii)).rstrip()]
    for tile in sorted(set(plan.tiles)):
        row = "  ".join(cells.get((tile, slot), ".").ljust(width) for slot in range(plan.ii))
        lines.append(f"{tile:>4}  {row}".rstrip())
    return [*lines, "(+r: first issued r intervals after the first iteration began)"]
