"""The tables that program the tiles: instruction RAM, spoke RAM and memory, as JSON and for people."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import msgspec

from stowplan.document import Document
from stowplan.models.modulo_scheduling.machine import Machine
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.tables import text_table

FEEDBACK, BASE, MEMORY, CONSTANT, RECEIVED = "feedback", "base", "memory", "constant", "received"


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Where an operand comes from."""

    port: str
    """Name of an input link, ``feedback``, ``memory``, ``constant``, or ``received`` over the asynchronous fabric."""
    delay: int = 0
    """Clocks that the value waits behind the port."""
    skip: int = 0
    """Issues of the instruction in which ``initial`` stands in for the value: iterations before the first is there."""
    initial: float = 0.0
    address: int = 0
    """First word in the tile's memory."""
    constant: float = 0.0
    is_counted: bool = False
    """Whether the value is that of ``skip`` threads ago, whenever it came; else the one of ``delay`` clocks ago."""


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Where a value from the asynchronous fabric stands: one word for each iteration in flight, used in turn."""

    tile: int
    address: int
    words: int
    skip: int = 0
    """Iterations that the value is old when it is needed."""


class Flow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A synchronous flow. Its threads are launched at ``launch`` plus multiples of the interval, in order."""

    launch: int
    """Clock of the first launch at nominal latencies."""
    needs: tuple[Words, ...] = ()
    """What must be there before a thread is launched."""
    fills: tuple[Words, ...] = ()
    """Where its threads write over the asynchronous fabric: a word must be free before a thread is launched."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One entry of an instruction RAM."""

    id: str
    op: str
    source_op: str | None = None
    """Name of the op in the graph that it comes from; None where that is ``op``."""
    inputs: tuple[Input, ...]
    latency: int
    """Clocks from its issue to its result."""
    interface: str | None = None
    """Memory interface that its result is a request to; None for no memory access."""
    sends: Words | None = None
    """Where its result, or the answer to it, goes over the asynchronous fabric."""


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
    flow: int | None = None
    """For ``base``: the flow whose threads it starts."""
    outputs: tuple[str, ...] = ()
    """Links that take the result when it leaves the pipeline."""
    forwards: tuple[Forward, ...] = ()


