"""The modulo-scheduling problem: the instructions of a loop body, and the array of tiles (CGRA) that it runs on.

The rules are in docs/reference/modulo-scheduling.md. A *tile* is a processing element with its own memory. A new iteration of
the loop begins every *initiation interval* (II). A *slot* is a clock modulo the II. Values go over links between tiles
(*synchronous*), or over a second network whose latency is not fixed (the *asynchronous fabric*). The *makespan* is the number
of clocks from 0 to the last result of one iteration.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import msgspec

from stowplan import files
from stowplan.checks import expect
from stowplan.document import ProblemDocument
from stowplan.errors import InputError
from stowplan.models.modulo_scheduling.machine import MOST_LATENCY, Clocks, Machine
from stowplan.result import Assumption

if TYPE_CHECKING:
    from stowplan.models.modulo_scheduling.plan import Plan  # noqa: F401

#: Times and the makespan, in clocks, are less than this.
TIME_LIMIT = 1_000_000

#: Largest distance, in iterations, between producer and consumer.
MOST_DISTANCE = 1000

#: Prefix of the op of an instruction whose operation is not known. Any tile can execute it.
GENERIC = "generic:"


class Operand(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One input of an instruction. Exactly one of ``instruction``, ``variable`` and ``constant`` is not None."""

    instruction: str | None = None
    """Id of the instruction that produces the value."""
    distance: int = 0
    """Number of iterations before the current one in which the value is produced; 0 is the same iteration."""
    initial: float = 0.0
    """Value of the operand in the first ``distance`` iterations."""
    variable: str | None = None
    """Id of the tile-memory variable that is read."""
    constant: float | None = None
    """A constant, of which any tile may hold a copy."""
    asynchronous: bool = False
    """Whether the value arrives over the asynchronous fabric, in the tile memory. The value of a memory access always does."""

    def __post_init__(self) -> None:
        # msgspec omits a default from JSON only if it is the same object, and writes an int without a decimal point.
        if str(self.initial) in ("0.0", "0"):
            msgspec.structs.force_setattr(self, "initial", _INITIAL)
        if isinstance(self.constant, int):
            msgspec.structs.force_setattr(self, "constant", float(self.constant))

    @property
    def unsigned(self) -> Operand:
        """The same operand with -0.0 replaced by 0.0."""
        constant = None if self.constant is None else self.constant + 0.0
        return msgspec.structs.replace(self, initial=self.initial + 0.0, constant=constant)


_INITIAL: float = Operand.__struct_defaults__[Operand.__struct_fields__.index("initial")]


