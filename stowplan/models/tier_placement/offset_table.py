"""The offset table of a tier placement whose tiers are address spaces."""

from __future__ import annotations

from collections.abc import Iterator

from stowplan.errors import UsageError
from stowplan.models.offset_table import OffsetRow, OffsetTable, make_table
from stowplan.models.tier_placement.plan import Plan
from stowplan.models.tier_placement.problem import Problem


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
