"""Imports XLA's own plan as a plan of memory mapping, as faithfully as the rules allow, and reports all changes.

A *stay* is a period in which XLA has a tensor in fast memory. A *use* is one access of a tensor by one step. Steps and uses are
those of the program before XLA's memory-space assignment, the pass that decides which tensors are in fast memory. A *residency*
is a stay in a plan of stowplan. *Boundary* ``t`` is the moment before step ``t``. A stay that the rules of
``docs/reference/memory-mapping.md`` cannot express as a residency is dropped: its uses then read and write slow memory, which
is always possible. The result says which stays were dropped, and why.

A module imports only modules that come before it in this list:

- ``stays``: stays of tensors in fast memory, and their offsets
- ``trace``: finds the stays in XLA's module
- ``repair``: changes stays into residencies that the rules allow
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import msgspec

from stowplan.errors import InputError, UsageError, VerificationError, naming
from stowplan.frontends.hlo import read_module
from stowplan.frontends.xla_plan.repair import Dropped, PlacedStay, Repair
from stowplan.frontends.xla_plan.stays import Source, find_offsets, read_offsets
from stowplan.frontends.xla_plan.trace import Trace
from stowplan.hardware.program import Program
from stowplan.hardware.simulator import simulate
from stowplan.hardware.targets import fast_space_of
from stowplan.models.memory_mapping.plan import Copy, Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import Violation, verify


class ImportedPlan(msgspec.Struct, frozen=True):
    """XLA's plan as a plan of memory mapping, with all differences between the two. Fields of type ``int`` are counts."""

    plan: Plan
    """The valid plan of memory mapping."""
    sliced: int
    """Number of tensors that XLA copies to fast memory in slices, and that this plan copies as a whole."""
    slices: int
    """Number of stays whose copy is in slices in XLA's plan and in this one; 0 unless the problem allows slices."""
    delayed: int
    """Number of the copies in ``sliced`` that begin later than XLA's first slice, because their bytes are not free before."""
    postponed: int
    """Number of other copies to fast memory that begin later than in XLA, because the tensor's previous stay is not over."""
    advanced: int
    """Number of stays whose copy to slow memory begins earlier than in XLA, so that their bytes are free in time."""
    moved: int
    """Number of stays that have another offset than in XLA's plan, because XLA gives their bytes to another tensor within a
    step."""
    mixed_reads: int
    """Number of reads of a tensor from both memories at once, which count as reads of slow memory."""
    idle: int
    """Number of copies to fast memory that serve no use and are left out.

    At the end of a program, XLA copies in the tensors that the next run finds in fast memory when it starts (cross-program
    prefetch).
    """
    replaced: tuple[str, ...]
    """Names of the steps of the program that XLA replaced by copies of its own."""
    foreign: tuple[str, ...]
    """Names of the instructions that XLA has added and that are neither copies nor steps of the program."""
    homeless: tuple[str, ...]
    """Names of the values in fast memory that belong to no tensor of the program."""
    dropped: tuple[Dropped, ...]
    """The stays of XLA's plan that this plan does not have."""

    @property
    def preloads(self) -> int:
        """Number of tensors that are in fast memory before the program starts."""
        return sum(residency.preloaded for residency in self.plan.residencies)

    @property
    def notes(self) -> tuple[str, ...]:
        """A line of text for each kind of difference from XLA's plan."""
        counts = (
            (self.preloads, "tensors in fast memory before the program starts (cross-program prefetch)"),
            (self.slices, "copies in slices"),
            (self.sliced, f"sliced copies merged, {self.delayed} of them begin later than their first slice"),
            (self.postponed, "copies in begin later, when the tensor's stay before is over"),
            (self.advanced, "copies out begin earlier, so that their place is free in time"),
            (self.moved, "stays at other offsets, where XLA reuses a place within a step"),
            (self.mixed_reads, "reads of one tensor from both memories taken as slow"),
            (self.idle, "copies that serve no use left out (the next run's preload)"),
        )
        lines = [f"{count} {what}" for count, what in counts if count]
        for names, what in (
            (self.replaced, "steps replaced by copies of XLA's own"),
            (self.foreign, "instructions of XLA's own"),
            (self.homeless, "values in fast memory that are no tensor of the program"),
        ):
            if names:
                lines.append(f"{len(names)} {what}: {', '.join(names[:3])}{', ...' if len(names) > 3 else ''}")
        for reason, count in Counter(item.reason for item in self.dropped).most_common():
            same = [item for item in self.dropped if item.reason == reason]
            size, traffic = sum(item.size for item in same), sum(item.traffic for item in same)
            lines.append(f"{count} stays of {size} bytes dropped, with {traffic} bytes of traffic: {reason}")
        return tuple(lines)