class Instruction(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """One operation of the loop body. It runs once in every iteration, always on the same tile."""

    id: str
    """Name of the instruction, which no other instruction has."""
    op: str
    """The operation, for example ``add``."""
    source_op: str | None = None
    """Name of the operation in the graph that the instruction comes from, for people; None if it is ``op``."""
    operands: tuple[Operand, ...] = ()
    """The operands in the order in which the operation takes them."""
    writes: tuple[str, ...] = ()
    """Ids of tile-memory variables that it writes, or on whose tile it must be for another reason."""
    latency: int | None = None
    """Clocks from its issue to its result; None for the latency of the machine."""
    tiles: tuple[int, ...] | None = None
    """Tiles that it may be on, ascending; None for any tile."""
    memory: Literal["load", "store"] | None = None
    """For a memory access, its kind: its result is a request that is sent to memory over the asynchronous fabric, and its value
    is the answer. None for all other instructions."""

    @property
    def op_name(self) -> str:
        """Name of the operation, for people."""
        return self.source_op or self.op

    @property
    def variables(self) -> tuple[str, ...]:
        """Ids of the tile-memory variables that it reads or writes, without repetitions."""
        read = (operand.variable for operand in self.operands if operand.variable is not None)
        return tuple(dict.fromkeys((*read, *self.writes)))


class Variable(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Data in the memory of one tile."""

    id: str
    """Name of the variable, which no other variable has."""
    words: int = 1
    """Size in words of the tile memory."""
    tile: int | None = None
    """Tile whose memory holds it; None if the plan chooses it."""
    streams: bool = False
    """Whether every iteration reads a new value, for example from an array that is loaded element by element."""


class Pin(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True, kw_only=True):
    """Fixes tile, time or slot of an instruction; None leaves it free."""

    instruction: str
    """Id of the instruction."""
    tile: int | None = None
    """Number of the tile."""
    time: int | None = None
    """Clock at which it is issued in iteration 0."""
    slot: int | None = None
    """Its time modulo the initiation interval."""


class Rules(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Variants of the machine's constraints; the defaults are those of docs/reference/modulo-scheduling.md."""

    max_delay: int | None = None
    """Largest number of clocks that a value over links may wait at its consumer; None for any number."""
    pass_through: bool = False
    """Whether values may pass through other tiles, over more than one link."""
    starts: Literal["flow", "source"] = "flow"
    """Which instructions the hardware starts at a set time, and which must be on different tiles. ``flow``: one source of each
    flow (:attr:`Problem.flows`). ``source``: every source, that is, every instruction that no value over links from the same
    iteration triggers."""
    siblings: Literal["consumers", "consumers_and_producers", "none"] = "consumers"
    """Which other instructions must be on different tiles: the consumers of one producer; also the producers of one consumer;
    or none."""


class Edge(NamedTuple):
    """A value that one instruction produces and another one consumes."""

    source: int
    """Number of the producer."""
    target: int
    """Number of the consumer."""
    distance: int
    """Iterations from producer to consumer."""
    operand: int
    """Index among the operands of the consumer."""
    asynchronous: bool = False
    """Whether the value is sent over the asynchronous fabric."""


class Problem(ProblemDocument["Plan"], frozen=True, forbid_unknown_fields=True, dict=True, kw_only=True):
    """A modulo-scheduling problem. Constructing one that breaks a rule raises :class:`~stowplan.errors.InputError`."""

    instructions: tuple[Instruction, ...]
    """The instructions of the loop body. Their *numbers* are their positions in this tuple."""
    machine: Machine
    """The machine that the loop body runs on."""
    variables: tuple[Variable, ...] = ()
    """The variables in tile memory."""
    rules: Rules = Rules()
    """The variants of the machine's constraints."""
    pins: tuple[Pin, ...] = ()
    """Fixed tiles, times and slots of instructions, at most one pin for each instruction."""
    name: str = ""
    """Name of the problem, for people."""
    notes: tuple[str, ...] = ()
    """Remarks of the reader about parts of the input that it could not represent exactly. No rule depends on them."""
    choices: tuple[Assumption, ...] = ()
    """Options of the reader for which other values would have given other instructions. No rule depends on them."""
    format: str = "stowplan.modulo_scheduling.problem"
    version: int = 1

    def __post_init__(self) -> None:
        _check(self)

    @property
    def target(self) -> str:
        """Name of the machine."""
        return self.machine.name

    @cached_property
    def number(self) -> dict[str, int]:
        """Number of each instruction, by id."""
        return {instruction.id: number for number, instruction in enumerate(self.instructions)}

    @cached_property
    def edges(self) -> tuple[Edge, ...]:
        """All operands that are values of instructions, in the order of the consumers and their operands."""
        return tuple(
            Edge(
                source := self.number[operand.instruction],
                target,
                operand.distance,
                place,
                operand.asynchronous or self.instructions[source].memory is not None,
            )
            for target, instruction in enumerate(self.instructions)
            for place, operand in enumerate(instruction.operands)
            if operand.instruction is not None
        )

    @cached_property
    def accesses(self) -> tuple[int, ...]:
        """Numbers of the instructions that access memory."""
        return tuple(number for number, instruction in enumerate(self.instructions) if instruction.memory is not None)

    @cached_property
    def is_synchronous(self) -> bool:
        """Whether no value is sent over the asynchronous fabric."""
        return not self.accesses and not any(edge.asynchronous for edge in self.edges)

    @cached_property
    def flows(self) -> tuple[int, ...]:
        """[instructions] number of the flow of each instruction.

        A flow is a set of instructions that synchronous edges connect, whatever their direction.
        """
        linked = [(edge.source, edge.target) for edge in self.edges if not edge.asynchronous]
        return tuple(components(len(self.instructions), [*linked, *((target, source) for source, target in linked)]))

    def nominal(self, source: int) -> int:
        """Nominal clocks that a value of this instruction needs over the asynchronous fabric; 0 if there is no fabric."""
        fabric = self.machine.asynchronous
        if fabric is None:
            return 0
        return fabric.latency if self.instructions[source].memory is None else fabric.memory_latency

    @cached_property
    def latencies(self) -> tuple[int, ...]:
        """[instructions] clocks from issue to result."""
        return tuple(
            self.machine.latency if instruction.latency is None else instruction.latency for instruction in self.instructions
        )

    @property
    def limits_waits(self) -> bool:
        """Whether the time for which a value over links may wait is limited."""
        return self.rules.max_delay is not None or bool(self.machine.registers)

    def longest_wait(self, ii: int) -> int | None:
        """The largest number of clocks that a value over links may wait at an initiation interval; None for any number.

        If the machine has registers, each of them is written once in every interval, so that no value waits for a whole
        interval.
        """
        limits = [ii - 1] if self.machine.registers else []
        limits += [] if self.rules.max_delay is None else [self.rules.max_delay]
        return min(limits, default=None)

    @property
    def hops(self) -> Clocks:
        """``hops[from][to]`` is the number of clocks that a value needs from tile to tile; None if it cannot go there."""
        return self.machine.any_links if self.rules.pass_through else self.machine.one_link

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of everything that plans depend on; names, notes and choices are left out."""
        # A fabric that no value uses does not affect the problem.
        fabric = None if self.is_synchronous else self.machine.asynchronous
        machine = msgspec.structs.replace(self.machine, name="", asynchronous=fabric)
        # Zeros of either sign must give the same digest.
        instructions = tuple(
            msgspec.structs.replace(
                instruction, source_op=None, operands=tuple(operand.unsigned for operand in instruction.operands)
            )
            for instruction in self.instructions
        )
        unnamed = msgspec.to_builtins(msgspec.structs.replace(self, name="", machine=machine, instructions=instructions))
        del unnamed["notes"], unnamed["choices"]
        # The tiles of loads and stores are fields of the instructions.
        unnamed["machine"].pop("memory_tiles", None)
        if fabric is None:
            # Without the field, the digest is that of problems which older versions of the program wrote.
            del unnamed["machine"]["asynchronous"]
        return files.digest(unnamed)


def _check(problem: Problem) -> None:
    """Raise InputError if a rule is broken; the message names the first such rule."""
    variables: set[str] = set()
    for at, variable in enumerate(problem.variables):
        place = f"variables[{at}] ({variable.id})"
        expect(variable.id not in variables, place, f"the id {variable.id!r} twice", "every id once")
        expect(variable.words >= 1, place, f"words {variable.words}", "1 or more")
        _check_tile(problem, variable.tile, place)
        variables.add(variable.id)
    known: set[str] = set()
    for at, instruction in enumerate(problem.instructions):
        place = f"instructions[{at}] ({instruction.id})"
        expect(instruction.id not in known, place, f"the id {instruction.id!r} twice", "every id once")
        known.add(instruction.id)
        operations = problem.machine.operations
        if operations and instruction.op not in operations and not instruction.op.startswith(GENERIC):
            message = (
                f"found the op {instruction.op!r}, which {problem.machine.name or 'the machine'} cannot do, expected one of "
            )
            message += f"{', '.join(operations)}: rename it, or add it to the machine's operations"
            raise InputError(message, place=place)
        _check_instruction(problem, instruction, place)
    for at, instruction in enumerate(problem.instructions):
        place = f"instructions[{at}] ({instruction.id})"
        for number, operand in enumerate(instruction.operands):
            _check_operand(operand, known, f"{place}.operands[{number}]")
        for name in instruction.variables:
            expect(name in variables, place, f"the variable {name!r}", "one of the problem's variables")
    _check_pins(problem, known)
    cycle = _cycle_without_distance(problem)
    if cycle:
        names = " -> ".join(problem.instructions[number].id for number in (*cycle, cycle[0]))
        place = f"instructions[{cycle[0]}] ({problem.instructions[cycle[0]].id})"
        raise InputError(
            f"found the cycle {names} without a distance, expected an edge of distance 1 or more in it", place=place
        )
    _check_flows(problem)


def _check_instruction(problem: Problem, instruction: Instruction, place: str) -> None:
    """Raise InputError if the latency, the tiles or the asynchronous values of an instruction break a rule."""
    name = problem.machine.name or "the machine"
    if instruction.memory is not None and not problem.machine.interfaces:
        raise InputError(f"found a memory access, expected none: {name} has no memory interfaces", place=place)
    if problem.machine.asynchronous is None and any(operand.asynchronous for operand in instruction.operands):
        raise InputError(f"found an asynchronous operand, expected none: {name} has no asynchronous fabric", place=place)
    latency, tiles = instruction.latency, instruction.tiles
    expect(latency is None or 1 <= latency <= MOST_LATENCY, place, f"latency {latency}", f"1 to {MOST_LATENCY} clocks")
    if tiles is not None:
        expect(bool(tiles), place, "no tile in tiles", "one or more, or null for any")
        ascending = list(tiles) == sorted(set(tiles))
        expect(ascending, place, f"tiles {', '.join(map(str, tiles))}", "every tile once, ascending")
        for tile in tiles:
            _check_tile(problem, tile, place)


def _check_flows(problem: Problem) -> None:
    """Raise InputError if flows wait for each other in a cycle within one iteration."""
    flow = problem.flows
    open_edges = [edge for edge in problem.edges if edge.asynchronous and edge.distance == 0]
    before = len(open_edges) + 1
    while before > len(open_edges):
        before = len(open_edges)
        # A flow that waits for no other, or that no other waits for, is on no cycle.
        for near, far in ((0, 1), (1, 0)):
            ends = {flow[edge[far]] for edge in open_edges}
            open_edges = [edge for edge in open_edges if flow[edge[near]] in ends]
    if open_edges:
        one, two = (problem.instructions[number].id for number in open_edges[0][:2])
        raise InputError(
            f"found the asynchronous value from {one} to {two}, whose flows wait for each other within an iteration, "
            "expected flows in an order: what else goes between them is asynchronous too",
            place=f"instructions[{open_edges[0].target}] ({two})",
        )


def _check_operand(operand: Operand, known: set[str], place: str) -> None:
    """Raise InputError if an operand breaks a rule."""
    given = [name for name in ("instruction", "variable", "constant") if getattr(operand, name) is not None]
    expect(len(given) == 1, place, " and ".join(given) or "nothing", "one of instruction, variable and constant")
    if operand.instruction is not None:
        expect(operand.instruction in known, place, f"the instruction {operand.instruction!r}", "the id of an instruction")
        expect(0 <= operand.distance <= MOST_DISTANCE, place, f"distance {operand.distance}", f"0 to {MOST_DISTANCE}")
    else:
        expect(operand.distance == 0, place, f"distance {operand.distance}", "0 where no instruction makes the value")
    is_sent = operand.instruction is not None
    expect(is_sent or not operand.asynchronous, place, "asynchronous", "it only where an instruction makes the value")
    expect(math.isfinite(operand.initial), place, f"initial {operand.initial}", "a finite number")
    expect(math.isfinite(operand.constant or 0.0), place, f"constant {operand.constant}", "a finite number")


def _check_tile(problem: Problem, tile: int | None, place: str) -> None:
    """Raise InputError if a tile does not exist; None is accepted."""
    tiles = problem.machine.tiles
    expect(tile is None or 0 <= tile < tiles, place, f"tile {tile}", f"0 to {tiles - 1}")


def _check_pins(problem: Problem, known: set[str]) -> None:
    """Raise InputError if a pin breaks a rule, or if the links or the limit on delays contradict the rules."""
    pinned: set[str] = set()
    for at, pin in enumerate(problem.pins):
        place = f"pins[{at}] ({pin.instruction})"
        expect(pin.instruction in known, place, f"the instruction {pin.instruction!r}", "the id of an instruction")
        expect(pin.instruction not in pinned, place, f"the id {pin.instruction!r} twice", "one pin an instruction")
        pinned.add(pin.instruction)
        _check_tile(problem, pin.tile, place)
        expect(pin.time is None or 0 <= pin.time < TIME_LIMIT, place, f"time {pin.time}", f"0 to {TIME_LIMIT - 1}")
        depth = problem.machine.spoke_depth
        expect(pin.slot is None or 0 <= pin.slot < depth, place, f"slot {pin.slot}", f"0 to {depth - 1}")
    if problem.rules.pass_through and any(link.clocks == 0 for link in problem.machine.links):
        raise InputError("found links of 0 clocks, expected 1 or more where values pass through", place="machine.links")
    delay = problem.rules.max_delay
    expect(delay is None or 0 <= delay < TIME_LIMIT, "rules.max_delay", str(delay), f"0 to {TIME_LIMIT - 1}, or null")


def strong_components(count: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Find the strongly connected components of a graph (Tarjan 1972, without recursion).

    It is written in plain Python, since loop bodies are small and importing a library would take longer.

    Parameters
    ----------
    count
        Number of nodes, which are numbered from 0.
    pairs
        Edges (from, to); an edge may occur several times.

    Returns
    -------
    list of int
        A label for each node; two nodes have the same label if they are in the same component.
    """
    targets: list[list[int]] = [[] for _ in range(count)]
    for source, target in pairs:
        targets[source].append(target)
    label, number, low = [-1] * count, [-1] * count, [0] * count
    stack: list[int] = []
    reached = 0
    for root in range(count):
        if number[root] >= 0:
            continue
        number[root] = low[root] = reached
        reached += 1
        stack.append(root)
        path = [(root, iter(targets[root]))]
        while path:
            node, rest = path[-1]
            for target in rest:
                if number[target] < 0:
                    number[target] = low[target] = reached
                    reached += 1
                    stack.append(target)
                    path.append((target, iter(targets[target])))
                    break
                if label[target] < 0:
                    low[node] = min(low[node], number[target])
            else:
                path.pop()
                if path:
                    low[path[-1][0]] = min(low[path[-1][0]], low[node])
                if low[node] == number[node]:
                    while label[node] < 0:
                        label[stack.pop()] = node
    return label


def components(count: int, pairs: Sequence[tuple[int, int]]) -> list[int]:
    """[nodes] number of each node's strongly connected component; components are numbered by first appearance."""
    order: dict[int, int] = {}
    return [order.setdefault(label, len(order)) for label in strong_components(count, pairs)]


def _cycle_without_distance(problem: Problem) -> list[int]:
    """Numbers of the instructions on a cycle within one iteration, in their order; empty if there is no such cycle."""
    waiting = [0] * len(problem.instructions)
    after: list[list[int]] = [[] for _ in waiting]
    before: list[list[int]] = [[] for _ in waiting]
    for edge in problem.edges:
        if edge.distance == 0:
            after[edge.source].append(edge.target)
            before[edge.target].append(edge.source)
            waiting[edge.target] += 1
    ready = [number for number, count in enumerate(waiting) if count == 0]
    while ready:
        for target in after[ready.pop()]:
            waiting[target] -= 1
            if waiting[target] == 0:
                ready.append(target)
    stuck = next((number for number, count in enumerate(waiting) if count), None)
    if stuck is None:
        return []
    # An instruction on a cycle, or behind one, has a producer of which the same is true. Walking backwards therefore reaches a
    # cycle.
    walk = {stuck: 0}
    last = stuck
    while True:
        last = next(source for source in before[last] if waiting[source])
        if last in walk:
            return list(walk)[walk[last] :][::-1]
        walk[last] = len(walk)
