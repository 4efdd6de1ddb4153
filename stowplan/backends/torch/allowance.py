"""How many bytes a graph may use while other tensors are live; the number differs between the phases of a training step.

A *joint graph* has the forward and the backward pass of a model as one graph, as ``torch.compile`` traces it. A *plan* says
which values it saves for the backward pass and which it computes again.

A *phase* is the time in which one pass of a graph runs, or no graph runs. A *use* of a graph is one forward pass, until the end
of its backward pass. If a graph runs several times before its backward pass, each use saves its own values. The more a plan
saves, the fewer bytes are left for the pass that is running. A :class:`PhaseLimit` says how many uses wait for their backward
pass, and how many bytes these uses and the running one may occupy together. :func:`with_reservations` translates all phase
limits into reservations of the rematerialization problem: bytes of its limit that are not available between two moments.

The *border* is the moment between the two passes of a graph, and the operator of the problem that stands for it. *Tangents* are
the gradients of the results, with which the backward pass is called. A *reading* is a joint graph with its rematerialization
problem (:class:`~stowplan.backends.torch.reader.Reading`).
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


class Footprint(NamedTuple):
    """The memory that a plan uses, in bytes."""

    forward: int
    """Peak in the forward pass."""
    backward: int
    """Peak in the backward pass."""
    at_border: int
    """Bytes that are live at the border."""


class PhaseLimit(NamedTuple):
    """The bytes that the uses of a graph may occupy together in one phase of a step.

    In a phase some uses wait for their backward pass, or one is running, or both.
    """

    waiting: int
    """How many uses wait for their backward pass."""
    runs: bool
    """Whether a pass of the graph is running."""
    is_backward: bool
    """Whether the running pass is the backward pass."""
    allowed: int
    """Bytes that the waiting uses and the running one may occupy together."""

    def excess(self, kept_bytes: int, footprint: Footprint) -> int:
        """Returns the bytes by which a plan exceeds this limit; negative if it does not.

        Parameters
        ----------
        kept_bytes
            Bytes that each waiting use keeps.
        footprint
            The memory that the plan uses.
        """
        runs = footprint.backward if self.is_backward else footprint.forward
        return self.waiting * kept_bytes + (runs if self.runs else 0) - self.allowed


@dataclass(frozen=True)
class Allowance:
    """How many bytes one graph may use in each phase of a step."""

    limit: int
    """Memory limit of the step, in bytes."""
    constant: int
    """Bytes that are live at the border but that a waiting use does not keep: inputs and tangents."""
    rows: tuple[PhaseLimit, ...]
    """The limit of each phase."""

    def peak(self, footprint: Footprint) -> int:
        """Returns the peak of the step with a plan of this footprint, in bytes."""
        kept_bytes = max(0, footprint.at_border - self.constant)
        return self.limit + max((row.excess(kept_bytes, footprint) for row in self.rows), default=0)


def repeated_allowance(reading: Reading, count: int, limit: int, static: set[int]) -> Allowance:
    """Returns the allowance of a graph that runs several times before its backward passes, which run in the opposite order.

    An example is a model whose layers share one graph. The parameters of all layers are live all the time. The input of a layer
    is the result of the layer before. Before the backward pass of a layer, all later layers have returned their gradients.

    Parameters
    ----------
    reading
        The graph and its problem.
    count
        How many times the graph runs, 1 or more.
    limit
        Bytes that all runs together may use.
    static
        Indices of the inputs that are parameters or buffers.
    """
    sizes = reading.input_bytes()
    tensors = {tensor.id: tensor.size for tensor in reading.problem.tensors}
    # Gradients have the order of their inputs.
    returned = {
        node.name: reading.root(node).name
        for at, node in enumerate(reading.backward_outputs)
        if at in static and hasattr(node, "name")
    }
    gradients = sum(tensors.get(name, 0) for name in set(returned.values()))
    others = count - 1
    left = limit - others * sum(size for at, size in sizes.items() if at in static)
    # The last layer runs backward while all others wait. When the first layer runs backward, the gradients of all others are
    # live.
    rows = (
        PhaseLimit(others, True, False, left),
        PhaseLimit(others, True, True, left),
        PhaseLimit(0, True, True, left - others * gradients),
    )
    return Allowance(limit, reading.problem.tensors[0].size + tangent_bytes(reading), rows)


def footprint(reading: Reading, plan: Plan) -> Footprint:
    """Returns the memory that a valid plan of the reading's problem uses."""
    live, steps = live_bytes(reading.problem, plan), list(plan.steps())
    border = steps.index(("run", reading.border))
    (first,) = reading.arrival or (reading.border,)
    arrival = steps.index(("run", first))
    # Tangents are live only once the backward pass begins.
    at_forward_end = max(live[arrival : border + 1]) - tangent_bytes(reading)
    return Footprint(max(*live[:arrival], at_forward_end), max(live[border:]), live[border])


