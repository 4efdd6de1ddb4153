"""Constraints of the resources that values need: links, which carry one value in each clock, registers in which values wait,
ports of memory, and words of tile memory.

A *value* goes from the instruction that produces it to one that consumes it; such a pair is an *edge*. Its *distance* is the
number of iterations in between. Values over links are synchronous. All other values are sent over the *asynchronous fabric*, a
second network that also leads to memory. Ports are those of the fabric's interfaces to memory. A *variable* is data of the
program in the memory of one tile, and a *buffer* is the space there in which a value that was sent over the fabric waits for
its readers. A *slot* is a clock modulo the initiation interval.

In each class, ``parent`` is the model that the constraints are added to, ``ii`` is the initiation interval, and a *literal* is
a Boolean variable. Nothing here raises an error for valid arguments.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ortools.sat.python import cp_model

from stowplan.models.cpsat_runner import Value
from stowplan.models.modulo_scheduling.cpsat.places import PlaceModel
from stowplan.models.modulo_scheduling.plan import Plan


class Links:
    """Chooses, for every value over links, links that lead from its producer to all its consumers without detours.

    Every route takes the least number of clocks between the two tiles. A value therefore leaves each tile at one known clock,
    and its consumers share the links up to that tile.

    Parameters
    ----------
    parent
        The model with the tiles of all instructions.
    ii
        Initiation interval.
    at
        For each instruction a literal for every tile and slot.
    """

    def __init__(self, parent: PlaceModel, ii: int, at: Mapping[int, Sequence[Sequence[cp_model.IntVar]]]):
        self.parent = parent
        self.ii = ii
        self.at = at
        problem = parent.problem
        self._machine = problem.machine
        self._hops = problem.hops
        consumers: dict[int, set[int]] = defaultdict(set)
        for edge in parent.structure.between:
            consumers[edge.source].add(edge.target)
        self._wires = [
            (tile, link, end)
            for tile in range(self._machine.tiles)
            for link in range(len(self._machine.links))
            if (end := self._machine.end(tile, link)) is not None
        ]
        self.uses: dict[int, dict[tuple[int, int], cp_model.IntVar]] = {}
        self._reached: dict[int, list[cp_model.IntVar]] = {}
        self._phases: dict[int, list[list[cp_model.IntVar]]] = {}
        self._busy: dict[tuple[int, int, int], dict[int, cp_model.IntVar]] = defaultdict(dict)
        for source, targets in sorted(consumers.items()):
            self._value(source, sorted(targets))
        for users in self._busy.values():
            if len(users) > 1:
                parent.model.add_at_most_one(users[source] for source in sorted(users))

    def _value(self, source: int, targets: list[int]) -> None:
        """Add the variables and constraints for the value of one producer."""
        parent, model, ii = self.parent, self.parent.model, self.ii
        home = parent.tile(source)
        tiles = range(self._machine.tiles)
        uses = {(tile, link): model.new_bool_var(f"value {source} on link {link} of {tile}") for tile, link, _ in self._wires}
        reached = [model.new_bool_var(f"value {source} reaches {tile}") for tile in tiles]
        into: dict[int, list[cp_model.IntVar]] = defaultdict(list)
        for tile, link, end in self._wires:
            into[end].append(uses[tile, link])
            model.add_implication(uses[tile, link], reached[tile])
            model.add_implication(uses[tile, link], reached[end])
            clocks = self._machine.links[link].clocks
            for start in tiles:
                before, after = self._hops[start][tile], self._hops[start][end]
                if before is None or after is None or before + clocks != after:
                    model.add_bool_or([home[start].negated(), uses[tile, link].negated()])
        for tile in tiles:
            model.add_implication(home[tile], reached[tile])
            model.add_bool_or([reached[tile].negated(), home[tile], *into[tile]])
            for target in targets:
                model.add_implication(parent.tile(target)[tile], reached[tile])
        self.uses[source], self._reached[source] = uses, reached
        if ii == 1:
            for tile, link, _ in self._wires:
                self._busy[tile, link, 0][source] = uses[tile, link]
            return
        # The phase of a tile is the slot in which the value leaves the tile.
        phases = [[model.new_bool_var(f"value {source} leaves {tile} in {slot}") for slot in range(ii)] for tile in tiles]
        self._phases[source] = phases
        latency = parent.problem.latencies[source]
        for tile in tiles:
            model.add_exactly_one(phases[tile])
            for start in tiles:
                hops = self._hops[start][tile]
                for slot in range(ii):
                    if hops is not None:
                        model.add_implication(self.at[source][start][slot], phases[tile][(slot + latency + hops) % ii])
        for tile, link, _ in self._wires:
            for slot in range(ii):
                busy = model.new_bool_var(f"value {source} on link {link} of {tile} in {slot}")
                model.add_bool_or([uses[tile, link].negated(), phases[tile][slot].negated(), busy])
                self._busy[tile, link, slot][source] = busy

    def values(self, plan: Plan) -> Iterator[tuple[cp_model.IntVar, int]]:
        """The values of all variables of this object for the routes of a valid plan."""
        problem, ii = self.parent.problem, self.ii
        used: dict[int, set[tuple[int, int]]] = defaultdict(set)
        for edge, route in zip(problem.edges, plan.routes, strict=True):
            tile = plan.tiles[edge.source]
            for link in route:
                used[edge.source].add((tile, link))
                end = self._machine.end(tile, link)
                assert end is not None
                tile = end
        for source, uses in self.uses.items():
            home = plan.tiles[source]
            leaves = [
                (plan.times[source] + problem.latencies[source] + hops) % ii
                if (hops := self._hops[home][tile]) is not None
                else 0
                for tile in range(self._machine.tiles)
            ]
            ends = {home, *(self._machine.end(*wire) for wire in used[source])}
            for tile, literal in enumerate(self._reached[source]):
                yield literal, tile in ends
            for wire, literal in uses.items():
                yield literal, wire in used[source]
            for tile, phases in enumerate(self._phases.get(source, [])):
                for slot, literal in enumerate(phases):
                    yield literal, leaves[tile] == slot
            if ii > 1:
                for tile, link, _ in self._wires:
                    for slot in range(ii):
                        is_used = (tile, link) in used[source] and leaves[tile] == slot
                        yield self._busy[tile, link, slot][source], is_used

    def routes(self, tiles: Sequence[int], value: Value) -> list[tuple[int, ...]]:
        """The links of every edge in a solution, in the problem's order, found backwards from the consumer."""
        back: dict[tuple[int, int], tuple[int, int]] = {}
        for source, uses in self.uses.items():
            for tile, link, end in self._wires:
                if value(uses[tile, link]):
                    back.setdefault((source, end), (tile, link))
        routes: list[tuple[int, ...]] = []
        for edge in self.parent.problem.edges:
            route: list[int] = []
            if edge.asynchronous:
                routes.append(())
                continue
            tile = tiles[edge.target]
            while tile != tiles[edge.source]:
                tile, link = back[edge.source, tile]
                route.append(link)
            routes.append(tuple(reversed(route)))
        return routes


