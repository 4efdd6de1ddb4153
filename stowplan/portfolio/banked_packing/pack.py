"""Whether the buffers chosen for a bank can be packed into it: with the searches of the packing kind."""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.banked_packing.problem import Problem
from stowplan.models.packing import problem as packing
from stowplan.models.packing.bounds import find_overload
from stowplan.models.packing.plan import Plan as Packing
from stowplan.portfolio.context import Context
from stowplan.portfolio.packing.inner_run import InnerRun
from stowplan.portfolio.packing.quick import quick_plan

_RESERVED = "reserved"


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
    ids = {problem.buffers[number].id: number for number in numbers}
    overload = find_overload(inside)
    if overload is not None:
        return None, tuple(ids[inside.buffers[at].id] for at in overload.buffers if inside.buffers[at].id in ids)
    quick = quick_plan(inside, context.options, lambda: False)
    if quick is not None:
        return _offsets(problem, bank, numbers, inside, quick[1]), None
    from stowplan.portfolio.packing import candidates

    for function, share in ((candidates.search, 0.4), (candidates.exact, 0.6)):
        inner = InnerRun(context, share * seconds)
        function(inside, inner)
        if inner.best is not None:
            return _offsets(problem, bank, numbers, inside, inner.best), None
        if inner.why is not None:
            conflict = [ids[each] for each in inner.why.get("conflict", {}).get("buffers", ids) if each in ids]
            return None, tuple(sorted(conflict))
    return None, None


def pack_quickly(problem: Problem, bank: int, numbers: Sequence[int], context: Context) -> dict[int, int] | None:
    """Offsets by buffer, where they are found without compiled code."""
    inside = _bank_problem(problem, bank, numbers)
    quick = quick_plan(inside, context.options, lambda: False)
    return None if quick is None else _offsets(problem, bank, numbers, inside, quick[1])


def _offsets(problem: Problem, bank: int, numbers: Sequence[int], inside: packing.Problem, plan: Packing) -> dict[int, int]:
    """Offsets by buffer of a packing of a bank."""
    shift = 0 if any(each.offset is not None for each in inside.buffers) else problem.bottom(bank)
    ids = {problem.buffers[number].id: number for number in numbers}
    found = {ids[each.id]: at + shift for each, at in zip(inside.buffers, plan.offsets, strict=True) if each.id in ids}
    # What has no bytes collides with nothing, not even with what is reserved.
    return {number: at if problem.buffers[number].size else problem.first(number, bank) for number, at in found.items()}


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
