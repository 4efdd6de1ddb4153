"""The answer to a tier-placement problem: a tier, and maybe an offset, for every tensor. Data, no rules."""

from __future__ import annotations

from collections.abc import Iterator

from stowplan.errors import UsageError
from stowplan.models.decisions import Decision, Values
from stowplan.models.document import Document, OffsetRow, OffsetTable, make_table
from stowplan.models.tier_placement.problem import Problem

FORMAT = "stowplan.tier_placement.plan"
VERSION = 1


class Plan(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A memory map; :func:`stowplan.models.tier_placement.verify.verify` says whether it is valid.

    All tuples have an entry for each layer, in the problem's order. What is said of weights of 0 bytes is of no consequence;
    it is 0 by custom.
    """

    problem: str
    """Digest of the problem it is for."""
    objective_ps: int
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
    format: str = FORMAT
    version: int = VERSION


def _tensors(problem: Problem, plan: Plan) -> dict[tuple[int, str], Values]:
    """By the number of a layer, and which of its tensors."""
    found: dict[tuple[int, str], Values] = {}
    for number, layer in enumerate(problem.layers):
        for what, size, tiers, offsets in (
            ("weights", layer.weight_bytes, plan.weight_tiers, plan.weight_offsets),
            ("output", layer.output_bytes, plan.output_tiers, plan.output_offsets),
        ):
            if size:
                found[number, what] = {"tier": problem.tiers[tiers[number]].name}
                if offsets:
                    found[number, what]["offset"] = offsets[number]
    return found


DECISIONS = (Decision("tensor", lambda problem, key: f"{problem.layers[key[0]].name} {key[1]}", _tensors),)


def offset_table(problem: Problem, plan: Plan) -> OffsetTable:
    """A row for the weights of each layer that has any, and for its output; every tier is an arena.

    Raises
    ------
    UsageError
        The tiers are no address spaces, so that there are no offsets.
    """
    if not problem.address_spaces:
        raise UsageError("plans of this network have no offsets: pass --address-spaces (address_spaces=True)")
    return make_table(
        "tier_placement", problem, plan, {tier.name: tier.capacity for tier in problem.tiers}, _rows(problem, plan)
    )


def _rows(problem: Problem, plan: Plan) -> Iterator[OffsetRow]:
    steps = len(problem.layers)
    for number, (layer, last) in enumerate(zip(problem.layers, problem.last_use, strict=True)):
        if layer.weight_bytes:
            yield OffsetRow(
                name=f"{layer.name}.weights",
                offset=plan.weight_offsets[number],
                size=layer.weight_bytes,
                alignment=problem.tiers[plan.weight_tiers[number]].alignment,
                start=0,
                end=steps,
                arena=plan.weight_tiers[number],
            )
        yield OffsetRow(
            name=f"{layer.name}.output",
            offset=plan.output_offsets[number],
            size=layer.output_bytes,
            alignment=problem.tiers[plan.output_tiers[number]].alignment,
            start=number,
            end=last + 1,
            arena=plan.output_tiers[number],
        )