class Waits:
    """Requires that there are registers for the values that wait, and that no value is overwritten before it is read. The
    machine must have registers. Each tile has an *output register*, which its next result overwrites, if values wait for other
    tiles there (:class:`~stowplan.models.modulo_scheduling.machine.Registers`).

    A value waits in every slot after the one in which it is ready, up to the one in which its consumer is issued. On machines
    with registers, links take no clocks, and no value waits for a whole interval. The slots of producer and consumer therefore
    decide in which slots the value waits.

    Parameters
    ----------
    parent
        The model with the tiles of all instructions.
    ii
        Initiation interval.
    at
        For each instruction a literal for every tile and slot.
    """

    def __init__(self, parent: PlaceModel, ii: int, at: Mapping[int, Sequence[Sequence[cp_model.IntVar]]]):
        self.parent, self._ii, self._at = parent, ii, at
        registers = parent.problem.machine.registers
        assert registers
        self._registers = registers
        self._slots: dict[int, list[cp_model.IntVar]] = {}
        self._waits: dict[tuple[int, int, int], cp_model.IntVar] = {}
        # By (producer, tile, slot): whether the value is in the output register, or in another register, of the tile.
        self._in_output: dict[tuple[int, int, int], cp_model.IntVar] = {}
        self._in_register: dict[tuple[int, int, int], cp_model.IntVar] = {}
        synchronous = [edge for edge in parent.problem.edges if not edge.asynchronous]
        pairs = sorted({(edge.source, edge.target) for edge in synchronous})
        for source, target in pairs if ii > 1 else ():
            self._value(source, target)
        for slot in range(ii):
            for tile in range(parent.problem.machine.tiles):
                self._limit(tile, slot)

    def _value(self, source: int, target: int) -> None:
        """Add the slots in which a value waits for a consumer, and the registers in which it is meanwhile."""
        model, ii = self.parent.model, self._ii
        for slot in range(ii):
            self._waits[source, target, slot] = model.new_bool_var(f"value {source} waits for {target} in {slot}")
        for slot in range(ii):
            waits = self._waits[source, target, (slot + 1) % ii]
            read = self._issues(target)[slot]
            # If the value is ready or waits in a slot and is not read in it, it waits in the next slot.
            model.add_bool_or([self._ready(source, slot).negated(), read, waits])
            model.add_bool_or([self._waits[source, target, slot].negated(), read, waits])
        output = self._registers.output
        for tile, (one, two) in enumerate(zip(self.parent.tile(source), self.parent.tile(target), strict=True)):
            for slot in range(ii):
                goes_on = self._waits[source, target, slot].negated()
                if output:
                    in_output = self._literal(self._in_output, source, tile, slot)
                    model.add_bool_or([one.negated(), two, goes_on, in_output])
                if self._registers.count is not None:
                    in_register = self._literal(self._in_register, source, tile, slot)
                    model.add_bool_or([two.negated(), goes_on, in_register, *([one.negated()] if output else [])])

    def _limit(self, tile: int, slot: int) -> None:
        """Limit the values in a tile's output register to one in each slot, and the values in its other registers to the number
        of these registers."""
        numbers = range(self.parent.structure.count)
        in_output = [self._in_output[number, tile, slot] for number in numbers if (number, tile, slot) in self._in_output]
        if in_output:
            ii, latency = self._ii, self.parent.problem.latencies
            results = [self._at[number][tile][(slot - latency[number]) % ii] for number in numbers]
            self.parent.model.add_at_most_one([*in_output, *results])
        in_register = [self._in_register[number, tile, slot] for number in numbers if (number, tile, slot) in self._in_register]
        if self._registers.count is not None and len(in_register) > self._registers.count:
            self.parent.model.add(sum(in_register) <= self._registers.count)

    def _literal(
        self, table: dict[tuple[int, int, int], cp_model.IntVar], source: int, tile: int, slot: int
    ) -> cp_model.IntVar:
        """The literal of a table that says whether the value of an instruction is in a register of this tile in this slot."""
        key = source, tile, slot
        if key not in table:
            table[key] = self.parent.model.new_bool_var(f"value {source} in {tile} in {slot}")
        return table[key]

    def _issues(self, number: int) -> list[cp_model.IntVar]:
        """The literals of an instruction's slots, by slot."""
        if number not in self._slots:
            model = self.parent.model
            self._slots[number] = [model.new_bool_var(f"instruction {number} in slot {slot}") for slot in range(self._ii)]
            for slot, literal in enumerate(self._slots[number]):
                model.add(sum(row[slot] for row in self._at[number]) == literal)
        return self._slots[number]

    def _ready(self, number: int, slot: int) -> cp_model.IntVar:
        """The literal that says whether the value of an instruction is ready in this slot."""
        return self._issues(number)[(slot - self.parent.problem.latencies[number]) % self._ii]

    def values(self, tiles: Sequence[int], plan: Plan) -> Iterator[tuple[cp_model.IntVar, int]]:
        """Values of all variables of this object, for tiles of a plan from :meth:`PlaceModel.mapped_tiles`."""
        for number, literals in self._slots.items():
            for slot, literal in enumerate(literals):
                yield literal, plan.times[number] % self._ii == slot
        waits, in_output, in_register = set(), set(), set()
        for edge, delay in zip(self.parent.problem.edges, plan.delays, strict=True):
            ready = plan.times[edge.source] + self.parent.problem.latencies[edge.source]
            for slot in {clock % self._ii for clock in range(ready + 1, ready + delay + 1)} if not edge.asynchronous else ():
                waits.add((edge.source, edge.target, slot))
                one, two = tiles[edge.source], tiles[edge.target]
                if self._registers.output and one != two:
                    in_output.add((edge.source, one, slot))
                else:
                    in_register.add((edge.source, two, slot))
        for table, true in ((self._waits, waits), (self._in_output, in_output), (self._in_register, in_register)):
            for key, literal in table.items():
                yield literal, key in true


