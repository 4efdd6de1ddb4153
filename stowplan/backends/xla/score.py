"""What a compiled module is worth by the compiler's own estimates, read with care: cycles, copies and stalls.

The compiler estimates cycles for every instruction but asynchronous copies and the waits for them. Those are played beside the
program, on copy engines that share slow memory's bandwidth with it: XLA's plan is imported, every step lasts as long as XLA
says, and what the program waits is added. What XLA says of an instruction ``copy`` is not believed: little, whatever the size,
within fast memory, and several times what the bytes need from slow memory. Such a copy counts bytes over bandwidth.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import cached_property, partial
from itertools import accumulate
from pathlib import Path

import msgspec

from stowplan import files
from stowplan.backends.xla.collectives import collective_cycles
from stowplan.backends.xla.store import Compiled, read_result
from stowplan.errors import InputError
from stowplan.frontends.hlo import Donation, HloModule, program_from_module, read_module
from stowplan.frontends.hlo.placed import Placed, placed_instructions, read_assignment, read_placements, sign_steps
from stowplan.frontends.xla_plan import ImportedPlan, import_xla_plan
from stowplan.hardware.costs import make_problem
from stowplan.hardware.costs.signatures import (
    Assignment,
    LatencyTable,
    SignatureCosts,
    StepPlacement,
    StepSignature,
    shipped,
)
from stowplan.hardware.program import Program, ProgramStep
from stowplan.hardware.simulator import Timeline, durations_ps, play_shared
from stowplan.hardware.targets import Target, load_target, xla_chip
from stowplan.hardware.targets.toml_files import duration_ps
from stowplan.log import collecting_unmodelled
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem


class Score(msgspec.Struct, frozen=True):
    """Cycles of a compiled module."""

    cycles: int
    """Estimated cycles of all instructions, loops weighted by their trip counts; copies as XLA counts them, and collectives,
    which it does not, by bytes over links."""
    stall_cycles: int
    """Cycles that the program waits for asynchronous copies, by the simulator."""
    copy_cycles: int = 0
    """What XLA counts for instructions ``copy``; a part of ``cycles``."""
    careful_copy_cycles: int = 0
    """What they take by bytes over bandwidth."""
    fast_bytes: int = 0
    """Fast memory that the plan takes at most at a time, gaps between places left out."""
    collective_cycles: int = 0
    """Those of collectives; a part of ``cycles``."""

    @property
    def total(self) -> int:
        """What is compared: cycles with copies by their bytes, and stalls."""
        return self.cycles - self.copy_cycles + self.careful_copy_cycles + self.stall_cycles

    def notes(self) -> list[str]:
        """What is to be told of it."""
        share = self.collective_cycles / self.total
        return [f"{share:.0%} of the default's cycles are collectives, counted by bytes over links"] if share > 0.005 else []


def scored_program(module: HloModule, donation: Donation = "tied") -> Program:
    """A module's program as XLA sees it: a donated parameter and the output in its storage are one tensor.

    What has no time of its own in it is counted here by XLA's cycles and by bytes over links, so nothing is warned of.
    """
    with collecting_unmodelled():
        return program_from_module(module, donation=donation)


def with_freedoms(problem: Problem) -> Problem:
    """A program's problem with what XLA may do: wait for copies, copy a tensor out within a step, and copy it in in slices."""
    return msgspec.structs.replace(problem, stalls="allowed", evictions="between_steps", prefetches="sliced")


def has_fast_memory(compiled: Compiled, target: Target) -> bool:
    """Whether anything is in fast memory; there is no plan to import otherwise."""
    return f"S({target.fast_space})" in files.read_text(compiled.assigned_path)


