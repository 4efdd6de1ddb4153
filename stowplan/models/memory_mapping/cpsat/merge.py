"""From a solution of a neighbourhood's model to the whole plan."""

from __future__ import annotations

import msgspec

from stowplan.models.cpsat_runner import Value
from stowplan.models.memory_mapping.cpsat.model import MemoryMappingModel
from stowplan.models.memory_mapping.cpsat.neighbourhood import Neighbourhood
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency


class Merger:
    """Puts a solution of a neighbourhood back into the plan."""

    def __init__(self, neighbourhood: Neighbourhood, model: MemoryMappingModel, value: Value):
        self._neighbourhood = neighbourhood
        self._complete = model
        self._value = value
        self._decisions = model.decisions(value)
        last = neighbourhood.problem.horizon - 1
        for sequence, decided in zip(neighbourhood.sequences, self._decisions.tensors, strict=True):
            for access, start in decided.copy_in.items():
                decided.copy_in[access] = min(start, int(sequence.copy.prev[last - 1]))
        self._moved: dict[tuple[int, int], int] = {}
        """New starts of copies in that are fixed: by tensor and old start."""

    def plan(self) -> Plan:
        """The plan."""
        neighbourhood, given = self._neighbourhood, self._neighbourhood.timeline.plan
        copies = self._copies()
        residencies = self._residencies()
        first_use = neighbourhood.timeline.facts.first_use
        begin, end = first_use[neighbourhood.start], first_use[neighbourhood.end]
        free = set(neighbourhood.free)
        uses = [
            use
            for step in neighbourhood.timeline.facts.problem.steps[neighbourhood.start : neighbourhood.end]
            for use in step.uses
        ]
        fast = {use for use in given.fast_uses if not (begin <= use < end and uses[use - begin].tensor in free)}
        chosen = self._decisions.fast_uses()
        fast |= {origin for origin, served in zip(neighbourhood.use_of, chosen, strict=True) if served and origin >= 0}
        return without_idle(
            neighbourhood,
            msgspec.structs.replace(
                given,
                residencies=tuple(sorted(residencies, key=lambda item: (item.start, item.tensor))),
                copies=tuple(copies),
                fast_uses=tuple(sorted(fast)),
            ),
        )

    def _copies(self) -> list[Copy]:
        """All copies: in the window by when they begin.

        A free copy is queued at the last boundary before it begins; fixed ones that begin later are queued no earlier, which
        lets their residencies start later too.
        """
        neighbourhood, value, variables = self._neighbourhood, self._value, self._complete.variables
        given, free = neighbourhood.timeline.plan.copies, set(neighbourhood.free)
        queue: list[tuple[int, int, Copy]] = []
        for key in self._decisions.queue:
            window = self._decisions.window(key)
            access = variables.tensors[key.tensor].access[key.access]
            chosen = access.copy_in if key.direction == "in" else access.copy_out
            assert chosen is not None
            copy = Copy(
                neighbourhood.free[key.tensor],
                key.direction,
                neighbourhood.point(window.start),
                neighbourhood.point(window.end),
            )
            queue.append((value(chosen.begin), len(queue), copy))
        for fixed, begin in zip(neighbourhood.fixed_part.copies, variables.fixed_begin, strict=True):
            queue.append((value(begin), len(queue), given[fixed.place]))
        queue.sort(key=lambda item: item[:2])
        inside: list[Copy] = []
        latest = neighbourhood.start
        boundaries = neighbourhood.timeline.facts.sequences[0].copy
        for _, _, copy in queue:
            start = copy.start
            if copy.tensor not in free and start < copy.end:
                start = max(start, min(latest, int(boundaries.prev[copy.end - 1])))
                if copy.direction == "in":
                    self._moved[copy.tensor, copy.start] = start
            inside.append(msgspec.structs.replace(copy, start=start))
            latest = max(latest, start)
        between = variables.leaves_between_steps
        # Who takes a place left between two steps comes after who leaves it.
        inside.sort(key=lambda copy: (copy.start, not (between and copy.direction == "out" and copy.start == copy.end)))
        before = [copy for copy in given if copy.start < neighbourhood.start]
        after = [copy for copy in given if copy.start >= neighbourhood.end]
        return [*before, *inside, *after]

    def _residencies(self) -> list[Residency]:
        neighbourhood = self._neighbourhood
        free = set(neighbourhood.free)
        found = []
        for stay in neighbourhood.timeline.plan.residencies:
            outside = stay.end <= neighbourhood.start or stay.start >= neighbourhood.end
            if stay.tensor not in free or outside:
                start = self._moved.get((stay.tensor, stay.start), stay.start)
                found.append(msgspec.structs.replace(stay, start=start))
        joined: set[int] = set()
        offsets = self._complete.offsets
        assert offsets is not None
        for chosen in self._decisions.stays():
            number, tensor = chosen.tensor, neighbourhood.free[chosen.tensor]
            entering, leaving = neighbourhood.entering[number], neighbourhood.leaving[number]
            is_first = chosen.first == 0 and entering is not None
            enters = is_first and (neighbourhood.is_begun[number] or (chosen.preloaded and neighbourhood.start > 0))
            leaves = leaving is not None and chosen.last == len(neighbourhood.sequences[number]) - 1
            place = offsets.access[number][chosen.first]
            assert place is not None
            start, end = neighbourhood.point(chosen.start), neighbourhood.point(chosen.end)
            found.append(
                Residency(
                    tensor,
                    entering.start if enters and entering is not None else start,
                    leaving.end if leaves and leaving is not None else end,
                    self._value(place) * neighbourhood.problem.alignment,
                    entering.preloaded if enters and entering is not None else chosen.preloaded,
                )
            )
            if enters:
                joined.add(number)
        for number, cut in enumerate(neighbourhood.entering):
            if cut is not None and number not in joined:
                found.append(msgspec.structs.replace(cut, end=neighbourhood.start))
        return found


def without_idle(neighbourhood: Neighbourhood, plan: Plan) -> Plan:
    """The plan without residencies that serve nothing, and without their copies."""
    facts = neighbourhood.timeline.facts
    fast = set(plan.fast_uses)
    kept: list[Residency] = []
    dropped: list[Residency] = []
    for stay in plan.residencies:
        accesses = facts.sequences[stay.tensor].accesses
        serves = any(stay.start <= access.step < stay.end and fast.intersection(access.uses) for access in accesses)
        (kept if serves else dropped).append(stay)
    if not dropped:
        return plan
    gone = {(stay.tensor, stay.start, stay.end) for stay in dropped}
    between = facts.problem.evictions == "between_steps"
    ends, ends_gone = ({(stay.tensor, stay.end) for stay in stays} for stays in (plan.residencies, dropped))

    def is_kept(copy: Copy) -> bool:
        if copy.direction == "in":
            return not any(copy.tensor == tensor and copy.start == start for tensor, start, _ in gone)
        if between and copy.start == copy.end and (copy.tensor, copy.end) in ends:
            return (copy.tensor, copy.end) not in ends_gone
        return not any(copy.tensor == tensor and start <= copy.start < end for tensor, start, end in gone)

    return msgspec.structs.replace(plan, residencies=tuple(kept), copies=tuple(copy for copy in plan.copies if is_kept(copy)))