class Ports:
    """Limits the memory requests in each slot to the ports of the interfaces that serve their tiles.

    Parameters
    ----------
    slot
        For each memory access, the variable of its slot. It is needed only if ports are scarce, so that the structure of the
        problem has ``port_limits``.
    """

    def __init__(self, parent: PlaceModel, ii: int, slot: Mapping[int, cp_model.IntVar]):
        self.parent, self._ii = parent, ii
        self._limits = parent.structure.port_limits
        self._issues: dict[int, list[cp_model.IntVar]] = {}
        self._inside: dict[tuple[int, int, int], cp_model.IntVar] = {}
        accesses = parent.problem.accesses
        if not self._limits:
            return
        model = parent.model
        for number in accesses:
            self._issues[number] = [model.new_bool_var(f"access {number} in slot {at}") for at in range(ii)]
            model.add_exactly_one(self._issues[number])
            model.add(slot[number] == sum(at * literal for at, literal in enumerate(self._issues[number]) if at))
        for which, limit in enumerate(self._limits):
            for done in range(ii):
                model.add(sum(self._request(which, number, done) for number in accesses) <= limit.most)

    def _request(self, which: int, number: int, done: int) -> cp_model.IntVar:
        """The literal that says whether an access makes its request in slot ``done`` from one of the tiles that the limit of
        number ``which`` is about."""
        parent, tiles = self.parent, self._limits[which].tiles
        issues = self._issues[number][self._issue(number, done)]
        if tiles.issuperset(parent.structure.allowed[parent.structure.group[number]]):
            return issues
        both = self._inside[which, number, done] = parent.model.new_bool_var(f"access {number} asks {which} in {done}")
        there = sum(parent.tile(number)[tile] for tile in sorted(tiles))
        parent.model.add(both >= issues + there - 1)
        return both

    def _issue(self, number: int, done: int) -> int:
        """The slot in which an access is issued if it makes its request in slot ``done``."""
        return (done - self.parent.problem.latencies[number]) % self._ii

    def values(self, tiles: Sequence[int], plan: Plan) -> Iterator[tuple[cp_model.IntVar, int]]:
        """Values of all variables of this object, for tiles of a plan from :meth:`PlaceModel.mapped_tiles`."""
        for number, literals in self._issues.items():
            for at, literal in enumerate(literals):
                yield literal, plan.times[number] % self._ii == at
        for (which, number, done), literal in self._inside.items():
            issues = plan.times[number] % self._ii == self._issue(number, done)
            yield literal, issues and tiles[number] in self._limits[which].tiles