class CompiledModule:
    """A compiled module, read: its steps as XLA counts them, and its copies as we do.

    Raises
    ------
    InputError
        A module that is no HLO text.
    """

    def __init__(self, compiled: Compiled, target: Target):
        self._take(compiled, target, read_module(compiled.module_path))

    def _take(self, compiled: Compiled, target: Target, module: HloModule) -> None:
        self.compiled = compiled
        self.module = module
        self._target = target
        placed = placed_instructions(module)
        copies = {name for name, place in placed.items() if place.instruction.opcode == "copy"}
        self.steps = self._counted(scored_program(module, "free").steps, copies)
        self.copies = {
            step.name: self._careful(step.cycles or 0, placed[name])
            for step in self.steps
            if step.cycles is not None and (name := step.name.rpartition("/")[2]) in copies
        }
        """Cycles of one run of each instruction ``copy``, by bytes over bandwidth."""
        waited = collective_cycles(self.module, target)
        self.collectives = {step.name: waited[name] for step in self.steps if (name := step.name.rpartition("/")[2]) in waited}
        """Cycles of one run of each collective, for which XLA estimates none."""

    def _counted(self, steps: tuple[ProgramStep, ...], copies: Collection[str]) -> tuple[ProgramStep, ...]:
        """The module's steps with their cycles; ``copies`` names instructions ``copy``."""
        return steps

    def _careful(self, estimated: int, copy: Placed) -> int:
        """Both ends at once where they are in different memories; XLA's fixed part of it is believed."""
        speed, space = self._target.roofline, self._target.fast_space
        rates = (
            (self._target.copies.in_bandwidth, speed.fast_read_bandwidth),
            (self._target.copies.out_bandwidth, speed.fast_write_bandwidth),
        )
        ends = [sum(leaf.bytes for leaf in leaves) for leaves in (copy.operand_shapes(), copy.result_shapes())]
        fast = [any(leaf.memory_space == space for leaf in leaves) for leaves in (copy.operand_shapes(), copy.result_shapes())]
        took = [duration_ps(size, rate[is_fast]) for size, rate, is_fast in zip(ends, rates, fast, strict=True)]
        moved_ps = sum(took) if fast[0] == fast[1] else max(took)
        return max(min(estimated, self._fixed), round(moved_ps / self._target.cycles_ps(1_000_000) * 1_000_000))

    @property
    def _fixed(self) -> int:
        """Cycles of a copy of nothing."""
        return round(self._target.copies.latency / self._target.cycles_ps(1_000_000) * 1_000_000)

    @cached_property
    def cycles(self) -> Mapping[str, int]:
        """Cycles of one run of each step, copies and collectives by their bytes."""
        return {step.name: step.cycles or 0 for step in self.steps} | self.copies | self.collectives

    def assignment(self, signatures: Mapping[str, StepSignature]) -> Assignment:
        """Memories and cycles of the steps that have a signature, copies and collectives as they are scored."""
        read = read_assignment(self.module, signatures, fast_space=self._target.fast_space)
        return Assignment({**read.steps, **self._counted_by_bytes(read.steps)})

    def _counted_by_bytes(self, steps: Mapping[str, StepPlacement]) -> dict[str, StepPlacement]:
        return {
            name: StepPlacement(steps[name].pattern, cycles)
            for name, cycles in (self.copies | self.collectives).items()
            if name in steps
        }

    @cached_property
    def has_fast_memory(self) -> bool:
        """Whether anything is in fast memory."""
        return has_fast_memory(self.compiled, self._target)


