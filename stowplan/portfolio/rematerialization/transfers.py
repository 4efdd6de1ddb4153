"""Plans of sequences in which values come from the host: when each is sent, waited for and fetched.

A *draft* is a sequence of a graph with a fetch of each value that may go to the host
(:meth:`stowplan.models.rematerialization.structure.Structure.with_fetches`), so that simulation and insertion choose between
what is recomputed and what is fetched. Its plan sends each value that is fetched as soon as it is made. It waits for sends
where their bytes are wanted, and fetches in the order in which values are read, as early as there is room.
"""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from stowplan.models.rematerialization.plan import Action, Move, Plan
from stowplan.models.rematerialization.structure import Structure

Ints = NDArray[np.int64]


@dataclass
class _Instance:
    value: int
    begin: int
    """Run that makes it; of an input 0; of a fetch the first that reads it, once that is known."""
    is_fetched: bool = False
    reads: list[int] = field(default_factory=list)
    """Runs that need it, ascending; their number where it stays."""
    before: _Instance | None = None
    """The instance that it takes the place of, of one that is fetched."""
    issued: bool = False
    arrives: int = 0

    @property
    def last(self) -> int:
        return self.reads[-1] if self.reads else self.begin


class _Scheduler:
    """Runs of a draft, and where they leave room."""

    def __init__(self, structure: Structure, moved: Sequence[int], draft: Sequence[int]):
        self.structure = structure
        self.copy_cost = {value: structure.problem.copy_cost(structure.tensor[value]) for value in moved}
        self.runs: list[int] = []
        self.instances: list[_Instance] = []
        self.taken: list[list[_Instance]] = []
        """[runs] instances of which a result may take the place."""
        current: dict[int, _Instance] = {}

        def add(value: int, before: _Instance | None = None) -> None:
            current[value] = _Instance(value, len(self.runs), before is not None, [], before)
            self.instances.append(current[value])

        for value, writer in enumerate(structure.writer):
            if writer < 0:
                add(value)
        self.first = dict(current)
        """The instance of each value that is sent."""
        for op in draft:
            if op >= structure.ops:
                value = moved[op - structure.ops]
                made = current[value].begin + (structure.writer[value] >= 0) if value in current else len(self.runs)
                if made < len(self.runs) or (value in current and current[value].is_fetched):
                    add(value, current[value])
                continue
            at = len(self.runs)
            for value in structure.needs[op]:
                current[value].reads.append(at)
            self.taken.append([current[value] for value in structure.pairs[op]])
            for value in structure.writes[op]:
                if structure.parent[value] < 0:
                    add(value)
                    self.first.setdefault(value, current[value])
                else:
                    current[value] = current[structure.parent[value]]
            self.runs.append(op)
        for value, kept in enumerate(structure.kept):
            if kept:
                current[value].reads.append(len(self.runs))
        for instance in self.instances:
            if instance.is_fetched and instance.reads:
                instance.begin = instance.reads[0]

    def load(self) -> Ints:
        """[runs + 1] bytes that are live or reserved at each run, and at the end, were all copies over in no time."""
        count, size = len(self.runs), self.structure.size
        change = np.zeros(count + 2, np.int64)
        for instance in self.instances:
            is_given = not instance.is_fetched and self.structure.writer[instance.value] < 0
            if instance.reads or not (instance.is_fetched or is_given):
                change[instance.begin] += size[instance.value]
                change[instance.last + 1] -= size[instance.value]
        load: Ints = np.cumsum(change)[: count + 1]
        for at, operands in enumerate(self.taken):
            load[at] -= sum(size[one.value] for one in operands if one.last == at)
        beside = np.zeros_like(load)
        for row in self.structure.reservations:
            begin = 0 if row.since is None else self.runs.index(row.since)
            end = count + 1 if row.until is None else self.runs.index(row.until)
            end = begin + 1 if row.is_of_one_run else end
            beside[begin:end] = np.maximum(beside[begin:end], row.size)
        load += beside
        return load

    def plan(self, limit: int) -> Plan | None:
        """Play the runs, and issue copies on the way; None where the draft is above the limit."""
        structure, size, load = self.structure, self.structure.size, self.load()
        if load.max(initial=0) > limit:
            return None
        fetches = sorted((one for one in self.instances if one.is_fetched and one.reads), key=lambda one: one.begin)
        sent = {one.value for one in fetches}
        made: dict[int, list[_Instance]] = {}
        for value in sorted(sent):
            first = self.first[value]
            made.setdefault(first.begin + (structure.writer[value] >= 0), []).append(first)
        arrivals = {begin: [*own] for begin, own in itertools.groupby(fetches, key=lambda one: one.begin)}
        moves: list[Move] = []
        sending: deque[tuple[int, _Instance]] = deque()
        now = sends_free = fetches_free = first_left = 0

        def held(one: _Instance, at: int) -> int:
            """Bytes that the send of an instance takes at a run beside what is loaded there."""
            if one.last < at:
                return size[one.value]
            is_taken = one.last == at < len(self.runs) and any(one is other for other in self.taken[at])
            return size[one.value] if is_taken else 0

        def move(action: Action, value: int, at: int) -> None:
            moves.append(Move(action, structure.tensor[value], at))

        def wait(at: int) -> None:
            nonlocal now
            end, one = sending.popleft()
            now = max(now, end)
            move("wait", one.value, at)

        def fetch(one: _Instance, at: int) -> None:
            nonlocal fetches_free
            while any(other.value == one.value for _, other in sending):
                wait(at)
            one.issued = True
            one.arrives = fetches_free = max(now, fetches_free) + self.copy_cost[one.value]
            move("fetch", one.value, at)

        for at in range(len(self.runs) + 1):
            while sending and sending[0][0] <= now:
                wait(at)
            for one in made.get(at, ()):
                sends_free = max(now, sends_free) + self.copy_cost[one.value]
                sending.append((sends_free, one))
                move("send", one.value, at)
            while load[at] + sum(held(one, at) for _, one in sending) > limit:
                wait(at)
            for one in arrivals.get(at, ()):
                if not one.issued:
                    fetch(one, at)
            spent = structure.cost[self.runs[at]] if at < len(self.runs) else 0
            occupied = sum(held(one, at) for _, one in sending)
            number = first_left
            while number < len(fetches) and fetches_free < now + spent:
                one = fetches[number]
                number += 1
                if one.issued:
                    first_left += number == first_left + 1
                    continue
                assert one.before is not None
                is_sent = self.first[one.value].begin < at and all(other.value != one.value for _, other in sending)
                if (
                    one.begin <= at
                    or not is_sent
                    or one.before.last >= at
                    or (one.before.is_fetched and one.before.reads and not one.before.issued)
                ):
                    continue
                bytes_there = max(int(load[at]) + occupied, int(load[at : one.begin].max()))
                if bytes_there + size[one.value] > limit:
                    break
                load[at : one.begin] += size[one.value]
                fetch(one, at)
            now = max([now, *(one.arrives for one in arrivals.get(at, ()))]) + spent
        while sending:
            wait(len(self.runs))
        return structure.made(self.runs, moves)


def unmade(structure: Structure, draft: Sequence[int]) -> set[int]:
    """Values that a draft reads before they are made: a writer that makes more may come where the rest is needed."""
    there, missing = {value for value, writer in enumerate(structure.writer) if writer < 0}, set[int]()
    for op in draft:
        if op < structure.ops:
            missing |= {*structure.needs[op]} - there
            there |= {*structure.needs[op], *structure.writes[op]}
    return missing


def planned(structure: Structure, moved: Sequence[int], draft: Sequence[int], limit: int) -> Plan | None:
    """The plan of a draft with fetches of ``moved``, within a limit of bytes on the device; None where that fails."""
    return _Scheduler(structure, moved, draft).plan(limit)
