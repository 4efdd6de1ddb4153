"""Simulates configured tiles clock by clock, with numbers. The simulation uses the tables only, not the problem or the plan.

The tables and their terms are those of :mod:`stowplan.hardware.se.configuration`. Values are messages. In each clock, a tile
reads one entry of its *spoke RAM*, which says what the tile does in this slot. It issues the instruction of the entry if there
is a message at the instruction's *master input*, the input whose messages start it. The *asynchronous fabric*, a network
without a fixed latency, writes messages to tile memories. A *flow* is a set of instructions that run in lockstep; it waits for
these messages before it launches its next *thread*, which is one iteration of the flow. An error in the tables results in a
missing message, two values on one link in the same clock, or a wrong number. A *lane* processes independent data: each value is
an array with a number for each lane.
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

#: A word in a tile's memory: (tile, address of the value's first word, position of the word among the value's words).
_Word = tuple[int, int, int]


class Fabric:
    """The asynchronous fabric: messages in flight, and the memory words that are reserved for messages or contain them.

    Parameters
    ----------
    configuration
        Tables of all tiles.
    iterations
        Number of iterations. Values that only later iterations would read are not sent.
    clocks_of
        A function from the nominal clocks of a message to the clocks that it actually takes; None if these are equal.
    """

    def __init__(self, configuration: Configuration, iterations: int, clocks_of: Callable[[int], int] | None):
        self._iterations = iterations
        fabric = configuration.machine.asynchronous
        self._latency, self._memory_latency = (0, 0) if fabric is None else (fabric.latency, fabric.memory_latency)
        self._interfaces = {interface.name: interface for interface in configuration.machine.interfaces}
        self._clocks_of = clocks_of or (lambda nominal: nominal)
        self._reads = {(tile.tile, value.address): value.reads for tile in configuration.tiles for value in tile.received}
        self._words = {(tile.tile, value.address): value.words for tile in configuration.tiles for value in tile.received}
        self._in_flight: dict[int, list[Callable[[], None]]] = defaultdict(list)
        """Functions that deliver the messages in flight, by the clock of arrival."""
        self._requests: Counter[tuple[int, str]] = Counter()
        """Number of requests in each clock to each memory interface."""
        self._holder: dict[_Word, int] = {}
        """Iteration for which each word in use is reserved."""
        self._value: dict[tuple[int, int, int], Lanes] = {}
        """Values that have arrived, by tile, address and iteration."""
        self._reads_left: dict[tuple[int, int, int], int] = {}
        """Number of reads that are still to come of each value, by tile, address and iteration."""
        self.answers: dict[str, dict[int, Lanes]] = {
            entry.id: {} for tile in configuration.tiles for entry in tile.instructions if entry.interface is not None
        }
        """Answers to the requests of each instruction that accesses memory, by its id and the thread."""

    @property
    def is_busy(self) -> bool:
        """Whether messages are in flight."""
        return bool(self._in_flight)

    def send(self, clock: int, words: Words, value: Lanes, thread: int) -> None:
        """Sends the result of a thread to ``words`` in the memory of another tile, unless no iteration will read it."""
        if not self._readers(words, thread):
            return
        arrives = clock + self._clocks_of(self._latency)
        self._in_flight[arrives].append(lambda: self._write(arrives, words, value, thread))

    def ask(self, clock: int, tile: int, entry: Entry, value: Lanes, thread: int) -> None:
        """Sends a request to memory, which answers with ``value``.

        Raises
        ------
        VerificationError
            The memory interface does not serve the tile, or no port of it is free.
        """
        interface = self._interfaces.get(entry.interface or "")
        if interface is None or (interface.tiles is not None and tile not in interface.tiles):
            raise VerificationError(f"clock {clock}: {entry.id} asks {entry.interface}, which does not serve tile {tile}")
        self._requests[clock, interface.name] += 1
        if self._requests[clock, interface.name] > interface.ports:
            raise VerificationError(f"clock {clock}: {entry.id} finds no free port of {interface.name}")
        arrives = clock + self._clocks_of(self._memory_latency)

        def answer() -> None:
            self.answers[entry.id][thread] = value
            if entry.sends is not None and self._readers(entry.sends, thread):
                self._write(arrives, entry.sends, value, thread)

        self._in_flight[arrives].append(answer)

    def deliver(self, clock: int) -> bool:
        """Delivers the messages that arrive in this clock; returns whether there were any."""
        arrived = self._in_flight.pop(clock, [])
        for message in arrived:
            message()
        return bool(arrived)

    def _write(self, clock: int, words: Words, value: Lanes, thread: int) -> None:
        """Writes a value to its word; raises VerificationError if the word is not reserved for the thread."""
        word = words.tile, words.address, thread % words.words
        if self._holder.get(word) != thread or (words.tile, words.address, thread) in self._value:
            raise VerificationError(f"clock {clock}: no word of tile {words.tile} is kept for what arrives at {words.address}")
        self._value[words.tile, words.address, thread] = value

    def _readers(self, words: Words, thread: int) -> int:
        """The number of operands that will read the value of a thread."""
        return sum(thread + skip < self._iterations for skip in self._reads[words.tile, words.address])

    def reserve(self, words: Words, thread: int) -> None:
        """Reserves a word for the value that a thread will send, unless no iteration will read it."""
        readers = self._readers(words, thread)
        if readers:
            self._holder[words.tile, words.address, thread % words.words] = thread
            self._reads_left[words.tile, words.address, thread] = readers

    def is_free(self, words: Words, thread: int) -> bool:
        """Whether the word for the value of a thread is free, or is not needed."""
        return not self._readers(words, thread) or (words.tile, words.address, thread % words.words) not in self._holder

    def is_there(self, words: Words, thread: int) -> bool:
        """Whether the value that a thread needs has arrived, or the thread uses an initial value instead."""
        return thread < words.skip or (words.tile, words.address, thread - words.skip) in self._value

    def read(self, clock: int, tile: int, address: int, thread: int, who: str) -> Lanes:
        """Reads a value in tile memory; the last read frees its word.

        Raises
        ------
        VerificationError
            The value has not arrived; the message names the instruction ``who``.
        """
        key = tile, address, thread
        if key not in self._value:
            raise VerificationError(f"clock {clock}: {who} on tile {tile} finds nothing at address {address}")
        self._reads_left[key] -= 1
        if self._reads_left[key]:
            return self._value[key]
        del self._holder[tile, address, thread % self._words[tile, address]]
        return self._value.pop(key)


class Launches:
    """Launches the threads of a flow in order.

    A thread is launched at the launch clock of the flow plus a multiple of the initiation interval, as soon as the values that
    it needs have arrived and the words that it fills are free.
    """

    def __init__(self, flow: Flow, ii: int, iterations: int, fabric: Fabric):
        self._flow, self._ii, self._iterations, self._fabric = flow, ii, iterations, fabric
        self._threads = 0
        self._clocks: set[int] = set()

    def launch(self, clock: int) -> bool:
        """Launches the next thread if that is possible in this clock; returns whether it was launched."""
        flow, thread = self._flow, self._threads
        if thread == self._iterations or clock < flow.launch or (clock - flow.launch) % self._ii:
            return False
        if not all(self._fabric.is_there(words, thread) for words in flow.needs):
            return False
        if not all(self._fabric.is_free(words, thread) for words in flow.fills):
            return False
        for words in flow.fills:
            self._fabric.reserve(words, thread)
        self._threads += 1
        self._clocks.add(clock)
        return True

    def is_due(self, clocks: int) -> bool:
        """Whether a thread was launched ``clocks`` clocks after the flow's launch clock; ``clocks`` may be negative."""
        return clocks + self._flow.launch in self._clocks


