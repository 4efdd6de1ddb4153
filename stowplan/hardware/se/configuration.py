"""The tables that program the tiles: instruction RAM, spoke RAM and memory, as JSON and for people."""

from __future__ import annotations

from collections import defaultdict

import msgspec

from stowplan.models.document import Document
from stowplan.models.modulo_scheduling.machine import Machine
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem

FORMAT = "stowplan.modulo_scheduling.configuration"
VERSION = 1

FEEDBACK, BASE, MEMORY, CONSTANT = "feedback", "base", "memory", "constant"


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Where an operand comes from."""

    port: str
    """Name of an input link, ``feedback``, ``memory`` or ``constant``."""
    delay: int = 0
    """Clocks that the value waits behind the port."""
    skip: int = 0
    """Issues of the instruction in which ``initial`` stands in for the value: iterations before the first is there."""
    initial: float = 0.0
    address: int = 0
    """First word in the tile's memory."""
    constant: float = 0.0


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One entry of an instruction RAM."""

    id: str
    op: str
    source_op: str | None = None
    """Name of the op in the graph that it comes from; None where that is ``op``."""
    inputs: tuple[Input, ...]
    latency: int
    """Clocks from its issue to its result."""


class Forward(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A value that passes through: what arrives at ``input`` in this clock leaves at ``outputs`` in the same clock."""

    input: str
    outputs: tuple[str, ...]


class Spoke(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One entry of a spoke RAM: what the tile does in one slot."""

    instruction: int | None = None
    """Entry of the instruction RAM; None for no instruction."""
    master: str | None = None
    """Input whose message wakes the instruction: a link, ``feedback`` or ``base``."""
    delay: int = 0
    """Clocks that the message waits with its value; for ``base``, the clock at which it first starts the instruction."""
    outputs: tuple[str, ...] = ()
    """Links that take the result when it leaves the pipeline."""
    forwards: tuple[Forward, ...] = ()


class Held(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A variable in a tile's memory."""

    variable: str
    address: int
    words: int


class Tile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All tables of one tile."""

    tile: int
    instructions: tuple[Entry, ...]
    spokes: tuple[Spoke, ...]
    """One for each slot."""
    memory: tuple[Held, ...]


class Configuration(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What programs a machine to run a loop body."""

    name: str
    machine: Machine
    ii: int
    """Initiation interval, in clocks."""
    latency: int
    """Clocks from the start of an iteration to its last result."""
    tiles: tuple[Tile, ...]
    format: str = FORMAT
    version: int = VERSION

    def table(self) -> str:
        """The tables for people: one line for each slot of each tile that does something."""
        lines = [f"{self.name or 'loop'} on {self.machine.name}: II {self.ii}, latency {self.latency} clocks"]
        lines.append(f"{'tile':>4} {'slot':>4}  {'instruction':<24} {'master input':<14} {'operands':<44} outputs")
        for tile in self.tiles:
            for slot, spoke in enumerate(tile.spokes):
                if spoke.instruction is None and not spoke.forwards:
                    continue
                what = master = operands = outputs = ""
                if spoke.instruction is not None:
                    entry = tile.instructions[spoke.instruction]
                    what = f"{entry.id}: {entry.source_op or entry.op}"
                    master = spoke.master or ""
                    operands = ", ".join(_describe(each, tile) for each in entry.inputs)
                    outputs = ", ".join(spoke.outputs)
                passing = "; ".join(f"{each.input} passes to {', '.join(each.outputs)}" for each in spoke.forwards)
                tail = "; ".join(part for part in (outputs, passing) if part)
                lines.append(f"{tile.tile:>4} {slot:>4}  {what:<24} {master:<14} {operands:<44} {tail}".rstrip())
        return "\n".join(lines)


def _describe(source: Input, tile: Tile) -> str:
    if source.port == CONSTANT:
        return f"{source.constant:g}"
    if source.port == MEMORY:
        return next(each.variable for each in tile.memory if each.address == source.address)
    return source.port + (f" +{source.delay}" if source.delay else "") + (f" ({source.skip} late)" if source.skip else "")


def configure(problem: Problem, plan: Plan) -> Configuration:
    """Tables of a valid plan."""
    machine, ii = problem.machine, plan.ii
    names = [link.name for link in machine.links]
    incoming: dict[tuple[int, int], int] = {(edge.target, edge.operand): at for at, edge in enumerate(problem.edges)}
    outputs: dict[int, set[int]] = defaultdict(set)
    forwards: dict[tuple[int, int], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    arrives: list[str] = []
    for edge, route in zip(problem.edges, plan.routes, strict=True):
        tile, clock, port = plan.tiles[edge.source], plan.times[edge.source] + problem.latencies[edge.source], FEEDBACK
        for step, link in enumerate(route):
            if step == 0:
                outputs[edge.source].add(link)
            else:
                forwards[tile, clock % ii][port].add(link)
            end = machine.end(tile, link)
            assert end is not None
            tile, clock, port = end, clock + machine.links[link].clocks, names[link]
        arrives.append(port)
    tiles = []
    for tile in range(machine.tiles):
        here = [number for number, where in enumerate(plan.tiles) if where == tile]
        here.sort(key=lambda number: plan.slots[number])
        held = _memory(problem, here)
        address = {each.variable: each.address for each in held}
        entries, spokes = [], {slot: Spoke() for slot in range(ii)}
        for place, number in enumerate(here):
            inputs = []
            master, wait = BASE, plan.times[number]
            for at, operand in enumerate(problem.instructions[number].operands):
                if operand.constant is not None:
                    inputs.append(Input(port=CONSTANT, constant=operand.constant))
                elif operand.variable is not None:
                    inputs.append(Input(port=MEMORY, address=address[operand.variable]))
                else:
                    edge_number = incoming[number, at]
                    port, delay = arrives[edge_number], plan.delays[edge_number]
                    inputs.append(Input(port=port, delay=delay, skip=operand.distance, initial=operand.initial))
                    if operand.distance == 0 and master == BASE:
                        master, wait = port, delay
            instruction = problem.instructions[number]
            entries.append(
                Entry(
                    id=instruction.id,
                    op=instruction.op,
                    source_op=instruction.source_op,
                    inputs=tuple(inputs),
                    latency=problem.latencies[number],
                )
            )
            sends = tuple(names[link] for link in sorted(outputs[number]))
            spokes[plan.slots[number]] = Spoke(instruction=place, master=master, delay=wait, outputs=sends)
        for slot, spoke in spokes.items():
            passing = tuple(
                Forward(input=port, outputs=tuple(names[link] for link in sorted(links)))
                for port, links in sorted(forwards[tile, slot].items())
            )
            spokes[slot] = msgspec.structs.replace(spoke, forwards=passing)
        tiles.append(Tile(tile=tile, instructions=tuple(entries), spokes=tuple(spokes.values()), memory=tuple(held)))
    return Configuration(name=problem.name, machine=machine, ii=ii, latency=plan.makespan, tiles=tuple(tiles))


def _memory(problem: Problem, numbers: list[int]) -> list[Held]:
    """Addresses of the variables that instructions use, one after the other."""
    words = {variable.id: variable.words for variable in problem.variables}
    used = dict.fromkeys(name for number in numbers for name in problem.instructions[number].variables)
    held, address = [], 0
    for name in used:
        held.append(Held(variable=name, address=address, words=words[name]))
        address += words[name]
    return held
