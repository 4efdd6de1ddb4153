"""Compiles of a program as assignments of its steps: what cost models are compared over, and learned from."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from benchmarks.lib.compiles import ProgramText
from stowplan.backends.xla.score import CompiledModule, scored_program
from stowplan.errors import StowplanError
from stowplan.frontends.hlo import read_module
from stowplan.frontends.hlo.placed import sign_steps
from stowplan.hardware.costs.signatures import Assignment, LatencyTable, StepSignature
from stowplan.hardware.program import Program
from stowplan.hardware.targets import Target, xla_chip


@dataclass
class Compiles:
    """A program text with the assignments that its compiles gave, equal ones once.

    The default comes first, all slow after it where there is one.
    """

    text: ProgramText
    program: Program
    signatures: dict[str, StepSignature]
    assignments: list[Assignment]
    cycles: list[int]
    slow: int | None
    """Which assignment is all slow."""

    @property
    def name(self) -> str:
        """Of the text."""
        return self.text.name

    @property
    def workload(self) -> str:
        """Name of the function."""
        return self.text.workload

    def table(self, chosen: Sequence[int]) -> LatencyTable:
        """What some of the assignments show."""
        found = LatencyTable()
        for number in chosen:
            found.add(self.assignments[number], self.signatures)
        return found


def read_compiles(text: ProgramText, target: Target, most: int) -> Compiles | None:
    """The assignments of a program text, at most so many; None where it lacks what the target needs to learn from."""
    module = read_module(text.results[0].program_path)
    program = scored_program(module)
    signatures = sign_steps(module, program)
    found: dict[tuple[tuple[str, int], ...], Assignment] = {}
    for result in text.results:
        try:
            assignment = CompiledModule(result, target).assignment(signatures)
        except StowplanError as error:
            print(f"left out: {error}", file=sys.stderr)
            continue
        found.setdefault(tuple((name, each.pattern) for name, each in assignment.steps.items()), assignment)
    slow = [key for key in found if not any(pattern for _, pattern in key)]
    if not found or (xla_chip(target).harm and not slow):
        print(f"left out: {text.name} has no compile with all slow", file=sys.stderr)
        return None
    first = list(dict.fromkeys([next(iter(found)), *slow[:1]]))
    others = [key for key in found if key not in first]
    random.Random(0).shuffle(others)
    keys = [*first, *others][:most]
    assignments = [found[key] for key in keys]
    cycles = [each.cycles(signatures) for each in assignments]
    return Compiles(text, program, signatures, assignments, cycles, keys.index(slow[0]) if slow else None)


def to_learn_from(programs: Sequence[Compiles]) -> Iterator[tuple[str, dict[str, StepSignature], LatencyTable]]:
    """What ``signatures_training.collect`` takes: texts of a workload with one scoped limit together."""
    for key in dict.fromkeys((each.workload, each.text.scoped) for each in programs):
        table, steps = LatencyTable(), dict[str, StepSignature]()
        for each in programs:
            if (each.workload, each.text.scoped) == key:
                table.merge(each.table(range(len(each.assignments))))
                # A text's own equal steps count together; another text has the same ones again.
                seen = {step.signature for step in steps.values()}
                steps |= {f"{each.name}/{name}": step for name, step in each.signatures.items() if step.signature not in seen}
        yield key[0], steps, table