@dataclass(frozen=True)
class Run:
    """Result of a simulation."""

    values: dict[str, list[Lanes]]
    """For each instruction, by its id, its results in all iterations, each of shape ``[lanes]``."""
    clocks: int
    """Clock of the last result."""


def simulate(
    configuration: Configuration,
    data: Mapping[str, Lanes],
    iterations: int,
    *,
    clocks_of: Callable[[int], int] | None = None,
) -> Run:
    """Simulates a configured machine.

    Parameters
    ----------
    configuration
        Tables of all tiles.
    data
        Content of every variable: ``[iterations, lanes]`` if each iteration reads a new value, otherwise ``[lanes]``.
    iterations
        Number of iterations that run.
    clocks_of
        A function from the nominal clocks of a message over the asynchronous fabric to the clocks that it actually takes; None
        if these are equal.

    Raises
    ------
    VerificationError
        Two values are on one link or two results leave a tile in the same clock, a link leads out of the grid, a memory
        interface has more requests than ports or does not serve the tile, an operand or a reserved word is missing, or the
        iterations never end.
    KeyError
        ``data`` lacks a variable that an instruction reads.
    """
    lanes = max((np.shape(values)[-1] for values in data.values()), default=1)
    fabric = Fabric(configuration, iterations, clocks_of)
    flows = [Launches(flow, configuration.ii, iterations, fabric) for flow in configuration.flows]
    tiles = [_Running(tile, configuration, data, lanes, flows, fabric) for tile in configuration.tiles]
    result_count = iterations * sum(len(tile.instructions) for tile in configuration.tiles)
    patience = configuration.latency + 2 * configuration.ii
    done = clock = end = last_change = 0
    while done < result_count or fabric.is_busy:
        if clock > last_change + patience and not fabric.is_busy:
            raise VerificationError(f"after {clock} clocks {done} of {result_count} results are there, and no more will come")
        # First, results leave the pipelines. Then values move over links until none moves, since links may take 0 clocks.
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
        last_change = clock if end == clock or arrived or any(launched) else last_change
        clock += 1
    values = {
        name: [by_thread[thread] for thread in sorted(by_thread)] for tile in tiles for name, by_thread in tile.results.items()
    }
    values.update({name: [by_thread[thread] for thread in sorted(by_thread)] for name, by_thread in fabric.answers.items()})
    return Run(values, end)