def tangent_bytes(reading: Reading) -> int:
    """Returns the bytes of all tangents."""
    sizes = {tensor.id: tensor.size for tensor in reading.problem.tensors}
    return sum(sizes[node.name] for node in reading.tangents)


def savable(reading: Reading) -> frozenset[int]:
    """Returns the indices of the results of the forward pass that an operator reads, so that a plan may save them."""
    operands = {tensor for at, op in enumerate(reading.problem.ops) if at != reading.border for tensor in op.reads}
    results = enumerate(reading.forward_outputs)
    return frozenset(at for at, node in results if hasattr(node, "op") and reading.tensor.get(reading.root(node)) in operands)


def bytes_held_by_caller(reading: Reading, static: set[int]) -> int:
    """Returns the bytes of inputs other than parameters, of results, and of tangents, which the caller may release early.

    Parameters
    ----------
    static
        Indices of the inputs that are parameters or buffers.
    """
    sizes = reading.problem.tensors
    results = {reading.root(node) for node in reading.forward_outputs if hasattr(node, "op")}
    inputs = sum(size for at, size in reading.input_bytes().items() if at not in static)
    return inputs + tangent_bytes(reading) + sum(sizes[reading.tensor[root]].size for root in results if root in reading.tensor)


def with_reservations(reading: Reading, allowance: Allowance) -> Reading:
    """Returns a reading of the same graph whose problem has reservations: a plan within its limit also meets the allowance.

    If no reservation is needed, the reading itself is returned.
    """
    # Of phases that differ only in their bytes, the one with the fewest bytes implies the others.
    tightest: dict[tuple[int, bool, bool], int] = {}
    for row in allowance.rows:
        key = row.waiting, row.runs, row.is_backward and row.runs
        tightest[key] = min(tightest.get(key, row.allowed), row.allowed)
    border, rows = reading.border, list[Reservation]()
    for (waiting, runs, is_backward), allowed in tightest.items():
        size, multiplied = allowance.limit - allowed - waiting * allowance.constant, border if waiting else None
        if not runs:
            # No pass runs. The problem itself counts one of the waiting uses, so that the reservation is for the others.
            others, multiplied = max(0, waiting - 1), border if waiting > 1 else None
            rows.append(Reservation(size=size, since=border, until=border, times=others, of=multiplied))
        elif is_backward:
            rows.append(Reservation(size=size, since=border, times=waiting, of=multiplied))
        else:
            rows.append(Reservation(size=size, until=border, times=waiting, of=multiplied))
            # At the end of the forward pass there are no tangents yet, while the problem counts them at the border.
            at_end = size - tangent_bytes(reading)
            rows.append(Reservation(size=at_end, since=border, until=border, times=waiting, of=multiplied))
    reserved = _undominated(rows, allowance.constant, allowance.limit)
    if not reserved:
        return reading
    reading = copy.copy(reading)
    reading.problem = msgspec.structs.replace(reading.problem, reserved=tuple(reserved))
    return reading


def _undominated(rows: Sequence[Reservation], least: int, most: int) -> list[Reservation]:
    """Returns the reservations, without each reservation that another one implies.

    Parameters
    ----------
    rows
        The reservations.
    least, most
        Fewest and most bytes that can be live at the border.
    """

    def ends(row: Reservation) -> tuple[int, int]:
        """Returns the bytes of a reservation if the fewest and if the most bytes are live at the border."""
        return max(0, row.size + row.times * least), max(0, row.size + row.times * most)

    undominated: list[Reservation] = []
    # Reservations that are in force for longer come first: they imply those that are in force at the border alone.
    for row in sorted(rows, key=lambda row: (row.since == row.until, -ends(row)[1], -ends(row)[0])):
        kept_ends = (ends(other) for other in undominated if other.since == row.since and other.until in (None, row.until))
        if ends(row) != (0, 0) and not any(low >= ends(row)[0] and high >= ends(row)[1] for low, high in kept_ends):
            undominated.append(row)
    return undominated