class PreviewedModule(CompiledModule):
    """A module as the assignment left it, with predicted cycles.

    Parameters
    ----------
    compiled
        A preview.
    target
        What it is compiled for.
    costs
        Of the program's steps, by their places.
    known
        Cycles of steps by name, from a compile of the program: for those that have no signature.
    """

    def __init__(self, compiled: Compiled, target: Target, costs: SignatureCosts, known: Mapping[str, int]):
        self._known = known
        module = read_module(compiled.assigned_path)
        self._placements = read_placements(module, costs.steps, fast_space=target.fast_space)
        predicted = costs.assignment({name: placement.pattern for name, placement in self._placements.items()})
        self._predicted = {name: round(cycles) for name, cycles in zip(predicted.names, predicted.cycles.tolist(), strict=True)}
        self.deviation = predicted.deviation
        """How far off the cycles may be."""
        self._take(compiled, target, module)

    def _counted(self, steps: tuple[ProgramStep, ...], copies: Collection[str]) -> tuple[ProgramStep, ...]:
        # A copy that no compile had: what XLA says of it is hardly more than its fixed part.
        new = {step.name: self._fixed for step in steps if step.name.rpartition("/")[2] in copies}
        cycles = {**new, **self._known, **self._predicted}
        return tuple(msgspec.structs.replace(step, cycles=cycles.get(step.name)) for step in steps)

    def assignment(self, signatures: Mapping[str, StepSignature]) -> Assignment:
        """Memories of the steps that have a signature, and predicted cycles."""
        steps = {
            name: StepPlacement(placement.pattern, self._predicted.get(name)) for name, placement in self._placements.items()
        }
        return Assignment({**steps, **self._counted_by_bytes(steps)})


class Scorer:
    """Scores the compiled modules of one program.

    Parameters
    ----------
    program
        The program before memory-space assignment, as :func:`scored_program` makes it.
    target
        What it was compiled for.
    """

    def __init__(self, program: Program, target: Target):
        self.program = program
        self.target = target
        self._chip = xla_chip(target)

    @cached_property
    def problem(self) -> Problem:
        """The program's problem with the freedoms that XLA has, under the roofline: no latency of it counts here.

        Fast memory is all that the chip has, for options may leave the kernels less of it than they have by default.
        """
        problem = with_freedoms(make_problem(self.program, self.target, cost_model="roofline"))
        return msgspec.structs.replace(problem, capacity=problem.capacity + (self._chip.scoped or 0))

    def most_bytes(self, plan: Plan, without: Collection[int] = ()) -> int:
        """Fast memory that a plan takes at most at a time, had it some tensors in slow memory; gaps between places left out."""
        change = [0] * (self.problem.horizon + 1)
        for residency in plan.residencies:
            if residency.tensor not in without:
                size = self.problem.tensors[residency.tensor].size
                change[residency.start] += size
                change[residency.end] -= size
        return max(accumulate(change))

    def plan(self, compiled: Compiled, problem: Problem | None = None) -> ImportedPlan:
        """XLA's plan, as one of ours; for ``problem``, which has XLA's freedoms, in place of the roofline's."""
        given = problem or self.problem
        return import_xla_plan(
            given, self.program, compiled.assigned_path, compiled.offsets_path, fast_space=self.target.fast_space
        )

    def read(self, compiled: Compiled) -> CompiledModule:
        """A compiled module, for :meth:`score`."""
        return CompiledModule(compiled, self.target)

    def score(self, module: CompiledModule) -> Score:
        """Cycles and stalls of a compiled module.

        Raises
        ------
        InputError
            A module without estimates, or of another program.
        """
        total = sum(step.weight * (step.cycles or 0) for step in module.steps)
        if not total:
            place = module.compiled.module_path
            raise InputError("found no estimated_cycles, expected the compiler's estimates", source=place)
        collective = sum(step.weight * module.collectives.get(step.name, 0) for step in module.steps)
        total += collective
        copies = [step for step in module.steps if step.name in module.copies]
        estimated = sum(step.weight * (step.cycles or 0) for step in copies)
        careful = sum(step.weight * module.copies[step.name] for step in copies)
        if not module.has_fast_memory:
            return Score(total, 0, estimated, careful, collective_cycles=collective)
        plan = self.plan(module.compiled).plan
        stalls = round(self.play(plan, module).stall_ps / self.target.cycles_ps(1_000_000) * 1_000_000)
        return Score(total, stalls, estimated, careful, self.most_bytes(plan), collective)

    def play(self, plan: Plan, module: CompiledModule, engines: int | None = None) -> Timeline:
        """A plan, played beside steps that last as long as the compiled module says; by the chip's copy engines where None."""
        fast, number = set(plan.fast_uses), 0
        slow_bytes = []
        for step in self.program.steps:
            uses = enumerate(step.uses, number)
            slow_bytes.append(step.weight * sum(use.bytes for at, use in uses if at not in fast))
            number += len(step.uses)
        copies = self.target.copies
        return play_shared(
            self.problem,
            plan,
            self.durations_ps(module),
            slow_bytes,
            bandwidth=copies.in_bandwidth,
            engines=self._chip.copy_engines if engines is None else engines,
            latency_ps=copies.latency,
        )

    def roofline_cycles(self, compiled: Compiled) -> dict[str, float]:
        """Cycles of one run of each step by the roofline, with its operands where XLA's plan has them."""
        fast = self.plan(compiled).plan.fast_uses if has_fast_memory(compiled, self.target) else ()
        durations = durations_ps(self.problem, fast)
        a_cycle = self.target.cycles_ps(1_000_000) / 1_000_000
        return {
            step.name: duration / a_cycle / step.weight for step, duration in zip(self.program.steps, durations, strict=True)
        }

    def durations_ps(self, module: CompiledModule) -> list[int]:
        """How long each step of the program lasts, all runs together, by the cycles of a compiled module's steps."""
        return [step.weight * self.target.cycles_ps(module.cycles.get(step.name, 0)) for step in self.program.steps]


