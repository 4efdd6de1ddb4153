"""What a compiled module is worth by the compiler's own estimates: cycles of its instructions, and stalls beside them.

The compiler estimates cycles for every instruction but copies and the waits for them. Those are played on the simulator's copy
engine: XLA's plan is imported, every step lasts as long as XLA says, and what the program waits is added.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from functools import cached_property
from itertools import accumulate
from pathlib import Path

import msgspec

from stowplan import files
from stowplan.backends.xla.store import Compiled, read_result
from stowplan.errors import InputError
from stowplan.frontends.hlo import HloModule, program_from_module, read_module, read_program
from stowplan.frontends.xla_plan import ImportedPlan, import_xla_plan
from stowplan.hardware.costs import make_problem
from stowplan.hardware.program import Program, ProgramStep
from stowplan.hardware.simulator import durations_ps, play
from stowplan.hardware.targets import TPU_V4, Target, load_target
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem

#: How a layout says that its array is in fast memory.
FAST_MARK = f"S({TPU_V4.fast_space})"


class Score(msgspec.Struct, frozen=True):
    """Cycles of a compiled module."""

    cycles: int
    """Estimated cycles of all instructions, loops weighted by their trip counts."""
    stall_cycles: int
    """Cycles that the program waits for copies, by the simulator."""
    fast_bytes: int = 0
    """Fast memory that the plan takes at most at a time, gaps between places left out."""

    @property
    def total(self) -> int:
        """What is compared: cycles and stalls."""
        return self.cycles + self.stall_cycles


def judged_program(module: HloModule) -> Program:
    """A module's program as XLA sees it: a donated parameter and the output in its storage are one tensor."""
    return program_from_module(module, donation="tied")


def with_freedoms(problem: Problem) -> Problem:
    """A program's problem with what XLA may do: wait for copies, copy a tensor out within a step, and copy it in in slices."""
    return msgspec.structs.replace(problem, stalls="allowed", evictions="between_steps", prefetches="sliced")


class Judge:
    """Scores the compiled modules of one program.

    Parameters
    ----------
    program
        The program before memory-space assignment, as :func:`judged_program` makes it.
    target
        What it was compiled for.
    """

    def __init__(self, program: Program, target: Target):
        self.program = program
        self.target = target

    @cached_property
    def problem(self) -> Problem:
        """The program's problem with the freedoms that XLA has, under the roofline: no latency of it counts here."""
        return with_freedoms(make_problem(self.program, self.target, cost_model="roofline"))

    def most_bytes(self, plan: Plan, without: Collection[int] = ()) -> int:
        """Fast memory that a plan takes at most at a time, had it some tensors in slow memory; gaps between places left out."""
        change = [0] * (self.problem.horizon + 1)
        for each in plan.residencies:
            if each.tensor not in without:
                size = self.problem.tensors[each.tensor].size
                change[each.start] += size
                change[each.end] -= size
        return max(accumulate(change))

    def plan(self, compiled: Compiled, problem: Problem | None = None) -> ImportedPlan:
        """XLA's plan, as one of ours; for ``problem``, which has XLA's freedoms, in place of the roofline's."""
        return import_xla_plan(problem or self.problem, self.program, compiled.assigned_path, compiled.offsets_path)

    def score(self, compiled: Compiled) -> Score:
        """Cycles and stalls of a compiled module.

        Raises
        ------
        InputError
            A module without estimates, or of another program.
        """
        steps = read_program(compiled.module_path).steps
        total = sum(step.weight * (step.cycles or 0) for step in steps)
        if not total:
            raise InputError("found no estimated_cycles, expected the compiler's estimates", source=compiled.module_path)
        if not self.has_fast_memory(compiled):
            return Score(total, 0)
        plan = self.plan(compiled).plan
        timeline = play(self.problem, plan, self.durations_ps(steps))
        stalls = round(timeline.stall_ps / self.target.cycles_ps(1_000_000) * 1_000_000)
        return Score(total, stalls, self.most_bytes(plan))

    @staticmethod
    def has_fast_memory(compiled: Compiled) -> bool:
        """Whether anything of a compiled module is in fast memory; nothing is to be imported otherwise."""
        return FAST_MARK in files.read_text(compiled.assigned_path)

    def durations_ps(self, steps: Iterable[ProgramStep]) -> list[int]:
        """How long each step of the program lasts, all runs together, by the cycles of a compiled module's steps."""
        cycles = {step.name: step.cycles or 0 for step in steps}
        return [step.weight * self.target.cycles_ps(cycles.get(step.name, 0)) for step in self.program.steps]


class CompiledRewards:
    """Reward and cycles of the compiled results of programs: figure 6 of Wang et al. 2023.

    The reward is the game's for the uses that the compiler serves from fast memory: what they save of the latency with all in
    slow memory, by the problem's cost model. Cycles are the compiler's estimates, with its stalls.

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
    def _programs(self) -> list[tuple[Program, list[Compiled]]]:
        return [(judged_program(read_module(results[0].program_path)), results) for results in self._workloads]

    def __call__(self, problem: Problem) -> list[tuple[int, int]]:
        """Picoseconds and cycles, one pair for each result of a program with the problem's sequence of steps.

        Results of a program that the compiler sees with other uses than the problem has are left out, and so are those that
        cannot be read.

        Raises
        ------
        InputError
            The problem's target is not one of the package's.
        """
        names = [step.name for step in problem.steps]
        found = []
        for program, results in self._programs:
            if [step.name for step in program.steps] != names:
                continue
            judge = Judge(program, load_target(problem.target))
            if [len(step.uses) for step in judge.problem.steps] != [len(step.uses) for step in problem.steps]:
                continue
            for each in results:
                try:
                    fast = judge.plan(each).plan.fast_uses if judge.has_fast_memory(each) else ()
                    reward = problem.all_slow_ps - sum(durations_ps(problem, fast))
                    found.append((reward, judge.score(each).total))
                except InputError:
                    continue
        return found


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
