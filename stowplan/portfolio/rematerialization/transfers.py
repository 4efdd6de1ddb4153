"""Schedules the copies of plans with a host: when each value is sent, waited for and fetched.

The *host* is a second memory. A *send* copies a value to the host, and a *fetch* copies it back. In each direction, copies run
one after the other while operators run. A *draft* is a sequence of a graph that has, besides the operators, a fetch of each
value that may go to the host (:meth:`stowplan.models.rematerialization.structure.Structure.with_fetches`). In this way, the
simulation (:mod:`.greedy`) and the addition of runs (:mod:`.insertion`) choose between recomputing and fetching. The plan of a
draft sends each value that it fetches, as soon as the value is computed. It waits for the end of a send when the bytes of the
sent value are needed. It fetches values in the order in which they are read, as early as there is space. Times are in units of
cost. The functions raise no errors.
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
    """The bytes that one run, or one fetch, gives to a value. Runs of operators are numbered from 0; fetches are not
    counted."""

    value: int
    """The value."""
    begin: int
    """Number of the run that makes the instance; 0 for an input; for a fetch the first run that reads it, once it is known."""
    is_fetched: bool = False
    """Whether a fetch makes the instance."""
    reads: list[int] = field(default_factory=list)
    """Numbers of the runs that need the instance, ascending. If it is kept until the end, the number of all runs is the
    last."""
    before: _Instance | None = None
    """For a fetched instance, the earlier instance of the same value."""
    issued: bool = False
    """For a fetched instance, whether its fetch has been issued."""
    arrives: int = 0
    """Time at which the fetch ends, in units of cost."""

    @property
    def last(self) -> int:
        """Number of the last run that needs the instance; ``begin`` if none does."""
        return self.reads[-1] if self.reads else self.begin


class _Scheduler:
    """The runs of a draft, with the instances of its values, and the schedule of its copies.

    The arguments are those of :func:`plan_of_draft`.
    """

    def __init__(self, structure: Structure, sendable: Sequence[int], draft: Sequence[int]):
        self.structure = structure
        self.copy_cost = {value: structure.problem.copy_cost(structure.tensor[value]) for value in sendable}
        self.runs: list[int] = []
        self.instances: list[_Instance] = []
        self.reusable: list[list[_Instance]] = []
        """[runs] instances whose bytes a result may take over."""
        current: dict[int, _Instance] = {}

        def add(value: int, before: _Instance | None = None) -> None:
            current[value] = _Instance(value, len(self.runs), before is not None, [], before)
            self.instances.append(current[value])

        for value, writer in enumerate(structure.writer):
            if writer < 0:
                add(value)
        self.first = dict(current)
        """The first instance of each value, which is the one that is sent."""
        for op in draft:
            if op >= structure.ops:
                value = sendable[op - structure.ops]
                ready = current[value].begin + (structure.writer[value] >= 0) if value in current else len(self.runs)
                if ready < len(self.runs) or (value in current and current[value].is_fetched):
                    add(value, current[value])
                continue
            at = len(self.runs)
            for value in structure.needs[op]:
                current[value].reads.append(at)
            self.reusable.append([current[value] for value in structure.pairs[op]])
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
        """[runs + 1] live and reserved bytes during each run, and at the end, if copies took no time."""
        count, size = len(self.runs), self.structure.size
        change = np.zeros(count + 2, np.int64)
        for instance in self.instances:
            is_given = not instance.is_fetched and self.structure.writer[instance.value] < 0
            if instance.reads or not (instance.is_fetched or is_given):
                change[instance.begin] += size[instance.value]
                change[instance.last + 1] -= size[instance.value]
        load: Ints = np.cumsum(change)[: count + 1]
        for at, operands in enumerate(self.reusable):
            load[at] -= sum(size[one.value] for one in operands if one.last == at)
        reserved = np.zeros_like(load)
        for row in self.structure.reservations:
            begin = 0 if row.since is None else self.runs.index(row.since)
            end = count + 1 if row.until is None else self.runs.index(row.until)
            end = begin + 1 if row.is_of_one_run else end
            reserved[begin:end] = np.maximum(reserved[begin:end], row.size)
        load += reserved
        return load

    def plan(self, limit: int) -> Plan | None:
        """Simulate the runs and issue the copies; returns the plan, or None if the draft exceeds ``limit`` bytes.

        The plan is not verified: it may exceed the limit of the host.
        """
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

        def bytes_in_flight(one: _Instance, at: int) -> int:
            """Bytes that an instance which is being sent takes during a run, in addition to the load."""
            if one.last < at:
                return size[one.value]
            is_taken = one.last == at < len(self.runs) and any(one is other for other in self.reusable[at])
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
            while load[at] + sum(bytes_in_flight(one, at) for _, one in sending) > limit:
                wait(at)
            for one in arrivals.get(at, ()):
                if not one.issued:
                    fetch(one, at)
            duration = structure.cost[self.runs[at]] if at < len(self.runs) else 0
            occupied = sum(bytes_in_flight(one, at) for _, one in sending)
            number = first_left
            while number < len(fetches) and fetches_free < now + duration:
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
            now = max([now, *(one.arrives for one in arrivals.get(at, ()))]) + duration
        while sending:
            wait(len(self.runs))
        return structure.made(self.runs, moves)


def read_before_written(structure: Structure, draft: Sequence[int]) -> set[int]:
    """Values that a draft reads before they exist.

    This happens with operators with several results: a fetch may provide one of the results before the operator has run.
    """
    existing, missing = {value for value, writer in enumerate(structure.writer) if writer < 0}, set[int]()
    for op in draft:
        if op < structure.ops:
            missing |= {*structure.needs[op]} - existing
            existing |= {*structure.needs[op], *structure.writes[op]}
    return missing


def plan_of_draft(structure: Structure, sendable: Sequence[int], draft: Sequence[int], limit: int) -> Plan | None:
    """The plan of a draft that may fetch the values ``sendable``; None if it exceeds ``limit`` bytes on the device.

    ``structure`` is the one without fetches. Operator number ``structure.ops + i`` of the draft is the fetch of
    ``sendable[i]``. The draft must not read values before they exist (:func:`read_before_written`). The plan may exceed the
    limit of the host.
    """
    return _Scheduler(structure, sendable, draft).plan(limit)