class CompiledCycles:
    """What plans take by the cycles of a program's compiles: table 5 of Wang et al. 2023.

    A step has the compiler's cycles where a compile had its arrays in the same memories, else predicted ones
    (:class:`~stowplan.hardware.costs.signatures.SignatureCosts`). What plans wait for copies is left out.

    Parameters
    ----------
    folder
        That of a store (:mod:`stowplan.backends.xla.store`), with results of any programs.

    Raises
    ------
    InputError
        There is no such folder, or no result in it.
    """

    def __init__(self, folder: str | Path):
        if not Path(folder).is_dir():
            raise InputError("found no folder, expected one that 'stowplan tune-xla --folder' wrote", source=folder)
        self._workloads = list(_workloads(Path(folder)))
        if not self._workloads:
            raise InputError(
                "found no compiled result, expected a folder that 'stowplan tune-xla --folder' wrote", source=folder
            )

    @cached_property
    def _programs(self) -> list[tuple[HloModule, list[Compiled]]]:
        return [(read_module(results[0].program_path), results) for results in self._workloads]

    def __call__(self, problem: Problem) -> Callable[[Plan], int] | None:
        """The cycles of a plan; None where no program with the problem's steps and uses was compiled.

        Results that cannot be read are left out.

        Raises
        ------
        InputError
            The problem's target is not one of the package's.
        """
        wanted = [(step.name, len(step.uses)) for step in problem.steps]
        for module, results in self._programs:
            program = scored_program(module)
            if [(step.name, len(step.uses)) for step in program.steps] != wanted:
                continue
            target, signatures, table = load_target(problem.target), sign_steps(module, program), LatencyTable()
            for result in results:
                with suppress(InputError):
                    table.add(CompiledModule(result, target).assignment(signatures), signatures)
            costs, count = SignatureCosts(signatures, table, shipped(target.predictor)), problem.use_count
            return partial(_cycles, costs, program, count)
        return None


def _cycles(costs: SignatureCosts, program: Program, uses: int, plan: Plan) -> int:
    fast = set(plan.fast_uses)
    return round(costs.of_fast_uses(program.steps, [use in fast for use in range(uses)]).total)


def _workloads(folder: Path) -> Iterator[list[Compiled]]:
    """Results by program, those that were refused left out."""
    for workload in sorted(path for path in folder.iterdir() if path.is_dir()):
        results = []
        for record in sorted(workload.glob("*/record.json")):
            try:
                result = read_result(record.parent)
            except InputError:
                continue
            if not result.error and result.module_path.exists() and result.program_path.exists():
                results.append(result)
        if results:
            yield results
