"""Whether the buffers chosen for a bank can be packed into it: with the searches of the packing kind."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any

from stowplan.models.banked_packing.problem import Problem
from stowplan.models.hint import Hint
from stowplan.models.packing import problem as packing
from stowplan.models.packing.bounds import find_overload
from stowplan.models.packing.plan import Plan as Packing
from stowplan.portfolio.context import Context, Options
from stowplan.portfolio.packing.quick import quick_plan

_RESERVED = "reserved"


class _Inner:
    """A candidate's view of a run inside a candidate: a part of its time, or of its work."""

    def __init__(self, outer: Context, seconds: float):
        self.options = Options(
            time_limit=seconds, seed=outer.options.seed, deterministic=outer.options.deterministic, candidates=(), workers=1
        )
        self.start_plan: Packing | None = None
        self.found: Packing | None = None
        self.infeasible = False
        self.why: dict[str, Any] = {}
        self._outer = outer
        self._end = time.monotonic() + seconds

    def plan(self, plan: Packing, source: str) -> None:
        self.found = plan

    def bound(self, bound: int, source: str) -> None:
        pass

    def proven_infeasible(self, source: str, why: dict[str, Any] | None = None) -> None:
        self.infeasible, self.why = True, why or {}

    def incumbent(self) -> tuple[Packing | None, int | None]:
        return self.found, None

    def hint(self, hint: Hint) -> None:
        pass

    def hints(self) -> tuple[Hint, ...]:
        return ()

    def stop(self) -> bool:
        over = not self.options.deterministic and time.monotonic() >= self._end
        return over or self._outer.stop() or self.found is not None or self.infeasible

    def remaining(self) -> float:
        return max(0.0, self._end - time.monotonic())

    def follows(self, guide: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass


def pack(
    problem: Problem, bank: int, numbers: Sequence[int], context: Context, seconds: float
) -> tuple[dict[int, int] | None, tuple[int, ...] | None]:
    """Offsets by buffer; or buffers that are proven not to fit together. Both None: neither was found in the time.

    Parameters
    ----------
    numbers
        The buffers that are to be in the bank.
    seconds
        How long to look; in deterministic runs, for how much work.
    """
    inside = _bank_problem(problem, bank, numbers)
    shift = 0 if any(each.offset is not None for each in inside.buffers) else problem.bottom(bank)
    ids = {problem.buffers[number].id: number for number in numbers}

    def offsets(plan: Packing) -> dict[int, int]:
        found = {ids[each.id]: at + shift for each, at in zip(inside.buffers, plan.offsets, strict=True) if each.id in ids}
        # What has no bytes collides with nothing, not even with what is reserved.
        return {number: at if problem.buffers[number].size else problem.first(number, bank) for number, at in found.items()}

    overload = find_overload(inside)
    if overload is not None:
        return None, tuple(ids[inside.buffers[at].id] for at in overload.buffers if inside.buffers[at].id in ids)
    quick = quick_plan(inside, context.options, lambda: False)
    if quick is not None:
        return offsets(quick[1]), None
    from stowplan.portfolio.packing import candidates

    for function, share in ((candidates.search, 0.4), (candidates.exact, 0.6)):
        inner = _Inner(context, share * seconds)
        function(inside, inner)
        if inner.found is not None:
            return offsets(inner.found), None
        if inner.infeasible:
            conflict = [ids[each] for each in inner.why.get("conflict", {}).get("buffers", ids) if each in ids]
            return None, tuple(sorted(conflict))
    return None, None


def _bank_problem(problem: Problem, bank: int, numbers: Sequence[int]) -> packing.Problem:
    memory = problem.banks[bank]
    steps = {number: problem.step(number, bank) for number in numbers}
    bottom = problem.bottom(bank)
    # Offsets may count from the bottom where every step divides it; else what is reserved is a buffer at a fixed offset.
    shift = bottom if all(bottom % step == 0 for step in steps.values()) else 0
    buffers = [
        packing.Buffer(
            id=problem.buffers[number].id,
            lower=problem.buffers[number].lower,
            upper=problem.buffers[number].upper,
            size=problem.taken(number, bank),
            alignment=steps[number],
        )
        for number in numbers
    ]
    if buffers and not shift and memory.reserved:
        name = _RESERVED
        while any(each.id == name for each in buffers):
            name += "'"
        lower, upper = min(each.lower for each in buffers), max(each.upper for each in buffers)
        buffers.append(packing.Buffer(id=name, lower=lower, upper=upper, size=memory.reserved, offset=0))
    return packing.Problem(buffers=tuple(buffers), capacity=max(0, memory.capacity - shift))