class Held(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A variable in a tile's memory."""

    variable: str
    address: int
    words: int


class Received(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A value from the asynchronous fabric in a tile's memory."""

    value: str
    """Instruction that sends it, or asks for it."""
    address: int
    words: int
    reads: tuple[int, ...]
    """For each operand that reads it, after how many iterations; after the last its word is free."""


class Tile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All tables of one tile."""

    tile: int
    instructions: tuple[Entry, ...]
    spokes: tuple[Spoke, ...]
    """One for each slot."""
    memory: tuple[Held, ...]
    received: tuple[Received, ...] = ()


class Configuration(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What programs a machine to run a loop body."""

    name: str
    machine: Machine
    ii: int
    """Initiation interval, in clocks."""
    latency: int
    """Clocks from the start of an iteration to its last result."""
    tiles: tuple[Tile, ...]
    flows: tuple[Flow, ...] = ()
    format: str = "stowplan.modulo_scheduling.configuration"
    version: int = 1

    def table(self) -> str:
        """The tables for people: one line for each slot of each tile that does something."""
        lines = [f"{self.name or 'loop'} on {self.machine.name}: II {self.ii}, latency {self.latency} clocks"]
        rows = []
        for tile in self.tiles:
            for slot, spoke in enumerate(tile.spokes):
                if spoke.instruction is None and not spoke.forwards:
                    continue
                what = master = operands = outputs = ""
                if spoke.instruction is not None:
                    entry = tile.instructions[spoke.instruction]
                    what = f"{entry.id}: {entry.source_op or entry.op}"
                    master = spoke.master or ""
                    operands = ", ".join(_describe(source, tile) for source in entry.inputs)
                    outputs = ", ".join([*spoke.outputs, *_sent(entry)])
                passing = "; ".join(f"{forward.input} passes to {', '.join(forward.outputs)}" for forward in spoke.forwards)
                tail = "; ".join(part for part in (outputs, passing) if part)
                rows.append((str(tile.tile), str(slot), what, master, operands, tail))
        lines += text_table(("tile:r", "slot:r", "instruction", "master input", "operands", "outputs"), rows)
        return "\n".join(lines)


def _sent(entry: Entry) -> list[str]:
    """What an instruction sends over the asynchronous fabric."""
    words = "" if entry.sends is None else f"tile {entry.sends.tile} memory"
    if entry.interface is None:
        return [f"to {words}"] if words else []
    return [f"asks {entry.interface}{', answer to ' + words if words else ''}"]


def _describe(source: Input, tile: Tile) -> str:
    if source.port == CONSTANT:
        return f"{source.constant:g}"
    if source.port == MEMORY:
        return next(entry.variable for entry in tile.memory if entry.address == source.address)
    if source.port == RECEIVED:
        value = next(entry.value for entry in tile.received if entry.address == source.address)
        return f"{value} from memory" + (f" ({source.skip} late)" if source.skip else "")
    return source.port + (f" +{source.delay}" if source.delay else "") + (f" ({source.skip} late)" if source.skip else "")


def configure(problem: Problem, plan: Plan) -> Configuration:
    """Tables of a valid plan."""
    machine, ii, flow = problem.machine, plan.ii, problem.flows
    names = [link.name for link in machine.links]
    words = _received(problem, plan)
    flows = _flows(problem, plan, words)
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
        address = {variable.variable: variable.address for variable in held}
        received = tuple(
            Received(
                value=problem.instructions[source].id,
                address=own.address,
                words=own.words,
                reads=tuple(e.distance for e in problem.edges if e.asynchronous and e.source == source),
            )
            for source, own in words.items()
            if own.tile == tile
        )
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
                    late, initial = operand.distance, operand.initial
                    source = problem.edges[edge_number].source
                    if problem.edges[edge_number].asynchronous:
                        inputs.append(Input(port=RECEIVED, address=words[source].address, skip=late, initial=initial))
                        continue
                    port, delay = arrives[edge_number], plan.delays[edge_number]
                    waits = bool(operand.distance and (flows[flow[number]].needs or flows[flow[number]].fills))
                    inputs.append(Input(port=port, delay=delay, skip=late, initial=initial, is_counted=waits))
                    if operand.distance == 0 and master == BASE:
                        master, wait = port, delay
            instruction = problem.instructions[number]
            latency = problem.latencies[number]
            which = plan.interfaces[number] if plan.interfaces else None
            entries.append(
                Entry(
                    id=instruction.id,
                    op=instruction.op,
                    source_op=instruction.source_op,
                    inputs=tuple(inputs),
                    latency=latency,
                    interface=None if which is None else machine.interfaces[which].name,
                    sends=words.get(number),
                )
            )
            sends = tuple(names[link] for link in sorted(outputs[number]))
            begins = flow[number] if master == BASE else None
            spokes[plan.slots[number]] = Spoke(instruction=place, master=master, delay=wait, outputs=sends, flow=begins)
        for slot, spoke in spokes.items():
            passing = tuple(
                Forward(input=port, outputs=tuple(names[link] for link in sorted(links)))
                for port, links in sorted(forwards[tile, slot].items())
            )
            spokes[slot] = msgspec.structs.replace(spoke, forwards=passing)
        tiles.append(
            Tile(
                tile=tile,
                instructions=tuple(entries),
                spokes=tuple(spokes.values()),
                memory=tuple(held),
                received=received,
            )
        )
    return Configuration(name=problem.name, machine=machine, ii=ii, latency=plan.makespan, tiles=tuple(tiles), flows=flows)


def _launches(problem: Problem, plan: Plan) -> dict[int, int]:
    """Clock at which each flow is first launched."""
    launches: dict[int, int] = {}
    for flow, time in zip(problem.flows, plan.times, strict=True):
        launches[flow] = min(time, launches.get(flow, time))
    return launches


def _received(problem: Problem, plan: Plan) -> dict[int, Words]:
    """Where the value of each instruction stands that comes over the asynchronous fabric, behind the variables of its tile."""
    launch = _launches(problem, plan)
    last: dict[int, int] = {}
    where: dict[int, int] = {}
    for edge in problem.edges:
        if edge.asynchronous:
            read = plan.times[edge.target] + plan.ii * edge.distance
            last[edge.source] = max(read, last.get(edge.source, read))
            where[edge.source] = plan.tiles[edge.target]
    free: dict[int, int] = {}
    received: dict[int, Words] = {}
    for source in sorted(last):
        tile = where[source]
        if tile not in free:
            held = _memory(problem, [number for number, own in enumerate(plan.tiles) if own == tile])
            free[tile] = sum(variable.words for variable in held)
        count = (last[source] - launch[problem.flows[source]]) // plan.ii + 1
        received[source] = Words(tile=tile, address=free[tile], words=count)
        free[tile] += count
    return received


def _flows(problem: Problem, plan: Plan, words: Mapping[int, Words]) -> tuple[Flow, ...]:
    """Launches, and what goes between flows."""
    flow, launch = problem.flows, _launches(problem, plan)
    needs: dict[int, dict[Words, None]] = defaultdict(dict)
    fills: dict[int, list[Words]] = defaultdict(list)
    for edge in problem.edges:
        if edge.asynchronous:
            needs[flow[edge.target]][msgspec.structs.replace(words[edge.source], skip=edge.distance)] = None
    for source, own in words.items():
        fills[flow[source]].append(own)
    return tuple(Flow(launch=launch[at], needs=tuple(needs[at]), fills=tuple(fills[at])) for at in sorted(launch))


def _memory(problem: Problem, numbers: list[int]) -> list[Held]:
    """Addresses of the variables that instructions use, one after the other."""
    words = {variable.id: variable.words for variable in problem.variables}
    used = dict.fromkeys(name for number in numbers for name in problem.instructions[number].variables)
    held, address = [], 0
    for name in used:
        held.append(Held(variable=name, address=address, words=words[name]))
        address += words[name]
    return held
