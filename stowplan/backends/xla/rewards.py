"""What MMapGame's reward says of compiled results, beside the compiler's cycles: figure 6 of Wang et al. 2023."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from pathlib import Path

from stowplan.backends.xla.score import Judge, judged_program
from stowplan.backends.xla.store import Compiled, read_result
from stowplan.errors import InputError
from stowplan.frontends.hlo import read_module
from stowplan.hardware.program import Program
from stowplan.hardware.targets import load_target
from stowplan.models.memory_mapping.problem import Problem


class CompiledRewards:
    """Reward and cycles of the compiled results of programs.

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
                    found.append((_reward(problem, frozenset(fast)), judge.score(each).total))
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


def _reward(problem: Problem, fast: frozenset[int]) -> int:
    total, number = 0, 0
    for step in problem.steps:
        total += step.weight * step.latency_ps([use in fast for use in range(number, number + len(step.uses))])
        number += len(step.uses)
    return problem.all_slow_ps - total
