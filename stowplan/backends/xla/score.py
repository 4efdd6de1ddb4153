"""Scores compiled modules by the compiler's own estimates of cycles, with corrections for copies, and with stalls.

XLA estimates cycles for every instruction except asynchronous copies, the waits for them (*stalls*), and collectives. Stalls
are simulated: XLA's *plan*, that is, its placement of tensors in fast memory with the copies that this takes, is read from the
compiler's files. Every step takes as long as XLA estimates, and copies run on copy engines that share the bandwidth of slow
memory with the program. The time that the program waits for copies is added. XLA's estimates for the synchronous instruction
``copy`` are replaced, because they are wrong: nearly constant within fast memory, and several times too large from slow memory.
The cycles of such a copy are its bytes divided by the bandwidth. They are at least the fixed cost (the latency) of a copy, or
XLA's estimate if that is less. The cycles of collectives are estimated by :mod:`stowplan.backends.xla.collectives`.

A *step* is an instruction of the scheduled program; its *weight* is the number of times that it runs, which is more than 1 in a
loop. A *preview* is a compilation that ends right after XLA's memory-space assignment. The *signature* of a step describes
everything on which its time depends, except for the memories of its arrays.
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
    """The score of a compiled module, in cycles."""

    cycles: int
    """Estimated cycles of all instructions, with loops weighted by their trip counts. For copies these are XLA's estimates,
    which :attr:`total` replaces; for collectives, which XLA does not estimate, their bytes divided by the bandwidth of
    links."""
    stall_cycles: int
    """Cycles for which the program waits for asynchronous copies, by simulation."""
    copy_cycles: int = 0
    """XLA's estimate for all instructions ``copy``; a part of ``cycles``."""
    careful_copy_cycles: int = 0
    """The cycles of the same copies, computed as bytes divided by bandwidth."""
    fast_bytes: int = 0
    """The most bytes of fast memory that the plan uses at once; gaps between tensors do not count."""
    collective_cycles: int = 0
    """Cycles of collectives; a part of ``cycles``."""

    @property
    def total(self) -> int:
        """The number by which compilations with other options are compared: ``cycles`` with corrected copies, plus stalls."""
        return self.cycles - self.copy_cycles + self.careful_copy_cycles + self.stall_cycles

    def notes(self) -> list[str]:
        """Remarks about the score for users."""
        share = self.collective_cycles / self.total
        return [f"{share:.0%} of the default's cycles are collectives, counted by bytes over links"] if share > 0.005 else []


def scored_program(module: HloModule, donation: Donation = "tied") -> Program:
    """Returns the program of a module as XLA sees it: a donated parameter and the output in its storage are one tensor.

    ``donation`` is passed to :func:`~stowplan.frontends.hlo.program_from_module`; with ``free`` the two are separate tensors.
    Warnings about instructions without a cost model are suppressed, because their cycles come from XLA or from bytes over
    links. Raises InputError if the module cannot be read as a program.
    """
    with collecting_unmodelled():
        return program_from_module(module, donation=donation)


def with_freedoms(problem: Problem) -> Problem:
    """Returns the problem of memory mapping with everything allowed that XLA may do.

    These are stalls, copies from fast to slow memory between steps (copy-outs), and copies to fast memory in slices.
    """
    return msgspec.structs.replace(problem, stalls="allowed", evictions="between_steps", prefetches="sliced")


def has_fast_memory(compiled: Compiled, target: Target) -> bool:
    """Whether any value is in fast memory in a compilation or preview; otherwise there is no plan to read.

    Raises InputError if its file cannot be read.
    """
    return f"S({target.fast_space})" in files.read_text(compiled.assigned_path)


