"""The copy engine of the verifier: computes a plan's objective, and which of its copies are late.

The copy engine makes the copies of the plan in their order while the steps run (``docs/reference/memory-mapping.md``). A
*boundary* is the moment before a step. The *window* of a copy goes from the boundary at which it is queued to the boundary at
which it must be complete. At the latter boundary, the program waits for the copy if stalls are allowed. If they are forbidden
and the copy is not complete there, it is *late*. A *slice* is a copy of a part of a tensor. A use of a tensor is *fast* if it
is served from fast memory. This code is written separately from the copy engine of the models on purpose, so that an error in
one of them shows as a difference. :class:`~stowplan.models.memory_mapping._audit.Audit` has the problem and the plan. Nothing
here raises an error.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from itertools import accumulate, pairwise

from stowplan.models.memory_mapping._audit import Audit, Reason
from stowplan.models.memory_mapping.plan import Copy
from stowplan.models.memory_mapping.problem import Step


def duration_ps(audit: Audit, copy: Copy) -> int:
    """Duration in ps of a copy on an idle channel."""
    tensor = audit.problem.tensors[copy.tensor]
    full_ps = tensor.copy_in_ps if copy.direction == "in" else tensor.copy_out_ps
    if copy.part is None:
        return full_ps
    # The times of both borders of the part are rounded, so that all slices together take as long as the whole copy.
    before, through = (full_ps * border // tensor.size for border in copy.part)
    return through - before


def _latency_ps(step: Step, fast: list[bool]) -> int:
    """Latency in ps of one run of a step with these fast uses: the entry of its table, or the largest of its pieces."""
    if step.table is not None:
        row = 0
        for bit, use in enumerate(step.table.uses):
            if fast[use]:
                row |= 1 << bit
        return step.table.latency_ps[row]
    longest = None
    for piece in step.pieces:
        total = piece.base_ps
        for use, is_fast in enumerate(fast):
            total += piece.fast_ps[use] if is_fast else piece.slow_ps[use]
        longest = total if longest is None or total > longest else longest
    assert longest is not None
    return longest


def _floor_ps(step: Step) -> int:
    """Lower bound in ps on the latency of one run of a step, over all choices of fast uses."""
    if step.table is not None:
        return min(step.table.latency_ps)
    return max(piece.base_ps + sum(map(min, piece.slow_ps, piece.fast_ps)) for piece in step.pieces)


def objective_ps(audit: Audit) -> tuple[int | None, int | None]:
    """Returns the objective and the sum of all stalls in ps. Both are None if the copies of the plan are malformed or out of
    order, or if it names uses that do not exist.

    If stalls are forbidden, copies that are late are reported as violations.
    """
    problem = audit.problem
    copies = list(audit.copies.values())
    is_playable = audit.copies_well_formed and all(one.start <= two.start for one, two in pairwise(copies))
    if problem.stalls == "forbidden" and is_playable:
        _check_supply(audit)
    if not is_playable or any(not 0 <= use < len(audit.fast) for use in audit.plan.fast_uses):
        return None, None
    running = [
        step.weight * _latency_ps(step, audit.fast[first : first + len(step.uses)])
        for first, step in zip(audit.first_use, problem.steps, strict=True)
    ]
    end = sum(running) if problem.stalls == "forbidden" else _play(audit, running)
    return end, end - sum(running)


def _idle_engines(audit: Audit) -> list[int]:
    """A heap of the times in ps at which the channels become free; channels beyond the number of copies are left out."""
    return [0] * max(1, min(audit.problem.channels, len(audit.copies)))


def _check_supply(audit: Audit) -> None:
    """Report the copies that are late if each step takes the least latency of any choice of fast uses, and no step waits.

    It is equation 6 of Wang et al. (2023), with copies in a queue.
    """
    clock = [0, *accumulate(step.weight * _floor_ps(step) for step in audit.problem.steps)]
    free = _idle_engines(audit)
    for number, copy in audit.copies.items():
        done = max(clock[copy.start], free[0]) + duration_ps(audit, copy)
        heapq.heapreplace(free, done)
        if done > clock[copy.end]:
            late = done - clock[copy.end]
            audit.report_copy(Reason.STALLED_COPY, number, f"is {late} ps late at the end of its window")


def _play(audit: Audit, running_ps: list[int]) -> int:
    """Time in ps at which the program ends if boundaries wait for copies. ``running_ps`` are the durations of the steps."""
    queued: defaultdict[int, list[Copy]] = defaultdict(list)
    for copy in audit.copies.values():
        queued[copy.start].append(copy)
    free = _idle_engines(audit)
    needed_by: defaultdict[int, int] = defaultdict(int)
    """For each boundary, the time at which the last copy that it waits for is complete."""
    now = 0
    for boundary in range(audit.horizon + 1):
        # Wait for copies that were queued before, then queue those of this boundary, then wait for those that end here.
        now = max(now, needed_by[boundary])
        for copy in queued[boundary]:
            done = max(now, free[0]) + duration_ps(audit, copy)
            heapq.heapreplace(free, done)
            needed_by[copy.end] = max(needed_by[copy.end], done)
        now = max(now, needed_by[boundary])
        if boundary < audit.horizon:
            now += running_ps[boundary]
    return now
