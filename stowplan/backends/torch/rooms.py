"""What a graph may take while other things live beside it: less between its passes, and other amounts in each of them.

A graph that is used several times before its backward pass keeps what one use saves as often: the more it saves, the less there
is left to work in. So the *room* depends on the bytes *kept*: those that are live at the border, as one use of the graph alone
counts them. Where each use keeps ``kept``, the forward pass may take ``room(kept).forward``, the backward pass
``room(kept).backward``, and at the border no more than ``room(kept).saved`` may be live. All three are in the bytes of one use.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple, Protocol

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


class Rooms(Protocol):
    """Rooms by what is kept; the more that is, the smaller they are."""

    def room(self, kept: int) -> Room:
        """What is left where each use keeps so much."""

    def peak(self, taken: Taken) -> int:
        """Of the whole step, bytes."""


@dataclass(frozen=True)
class Copies:
    """Room of a graph that runs several times, forward, and then backward, in the other order.

    Parameters of all are there all the time. Before the backward pass of one its followers have returned their gradients.
    """

    limit: int
    """Bytes of all."""
    count: int
    resident: int
    """Bytes of parameters and buffers of one."""
    inputs: int
    """Bytes of all inputs of one: those, and what it is called with, which another keeps as its result."""
    tangents: int
    gradients: int
    """Bytes of the gradients of parameters of one."""

    def room(self, kept: int) -> Room:
        """What is left where each keeps so much."""
        others = self.count - 1
        left = self.limit - others * self.resident
        own = max(0, kept - self.inputs - self.tangents)
        return Room(left - others * own, left - others * max(own, self.gradients), kept)

    def peak(self, taken: Taken) -> int:
        """Of the whole step."""
        room = self.room(taken.kept)
        return self.limit + max(taken.forward - room.forward, taken.backward - room.backward)


def copies(reading: Reading, count: int, limit: int, static: set[int]) -> Copies:
    """Of a graph that is used several times.

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
    resident = sum(size for at, size in sizes.items() if at in static)
    return Copies(limit, count, resident, reading.problem.tensors[0].size, tangent_bytes(reading), gradients)


def taken(reading: Reading, plan: Plan) -> Taken:
    """What a plan of a reading's problem takes; the plan is valid."""
    live = live_bytes(reading.problem, plan)
    border = list(plan.steps()).index(("run", reading.border))
    # Tangents are there once the backward pass begins.
    return Taken(max(*live[:border], live[border] - tangent_bytes(reading)), max(live[border:]), live[border])


def tangent_bytes(reading: Reading) -> int:
    """Bytes of what the backward pass is called with."""
    sizes = {tensor.id: tensor.size for tensor in reading.problem.tensors}
    return sum(sizes[node.name] for node in reading.tangents)


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
    problem = reading.problem
    count = len(problem.tensors)
    border = problem.ops[reading.border]
    made: Op = msgspec.structs.replace(border, writes=(*border.writes, count, count + 1))
    return msgspec.structs.replace(
        problem,
        tensors=(*problem.tensors, Tensor(id="later", size=max(0, later)), Tensor(id="between", size=max(0, between))),
        ops=(*problem.ops[: reading.border], made, *problem.ops[reading.border + 1 :]),
        outputs=(*problem.outputs, count),
        limit=limit,
    )