class CompiledModule:
    """A compiled module with cycles: steps have XLA's estimates, copies and collectives are computed from bytes.

    Parameters
    ----------
    compiled
        A full compilation.
    target
        The machine for which it is compiled.

    Raises
    ------
    InputError
        The module cannot be read, or is no HLO text.
    UsageError
        XLA does not compile for the target.
    """

    def __init__(self, compiled: Compiled, target: Target):
        self._load(compiled, target, read_module(compiled.module_path))

    def _load(self, compiled: Compiled, target: Target, module: HloModule) -> None:
        self.compiled = compiled
        self.module = module
        self._target = target
        placed = placed_instructions(module)
        copies = {name for name, place in placed.items() if place.instruction.opcode == "copy"}
        self.steps = self._with_cycles(scored_program(module, "free").steps, copies)
        self.copies = {
            step.name: self._copy_cycles_by_bytes(step.cycles or 0, placed[name])
            for step in self.steps
            if step.cycles is not None and (name := step.name.rpartition("/")[2]) in copies
        }
        """Cycles of one run of each instruction ``copy``: bytes divided by bandwidth."""
        waited = collective_cycles(self.module, target)
        self.collectives = {step.name: waited[name] for step in self.steps if (name := step.name.rpartition("/")[2]) in waited}
        """Cycles of one run of each collective, for which XLA has no estimate."""

    def _with_cycles(self, steps: tuple[ProgramStep, ...], copies: Collection[str]) -> tuple[ProgramStep, ...]:
        """Returns the module's steps with their cycles.

        The steps of a compiled module have XLA's cycles already and are returned as they are. Subclasses may set other cycles;
        ``copies`` has the names of instructions ``copy``.
        """
        return steps

    def _copy_cycles_by_bytes(self, estimated: int, copy: Placed) -> int:
        """Returns the cycles of a copy, computed from its bytes.

        They are at least the fixed cost of a copy, or XLA's estimate if it is less than the fixed cost. Reading and writing
        overlap if source and target are in different memories, otherwise they are added.
        """
        speed, space = self._target.roofline, self._target.fast_space
        rates = (
            (self._target.copies.in_bandwidth, speed.fast_read_bandwidth),
            (self._target.copies.out_bandwidth, speed.fast_write_bandwidth),
        )
        ends = [sum(leaf.bytes for leaf in leaves) for leaves in (copy.operand_shapes(), copy.result_shapes())]
        fast = [any(leaf.memory_space == space for leaf in leaves) for leaves in (copy.operand_shapes(), copy.result_shapes())]
        durations = [duration_ps(size, rate[is_fast]) for size, rate, is_fast in zip(ends, rates, fast, strict=True)]
        moved_ps = sum(durations) if fast[0] == fast[1] else max(durations)
        return max(min(estimated, self._fixed_copy_cycles), round(moved_ps / self._target.cycles_ps(1_000_000) * 1_000_000))

    @property
    def _fixed_copy_cycles(self) -> int:
        """The part of a copy's cycles that does not depend on its size."""
        return round(self._target.copies.latency / self._target.cycles_ps(1_000_000) * 1_000_000)

    @cached_property
    def cycles(self) -> Mapping[str, int]:
        """Cycles of one run of each step; the cycles of copies and collectives are computed from bytes."""
        return {step.name: step.cycles or 0 for step in self.steps} | self.copies | self.collectives

    def assignment(self, signatures: Mapping[str, StepSignature]) -> Assignment:
        """Returns the memories and cycles of the steps that have a signature.

        Copies and collectives have the cycles of :attr:`cycles`.
        """
        read = read_assignment(self.module, signatures, fast_space=self._target.fast_space)
        return Assignment({**read.steps, **self._counted_by_bytes(read.steps)})

    def _counted_by_bytes(self, steps: Mapping[str, StepPlacement]) -> dict[str, StepPlacement]:
        """Returns the steps that are copies or collectives, with the cycles that are computed from bytes."""
        return {
            name: StepPlacement(steps[name].pattern, cycles)
            for name, cycles in (self.copies | self.collectives).items()
            if name in steps
        }

    @cached_property
    def has_fast_memory(self) -> bool:
        """Whether any value is in fast memory."""
        return has_fast_memory(self.compiled, self._target)


