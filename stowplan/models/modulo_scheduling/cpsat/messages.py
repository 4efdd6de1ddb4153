"""What goes over the asynchronous fabric: requests that find ports, and values that find words in tile memory."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from ortools.sat.python import cp_model

from stowplan.models.modulo_scheduling.cpsat.places import PlaceModel
from stowplan.models.modulo_scheduling.plan import Plan


class Ports:
    """No more requests to memory in a slot than the interfaces that serve their tiles have ports.

    Parameters
    ----------
    slot
        Slot of issue of every memory access, where ports are scarce.
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
        """Whether an access makes its request in this slot, on a tile of the limit."""
        parent, tiles = self.parent, self._limits[which].tiles
        issues = self._issues[number][self._issue(number, done)]
        if tiles.issuperset(parent.structure.allowed[parent.structure.group[number]]):
            return issues
        both = self._inside[which, number, done] = parent.model.new_bool_var(f"access {number} asks {which} in {done}")
        there = sum(parent.tile(number)[tile] for tile in sorted(tiles))
        parent.model.add(both >= issues + there - 1)
        return both

    def _issue(self, number: int, done: int) -> int:
        return (done - self.parent.problem.latencies[number]) % self._ii

    def values(self, tiles: Sequence[int], plan: Plan) -> Iterator[tuple[cp_model.IntVar, int]]:
        """Values of all variables, for the turned tiles of a plan."""
        for number, literals in self._issues.items():
            for at, literal in enumerate(literals):
                yield literal, plan.times[number] % self._ii == at
        for (which, number, done), literal in self._inside.items():
            issues = plan.times[number] % self._ii == self._issue(number, done)
            yield literal, issues and tiles[number] in self._limits[which].tiles


class Words:
    """Variables and values from the asynchronous fabric fit the memories of the tiles.

    Parameters
    ----------
    time
        Time of every instruction; None counts the fewest words that values take in any plan.
    last_time
        Largest time.
    """

    def __init__(self, parent: PlaceModel, ii: int, time: Mapping[int, Any] | None, last_time: int):
        self.parent, self._ii = parent, ii
        self._words: list[cp_model.IntVar] = []
        self._there: list[list[cp_model.IntVar]] = []
        structure, machine, model = parent.structure, parent.problem.machine, parent.model
        room = machine.memories * machine.memory_depth
        longest = max((distance for buffer in structure.buffers for _, distance in buffer.readers), default=0)
        fewest = [structure.least_words(buffer, ii) for buffer in structure.buffers]
        most = fewest if time is None else [last_time // ii + longest + 1 for _ in fewest]
        if not fewest or sum(structure.words) + sum(most) <= room:
            return
        if max(fewest) > room:
            model.add_bool_or([])
            return
        used: list[list[Any]] = [[] for _ in range(machine.tiles)]
        for buffer, least in zip(structure.buffers, fewest, strict=True):
            on = parent.tile(buffer.readers[0][0])
            if time is None:
                for tile, literal in enumerate(on):
                    used[tile].append(least * literal)
                continue
            words = model.new_int_var(least, room, f"words of {buffer.source}")
            starts = [number for number in structure.sources if structure.flow[number] == structure.flow[buffer.source]]
            for reader, distance in buffer.readers:
                for start in starts:
                    model.add(ii * words >= time[reader] + ii * distance - time[start] + 1)
            there = [model.new_int_var(0, room, f"words of {buffer.source} on {tile}") for tile in range(machine.tiles)]
            for tile, literal in enumerate(on):
                model.add(there[tile] >= words - room * (1 - literal))
                used[tile].append(there[tile])
            self._words.append(words)
            self._there.append(there)
        for tile, terms in enumerate(used):
            variables = [each * parent.on[group][tile] for group, each in enumerate(structure.words) if each]
            model.add(sum([*terms, *variables]) <= room)

    def values(self, tiles: Sequence[int], plan: Plan) -> Iterator[tuple[cp_model.IntVar, int]]:
        """Values of all variables, for the turned tiles of a plan."""
        structure = self.parent.structure
        for buffer, words, there in zip(structure.buffers, self._words, self._there, strict=False):
            count = structure.words_of(buffer, self._ii, plan.times)
            yield words, count
            for tile, each in enumerate(there):
                yield each, count if tiles[buffer.readers[0][0]] == tile else 0
