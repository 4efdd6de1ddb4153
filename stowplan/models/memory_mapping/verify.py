"""The verifier of memory mapping: checks all rules of a plan and recomputes its objective, without any solver.

The rules and their codes are those of ``docs/reference/memory-mapping.md``. This module and its two helpers, ``_audit`` and
``_replay``, share no code with the exact models, their simulation of copies or the heuristics, so that an error made there is
found here.

A *use* is a read or a write of one tensor by one step, and it is *fast* if it is served from fast memory, otherwise *slow*. A
*residency* is one stay of a tensor in fast memory, and a *boundary* is the moment before a step. The *window* of a copy goes
from the boundary at which it is queued to the boundary at which it must be complete. A *slice* is a copy into fast memory of a
part of a tensor. A tensor is *internal* to a loop if all its uses are in the loop and it is neither an input nor an output of
the program.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable
from typing import NamedTuple

from stowplan.models.memory_mapping._audit import MAX_LISTED, Audit, Ranges, Reason, Verification, Violation, is_range
from stowplan.models.memory_mapping._replay import objective_ps
from stowplan.models.memory_mapping.plan import Copy, Plan
from stowplan.models.memory_mapping.problem import Problem

__all__ = ["MAX_LISTED", "Reason", "Verification", "Violation", "verify"]


def verify(problem: Problem, plan: Plan) -> Verification:
    """Check a plan against all rules of memory mapping and recompute its objective.

    Parameters
    ----------
    plan
        Any plan that could be decoded. If its content makes no sense, that is a violation, not an exception.

    Returns
    -------
    Verification
        Violations in the order of the codes: at most :data:`MAX_LISTED` of each code, and then one that says how many more
        there are. The objective is in ps; the figure ``stall_ps`` is the part of it that is spent waiting for copies. Malformed
        residencies, copies and uses are reported and then ignored by the other rules. Violations name residencies and copies by
        their index in the plan, and uses by their number.
    """
    audit = Audit(problem, plan)
    if plan.problem != problem.digest:
        audit.log.add(Reason.WRONG_PROBLEM, f"found digest {plan.problem[:12]!r}, expected {problem.digest[:12]!r}")
    _check_residency_form(audit)
    _check_copy_form(audit)
    _check_fast_use_form(audit)
    _check_memory(audit)
    _check_preloads(audit)
    _check_sources(audit)
    _check_copies(audit)
    _check_evictions_between_steps(audit)
    _check_uses(audit)
    _check_slow_memory(audit)
    if problem.loops:
        _check_loop_residencies(audit)
        _check_loop_copies(audit)
        _check_loop_uses(audit)
    _check_in_flight(audit)
    if problem.alias_rule == "uniform":
        _check_aliases(audit)
    objective, stall = objective_ps(audit)
    if objective is not None and plan.objective != objective:
        audit.log.add(Reason.WRONG_OBJECTIVE, f"found {plan.objective} ps claimed, expected {objective} ps")
    return Verification(tuple(audit.log.violations()), objective, {} if stall is None else {"stall_ps": stall})


def _check_residency_form(audit: Audit) -> None:
    """Check that each residency by itself makes sense: tensor, steps and offset."""
    problem, log = audit.problem, audit.log
    for number, item in enumerate(audit.plan.residencies):
        size = 0
        if 0 <= item.tensor < len(problem.tensors):
            size = problem.tensors[item.tensor].size
        else:
            log.add(Reason.BAD_INDEX, f"residency {number} is of unknown tensor {item.tensor}", residencies=[number])
        if item.start >= item.end or not is_range(item.start, item.end, audit.horizon):
            message = f"residency {number} has steps [{item.start}, {item.end}), of {audit.horizon}"
            log.add(Reason.BAD_INTERVAL, message, residencies=[number])
        if item.offset < 0 or item.offset % problem.alignment or item.offset + size > problem.capacity:
            message = (
                f"residency {number} has {size} bytes at offset {item.offset}, "
                f"with capacity {problem.capacity} and alignment {problem.alignment}"
            )
            log.add(Reason.BAD_OFFSET, message, residencies=[number])


def _check_copy_form(audit: Audit) -> None:
    """Check that each copy by itself makes sense (tensor, window and part), and that copies are sorted by start."""
    log = audit.log
    before = None
    for number, copy in enumerate(audit.plan.copies):
        if not 0 <= copy.tensor < len(audit.problem.tensors):
            log.add(Reason.BAD_INDEX, f"copy {number} is of unknown tensor {copy.tensor}", copies=[number])
        if not is_range(copy.start, copy.end, audit.horizon):
            message = f"copy {number} has window [{copy.start}, {copy.end}), of {audit.horizon} steps"
            log.add(Reason.BAD_INTERVAL, message, copies=[number])
        elif copy.start == copy.end and audit.problem.stalls == "forbidden":
            log.add(Reason.BAD_INTERVAL, f"copy {number} has an empty window at {copy.start} and would stall", copies=[number])
        if copy.part is not None and not audit.may_be_part(copy):
            message = f"copy {number} is of bytes {list(copy.part)}, of {_size_text(audit, copy)}"
            log.add(Reason.BAD_PART, message, copies=[number])
        if before is not None and copy.start < before:
            message = f"copy {number} starts at {copy.start}, the one before it at {before}"
            log.add(Reason.COPY_ORDER, message, copies=[number - 1, number])
        before = copy.start


def _size_text(audit: Audit, copy: Copy) -> str:
    """The size of a copied tensor as text, for the message about a wrong slice."""
    if audit.problem.prefetches == "whole" or copy.direction == "out":
        return "a tensor that is copied whole"
    tensors = audit.problem.tensors
    return f"{tensors[copy.tensor].size}" if 0 <= copy.tensor < len(tensors) else "an unknown tensor"


def _check_fast_use_form(audit: Audit) -> None:
    """Check that the fast uses exist and are ascending."""
    before = None
    for place, use in enumerate(audit.plan.fast_uses):
        if not 0 <= use < len(audit.fast):
            audit.log.add(Reason.BAD_INDEX, f"fast_uses[{place}] is {use}, of {len(audit.fast)} uses", uses=[use])
        if before is not None and use <= before:
            audit.log.add(Reason.BAD_INDEX, f"fast_uses[{place}] is {use} after {before}, not ascending", uses=[use])
        before = use


class _Box(NamedTuple):
    """Bytes ``[low, high)`` of fast memory that a residency occupies from step ``start`` until it ends."""

    start: int
    residency: int
    """Index of the residency in the plan."""
    low: int
    high: int


def _check_memory(audit: Audit) -> None:
    """Check that no two residencies overlap and that no tensor has two residencies at once, by a sweep over time."""
    all_ranges = Ranges()
    of_tensor: defaultdict[int, Ranges] = defaultdict(Ranges)
    present: dict[_Box, None] = {}
    ends: list[tuple[int, _Box]] = []
    boxes = [_Box(start, number, low, high) for number in audit.residencies for start, low, high in audit.boxes(number)]
    resident: defaultdict[int, dict[int, int]] = defaultdict(dict)
    for box in sorted(boxes):
        item = audit.residencies[box.residency]
        while ends and ends[0][0] <= box.start:
            ended = heapq.heappop(ends)[1]
            tensor = audit.residencies[ended.residency].tensor
            all_ranges.remove(ended.low, ended.high)
            of_tensor[tensor].remove(ended.low, ended.high)
            present.pop(ended)
            resident[tensor].pop(ended.residency, None)
        of_this, span = of_tensor[item.tensor], (box.low, box.high)
        # Counting overlapping pairs is fast. The pairs themselves are found only while they would be listed, so that a plan
        # with very many overlaps does not take quadratic time.
        overlaps = all_ranges.overlapping(*span) - of_this.overlapping(*span)
        if overlaps and audit.log.has_room(Reason.OVERLAP):
            _list_overlaps(audit, box, present)
        else:
            audit.log.add_unlisted(Reason.OVERLAP, overlaps)
        if item.start == box.start and box.residency not in resident[item.tensor]:
            doubles = len(resident[item.tensor])
            if doubles and audit.log.has_room(Reason.DOUBLE_RESIDENCY):
                _list_doubles(audit, box.residency, list(resident[item.tensor]))
            else:
                audit.log.add_unlisted(Reason.DOUBLE_RESIDENCY, doubles)
            resident[item.tensor][box.residency] = item.end
        all_ranges.add(*span)
        of_this.add(*span)
        present[box] = None
        heapq.heappush(ends, (item.end, box))


def _list_overlaps(audit: Audit, box: _Box, present: Iterable[_Box]) -> None:
    """Record a violation for every residency in memory that overlaps a new one."""
    item = audit.residencies[box.residency]
    for other in present:
        if audit.residencies[other.residency].tensor != item.tensor and other.low < box.high and box.low < other.high:
            message = (
                f"{audit.residency_name(box.residency)} at bytes [{box.low}, {box.high}) meets "
                f"{audit.residency_name(other.residency)} at [{other.low}, {other.high}) in {audit.step_name(box.start)}"
            )
            pair = [other.residency, box.residency]
            audit.log.add(Reason.OVERLAP, message, tensors=[item.tensor], steps=[box.start], residencies=pair)


def _list_doubles(audit: Audit, number: int, others: Iterable[int]) -> None:
    """Record a violation for every other residency of the same tensor that lasts when a residency starts."""
    item = audit.residencies[number]
    for other in others:
        if other != number:
            message = f"{audit.residency_name(number)} and {audit.residency_name(other)} share {audit.step_name(item.start)}"
            audit.log.add(
                Reason.DOUBLE_RESIDENCY, message, tensors=[item.tensor], steps=[item.start], residencies=[other, number]
            )


def _check_preloads(audit: Audit) -> None:
    """Check number, start and tensors of preloaded residencies."""
    preloaded = [number for number, item in enumerate(audit.plan.residencies) if item.preloaded]
    if len(preloaded) > audit.problem.max_preloads:
        message = f"{len(preloaded)} residencies are preloaded, at most {audit.problem.max_preloads} may be"
        audit.log.add(Reason.BAD_PRELOAD, message, residencies=preloaded[:MAX_LISTED])
    for number in sorted(audit.residencies.keys() & set(preloaded)):
        if audit.residencies[number].start != 0:
            audit.report_residency(Reason.BAD_PRELOAD, number, "is preloaded, but does not start with the program")
        if not audit.problem.tensors[audit.residencies[number].tensor].is_input:
            audit.report_residency(Reason.BAD_PRELOAD, number, "is preloaded, but is not of a program input")


def _check_sources(audit: Audit) -> None:
    """Check that every residency gets its content from exactly one source: a preload, a copy-in, slices, or a fast write."""
    for number, item in audit.residencies.items():
        copy_ins, slices = audit.copy_ins.get((item.tensor, item.start), []), audit.slices.get(number, [])
        if item.preloaded or audit.is_defined_at_start(item):
            continue
        if (len(copy_ins) == 1 and not slices) or (not copy_ins and slices and audit.is_filled(number)):
            continue
        fault = "starts with no preload, no copy-in and no fast definition"
        if slices:
            fault = "is not filled once by slices that begin as it starts"
        elif copy_ins:
            fault = "starts with more than one copy-in"
        audit.report_residency(Reason.NO_SOURCE, number, fault)


def _check_copies(audit: Audit) -> None:
    """Check that every copy belongs to a residency, copies content that exists, and runs during no write of its tensor."""
    write_steps = [list(steps) for steps in audit.writes]
    for number, copy in audit.copies.items():
        fault = _copy_in_fault(audit, copy) if copy.direction == "in" else _copy_out_fault(audit, copy)
        if fault is not None:
            audit.report_copy(fault[0], number, fault[1])
        written = write_steps[copy.tensor]
        place = bisect_left(written, copy.start)
        if place < len(written) and written[place] < copy.end:
            step = audit.step_name(written[place])
            audit.report_copy(Reason.COPY_DURING_WRITE, number, f"runs while {step} writes the tensor")


def _copy_in_fault(audit: Audit, copy: Copy) -> tuple[Reason, str] | None:
    """The rule that a copy-in breaks, and a message; None if it breaks none."""
    if copy.part is not None:
        return _slice_fault(audit, copy)
    starting = audit.starting.get((copy.tensor, copy.start), [])
    if not starting:
        return Reason.COPY_WITHOUT_RESIDENCY, "starts where no residency of the tensor starts"
    items = [audit.residencies[number] for number in starting]
    filled = [item for item in items if not item.preloaded and not audit.is_defined_at_start(item)]
    if not filled:
        return Reason.COPY_WITHOUT_RESIDENCY, f"fills {audit.residency_name(starting[0])}, which has another source"
    if all(copy.end > item.end for item in filled):
        return Reason.COPY_WITHOUT_RESIDENCY, f"ends after {audit.residency_name(starting[0])}"
    return None


def _slice_fault(audit: Audit, copy: Copy) -> tuple[Reason, str] | None:
    """The rule that a slice of a copy-in breaks, and a message; None if it breaks none."""
    home = audit.home(copy.tensor, copy.start)
    if home is None:
        return Reason.COPY_WITHOUT_RESIDENCY, "starts where the tensor has no residency"
    residency = audit.residencies[home]
    if residency.preloaded or audit.is_defined_at_start(residency):
        return Reason.COPY_WITHOUT_RESIDENCY, f"fills {audit.residency_name(home)}, which has another source"
    if copy.end > residency.end:
        return Reason.COPY_WITHOUT_RESIDENCY, f"ends after {audit.residency_name(home)}"
    return None


def _copy_out_fault(audit: Audit, copy: Copy) -> tuple[Reason, str] | None:
    """The rule that a copy-out breaks, and a message; None if it breaks none."""
    home = audit.freed_by(copy)
    if home is None:
        home = audit.home(copy.tensor, copy.start)
    if home is None:
        return Reason.COPY_WITHOUT_RESIDENCY, "starts where the tensor has no residency"
    residency = audit.residencies[home]
    if copy.end > residency.end:
        return Reason.COPY_WITHOUT_RESIDENCY, f"ends after {audit.residency_name(home)}"
    if copy.start == residency.start and audit.is_defined_at_start(residency):
        return Reason.COPY_OUT_EARLY, f"starts before {audit.step_name(copy.start)} defines the tensor"
    for number in audit.arriving(home):
        # Copies that are queued at the same boundary may run in parallel. A copy-out must therefore start at a later boundary
        # than the copy-in, even if the copy-in has an empty window.
        if copy.start < max(audit.copies[number].end, audit.copies[number].start + 1):
            return Reason.COPY_OUT_EARLY, f"starts before {audit.copy_name(number)} is complete"
    return None


def _check_evictions_between_steps(audit: Audit) -> None:
    """Check the queue order at evictions between two steps.

    If a copy-out frees bytes between two steps, a copy-in at the same boundary must be queued behind the copy-out if it uses
    some of these bytes or brings back the same tensor.
    """
    occupied, tensors, boundary = Ranges(), set[int](), -1
    for number, copy in audit.copies.items():
        if copy.start != boundary:
            boundary, occupied, tensors = copy.start, Ranges(), set()
        evicted = audit.freed_by(copy)
        if copy.direction == "in":
            tensors.add(copy.tensor)
            if copy.part is not None:
                home = audit.home(copy.tensor, copy.start)
                offset = 0 if home is None else audit.residencies[home].offset
                occupied.add(offset + copy.part[0], offset + copy.part[1])
            else:
                for filled in audit.starting.get((copy.tensor, copy.start), []):
                    occupied.add(*audit.span(filled))
        elif evicted is not None and occupied.overlapping(*audit.span(evicted)):
            audit.report_copy(Reason.OVERLAP, number, "leaves a place that a copy before it in the queue takes")
        elif evicted is not None and copy.tensor in tensors:
            audit.report_copy(Reason.DOUBLE_RESIDENCY, number, "stands behind a copy that brings back its tensor")


def _check_uses(audit: Audit) -> None:
    """Check that fast uses find their tensor in fast memory, and that slow writes leave no outdated content there."""
    for number, (tensor, step) in enumerate(zip(audit.use_tensor, audit.use_step, strict=True)):
        if tensor not in audit.in_fast_memory:
            continue
        home = audit.home(tensor, step)
        name = audit.problem.tensors[tensor].name
        is_write = audit.writes[tensor].get(step) == number
        if audit.fast[number] and home is None:
            audit.report_use(Reason.FAST_USE_NOT_RESIDENT, number, f"uses {name} from fast memory, where it is not")
        elif audit.fast[number] and home is not None:
            for copy in audit.arriving(home):
                if step < audit.copies[copy].end:
                    fault = f"uses {name} from fast memory before {audit.copy_name(copy)} is complete"
                    audit.report_use(Reason.COPY_IN_LATE, number, fault)
        elif is_write and home is not None:
            fault = f"writes {name} to slow memory during {audit.residency_name(home)}"
            audit.report_use(Reason.STALE_FAST, number, fault)
        if is_write and step in audit.reads[tensor] and audit.fast[number] != audit.fast[audit.reads[tensor][step]]:
            fault = f"updates {name} in place, but reads and writes it in different memories"
            audit.report_use(Reason.SPLIT_IN_PLACE, number, fault)


def _check_slow_memory(audit: Audit) -> None:
    """Check that slow reads, copies-in and the end of the program find valid content in slow memory."""
    copies_of: defaultdict[int, list[int]] = defaultdict(list)
    for number, copy in audit.copies.items():
        copies_of[copy.tensor].append(number)
    for index, tensor in enumerate(audit.problem.tensors):
        copies = copies_of.get(index, [])
        reads, writes = audit.reads[index], audit.writes[index]
        is_defined = tensor.is_input or (writes and (not reads or next(iter(writes)) < next(iter(reads))))
        if is_defined and index not in audit.in_fast_memory and not copies:
            # The tensor is only ever in slow memory.
            continue
        # Entries are (boundary, rank, whether slow memory is valid from there on). At one boundary, the end of a copy-out
        # counts after the write of the step before.
        changes = [(-1, 0, tensor.is_input)]
        changes += [(step + 1, 0, not audit.fast[number]) for step, number in writes.items()]
        changes += [(audit.copies[number].end, 1, True) for number in copies if audit.copies[number].direction == "out"]
        changes.sort()

        def is_stale(boundary: int, changes: list[tuple[int, int, bool]] = changes) -> bool:
            return not changes[bisect_right(changes, boundary, key=lambda change: change[0]) - 1][2]

        for step, number in reads.items():
            if not audit.fast[number] and is_stale(step):
                audit.report_use(Reason.STALE_SLOW, number, f"reads {tensor.name} from slow memory, where it is not valid")
        for number in copies:
            if audit.copies[number].direction == "in" and is_stale(audit.copies[number].start):
                audit.report_copy(Reason.STALE_SLOW, number, "reads slow memory, where the tensor is not valid")
        if tensor.is_output and is_stale(audit.horizon):
            message = f"program output {tensor.name} is not valid in slow memory at the end"
            audit.log.add(Reason.OUTPUT_NOT_SLOW, message, tensors=[index])


def _check_loop_residencies(audit: Audit) -> None:
    """Check that each residency covers all of a loop or nothing of it, and that the residencies of tensors internal to a loop
    do not extend beyond it. A tensor that is internal to a loop may have residencies that cover a part of it."""
    loops = audit.problem.loops
    for number, item in audit.residencies.items():
        internal = audit.internal_loops[item.tensor]
        for loop in internal:
            if item.start < loops[loop].start or loops[loop].end < item.end:
                fault = f"leaves {audit.loop_name(loop)}, which holds all uses of the tensor"
                audit.report_residency(Reason.LOOP_PARTIAL, number, fault)
        for loop in {*audit.loops_crossing(item.start), *audit.loops_crossing(item.end)}.difference(internal):
            fault = f"covers a part of {audit.loop_name(loop)}, which the tensor enters or leaves"
            audit.report_residency(Reason.LOOP_PARTIAL, number, fault)


def _check_loop_copies(audit: Audit) -> None:
    """Check that no copy starts or ends inside a loop, and that tensors internal to a loop are not copied."""
    for number, copy in audit.copies.items():
        for loop in {*audit.loops_crossing(copy.start), *audit.loops_crossing(copy.end)}:
            audit.report_copy(Reason.LOOP_PARTIAL, number, f"starts or ends inside {audit.loop_name(loop)}")
        for loop in audit.internal_loops[copy.tensor]:
            audit.report_copy(Reason.LOOP_PARTIAL, number, f"is of a tensor that lives only in {audit.loop_name(loop)}")


def _check_loop_uses(audit: Audit) -> None:
    """Check that all uses of a tensor in a loop are in the same memory, if the loop writes the tensor and the tensor is not
    internal to the loop."""
    for tensor, (reads, writes) in enumerate(zip(audit.reads, audit.writes, strict=True)):
        written_in = {loop for step in writes for loop in audit.loops_around[step]}.difference(audit.internal_loops[tensor])
        if not written_in:
            continue
        uses_in: defaultdict[int, list[int]] = defaultdict(list)
        for step, number in [*reads.items(), *writes.items()]:
            for loop in audit.loops_around[step]:
                uses_in[loop].append(number)
        for loop in sorted(written_in):
            if len({audit.fast[number] for number in uses_in[loop]}) > 1:
                message = f"{audit.loop_name(loop)} writes {audit.problem.tensors[tensor].name} and uses it in both memories"
                audit.log.add(Reason.LOOP_MIXED, message, tensors=[tensor], uses=sorted(uses_in[loop]))


def _check_in_flight(audit: Audit) -> None:
    """Check that the tensors of an asynchronous operation stay at one offset of fast memory, or out of it, until it ends."""
    of_tensor: defaultdict[int, list[int]] = defaultdict(list)
    for number, item in audit.residencies.items():
        of_tensor[item.tensor].append(number)
    for tensor, start, end in ((entry.tensor, entry.start, entry.end) for entry in audit.problem.in_flight):
        spans = {number: (audit.residencies[number].start, audit.residencies[number].end) for number in of_tensor[tensor]}
        overlapping = [number for number, (first, last) in spans.items() if first < end and start < last]
        partial = [number for number in overlapping if spans[number][0] > start or spans[number][1] < end]
        uses = [*audit.reads[tensor].items(), *audit.writes[tensor].items()]
        elsewhere = [number for step, number in uses if start <= step < end and audit.fast[number] != bool(overlapping)]
        if partial or elsewhere:
            name = audit.problem.tensors[tensor].name
            message = f"{name} does not keep its place in steps [{start}, {end}), in which an asynchronous operation holds it"
            audit.log.add(Reason.IN_FLIGHT, message, tensors=[tensor], steps=[start], residencies=partial, uses=elsewhere)


def _check_aliases(audit: Audit) -> None:
    """Check the rule of Wang et al. (2023): an alias group has all uses fast and one offset, or all slow and no residency."""
    offsets: defaultdict[int, set[int]] = defaultdict(set)
    for item in audit.residencies.values():
        offsets[item.tensor].add(item.offset)
    for index, tensor in enumerate(audit.problem.tensors):
        if len(tensor.members) < 2:
            continue
        uses = sorted([*audit.reads[index].values(), *audit.writes[index].values()])
        fast = [number for number in uses if audit.fast[number]]
        faults = []
        if fast and len(fast) < len(uses):
            faults.append(f"has {len(fast)} of {len(uses)} uses served from fast memory")
        if offsets[index] and uses and not fast:
            faults.append("has a residency, but no fast use")
        if len(offsets[index]) > 1:
            faults.append(f"stands at {len(offsets[index])} offsets")
        for fault in faults:
            audit.log.add(Reason.ALIAS_NOT_UNIFORM, f"alias group {tensor.name} {fault}", tensors=[index], uses=fast)
