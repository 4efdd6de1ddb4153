"""What a search has changed in its plan, so that it can be changed in another plan, too.

Searches that improve one plan side by side find different things. One that goes on from the other's plan would lose what it has
found since; its changes are made again there, where nothing that they touch has been changed by the other.
"""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

import msgspec

from stowplan.models.memory_mapping.copy_engine import PlanTimeline, ProblemFacts
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency

#: Changes that are remembered: older ones have long been told of.
REMEMBERED = 200


class Standing(NamedTuple):
    """Where a tensor stands: its residencies, its copies, and which of its uses are fast."""

    residencies: tuple[Residency, ...]
    copies: tuple[Copy, ...]
    fast: tuple[int, ...]


class Placed(NamedTuple):
    """A tensor's standing, and where its copies stand in the queue, as parts of it."""

    standing: Standing
    places: tuple[float, ...]


class Change(NamedTuple):
    """Tensors that a step of the search has changed, as they stood before and stand since."""

    before: dict[int, Standing]
    after: dict[int, Placed]


class Changes:
    """The latest changes of a search, in their order."""

    def __init__(self, facts: ProblemFacts):
        self._facts = facts
        self._owner = facts.problem.tensor_of_use
        self._changes: deque[Change] = deque(maxlen=REMEMBERED)

    def add(self, before: PlanTimeline, after: PlanTimeline) -> None:
        """Remember what is different between two plans, one made from the other."""
        tensors = {each.tensor for each in {*before.plan.residencies} ^ {*after.plan.residencies}}
        tensors |= {each.tensor for each in {*before.plan.copies} ^ {*after.plan.copies}}
        tensors |= {self._owner[use] for use in {*before.plan.fast_uses} ^ {*after.plan.fast_uses}}
        if tensors:
            ordered = sorted(tensors)
            was = {tensor: self._placed(before, tensor).standing for tensor in ordered}
            self._changes.append(Change(was, {tensor: self._placed(after, tensor) for tensor in ordered}))

    def made_in(self, timeline: PlanTimeline) -> Plan | None:
        """Another plan with every change whose tensors all stand there as they stood before it; None where there is none.

        It need not be valid, and its objective is not set.
        """
        new: dict[int, Placed] = {}
        for change in self._changes:
            if all(
                (new.get(tensor) or self._placed(timeline, tensor)).standing == was for tensor, was in change.before.items()
            ):
                new |= change.after
        return self._with(timeline.plan, new) if new else None

    def _placed(self, timeline: PlanTimeline, tensor: int) -> Placed:
        copies = timeline.copies.get(tensor, [])
        accesses = self._facts.sequences[tensor].accesses
        standing = Standing(
            tuple(timeline.residencies.get(tensor, ())),
            tuple(copy for _, copy in copies),
            tuple(use for access in accesses for use in access.uses if timeline.fast[use]),
        )
        return Placed(standing, tuple(place / len(timeline.plan.copies) for place, _ in copies))

    def _with(self, plan: Plan, new: dict[int, Placed]) -> Plan:
        count = len(plan.copies)
        residencies = [each for each in plan.residencies if each.tensor not in new]
        queue = [(copy.start, place / count, copy) for place, copy in enumerate(plan.copies) if copy.tensor not in new]
        fast = [use for use in plan.fast_uses if self._owner[use] not in new]
        for standing, places in new.values():
            residencies += standing.residencies
            queue += [(copy.start, place, copy) for place, copy in zip(places, standing.copies, strict=True)]
            fast += standing.fast
        queue.sort(key=lambda each: each[:2])
        return msgspec.structs.replace(
            plan,
            residencies=tuple(sorted(residencies, key=lambda each: (each.start, each.tensor))),
            copies=tuple(copy for _, _, copy in queue),
            fast_uses=tuple(sorted(fast)),
        )
