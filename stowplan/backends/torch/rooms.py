"""What a graph may take while other things live beside it: other amounts in each of its passes.

A graph that is used several times before its backward pass keeps what one use saves as often: the more it saves, the less there
is left to work in. Rows say how many uses wait while one runs, and what they may take together; :func:`limited` makes them
reservations of the rematerialization problem.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from stowplan.backends.torch.reader import Reading
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Reservation
from stowplan.models.rematerialization.verify import live_bytes


class Taken(NamedTuple):
    """Bytes that a plan takes: most in the forward pass, most in the backward pass, and at the border."""

    forward: int
    backward: int
    kept: int


class Row(NamedTuple):
    """A time in which uses of the graph wait for their backward pass, or it runs, or both: bytes for all of that."""

    waiting: int
    runs: bool
    is_backward: bool
    """Whether it is the backward pass that runs."""
    most: int

    def above(self, own: int, taken: Taken) -> int:
        """Bytes beyond, where each use that waits keeps its own."""
        runs = taken.backward if self.is_backward else taken.forward
        return self.waiting * own + (runs if self.runs else 0) - self.most


@dataclass(frozen=True)
class Rooms:
    """Room of a graph; the more each use keeps, the less there is."""

    limit: int
    """Bytes of the step."""
    constant: int
    """Bytes at the border that no use keeps while it waits."""
    rows: tuple[Row, ...]

    def peak(self, taken: Taken) -> int:
        """Of the step."""
        own = max(0, taken.kept - self.constant)
        return self.limit + max((row.above(own, taken) for row in self.rows), default=0)


def copies(reading: Reading, count: int, limit: int, static: set[int]) -> Rooms:
    """Of a graph that runs several times, forward, and then backward, in the other order.

    Parameters of all are there all the time. What a use is called with, the one before keeps as its result. Before the backward
    pass of one its followers have returned their gradients.

    Parameters
    ----------
    count
        How often.
    limit
        Bytes of all together.
    static
        Numbers of the inputs that are parameters or buffers.
    """
    sizes = reading.input_bytes()
    tensors = {tensor.id: tensor.size for tensor in reading.problem.tensors}
    # Gradients are in the order of the inputs that they are of.
    returned = {
        node.name: reading.root(node).name
        for at, node in enumerate(reading.backward_outputs)
        if at in static and hasattr(node, "name")
    }
    gradients = sum(tensors.get(name, 0) for name in set(returned.values()))
    others = count - 1
    left = limit - others * sum(size for at, size in sizes.items() if at in static)
    # The first use runs backward beside the gradients of all others, the last beside what all others keep.
    rows = Row(others, True, False, left), Row(others, True, True, left), Row(0, True, True, left - others * gradients)
    return Rooms(limit, reading.problem.tensors[0].size + tangent_bytes(reading), rows)


def taken(reading: Reading, plan: Plan) -> Taken:
    """What a plan of a reading's problem takes; the plan is valid."""
    live, steps = live_bytes(reading.problem, plan), list(plan.steps())
    border = steps.index(("run", reading.border))
    (first,) = reading.arrival or (reading.border,)
    arrival = steps.index(("run", first))
    # Tangents are there once the backward pass begins.
    ended = max(live[arrival : border + 1]) - tangent_bytes(reading)
    return Taken(max(*live[:arrival], ended), max(live[border:]), live[border])


def tangent_bytes(reading: Reading) -> int:
    """Bytes of what the backward pass is called with."""
    sizes = {tensor.id: tensor.size for tensor in reading.problem.tensors}
    return sum(sizes[node.name] for node in reading.tangents)


def savable(reading: Reading) -> frozenset[int]:
    """Positions of the forward pass's results that an operator reads, so that a plan may save them for the backward pass."""
    read = {tensor for at, op in enumerate(reading.problem.ops) if at != reading.border for tensor in op.reads}
    results = enumerate(reading.forward_outputs)
    return frozenset(at for at, node in results if hasattr(node, "op") and reading.tensor.get(reading.root(node)) in read)


def given_bytes(reading: Reading, static: set[int]) -> int:
    """Bytes of inputs that are no parameters, of results, and of tangents: a caller may let go of them early.

    Parameters
    ----------
    static
        Numbers of the inputs that are parameters or buffers.
    """
    sizes = reading.problem.tensors
    results = {reading.root(node) for node in reading.forward_outputs if hasattr(node, "op")}
    inputs = sum(size for at, size in reading.input_bytes().items() if at not in static)
    return inputs + tangent_bytes(reading) + sum(sizes[reading.tensor[root]].size for root in results if root in reading.tensor)


def limited(reading: Reading, rooms: Rooms) -> Reading:
    """A reading of the same graph whose problem reserves what rooms leave out of their limit.

    Of rows that differ in their bytes alone that with the least says all.
    """
    least: dict[tuple[int, bool, bool], int] = {}
    for row in rooms.rows:
        key = row.waiting, row.runs, row.is_backward and row.runs
        least[key] = min(least.get(key, row.most), row.most)
    border, rows = reading.border, list[Reservation]()
    for (waiting, runs, is_backward), most in least.items():
        size, of = rooms.limit - most - waiting * rooms.constant, border if waiting else None
        if not runs:
            # What waits is all there is: one of the uses is counted as live.
            others, of = max(0, waiting - 1), border if waiting > 1 else None
            rows.append(Reservation(size=size, since=border, until=border, times=others, of=of))
        elif is_backward:
            rows.append(Reservation(size=size, since=border, times=waiting, of=of))
        else:
            rows.append(Reservation(size=size, until=border, times=waiting, of=of))
            # When the forward pass ends there are no tangents yet.
            at_end = size - tangent_bytes(reading)
            rows.append(Reservation(size=at_end, since=border, until=border, times=waiting, of=of))
    reserved = _undominated(rows, rooms.constant, rooms.limit)
    if not reserved:
        return reading
    reading = copy.copy(reading)
    reading.problem = msgspec.structs.replace(reading.problem, reserved=tuple(reserved))
    return reading


def _undominated(rows: Sequence[Reservation], least: int, most: int) -> list[Reservation]:
    """The reservations that may be the largest in force, where from ``least`` to ``most`` bytes are live at the border."""

    def ends(row: Reservation) -> tuple[int, int]:
        return max(0, row.size + row.times * least), max(0, row.size + row.times * most)

    left: list[Reservation] = []
    # Those that are in force for longer come first: they say what one of the border alone says.
    for row in sorted(rows, key=lambda row: (row.since == row.until, -ends(row)[1], -ends(row)[0])):
        known = (ends(other) for other in left if other.since == row.since and other.until in (None, row.until))
        if ends(row) != (0, 0) and not any(low >= ends(row)[0] and high >= ends(row)[1] for low, high in known):
            left.append(row)
    return left
