"""Runs configured tiles clock by clock on real numbers. Knows tables only: no plan, no problem, no graph.

Values move as messages. A tile looks at one spoke entry a clock; the instruction there runs only if a message waits at its
master input. Messages over the asynchronous fabric go to words of tile memories, and flows wait for them. What is wrong with
the tables shows as a missing message, two values on one link, or a wrong number.
"""

from __future__ import annotations

import random
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

import numpy as np

from stowplan.errors import UsageError, VerificationError
from stowplan.hardware.se import reference
from stowplan.hardware.se.configuration import (
    BASE,
    CONSTANT,
    FEEDBACK,
    MEMORY,
    RECEIVED,
    Configuration,
    Entry,
    Flow,
    Input,
    Spoke,
    Tile,
    Words,
)
from stowplan.hardware.se.reference import Lanes, compute
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem

#: A word in a tile's memory: (tile, address of the first of its value, which of them).
_Word = tuple[int, int, int]


class Fabric:
    """Messages in flight, and the words that wait for them or hold them.

    Parameters
    ----------
    iterations
        What no later iteration reads is not sent.
    clocks_of
        Clocks that a message takes, given its nominal ones; those where None.
    """

    def __init__(self, configuration: Configuration, iterations: int, clocks_of: Callable[[int], int] | None):
        self._iterations = iterations
        fabric = configuration.machine.asynchronous
        self._latency, self._memory_latency = (0, 0) if fabric is None else (fabric.latency, fabric.memory_latency)
        self._interfaces = {interface.name: interface for interface in configuration.machine.interfaces}
        self._clocks_of = clocks_of or (lambda nominal: nominal)
        self._reads = {(tile.tile, value.address): value.reads for tile in configuration.tiles for value in tile.received}
        self._words = {(tile.tile, value.address): value.words for tile in configuration.tiles for value in tile.received}
        self._coming: dict[int, list[Callable[[], None]]] = defaultdict(list)
        self._asked: Counter[tuple[int, str]] = Counter()
        self._holder: dict[_Word, int] = {}
        """Iteration that each word in use is for."""
        self._value: dict[tuple[int, int, int], Lanes] = {}
        """Values that are there, by tile, address and iteration."""
        self._left: dict[tuple[int, int, int], int] = {}
        self.answers: dict[str, dict[int, Lanes]] = {
            entry.id: {} for tile in configuration.tiles for entry in tile.instructions if entry.interface is not None
        }

    @property
    def is_busy(self) -> bool:
        """Whether messages are on their way."""
        return bool(self._coming)

    def send(self, clock: int, words: Words, value: Lanes, turn: int) -> None:
        """A result goes to the memory of another tile."""
        if not self._readers(words, turn):
            return
        arrives = clock + self._clocks_of(self._latency)
        self._coming[arrives].append(lambda: self._write(arrives, words, value, turn))

    def ask(self, clock: int, tile: int, entry: Entry, value: Lanes, turn: int) -> None:
        """A request goes to memory, which answers with ``value``."""
        interface = self._interfaces.get(entry.interface or "")
        if interface is None or (interface.tiles is not None and tile not in interface.tiles):
            raise VerificationError(f"clock {clock}: {entry.id} asks {entry.interface}, which does not serve tile {tile}")
        self._asked[clock, interface.name] += 1
        if self._asked[clock, interface.name] > interface.ports:
            raise VerificationError(f"clock {clock}: {entry.id} finds no free port of {interface.name}")
        arrives = clock + self._clocks_of(self._memory_latency)

        def answer() -> None:
            self.answers[entry.id][turn] = value
            if entry.sends is not None and self._readers(entry.sends, turn):
                self._write(arrives, entry.sends, value, turn)

        self._coming[arrives].append(answer)

    def deliver(self, clock: int) -> bool:
        """Messages that arrive in this clock; whether there were any."""
        arrived = self._coming.pop(clock, [])
        for message in arrived:
            message()
        return bool(arrived)

    def _write(self, clock: int, words: Words, value: Lanes, turn: int) -> None:
        word = words.tile, words.address, turn % words.words
        if self._holder.get(word) != turn or (words.tile, words.address, turn) in self._value:
            raise VerificationError(f"clock {clock}: no word of tile {words.tile} is kept for what arrives at {words.address}")
        self._value[words.tile, words.address, turn] = value

    def _readers(self, words: Words, turn: int) -> int:
        """Operands that will read the value of a thread."""
        return sum(turn + skip < self._iterations for skip in self._reads[words.tile, words.address])

    def reserve(self, words: Words, turn: int) -> None:
        """Keep a word for what a thread will send."""
        readers = self._readers(words, turn)
        if readers:
            self._holder[words.tile, words.address, turn % words.words] = turn
            self._left[words.tile, words.address, turn] = readers

    def is_free(self, words: Words, turn: int) -> bool:
        """Whether the word that a thread will fill is free."""
        return not self._readers(words, turn) or (words.tile, words.address, turn % words.words) not in self._holder

    def is_there(self, words: Words, turn: int) -> bool:
        """Whether the value that a thread needs has arrived."""
        return turn < words.skip or (words.tile, words.address, turn - words.skip) in self._value

    def read(self, clock: int, tile: int, address: int, turn: int, who: str) -> Lanes:
        """A value in tile memory; its word is free after the last read."""
        key = tile, address, turn
        if key not in self._value:
            raise VerificationError(f"clock {clock}: {who} on tile {tile} finds nothing at address {address}")
        self._left[key] -= 1
        if self._left[key]:
            return self._value[key]
        del self._holder[tile, address, turn % self._words[tile, address]]
        return self._value.pop(key)


