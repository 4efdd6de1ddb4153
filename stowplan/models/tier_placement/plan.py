"""The answer to a tier-placement problem: a tier, and maybe an offset, for every tensor. Data, no rules."""

from __future__ import annotations

from typing import NamedTuple

import msgspec

from stowplan.document import PlanDocument
from stowplan.errors import UsageError
from stowplan.models.decisions import Decision, Values
from stowplan.models.offset_table import OffsetRow, OffsetTable, make_table
from stowplan.models.tier_placement.problem import Problem


class Plan(PlanDocument, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A memory map; :func:`stowplan.models.tier_placement.verify.verify` says whether it is valid.

    All tuples have an entry for each layer, in the problem's order. What is said of weights of 0 bytes is of no consequence;
    it is 0 by custom.
    """

    objective: int = msgspec.field(name="objective_ps")
    """Latency of the network."""
    weight_tiers: tuple[int, ...]
    """Number of the tier of each layer's weights."""
    output_tiers: tuple[int, ...]
    """Number of the tier of each layer's output activation."""
    weight_offsets: tuple[int, ...] = ()
    """Bytes from the start of the tier; empty where tiers are no address spaces."""
    output_offsets: tuple[int, ...] = ()
    name: str = ""
    """Name of the network, for people; the digest decides."""
    target: str = ""
    tiers: tuple[str, ...] = ()
    """Names of the tiers, for whoever applies or reads the plan; the numbers decide."""
    layers: tuple[str, ...] = ()
    """Names of the layers, likewise."""
    format: str = "stowplan.tier_placement.plan"
    version: int = 1


class Placed(NamedTuple):
    """A tensor that a plan decides about: the weights of a layer, or its output."""

    layer: int
    is_output: bool

    @property
    def what(self) -> str:
        """For people."""
        return "output" if self.is_output else "weights"

    def size(self, problem: Problem) -> int:
        """Bytes."""
        layer = problem.layers[self.layer]
        return layer.output_bytes if self.is_output else layer.weight_bytes

    def tier(self, plan: Plan) -> int:
        """Number of its tier."""
        return (plan.output_tiers if self.is_output else plan.weight_tiers)[self.layer]

    def offset(self, plan: Plan) -> int:
        """Bytes from the start of its tier, where tiers are address spaces."""
        return (plan.output_offsets if self.is_output else plan.weight_offsets)[self.layer]


def placed(problem: Problem) -> list[Placed]:
    """Every tensor that plans decide about, as models and hints number them: layer by layer, weights if any, then output."""
    tensors: list[Placed] = []
    for number, layer in enumerate(problem.layers):
        tensors += [Placed(number, False)] * bool(layer.weight_bytes) + [Placed(number, True)]
    return tensors


def _tensors(problem: Problem, plan: Plan) -> dict[Placed, Values]:
    values: dict[Placed, Values] = {}
    for tensor in placed(problem):
        if tensor.size(problem):
            offset: Values = {"offset": tensor.offset(plan)} if plan.output_offsets else {}
            values[tensor] = {"tier": problem.tiers[tensor.tier(plan)].name, **offset}
    return values


DECISIONS = (Decision("tensor", lambda problem, tensor: f"{problem.layers[tensor.layer].name} {tensor.what}", _tensors),)


def offset_table(problem: Problem, plan: Plan) -> OffsetTable:
    """A row for the weights of each layer that has any, and for its output; every tier is an arena.

    Raises
    ------
    UsageError
        The tiers are no address spaces, so that there are no offsets.
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