def import_xla_plan(
    problem: Problem,
    program: Program,
    plan_path: str | Path,
    offsets_path: str | Path | None = None,
    *,
    fast_space: int | None = None,
) -> ImportedPlan:
    """Imports XLA's plan for a program and verifies it.

    Parameters
    ----------
    problem
        The memory-mapping problem of ``program``, for the machine that XLA has compiled for, with ``stalls="allowed"``.
    program
        The program before XLA's memory-space assignment.
    plan_path
        Path of the same module after memory-space assignment, as HLO text, plain or gzip.
    offsets_path
        Path of a file in which XLA's buffer assignment lists its values with their offsets; by default
        ``NAME.fastmem.txt[.gz]`` in the folder of ``NAME.hlo.txt.gz``.
    fast_space
        Number of the memory space of fast memory in layouts; by default that of the problem's target.

    Returns
    -------
    ImportedPlan
        A valid plan, with all differences from XLA's plan.

    Raises
    ------
    InputError
        A file cannot be read, the module is not scheduled or belongs to another program, or an offset is missing.
    UsageError
        The problem does not belong to the program, or forbids stalls.
    VerificationError
        The plan breaks a rule, and the verifier names no stay that could be dropped.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    if [step.name for step in problem.steps] != [step.name for step in program.steps]:
        raise UsageError("found a problem and a program with different steps, expected the problem made of the program")
    if problem.stalls != "allowed":
        raise UsageError("found a problem that forbids stalls, expected one that allows them: XLA's plans stall now and then")
    space = fast_space_of(problem.target) if fast_space is None else fast_space
    module = read_module(plan_path)
    offsets = read_offsets(find_offsets(plan_path) if offsets_path is None else offsets_path, space)
    with naming(plan_path):
        if not module.is_scheduled:
            raise InputError("found a module without is_scheduled=true, expected a scheduled one", place="line 1")
        trace = Trace(program, module, offsets, space)
    repair = Repair(problem, trace)
    plan = _valid_plan(problem, repair)
    placed = repair.placed
    return ImportedPlan(
        plan=plan,
        sliced=sum(entry.is_sliced and not entry.slices for entry in placed),
        slices=sum(bool(entry.slices) for entry in placed),
        delayed=sum(entry.is_sliced and not entry.slices and entry.is_delayed for entry in placed),
        postponed=sum((not entry.is_sliced or bool(entry.slices)) and entry.is_delayed for entry in placed),
        advanced=repair.advanced,
        moved=repair.moved,
        mixed_reads=trace.mixed_reads,
        idle=repair.idle,
        replaced=tuple(trace.replaced),
        foreign=tuple(trace.foreign),
        homeless=tuple(trace.homeless),
        dropped=tuple(repair.dropped),
    )


def _valid_plan(problem: Problem, repair: Repair) -> Plan:
    """Makes the plan of all placed stays (:class:`~.repair.PlacedStay`), and drops stays that break a rule of the verifier.

    Raises
    ------
    VerificationError
        The plan breaks a rule, and the verifier names no stay.
    """
    while True:
        placed = sorted(repair.placed, key=lambda entry: (entry.start, entry.tensor))
        plan, owners = _plan(problem, placed)
        verification = verify(problem, plan)
        if verification.ok:
            return plan
        reasons: dict[int, str] = {}
        for violation in verification.violations:
            for place in _concerned_stays(violation, placed, owners):
                reasons.setdefault(place, f"breaks the rule {violation.code}")
        if not reasons:
            raise VerificationError(f"XLA's plan cannot be made valid: {verification.violations[0].message}")
        for place, reason in sorted(reasons.items()):
            repair.drop(placed[place], reason)


def _concerned_stays(violation: Violation, placed: list[PlacedStay], owners: list[int]) -> set[int]:
    """Indices of the stays to which a violation of a rule refers.

    ``placed`` is in the order of the plan's residencies; ``owners`` has the index of the stay of each copy of the plan.
    """
    residencies, copies, uses, tensors = (
        violation.concerns.get(sort, ()) for sort in ("residencies", "copies", "uses", "tensors")
    )
    concerned = {*residencies, *(owners[copy] for copy in copies)}
    if not concerned and uses:
        concerned = {place for place, entry in enumerate(placed) if not entry.uses.isdisjoint(uses)}
    if not concerned:
        concerned = {place for place, entry in enumerate(placed) if entry.tensor in tensors}
    return concerned


def _plan(problem: Problem, placed: list[PlacedStay]) -> tuple[Plan, list[int]]:
    """The plan of all placed stays, and for each of its copies the index of its stay."""
    # Each entry has a sort key of three items, the index of the copy's stay, and the copy. The key is the boundary at which the
    # copy starts, whether it comes after the other copies that start there, and its position in XLA's plan.
    queue: list[tuple[int, bool, int, int, Copy]] = []
    frees_between_steps = problem.evictions == "between_steps"
    for place, entry in enumerate(placed):
        for piece in entry.slices:
            part = Copy(entry.tensor, "in", piece.start, piece.end, (piece.low, piece.high))
            queue.append((piece.start, frees_between_steps and entry.is_delayed, piece.sequence, place, part))
        if entry.stay.source is Source.COPIED and not entry.slices:
            queue.append(
                (
                    entry.start,
                    # A copy that waits for its bytes comes after the copy that frees them.
                    frees_between_steps and entry.is_delayed,
                    entry.stay.sequence,
                    place,
                    Copy(entry.tensor, "in", entry.start, entry.stay.arrived),
                )
            )
        queue += [
            (copy.start, False, copy.sequence, place, Copy(entry.tensor, "out", copy.start, copy.end))
            for copy in entry.copies_out
        ]
    queue.sort(key=lambda item: item[:3])
    plan = Plan(
        problem=problem.digest,
        objective=0,
        residencies=tuple(entry.residency() for entry in placed),
        copies=tuple(copy for *_, copy in queue),
        fast_uses=tuple(sorted({use for entry in placed for use in entry.uses})),
        program=problem.name,
        target=problem.target,
        names={tensor: problem.tensors[tensor].name for tensor in sorted({entry.tensor for entry in placed})},
    )
    plan = msgspec.structs.replace(plan, objective=simulate(problem, plan).total_ps)
    return plan, [place for *_, place, _ in queue]