class Launches:
    """Threads of a flow: each at the launch of its table plus a multiple of the interval, when its words are there and free."""

    def __init__(self, flow: Flow, ii: int, iterations: int, fabric: Fabric):
        self._flow, self._ii, self._iterations, self._fabric = flow, ii, iterations, fabric
        self._threads = 0
        self._clocks: set[int] = set()

    def launch(self, clock: int) -> bool:
        """Launch the next thread where it can be; whether it was."""
        flow, turn = self._flow, self._threads
        if turn == self._iterations or clock < flow.launch or (clock - flow.launch) % self._ii:
            return False
        if not all(self._fabric.is_there(words, turn) for words in flow.needs):
            return False
        if not all(self._fabric.is_free(words, turn) for words in flow.fills):
            return False
        for words in flow.fills:
            self._fabric.reserve(words, turn)
        self._threads += 1
        self._clocks.add(clock)
        return True

    def is_due(self, clocks: int) -> bool:
        """Whether a thread was launched this long after the first launch of the table; clocks may be negative."""
        return clocks + self._flow.launch in self._clocks


@dataclass(frozen=True)
class Run:
    """What a machine did."""

    values: dict[str, list[Lanes]]
    """Results of each instruction by id, in the order they came."""
    clocks: int
    """Clocks until the last result was there."""


