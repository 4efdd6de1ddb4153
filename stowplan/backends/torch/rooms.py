"""What a graph may take while other things live beside it: less between its passes, and other amounts in each of them.

A graph that is used several times before its backward pass keeps what one use saves as often: the more it saves, the less there
is left to work in. So the *room* depends on the bytes *kept*: those that are live at the border, as one use of the graph alone
counts them. Where each use keeps ``kept``, the forward pass may take ``room(kept).forward``, the backward pass
``room(kept).backward``, and at the border no more than ``room(kept).saved`` may be live. All three are in the bytes of one use.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

import msgspec

from stowplan.backends.torch.reader import Reading
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Op, Problem, Tensor
from stowplan.models.rematerialization.verify import live_bytes


class Room(NamedTuple):
    """Bytes that may be live in the forward pass, in the backward pass, and at the border."""

    forward: int
    backward: int
    saved: int


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

    def room(self, kept: int) -> Room:
        """What is left where each use keeps so much."""
        own = max(0, kept - self.constant)
        most = [self.limit, self.limit]
        saved = min(kept, self.limit)
        for row in self.rows:
            if row.runs:
                most[row.is_backward] = min(most[row.is_backward], row.most - row.waiting * own)
            elif row.waiting:
                saved = min(saved, self.constant + row.most // row.waiting)
        return Room(most[False], most[True], saved)

    def peak(self, taken: Taken) -> int:
        """Of the step."""
        own = max(0, taken.kept - self.constant)
        return self.limit + max((row.above(own, taken) for row in self.rows), default=0)

    def limits(self, is_backward: bool) -> Iterator[tuple[int, int]]:
        """(times, bytes): what is live in a pass, and so many times what is live at the border, is at most so much."""
        for row in self.rows:
            if row.runs and row.is_backward == is_backward:
                yield row.waiting, row.most + row.waiting * self.constant

    def limits_at_border(self, tangents: int) -> Iterator[tuple[int, int]]:
        """The same of what is live at the border, where ``tangents`` bytes are no part of the forward pass."""
        for row in self.rows:
            beside = row.most + row.waiting * self.constant
            if row.runs:
                yield row.waiting, beside if row.is_backward else beside + tangents
            elif row.waiting:
                yield row.waiting - 1, beside


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


def within(reading: Reading, room: Room, kept: int | None = None) -> Problem:
    """The problem whose plans fit into a room: operators have the numbers that they have without it.

    Parameters
    ----------
    kept
        Bytes at the border at most, in place of the room's.
    """
    saved = room.saved if kept is None else kept
    # Bytes that are taken from the backward pass alone stay from the border on; those from the border are there while it runs.
    limit = max(0, room.forward)
    later = max(0, limit - max(0, room.backward))
    return weighted(reading, later, limit - later - saved, limit)


def weighted(reading: Reading, later: int, between: int, limit: int | None = None) -> Problem:
    """The problem with bytes that live from the border on, and bytes that live at the border alone."""
    problem, ops = reading.problem, [*reading.problem.ops]
    count, border = len(problem.tensors), ops[reading.border]
    tensors = [Tensor(id="later", size=max(0, later)), Tensor(id="between", size=max(0, between))]
    made: Op = msgspec.structs.replace(border, writes=(*border.writes, count, count + 1))
    stays = count
    for arrival in reading.arrival:
        # With a host: what a view is of stays where it is, and who writes the view must read that.
        stays = count + 2
        tensors.append(Tensor(id="later held", size=0, alias_of=count))
        ops[arrival] = msgspec.structs.replace(ops[arrival], writes=(*ops[arrival].writes, count))
        made = msgspec.structs.replace(border, reads=(*border.reads, count), writes=(*border.writes, count + 1, stays))
    ops[reading.border] = made
    return msgspec.structs.replace(
        problem,
        tensors=(*problem.tensors, *tensors),
        ops=tuple(ops),
        outputs=(*problem.outputs, stays),
        limit=limit,
    )
