"""From a solution of a neighbourhood's model to the whole plan."""

from __future__ import annotations

import msgspec

from stowplan.models.cpsat_runner import Value
from stowplan.models.memory_mapping.cpsat.model import MemoryMappingModel
from stowplan.models.memory_mapping.cpsat.neighbourhood import Neighbourhood
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency


class Merger:
    """Puts a solution of a neighbourhood back into the plan."""

    def __init__(self, hood: Neighbourhood, model: MemoryMappingModel, value: Value):
        self._hood = hood
        self._complete = model
        self._value = value
        self._decisions = model.decisions(value)
        last = hood.problem.horizon - 1
        for sequence, decided in zip(hood.sequences, self._decisions.tensors, strict=True):
            for access, start in decided.copy_in.items():
                decided.copy_in[access] = min(start, int(sequence.copy.prev[last - 1]))
        self._moved: dict[tuple[int, int], int] = {}
        """New starts of copies in that are fixed: by tensor and old start."""

    def plan(self) -> Plan:
        """The plan."""
        hood, given = self._hood, self._hood.situation.plan
        copies = self._copies()
        residencies = self._residencies()
        first_use = hood.situation.ground.first_use
        begin, end = first_use[hood.start], first_use[hood.end]
        free = set(hood.free)
        uses = [use for step in hood.situation.ground.problem.steps[hood.start : hood.end] for use in step.uses]
        fast = {use for use in given.fast_uses if not (begin <= use < end and uses[use - begin].tensor in free)}
        chosen = self._decisions.fast_uses()
        fast |= {origin for origin, served in zip(hood.use_of, chosen, strict=True) if served and origin >= 0}
        return without_idle(
            hood,
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
        hood, value, variables = self._hood, self._value, self._complete.variables
        given, free = hood.situation.plan.copies, set(hood.free)
        queue: list[tuple[int, int, Copy]] = []
        for key in self._decisions.queue:
            window = self._decisions.window(key)
            access = variables.tensors[key.tensor].access[key.access]
            chosen = access.copy_in if key.direction == "in" else access.copy_out
            assert chosen is not None
            copy = Copy(hood.free[key.tensor], key.direction, hood.point(window.start), hood.point(window.end))
            queue.append((value(chosen.begin), len(queue), copy))
        for fixed, begin in zip(hood.surroundings.copies, variables.fixed_begin, strict=True):
            queue.append((value(begin), len(queue), given[fixed.place]))
        queue.sort(key=lambda item: item[:2])
        inside: list[Copy] = []
        latest = hood.start
        boundaries = hood.situation.ground.sequences[0].copy
        for _, _, copy in queue:
            start = copy.start
            if copy.tensor not in free and start < copy.end:
                start = max(start, min(latest, int(boundaries.prev[copy.end - 1])))
                if copy.direction == "in":
                    self._moved[copy.tensor, copy.start] = start
            inside.append(msgspec.structs.replace(copy, start=start))
            latest = max(latest, start)
        inside.sort(key=lambda copy: copy.start)
        before = [copy for copy in given if copy.start < hood.start]
        after = [copy for copy in given if copy.start >= hood.end]
        return [*before, *inside, *after]

    def _residencies(self) -> list[Residency]:
        hood = self._hood
        free = set(hood.free)
        found = []
        for stay in hood.situation.plan.residencies:
            outside = stay.end <= hood.start or stay.start >= hood.end
            if stay.tensor not in free or outside:
                start = self._moved.get((stay.tensor, stay.start), stay.start)
                found.append(msgspec.structs.replace(stay, start=start))
        joined: set[int] = set()
        offsets = self._complete.offsets
        assert offsets is not None
        for chosen in self._decisions.stays():
            number, tensor = chosen.tensor, hood.free[chosen.tensor]
            entering, leaving = hood.entering[number], hood.leaving[number]
            is_first = chosen.first == 0 and entering is not None
            enters = is_first and (hood.is_begun[number] or (chosen.preloaded and hood.start > 0))
            leaves = leaving is not None and chosen.last == len(hood.sequences[number]) - 1
            place = offsets.access[number][chosen.first]
            assert place is not None
            start, end = hood.point(chosen.start), hood.point(chosen.end)
            found.append(
                Residency(
                    tensor,
                    entering.start if enters and entering is not None else start,
                    leaving.end if leaves and leaving is not None else end,
                    self._value(place) * hood.problem.alignment,
                    entering.preloaded if enters and entering is not None else chosen.preloaded,
                )
            )
            if enters:
                joined.add(number)
        for number, cut in enumerate(hood.entering):
            if cut is not None and number not in joined:
                found.append(msgspec.structs.replace(cut, end=hood.start))
        return found


def without_idle(hood: Neighbourhood, plan: Plan) -> Plan:
    """The plan without residencies that serve nothing, and without their copies."""
    ground = hood.situation.ground
    fast = set(plan.fast_uses)
    kept: list[Residency] = []
    dropped: list[Residency] = []
    for stay in plan.residencies:
        accesses = ground.sequences[stay.tensor].accesses
        serves = any(stay.start <= access.step < stay.end and fast.intersection(access.uses) for access in accesses)
        (kept if serves else dropped).append(stay)
    if not dropped:
        return plan
    gone = {(stay.tensor, stay.start, stay.end) for stay in dropped}

    def is_kept(copy: Copy) -> bool:
        if copy.direction == "in":
            return not any(copy.tensor == tensor and copy.start == start for tensor, start, _ in gone)
        return not any(copy.tensor == tensor and start <= copy.start < end for tensor, start, end in gone)

    return msgspec.structs.replace(plan, residencies=tuple(kept), copies=tuple(copy for copy in plan.copies if is_kept(copy)))