class PreviewedModule(CompiledModule):
    """A module after memory-space assignment, with predicted cycles.

    Parameters
    ----------
    compiled
        A preview.
    target
        The machine for which it is compiled.
    costs
        Predicts cycles of the program's steps from the memories of their operands.
    known
        Cycles of one run by the name of a step, from a compilation of the program or from the roofline model. They are used for
        steps of which ``costs`` predicts nothing.

    Raises
    ------
    InputError
        The module cannot be read, or is no HLO text.
    UsageError
        XLA does not compile for the target.
    """

    def __init__(self, compiled: Compiled, target: Target, costs: SignatureCosts, known: Mapping[str, int]):
        self._known_cycles = known
        module = read_module(compiled.assigned_path)
        self._placements = read_placements(module, costs.steps, fast_space=target.fast_space)
        predicted = costs.assignment({name: placement.pattern for name, placement in self._placements.items()})
        self._predicted = {name: round(cycles) for name, cycles in zip(predicted.names, predicted.cycles.tolist(), strict=True)}
        self.deviation = predicted.deviation
        """Estimated error of the sum of all predicted cycles, in cycles, if the errors of steps are independent."""
        self._load(compiled, target, module)

    def _with_cycles(self, steps: tuple[ProgramStep, ...], copies: Collection[str]) -> tuple[ProgramStep, ...]:
        # A copy for which no cycles are known or predicted gets the fixed cost of a copy, in the place of XLA's estimate. Any
        # larger number would give the same score: Score.total does not contain the estimates for copies, and
        # _copy_cycles_by_bytes uses no more of an estimate than the fixed cost.
        new = {step.name: self._fixed_copy_cycles for step in steps if step.name.rpartition("/")[2] in copies}
        cycles = {**new, **self._known_cycles, **self._predicted}
        return tuple(msgspec.structs.replace(step, cycles=cycles.get(step.name)) for step in steps)

    def assignment(self, signatures: Mapping[str, StepSignature]) -> Assignment:
        """Returns the memories and predicted cycles of the steps that have a signature."""
        steps = {
            name: StepPlacement(placement.pattern, self._predicted.get(name)) for name, placement in self._placements.items()
        }
        return Assignment({**steps, **self._counted_by_bytes(steps)})


