"""The plan of a tier-placement problem: a *tier*, that is, one memory of the hierarchy, for every tensor.

If the problem says that tiers are address spaces, the plan also has an offset for every tensor; otherwise only the bytes in
each tier count. This module defines the data; the verifier, :mod:`stowplan.models.tier_placement.verify`, checks the rules.
"""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from stowplan.document import PlanDocument
from stowplan.errors import UsageError
from stowplan.models.decisions import Decision, Values
from stowplan.models.offset_table import OffsetRow, OffsetTable, make_table
from stowplan.models.tier_placement.problem import Problem


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A memory map: a tier for the weights and for the output of every layer.

    :func:`stowplan.models.tier_placement.verify.verify` says whether the plan is valid. All tuples have an entry for each
    layer, in the problem's order. The entries of weights of 0 bytes have no effect; by convention they are 0.
    """

    objective: int = msgspec.field(name="objective_ps")
    """Latency of the network in ps."""
    weight_tiers: tuple[int, ...]
    """Number of the tier of each layer's weights."""
    output_tiers: tuple[int, ...]
    """Number of the tier of each layer's output activation."""
    weight_offsets: tuple[int, ...] = ()
    """Offset in bytes of each layer's weights in their tier; empty if tiers are no address spaces."""
    output_offsets: tuple[int, ...] = ()
    """Offset in bytes of each layer's output in its tier; empty if tiers are no address spaces."""
    name: str = ""
    """Name of the network, for people. The field ``problem`` decides which problem the plan belongs to."""
    target: str = ""
    """Name of the hardware target."""
    tiers: tuple[str, ...] = ()
    """Names of the tiers, so that the plan can be read without its problem."""
    layers: tuple[str, ...] = ()
    """Names of the layers, for the same purpose."""
    format: str = "stowplan.tier_placement.plan"
    version: int = 1


class Placed(NamedTuple):
    """A tensor that a plan places: the weights of a layer, or its output."""

    layer: int
    """Number of the layer."""
    is_output: bool
    """Whether it is the output; otherwise it is the weights."""

    @property
    def what(self) -> str:
        """``output`` or ``weights``, for messages and tables."""
        return "output" if self.is_output else "weights"

    def size(self, problem: Problem) -> int:
        """Size in bytes."""
        layer = problem.layers[self.layer]
        return layer.output_bytes if self.is_output else layer.weight_bytes

    def tier(self, plan: Plan) -> int:
        """Number of its tier."""
        return (plan.output_tiers if self.is_output else plan.weight_tiers)[self.layer]

    def offset(self, plan: Plan) -> int:
        """Offset in bytes from the start of its tier. The plan must have offsets; otherwise IndexError is raised."""
        return (plan.output_offsets if self.is_output else plan.weight_offsets)[self.layer]


def placed(problem: Problem) -> list[Placed]:
    """All tensors that plans place, in the order in which models and hints number them.

    The order is by layer; the weights of a layer, if it has any, come before its output.
    """
    tensors: list[Placed] = []
    for number, layer in enumerate(problem.layers):
        tensors += [Placed(number, False)] * bool(layer.weight_bytes) + [Placed(number, True)]
    return tensors


def _tensors(problem: Problem, plan: Plan) -> dict[Placed, Values]:
    """The tier, and the offset if there is one, of each tensor that has bytes, as a decision that can be compared."""
    values: dict[Placed, Values] = {}
    for tensor in placed(problem):
        if tensor.size(problem):
            offset: Values = {"offset": tensor.offset(plan)} if plan.output_offsets else {}
            values[tensor] = {"tier": problem.tiers[tensor.tier(plan)].name, **offset}
    return values


#: The decisions that :mod:`stowplan.models.decisions` compares between two plans.
DECISIONS = (Decision("tensor", lambda problem, tensor: f"{problem.layers[tensor.layer].name} {tensor.what}", _tensors),)


def offset_table(problem: Problem, plan: Plan) -> OffsetTable:
    """The plan as a table with a row for the weights of each layer that has any, and for its output. Every tier is an arena.

    The plan must be valid for the problem.

    Raises
    ------
    UsageError
        The tiers are no address spaces, so there are no offsets.
    """
    if not problem.address_spaces:
        raise UsageError("plans of this network have no offsets: pass --set address_spaces=yes (address_spaces=True)")
    rows = (
        OffsetRow(
            name=f"{problem.layers[tensor.layer].name}.{tensor.what}",
            offset=tensor.offset(plan),
            size=tensor.size(problem),
            alignment=problem.tiers[tensor.tier(plan)].alignment,
            start=tensor.layer if tensor.is_output else 0,
            end=problem.last_use[tensor.layer] + 1 if tensor.is_output else len(problem.layers),
            arena=tensor.tier(plan),
        )
        for tensor in placed(problem)
    )
    return make_table("tier_placement", problem, plan, {tier.name: tier.capacity for tier in problem.tiers}, rows)
