"""The tables that program the tiles of a machine, as JSON and as text for people.

Each tile has an *instruction RAM* with its instructions, a *spoke RAM* with an entry for each slot of the schedule, and a
memory for variables and for values from other tiles. A *slot* is a clock modulo the initiation interval. Tiles send values over
links, which take a fixed number of clocks, or over the *asynchronous fabric*, which writes them to the memory of another tile
after a number of clocks that may vary.

A *synchronous flow* is a set of instructions that run in lockstep. A *thread* is one iteration of a flow. A *launch* is the
start of a thread. Latencies of the asynchronous fabric are *nominal*: plans are computed as if they were exact. A *memory
interface* is a place at which the fabric passes requests of loads and stores to memory.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

import msgspec

from stowplan.document import Document
from stowplan.models.modulo_scheduling.machine import Machine
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.tables import text_table

#: Names of inputs that are no links; :class:`Input` and :class:`Spoke` explain them.
FEEDBACK, BASE, MEMORY, CONSTANT, RECEIVED = "feedback", "base", "memory", "constant", "received"


class Input(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The source of an operand."""

    port: str
    """Name of an input link, ``feedback`` (results of the tile itself), ``memory``, ``constant``, or ``received`` (values that
    the asynchronous fabric wrote to the tile's memory)."""
    delay: int = 0
    """Clocks for which the value is delayed after it arrived at the port."""
    skip: int = 0
    """Number of the first iterations in which the operand is ``initial``, because the value is that of an earlier iteration."""
    initial: float = 0.0
    """Value of the operand in the first ``skip`` iterations."""
    address: int = 0
    """Address of the first word in the tile's memory, for the ports ``memory`` and ``received``."""
    constant: float = 0.0
    """Value of the operand for the port ``constant``."""
    is_counted: bool = False
    """How the value is found at the port. If true, values are counted: the operand is the value that belongs to the thread
    ``skip`` threads ago, at whatever clock it arrived. Otherwise the operand is the value that arrived ``delay`` clocks ago."""