class Words:
    """Requires that variables and buffers of asynchronous values fit into the memories of the tiles.

    Parameters
    ----------
    time
        For each instruction, the variable of its time. With None, each buffer counts with the fewest words that it needs in any
        plan.
    last_time
        Largest time in clocks.
    """

    def __init__(self, parent: PlaceModel, ii: int, time: Mapping[int, Any] | None, last_time: int):
        self.parent, self._ii = parent, ii
        self._words: list[cp_model.IntVar] = []
        self._there: list[list[cp_model.IntVar]] = []
        structure, machine, model = parent.structure, parent.problem.machine, parent.model
        capacity = machine.memories * machine.memory_depth
        longest = max((distance for buffer in structure.buffers for _, distance in buffer.readers), default=0)
        fewest = [structure.least_words(buffer, ii) for buffer in structure.buffers]
        most = fewest if time is None else [last_time // ii + longest + 1 for _ in fewest]
        if not fewest or sum(structure.words) + sum(most) <= capacity:
            return
        if max(fewest) > capacity:
            model.add_bool_or([])
            return
        used: list[list[Any]] = [[] for _ in range(machine.tiles)]
        for buffer, least in zip(structure.buffers, fewest, strict=True):
            on = parent.tile(buffer.readers[0][0])
            if time is None:
                for tile, literal in enumerate(on):
                    used[tile].append(least * literal)
                continue
            words = model.new_int_var(least, capacity, f"words of {buffer.source}")
            starts = [number for number in structure.sources if structure.flow[number] == structure.flow[buffer.source]]
            for reader, distance in buffer.readers:
                for start in starts:
                    model.add(ii * words >= time[reader] + ii * distance - time[start] + 1)
            there = [model.new_int_var(0, capacity, f"words of {buffer.source} on {tile}") for tile in range(machine.tiles)]
            for tile, literal in enumerate(on):
                model.add(there[tile] >= words - capacity * (1 - literal))
                used[tile].append(there[tile])
            self._words.append(words)
            self._there.append(there)
        for tile, terms in enumerate(used):
            variables = [used * parent.on[group][tile] for group, used in enumerate(structure.words) if used]
            model.add(sum([*terms, *variables]) <= capacity)

    def values(self, tiles: Sequence[int], plan: Plan) -> Iterator[tuple[cp_model.IntVar, int]]:
        """Values of all variables of this object, for tiles of a plan from :meth:`PlaceModel.mapped_tiles`."""
        structure = self.parent.structure
        for buffer, words, there in zip(structure.buffers, self._words, self._there, strict=False):
            count = structure.words_of(buffer, self._ii, plan.times)
            yield words, count
            for tile, is_there in enumerate(there):
                yield is_there, count if tiles[buffer.readers[0][0]] == tile else 0