def _deliver(tile: _Running, tiles: list[_Running], configuration: Configuration, clock: int) -> bool:
    """Moves the new values on a tile's outputs over their links; returns whether there were any.

    Raises
    ------
    VerificationError
        Two values are on one link, or a link leads out of the grid.
    """
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
    """The state of one tile in a simulation. It stores all values that arrive at a port by clock, for reads in later clocks."""

    tables: Tile
    configuration: Configuration
    data: Mapping[str, Lanes]
    lanes: int
    flows: list[Launches]
    fabric: Fabric
    results: dict[str, dict[int, Lanes]] = field(default_factory=dict)
    """Results of every instruction that does not access memory, by thread."""
    arrived: dict[str, dict[int, Lanes]] = field(default_factory=lambda: defaultdict(dict))
    """Values that arrived at each port, by clock."""
    driven: dict[tuple[int, str], str] = field(default_factory=dict)
    """The source of the value on each output in each clock, in words."""

    def __post_init__(self) -> None:
        self.number = self.tables.tile
        self._pipeline: dict[int, tuple[Entry, Spoke, Lanes, int]] = {}
        """The instruction, spoke entry, result and thread that leave the pipeline, by clock."""
        self._issued: dict[str, int] = defaultdict(int)
        """Number of issues of each instruction."""
        self._arrivals: dict[tuple[str, int], list[Lanes]] = defaultdict(list)
        """Values that arrived at each port in each slot: one for each thread of the producer, in order."""
        self.results = {entry.id: {} for entry in self.tables.instructions if entry.interface is None}
        self._at_address = {entry.address: entry.variable for entry in self.tables.memory}
        self._outputs: list[tuple[str, Lanes, str]] = []
        """New values on outputs that have not moved yet: the output, the value, and its source in words."""

    def finish(self, clock: int) -> int:
        """Takes a result out of the pipeline and sends it; returns the number of results, 0 or 1."""
        if clock not in self._pipeline:
            return 0
        entry, spoke, value, thread = self._pipeline.pop(clock)
        if entry.interface is not None:
            self.fabric.ask(clock, self.number, entry, value, thread)
            return 1
        self.results[entry.id][thread] = value
        self.arrive(FEEDBACK, clock, value)
        if entry.sends is not None:
            self.fabric.send(clock, entry.sends, value, thread)
        self._outputs += [(output, value, entry.id) for output in spoke.outputs]
        return 1

    def arrive(self, port: str, clock: int, value: Lanes) -> None:
        """Receives a value at a port."""
        if clock not in self.arrived[port]:
            self._arrivals[port, clock % self.configuration.ii].append(value)
        self.arrived[port][clock] = value

    def drive(self, clock: int) -> list[tuple[str, Lanes]]:
        """Returns the new values on outputs in this clock: a result from the pipeline, and values that pass through.

        Raises
        ------
        VerificationError
            Two values are on one output.
        """
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
        """Issues the instruction of this slot if there is a message at its master input.

        Raises
        ------
        VerificationError
            An operand is missing, or two results would leave the pipeline in the same clock.
        """
        spoke = self.tables.spokes[clock % self.configuration.ii]
        if spoke.instruction is None:
            return
        entry = self.tables.instructions[spoke.instruction]
        if spoke.master == BASE:
            is_started = spoke.flow is not None and self.flows[spoke.flow].is_due(clock - spoke.delay)
        else:
            is_started = clock - spoke.delay in self.arrived[spoke.master or ""]
        if not is_started:
            return
        thread = self._issued[entry.id]
        self._issued[entry.id] += 1
        operands = [self._read(source, clock, thread, entry.id) for source in entry.inputs]
        done = clock + entry.latency
        if done in self._pipeline:
            other = self._pipeline[done][0].id
            raise VerificationError(f"clock {clock}: {other} and {entry.id} both leave tile {self.number} at {done}")
        self._pipeline[done] = (entry, spoke, compute(entry.op, operands, self.lanes), thread)

    def _read(self, source: Input, clock: int, thread: int, who: str) -> Lanes:
        """The value of an operand of a thread.

        Raises
        ------
        VerificationError
            The value is missing; the message names the instruction ``who``.
        """
        if source.port == CONSTANT:
            return np.full(self.lanes, source.constant)
        if source.port == MEMORY:
            content = self.data[self._at_address[source.address]]
            return np.asarray(content[thread] if np.ndim(content) > 1 else content)
        if thread < source.skip:
            return np.full(self.lanes, source.initial)
        if source.port == RECEIVED:
            return self.fabric.read(clock, self.number, source.address, thread - source.skip, who)
        if source.is_counted:
            arrivals = self._arrivals[source.port, (clock - source.delay) % self.configuration.ii]
            if thread - source.skip >= len(arrivals):
                raise VerificationError(f"clock {clock}: {who} on tile {self.number} finds nothing at {source.port}")
            return arrivals[thread - source.skip]
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
    """Simulates a plan, and compares every result with that of the loop body's graph, which NumPy computes.

    Parameters
    ----------
    problem, plan
        A problem, and a valid plan for it.
    iterations
        Number of iterations that run.
    data
        Content of the variables; None for random data.
    lanes, seed
        Number of lanes of random data, and the seed of all random numbers.
    wandering
        Whether each message over the asynchronous fabric takes a random number of clocks, from 0 to more than four times its
        nominal number.

    Returns
    -------
    Run
        The results of the simulation.

    Raises
    ------
    VerificationError
        A result differs, or :func:`simulate` raises it.
    UsageError
        The number of iterations is less than 1, or a variable has no data or data of a wrong shape.
    """
    from stowplan.hardware.se.configuration import configure

    if iterations < 1:
        raise UsageError(f"found {iterations} iterations, expected 1 or more")
    inputs = reference.make_data(problem, iterations, lanes, seed) if data is None else data
    expected = reference.run_graph(problem, inputs, iterations)
    generator = random.Random(seed)
    clocks_of = (lambda nominal: generator.randint(0, 4 * nominal + 5)) if wandering else None
    run = simulate(configure(problem, plan), inputs, iterations, clocks_of=clocks_of)
    for name, values in expected.items():
        if len(run.values[name]) != iterations:
            raise VerificationError(f"{name} has {len(run.values[name])} results, expected {iterations}")
        for iteration, (computed, expected_value) in enumerate(zip(run.values[name], values, strict=True)):
            if not np.allclose(computed, expected_value, rtol=1e-9, atol=1e-12, equal_nan=True):
                raise VerificationError(f"{name} in iteration {iteration} is {computed}, expected {expected_value}")
    return run