class Words(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """The words in a tile's memory for a value from the asynchronous fabric, one for each iteration in flight.

    Successive iterations use the words in rotation.
    """

    tile: int
    """Number of the tile."""
    address: int
    """First word."""
    words: int
    """Number of words."""
    skip: int = 0
    """Number of iterations between the one that produces the value and the one that reads it."""


class Flow(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """A synchronous flow, whose threads are launched in order, each at clock ``launch`` plus a multiple of the initiation
    interval."""

    launch: int
    """Clock of the first launch at nominal latencies, counted from the start of iteration 0."""
    needs: tuple[Words, ...] = ()
    """Values from the asynchronous fabric that must have arrived before a thread is launched."""
    fills: tuple[Words, ...] = ()
    """Words to which its threads send values over the asynchronous fabric. The word of a thread must be free before the thread
    is launched."""


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One entry of an instruction RAM."""

    id: str
    """Name of the instruction."""
    op: str
    """Its operation (:mod:`stowplan.hardware.se.reference`)."""
    source_op: str | None = None
    """Name of the operation in the original graph; None if it is ``op``."""
    inputs: tuple[Input, ...]
    """Sources of the operands."""
    latency: int
    """Clocks from its issue to its result."""
    interface: str | None = None
    """Name of the memory interface to which its result is sent as a request; None if it does not access memory."""
    sends: Words | None = None
    """Words to which the asynchronous fabric brings its result, or the answer to its request; None if it sends nothing."""


class Forward(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A route of a value through a tile: a value that arrives at ``input`` leaves at ``outputs`` in the same clock."""

    input: str
    """Name of the link on which the value arrives, or ``feedback``."""
    outputs: tuple[str, ...]
    """Names of the links on which it leaves."""


class Spoke(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One entry of a spoke RAM: the actions of the tile in one slot."""

    instruction: int | None = None
    """Number of the entry in the instruction RAM; None for no instruction."""
    master: str | None = None
    """Input at which a message starts the instruction: a link, ``feedback``, or ``base`` for launches of the flow's threads."""
    delay: int = 0
    """Clocks for which the message is delayed; for ``base``, the clock of the instruction's first issue."""
    flow: int | None = None
    """For ``base``, the number of the flow whose threads start the instruction."""
    outputs: tuple[str, ...] = ()
    """Names of the links on which the result leaves when it comes out of the pipeline."""
    forwards: tuple[Forward, ...] = ()
    """Values that pass through the tile."""


class Held(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A variable in a tile's memory."""

    variable: str
    """Name of the variable."""
    address: int
    """First word."""
    words: int
    """Number of words."""


class Received(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A value from the asynchronous fabric in a tile's memory."""

    value: str
    """Name of the instruction that sends the value or requests it from memory."""
    address: int
    """First word."""
    words: int
    """Number of words."""
    reads: tuple[int, ...]
    """For each operand that reads the value, the number of iterations between the production and the read. After the last read,
    the word is free."""


class Tile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All tables of one tile."""

    tile: int
    """Number of the tile."""
    instructions: tuple[Entry, ...]
    """The instruction RAM."""
    spokes: tuple[Spoke, ...]
    """The spoke RAM: the entry of each slot."""
    memory: tuple[Held, ...]
    """The variables in the tile's memory."""
    received: tuple[Received, ...] = ()
    """The values from the asynchronous fabric in the tile's memory."""


class Configuration(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """All tables that program a machine to run a loop body."""

    name: str
    """Name of the loop body, for people."""
    machine: Machine
    """The machine."""
    ii: int
    """Initiation interval, in clocks."""
    latency: int
    """Clocks from the start of an iteration to its last result, at nominal latencies."""
    tiles: tuple[Tile, ...]
    """The tables of each tile."""
    flows: tuple[Flow, ...] = ()
    """The synchronous flows."""
    format: str = "stowplan.modulo_scheduling.configuration"
    version: int = 1

    def table(self) -> str:
        """The tables as text for people, with a line for each slot of a tile that has an instruction or forwards values."""
        lines = [f"{self.name or 'loop'} on {self.machine.name}: II {self.ii}, latency {self.latency} clocks"]
        rows = []
        for tile in self.tiles:
            for slot, spoke in enumerate(tile.spokes):
                if spoke.instruction is None and not spoke.forwards:
                    continue
                instruction_text = master = operands = outputs = ""
                if spoke.instruction is not None:
                    entry = tile.instructions[spoke.instruction]
                    instruction_text = f"{entry.id}: {entry.source_op or entry.op}"
                    master = spoke.master or ""
                    operands = ", ".join(_describe(source, tile) for source in entry.inputs)
                    outputs = ", ".join([*spoke.outputs, *_sent(entry)])
                passing = "; ".join(f"{forward.input} passes to {', '.join(forward.outputs)}" for forward in spoke.forwards)
                tail = "; ".join(part for part in (outputs, passing) if part)
                rows.append((str(tile.tile), str(slot), instruction_text, master, operands, tail))
        lines += text_table(("tile:r", "slot:r", "instruction", "master input", "operands", "outputs"), rows)
        return "\n".join(lines)


def _sent(entry: Entry) -> list[str]:
    """Texts that describe the values that an instruction sends over the asynchronous fabric."""
    words = "" if entry.sends is None else f"tile {entry.sends.tile} memory"
    if entry.interface is None:
        return [f"to {words}"] if words else []
    return [f"asks {entry.interface}{', answer to ' + words if words else ''}"]


def _describe(source: Input, tile: Tile) -> str:
    """Text that describes the source of an operand."""
    if source.port == CONSTANT:
        return f"{source.constant:g}"
    if source.port == MEMORY:
        return next(entry.variable for entry in tile.memory if entry.address == source.address)
    if source.port == RECEIVED:
        value = next(entry.value for entry in tile.received if entry.address == source.address)
        return f"{value} from memory" + (f" ({source.skip} late)" if source.skip else "")
    return source.port + (f" +{source.delay}" if source.delay else "") + (f" ({source.skip} late)" if source.skip else "")


def configure(problem: Problem, plan: Plan) -> Configuration:
    """Creates the tables that program a machine according to a plan.

    The plan must be valid, which is not checked: an invalid one gives wrong tables, or an AssertionError or IndexError.
    """
    machine, ii, flow = problem.machine, plan.ii, problem.flows
    names = [link.name for link in machine.links]
    words = _received(problem, plan)
    flows = _flows(problem, plan, words)
    incoming: dict[tuple[int, int], int] = {(edge.target, edge.operand): at for at, edge in enumerate(problem.edges)}
    outputs: dict[int, set[int]] = defaultdict(set)
    forwards: dict[tuple[int, int], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
    arrival_ports: list[str] = []
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
        arrival_ports.append(port)
    tiles = []
    for tile in range(machine.tiles):
        local_instructions = [number for number, where in enumerate(plan.tiles) if where == tile]
        local_instructions.sort(key=lambda number: plan.slots[number])
        variables = _memory(problem, local_instructions)
        address = {variable.variable: variable.address for variable in variables}
        received = tuple(
            Received(
                value=problem.instructions[source].id,
                address=value_words.address,
                words=value_words.words,
                reads=tuple(e.distance for e in problem.edges if e.asynchronous and e.source == source),
            )
            for source, value_words in words.items()
            if value_words.tile == tile
        )
        entries, spokes = [], {slot: Spoke() for slot in range(ii)}
        for place, number in enumerate(local_instructions):
            inputs = []
            master, master_delay = BASE, plan.times[number]
            for at, operand in enumerate(problem.instructions[number].operands):
                if operand.constant is not None:
                    inputs.append(Input(port=CONSTANT, constant=operand.constant))
                elif operand.variable is not None:
                    inputs.append(Input(port=MEMORY, address=address[operand.variable]))
                else:
                    edge_number = incoming[number, at]
                    age, initial = operand.distance, operand.initial
                    source = problem.edges[edge_number].source
                    if problem.edges[edge_number].asynchronous:
                        inputs.append(Input(port=RECEIVED, address=words[source].address, skip=age, initial=initial))
                        continue
                    port, delay = arrival_ports[edge_number], plan.delays[edge_number]
                    waits = bool(operand.distance and (flows[flow[number]].needs or flows[flow[number]].fills))
                    inputs.append(Input(port=port, delay=delay, skip=age, initial=initial, is_counted=waits))
                    if operand.distance == 0 and master == BASE:
                        master, master_delay = port, delay
            instruction = problem.instructions[number]
            latency = problem.latencies[number]
            interface = plan.interfaces[number] if plan.interfaces else None
            entries.append(
                Entry(
                    id=instruction.id,
                    op=instruction.op,
                    source_op=instruction.source_op,
                    inputs=tuple(inputs),
                    latency=latency,
                    interface=None if interface is None else machine.interfaces[interface].name,
                    sends=words.get(number),
                )
            )
            sends = tuple(names[link] for link in sorted(outputs[number]))
            started_flow = flow[number] if master == BASE else None
            spokes[plan.slots[number]] = Spoke(
                instruction=place, master=master, delay=master_delay, outputs=sends, flow=started_flow
            )
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
                memory=tuple(variables),
                received=received,
            )
        )
    return Configuration(name=problem.name, machine=machine, ii=ii, latency=plan.makespan, tiles=tuple(tiles), flows=flows)


def _launches(problem: Problem, plan: Plan) -> dict[int, int]:
    """For each flow, the clock at which its first instruction starts in the plan."""
    launches: dict[int, int] = {}
    for flow, time in zip(problem.flows, plan.times, strict=True):
        launches[flow] = min(time, launches.get(flow, time))
    return launches


def _received(problem: Problem, plan: Plan) -> dict[int, Words]:
    """Words for the results that the asynchronous fabric transports, by the number of the instruction.

    In the memory of the reading tile, they are placed after the tile's variables.
    """
    launch = _launches(problem, plan)
    last_read: dict[int, int] = {}
    reading_tile: dict[int, int] = {}
    for edge in problem.edges:
        if edge.asynchronous:
            read = plan.times[edge.target] + plan.ii * edge.distance
            last_read[edge.source] = max(read, last_read.get(edge.source, read))
            reading_tile[edge.source] = plan.tiles[edge.target]
    next_address: dict[int, int] = {}
    received: dict[int, Words] = {}
    for source in sorted(last_read):
        tile = reading_tile[source]
        if tile not in next_address:
            variables = _memory(problem, [number for number, tile_of in enumerate(plan.tiles) if tile_of == tile])
            next_address[tile] = sum(variable.words for variable in variables)
        count = (last_read[source] - launch[problem.flows[source]]) // plan.ii + 1
        received[source] = Words(tile=tile, address=next_address[tile], words=count)
        next_address[tile] += count
    return received


def _flows(problem: Problem, plan: Plan, words: Mapping[int, Words]) -> tuple[Flow, ...]:
    """The flows, with the clocks of their first launches and the words through which they exchange values."""
    flow, launch = problem.flows, _launches(problem, plan)
    needs: dict[int, dict[Words, None]] = defaultdict(dict)
    fills: dict[int, list[Words]] = defaultdict(list)
    for edge in problem.edges:
        if edge.asynchronous:
            needs[flow[edge.target]][msgspec.structs.replace(words[edge.source], skip=edge.distance)] = None
    for source, value_words in words.items():
        fills[flow[source]].append(value_words)
    return tuple(Flow(launch=launch[at], needs=tuple(needs[at]), fills=tuple(fills[at])) for at in sorted(launch))


def _memory(problem: Problem, numbers: list[int]) -> list[Held]:
    """The variables that these instructions use, at consecutive addresses."""
    words = {variable.id: variable.words for variable in problem.variables}
    names = dict.fromkeys(name for number in numbers for name in problem.instructions[number].variables)
    placed, address = [], 0
    for name in names:
        placed.append(Held(variable=name, address=address, words=words[name]))
        address += words[name]
    return placed