def simulate(
    configuration: Configuration,
    data: Mapping[str, Lanes],
    iterations: int,
    *,
    clocks_of: Callable[[int], int] | None = None,
) -> Run:
    """Run the tiles until ``iterations`` iterations are done.

    Parameters
    ----------
    data
        Content of every variable: ``[iterations, lanes]`` where each iteration reads another value, else ``[lanes]``.
    clocks_of
        Clocks that a message takes over the asynchronous fabric, given its nominal ones; those where None.

    Raises
    ------
    VerificationError
        Two values on one link in one clock, more requests than ports, an operand or a free word that is not there, or
        iterations that never end.
    """
    lanes = max((np.shape(values)[-1] for values in data.values()), default=1)
    fabric = Fabric(configuration, iterations, clocks_of)
    flows = [Launches(flow, configuration.ii, iterations, fabric) for flow in configuration.flows]
    tiles = [_Running(tile, configuration, data, lanes, flows, fabric) for tile in configuration.tiles]
    wanted = iterations * sum(len(tile.instructions) for tile in configuration.tiles)
    patience = configuration.latency + 2 * configuration.ii
    done = clock = end = busy = 0
    while done < wanted or fabric.is_busy:
        if clock > busy + patience and not fabric.is_busy:
            raise VerificationError(f"after {clock} clocks {done} of {wanted} results are there, and no more will come")
        # Results first, then what passes through, in order of the clocks that links take: 0 clocks are there at once.
        for tile in tiles:
            finished = tile.finish(clock)
            done += finished
            end = clock if finished else end
        moved = True
        while moved:
            moved = any(_deliver(tile, tiles, configuration, clock) for tile in tiles)
        arrived = fabric.deliver(clock)
        launched = [flow.launch(clock) for flow in flows]
        for tile in tiles:
            tile.issue(clock)
        busy = clock if end == clock or arrived or any(launched) else busy
        clock += 1
    values = {name: [by_turn[turn] for turn in sorted(by_turn)] for tile in tiles for name, by_turn in tile.results.items()}
    values.update({name: [by_turn[turn] for turn in sorted(by_turn)] for name, by_turn in fabric.answers.items()})
    return Run(values, end)


def _deliver(tile: _Running, tiles: list[_Running], configuration: Configuration, clock: int) -> bool:
    """Put what a tile drives in this clock on its links; whether there was anything new."""
    machine = configuration.machine
    names = [link.name for link in machine.links]
    sent = tile.drive(clock)
    for output, value in sent:
        link = names.index(output)
        end = machine.end(tile.number, link)
        if end is None:
            raise VerificationError(f"clock {clock}: tile {tile.number} drives {output}, which leads nowhere")
        tiles[end].arrive(output, clock + machine.links[link].clocks, value)
    return bool(sent)