class Scorer:
    """Scores the compiled modules of one program.

    Parameters
    ----------
    program
        The program before memory-space assignment, from :func:`scored_program`.
    target
        The machine for which it was compiled.

    Raises
    ------
    UsageError
        XLA does not compile for the target.
    """

    def __init__(self, program: Program, target: Target):
        self.program = program
        self.target = target
        self._chip = xla_chip(target)

    @cached_property
    def problem(self) -> Problem:
        """The program's problem of memory mapping: when each tensor is in fast memory, and at which offset.

        Everything is allowed that XLA may do. Scores do not use the problem's latencies. The capacity is all fast memory of the
        chip, including the part that XLA reserves for kernels by default: some options of XLA reserve less, and plans may then
        use the rest.
        """
        problem = with_freedoms(make_problem(self.program, self.target, cost_model="roofline"))
        return msgspec.structs.replace(problem, capacity=problem.capacity + (self._chip.scoped or 0))

    def most_bytes(self, plan: Plan, without: Collection[int] = ()) -> int:
        """Returns the most bytes of fast memory that a plan uses at once, without gaps and without the tensors ``without``."""
        change = [0] * (self.problem.horizon + 1)
        for residency in plan.residencies:
            if residency.tensor not in without:
                size = self.problem.tensors[residency.tensor].size
                change[residency.start] += size
                change[residency.end] -= size
        return max(accumulate(change))

    def plan(self, compiled: Compiled, problem: Problem | None = None) -> ImportedPlan:
        """Imports XLA's plan, as a plan of ``problem``, or of :attr:`problem` if ``problem`` is None.

        Raises the errors of :func:`~stowplan.frontends.xla_plan.import_xla_plan`, such as InputError if the files cannot be
        read or belong to another program, and VerificationError if the plan cannot be made valid.
        """
        problem_of_plan = problem or self.problem
        return import_xla_plan(
            problem_of_plan, self.program, compiled.assigned_path, compiled.offsets_path, fast_space=self.target.fast_space
        )

    def read(self, compiled: Compiled) -> CompiledModule:
        """Reads a full compilation, for :meth:`score`; raises InputError if it cannot be read."""
        return CompiledModule(compiled, self.target)

    def score(self, module: CompiledModule) -> Score:
        """Computes the score of a compiled module.

        Raises
        ------
        InputError
            The module has no estimates or belongs to another program, or the files of XLA's plan cannot be read.
        VerificationError
            XLA's plan cannot be made valid.
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
        """Simulates a plan with steps that take as long as in the compiled module.

        Parameters
        ----------
        plan
            A plan of :attr:`problem`.
        module
            The module with the cycles of steps; steps that it does not have take no time.
        engines
            Number of copy engines; None for the number that the chip has.
        """
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
        """Returns the cycles of one run of each step by the roofline model, with operands in the memories of XLA's plan.

        Raises the errors of :meth:`plan`.
        """
        fast = self.plan(compiled).plan.fast_uses if has_fast_memory(compiled, self.target) else ()
        durations = durations_ps(self.problem, fast)
        cycle_ps = self.target.cycles_ps(1_000_000) / 1_000_000
        return {
            step.name: duration / cycle_ps / step.weight for step, duration in zip(self.program.steps, durations, strict=True)
        }

    def durations_ps(self, module: CompiledModule) -> list[int]:
        """Returns the picoseconds of all runs of each step of the program, by the cycles of a compiled module."""
        return [step.weight * self.target.cycles_ps(module.cycles.get(step.name, 0)) for step in self.program.steps]


class CompiledCycles:
    """Computes the cycles of plans from compilations of their program.

    This is done as in table 5 of "Optimizing Memory Mapping Using Deep Reinforcement Learning" (Wang et al. 2023). The
    compilations give a latency table: cycles for each signature and for each *pattern*, which says which arrays of a step are
    in fast memory. Each step of the plan takes the cycles of its signature and of its pattern in the plan. If no compilation
    has both together, the cycles are predicted (:class:`~stowplan.hardware.costs.signatures.SignatureCosts`). Waits for copies
    do not count.

    Parameters
    ----------
    folder
        Folder of a store (:mod:`stowplan.backends.xla.store`) with results of any programs.

    Raises
    ------
    InputError
        There is no such folder, or it has no result.
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
        """Each program before memory-space assignment, with its results."""
        return [(read_module(results[0].program_path), results) for results in self._workloads]

    def __call__(self, problem: Problem) -> Callable[[Plan], int] | None:
        """Returns a function that computes the cycles of a plan; None if no program with these steps and uses was compiled.

        Results that cannot be read are ignored.

        Raises
        ------
        InputError
            The program of a compilation cannot be read, or the problem's target is not one of this package.
        UsageError
            XLA does not compile for the problem's target.
        """
        steps_and_uses = [(step.name, len(step.uses)) for step in problem.steps]
        for module, results in self._programs:
            program = scored_program(module)
            if [(step.name, len(step.uses)) for step in program.steps] != steps_and_uses:
                continue
            target, signatures, table = load_target(problem.target), sign_steps(module, program), LatencyTable()
            for result in results:
                with suppress(InputError):
                    table.add(CompiledModule(result, target).assignment(signatures), signatures)
            costs, count = SignatureCosts(signatures, table, shipped(target.predictor)), problem.use_count
            return partial(_cycles, costs, program, count)
        return None


def _cycles(costs: SignatureCosts, program: Program, uses: int, plan: Plan) -> int:
    """Returns the cycles of a plan, with the operands of each step in the memories that the plan gives them."""
    fast = set(plan.fast_uses)
    return round(costs.of_fast_uses(program.steps, [use in fast for use in range(uses)]).total)


def _workloads(folder: Path) -> Iterator[list[Compiled]]:
    """Yields the full compilations of each program, without results that cannot be read or that the compiler refused."""
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
