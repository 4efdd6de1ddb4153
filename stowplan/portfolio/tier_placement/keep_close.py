"""Tier placements that differ as little as possible from an earlier plan.

The option ``--keep-close`` names the earlier plan, which may be for an earlier version of the problem. Tensors are then matched
by their layers, and *tiers*, the memories of the hierarchy, by their names. A *place* is the number of a tier and an offset in
bytes from its start.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from stowplan.kernel.keep_close.earlier_plan import ByValues, needs_program
from stowplan.kernel.plan_changes import Budget, KeepClose
from stowplan.models.tier_placement.hint import matched_layers
from stowplan.models.tier_placement.plan import Placed, Plan, placed
from stowplan.models.tier_placement.problem import Problem
from stowplan.models.tier_placement.structure import Structure, offsets_of, packing_of, plan_of, tiers_of
from stowplan.portfolio.packing.keep_close import Boxes, Place, colliding, near_places, stacked_boxes


class Changes(ByValues):
    """Implements :class:`~stowplan.kernel.plan_changes.PlanChanges` for tier placement.

    There is one decision for each tensor: its tier and, if tiers are address spaces, its offset. Decisions are numbered by
    layer, and the weights of a layer, if it has any, come before its output. The constructor raises UsageError as
    :meth:`match_values` does.
    """

    what = "tensor"

    def __init__(self, problem: Problem, given: KeepClose):
        self._structure = Structure(problem)
        super().__init__(problem, given)

    def match_values(self, given: KeepClose) -> Sequence[Place | None]:
        """The place of each tensor in a plan of an earlier version of the problem.

        It is None for a tensor that the earlier plan does not have, or whose earlier tier the problem does not have. If tiers
        are address spaces, all places are None if the earlier plan has no offsets.

        Raises
        ------
        UsageError
            The earlier version of the problem is not given, and the plan does not name its layers and tiers.
        """
        problem: Problem = self.problem
        earlier: Plan = given.plan
        if given.problem is not None:
            before = matched_layers(problem, given.problem)
            tiers: Sequence[str] = [tier.name for tier in given.problem.tiers]
            sizes = [layer.weight_bytes for layer in given.problem.layers]
        elif len(earlier.layers) == len(earlier.output_tiers) and earlier.tiers:
            number = {name: at for at, name in enumerate(earlier.layers)}
            before = [number.get(layer.name, -1) for layer in problem.layers]
            tiers, sizes = earlier.tiers, [1] * len(earlier.layers)
        else:
            raise needs_program("tier placement")
        tier_number = {tier.name: at for at, tier in enumerate(problem.tiers)}
        places: list[Place | None] = []
        for tensor in placed(problem):
            matched = Placed(before[tensor.layer], tensor.is_output)
            has_place = matched.layer >= 0 and (matched.is_output or sizes[matched.layer])
            tier = tier_number.get(tiers[matched.tier(earlier)]) if has_place else None
            if tier is None or (problem.address_spaces and not earlier.output_offsets):
                places.append(None)
            else:
                places.append((tier, matched.offset(earlier) if problem.address_spaces else 0))
        return places

    def values(self, plan: Any) -> Sequence[Place]:
        """The place of each tensor in a plan; the offset is 0 if tiers are no address spaces."""
        tiers = tiers_of(self._structure, plan)
        return list(zip(tiers, offsets_of(self._structure, plan) or [0] * len(tiers), strict=True))

    def plan(self, values: Sequence[Any], near: Any) -> Plan:
        """The plan with the places ``values``, which is not checked; ``near`` is not used."""
        spaces = self._structure.problem.address_spaces
        return plan_of(self._structure, [tier for tier, _ in values], [offset for _, offset in values] if spaces else None)

    def coupled(self, plan: Any) -> Callable[[int], Iterable[int]]:
        """Returns a function from a tensor to the other tensors that occupy bytes of its earlier place in ``plan``.

        If tiers are no address spaces, these are none.
        """
        if not self._structure.problem.address_spaces:
            return super().coupled(plan)
        return colliding(self._boxes(self.earlier), self._boxes(self.values(plan)))

    def improved(self, plan: Any, budget: Budget, ceiling: int) -> Iterable[Plan]:
        """Yields plans with the same tiers as ``plan`` and fewer and fewer changed offsets, until the budget is used up.

        Nothing is yielded if tiers are no address spaces. The latency is that of ``plan``, so that ``ceiling`` is not used.
        """
        problem = self._structure.problem
        if not problem.address_spaces:
            return

        packed_in = partial(packing_of, self._structure)
        for places in near_places(self.values(plan), self.earlier, len(problem.tiers), packed_in, budget):
            yield self.plan(places, plan)

    def _boxes(self, places: Sequence[Place | None]) -> Boxes:
        """The rectangles of steps and bytes that tensors occupy at these places; tensors whose place is None are left out."""
        return stacked_boxes(
            (tier.capacity for tier in self._structure.problem.tiers),
            (
                (number, tensor.first, tensor.last + 1, place, tensor.size)
                for number, (tensor, place) in enumerate(zip(self._structure.tensors, places, strict=True))
                if place is not None
            ),
        )