@dataclass
class _Running:
    """One tile at work. Ports keep what arrived by clock: the delay lines behind them."""

    tables: Tile
    configuration: Configuration
    data: Mapping[str, Lanes]
    lanes: int
    flows: list[Launches]
    fabric: Fabric
    results: dict[str, dict[int, Lanes]] = field(default_factory=dict)
    """Of every instruction that is no memory access, by thread."""
    arrived: dict[str, dict[int, Lanes]] = field(default_factory=lambda: defaultdict(dict))
    driven: dict[tuple[int, str], str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.number = self.tables.tile
        self._pipeline: dict[int, tuple[Entry, Spoke, Lanes, int]] = {}
        self._issued: dict[str, int] = defaultdict(int)
        self._came: dict[tuple[str, int], list[Lanes]] = defaultdict(list)
        """What arrived at a port, by the slot it arrived in: one value for each thread of its producer."""
        self.results = {entry.id: {} for entry in self.tables.instructions if entry.interface is None}
        self._at_address = {entry.address: entry.variable for entry in self.tables.memory}
        self._outputs: list[tuple[str, Lanes, str]] = []

    def finish(self, clock: int) -> int:
        """Take a result out of the pipeline; the number of results, 0 or 1."""
        if clock not in self._pipeline:
            return 0
        entry, spoke, value, turn = self._pipeline.pop(clock)
        if entry.interface is not None:
            self.fabric.ask(clock, self.number, entry, value, turn)
            return 1
        self.results[entry.id][turn] = value
        self.arrive(FEEDBACK, clock, value)
        if entry.sends is not None:
            self.fabric.send(clock, entry.sends, value, turn)
        self._outputs += [(output, value, entry.id) for output in spoke.outputs]
        return 1

    def arrive(self, port: str, clock: int, value: Lanes) -> None:
        """A value comes to a port."""
        if clock not in self.arrived[port]:
            self._came[port, clock % self.configuration.ii].append(value)
        self.arrived[port][clock] = value

    def drive(self, clock: int) -> list[tuple[str, Lanes]]:
        """Outputs not yet on their links in this clock: a result that came out, and what passes through."""
        spoke = self.tables.spokes[clock % self.configuration.ii]
        for forward in spoke.forwards:
            value = self.arrived[forward.input].get(clock)
            who = f"what passes from {forward.input}"
            for output in forward.outputs:
                if value is not None and self.driven.get((clock, output)) != who:
                    self._outputs.append((output, value, who))
        sent = []
        for output, value, who in self._outputs:
            other = self.driven.setdefault((clock, output), who)
            if other != who:
                raise VerificationError(f"clock {clock}: {other} and {who} both drive {output} of tile {self.number}")
            sent.append((output, value))
        self._outputs = []
        return sent

    def issue(self, clock: int) -> None:
        """Start the instruction of this slot where its master input has a message."""
        spoke = self.tables.spokes[clock % self.configuration.ii]
        if spoke.instruction is None:
            return
        entry = self.tables.instructions[spoke.instruction]
        if spoke.master == BASE:
            awake = spoke.flow is not None and self.flows[spoke.flow].is_due(clock - spoke.delay)
        else:
            awake = clock - spoke.delay in self.arrived[spoke.master or ""]
        if not awake:
            return
        turn = self._issued[entry.id]
        self._issued[entry.id] += 1
        operands = [self._read(source, clock, turn, entry.id) for source in entry.inputs]
        done = clock + entry.latency
        if done in self._pipeline:
            other = self._pipeline[done][0].id
            raise VerificationError(f"clock {clock}: {other} and {entry.id} both leave tile {self.number} at {done}")
        self._pipeline[done] = (entry, spoke, compute(entry.op, operands, self.lanes), turn)

    def _read(self, source: Input, clock: int, turn: int, who: str) -> Lanes:
        if source.port == CONSTANT:
            return np.full(self.lanes, source.constant)
        if source.port == MEMORY:
            held = self.data[self._at_address[source.address]]
            return np.asarray(held[turn] if np.ndim(held) > 1 else held)
        if turn < source.skip:
            return np.full(self.lanes, source.initial)
        if source.port == RECEIVED:
            return self.fabric.read(clock, self.number, source.address, turn - source.skip, who)
        if source.is_counted:
            came = self._came[source.port, (clock - source.delay) % self.configuration.ii]
            if turn - source.skip >= len(came):
                raise VerificationError(f"clock {clock}: {who} on tile {self.number} finds nothing at {source.port}")
            return came[turn - source.skip]
        value = self.arrived[source.port].get(clock - source.delay)
        if value is None:
            raise VerificationError(f"clock {clock}: {who} on tile {self.number} finds nothing at {source.port}")
        return value


def compare(
    problem: Problem,
    plan: Plan,
    iterations: int = 8,
    *,
    data: Mapping[str, Lanes] | None = None,
    lanes: int = 4,
    seed: int = 0,
    wandering: bool = False,
) -> Run:
    """Configure the machine with a plan, run it, and compare every result with the graph run in NumPy.

    Parameters
    ----------
    data
        Content of the variables; random where None.
    wandering
        Whether each message over the asynchronous fabric takes a number of clocks of its own, from none to more than four
        times its nominal ones; by seed.

    Raises
    ------
    VerificationError
        The first number that differs, or what :func:`simulate` raises.
    """
    from stowplan.hardware.se.configuration import configure

    if iterations < 1:
        raise UsageError(f"found {iterations} iterations, expected 1 or more")
    given = reference.make_data(problem, iterations, lanes, seed) if data is None else data
    expected = reference.run_graph(problem, given, iterations)
    chance = random.Random(seed)
    clocks_of = (lambda nominal: chance.randint(0, 4 * nominal + 5)) if wandering else None
    run = simulate(configure(problem, plan), given, iterations, clocks_of=clocks_of)
    for name, values in expected.items():
        if len(run.values[name]) != iterations:
            raise VerificationError(f"{name} has {len(run.values[name])} results, expected {iterations}")
        for iteration, (computed, wanted) in enumerate(zip(run.values[name], values, strict=True)):
            if not np.allclose(computed, wanted, rtol=1e-9, atol=1e-12, equal_nan=True):
                raise VerificationError(f"{name} in iteration {iteration} is {computed}, expected {wanted}")
    return run
