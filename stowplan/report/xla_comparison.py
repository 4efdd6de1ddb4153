"""Compares XLA's default with the best result of a tuning: reads both, simulates each with the compiler's cycles, and compares.

A *trial* is a full compilation with some options set. A *way* is the method that chose these options. A *use* is an operand or
a result of an instruction, that is, of a *step* of the program. *Cycles* are the clock cycles that XLA's compiler estimates for
an instruction.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from stowplan.backends.xla.score import Scorer, scored_program
from stowplan.backends.xla.store import Compiled, Record
from stowplan.backends.xla.tuning import TrialRecord, Tuning
from stowplan.errors import InputError
from stowplan.frontends.hlo import read_module
from stowplan.frontends.hlo.placed import read_assignment, sign_steps
from stowplan.hardware.costs.signatures import NO_USE, Assignment, StepSignature
from stowplan.hardware.program import Program, ProgramStep
from stowplan.hardware.targets import Target, load_target
from stowplan.models.memory_mapping.plan import Plan
from stowplan.report.memory_mapping_drawing import Layout, build_layout


@dataclass(frozen=True)
class PlayedTrial:
    """A trial with the data that is compared and drawn."""

    label: str
    record: TrialRecord
    steps: Mapping[str, ProgramStep]
    """Steps of the compiled module by name, among them instructions that XLA has added."""
    assignment: Assignment
    """For each step, which of its operands and results are in fast memory, and its cycles."""
    layout: Layout
    """The simulated layout of fast memory."""
    notes: tuple[str, ...]
    """Remarks about differences between the layout and XLA's placement."""


@dataclass(frozen=True)
class Comparison:
    """XLA's default and the best result of a tuning."""

    program: Program
    """The program of the default."""
    signatures: Mapping[str, StepSignature]
    """Signatures of its steps by name."""
    target: Target
    trials: tuple[PlayedTrial, ...]
    """The default and the best; only the default if that is the best."""
    default_record: Record
    """How the default was compiled."""
    same_program: bool = True
    """Whether both are compilations of the same program. Some flags change the program, whose instructions then have other
    names."""

    @property
    def before(self) -> PlayedTrial:
        """XLA's default."""
        return self.trials[0]

    @property
    def after(self) -> PlayedTrial:
        """The best result."""
        return self.trials[-1]

    @property
    def layouts(self) -> list[tuple[str, Layout]]:
        """The layouts to draw, with titles."""
        total = self.before.record.total
        return [
            (
                f"{trial.label}: {trial.record.total:,} cycles"
                + (f", {1 - trial.record.total / total:.2%} fewer" if number else ""),
                trial.layout,
            )
            for number, trial in enumerate(self.trials)
        ]


def in_words(way: str) -> str:
    """The name of a way to choose options, as text."""
    return way.replace("_", " ")


def read_comparison(tuning: Tuning, folder: str | Path) -> Comparison:
    """Reads the results of two trials from the folder of results of the tuning.

    Raises
    ------
    InputError
        A result is missing, cannot be read, or does not belong to the tuning.
    """
    compiled = tuning.compiled(folder, 0)
    module = read_module(compiled.program_path)
    program = scored_program(module)
    signatures, scorer = sign_steps(module, program), Scorer(program, load_target(tuning.target))
    trials = [_play("XLA's default", tuning.default, compiled, scorer, signatures)]
    same = True
    if tuning.best:
        best, best_result = tuning.trials[tuning.best], tuning.compiled(folder, tuning.best)
        label = f"Best ({in_words(best.way)})"
        same = best_result.program_path.read_bytes() == compiled.program_path.read_bytes()
        best_scorer, best_signatures = scorer, signatures
        if not same:
            other = read_module(best_result.program_path)
            best_scorer = Scorer(scored_program(other), scorer.target)
            best_signatures = sign_steps(other, best_scorer.program)
        trials.append(_play(label, best, best_result, best_scorer, best_signatures))
    return Comparison(program, signatures, scorer.target, tuple(trials), compiled.record, same)


def _play(
    label: str,
    record: TrialRecord,
    compiled: Compiled,
    scorer: Scorer,
    signatures: Mapping[str, StepSignature],
) -> PlayedTrial:
    """Simulates a trial. Every step lasts as long as the compiler estimates, as in the score of the tuning.

    Raises InputError if the cycles of the module differ from those that the tuning recorded.
    """
    module = scorer.read(compiled)
    steps = {step.name: step for step in module.steps}
    total = sum(step.weight * (step.cycles or 0) for step in steps.values())
    if total != record.cycles:
        raise InputError(
            f"found a module of {total:,} cycles, expected {record.cycles:,} as in the tuning", source=compiled.module_path
        )
    program = scorer.program
    if module.has_fast_memory:
        imported = scorer.plan(compiled)
        plan, notes = imported.plan, imported.notes
    else:
        plan = Plan(
            problem=scorer.problem.digest,
            objective=sum(scorer.durations_ps(module)),
            program=program.name,
            target=scorer.target.name,
        )
        notes = ("everything in slow memory",)
    layout = build_layout(scorer.problem, plan, "steps", scorer.play(plan, module))
    return PlayedTrial(
        label, record, steps, read_assignment(module.module, signatures, fast_space=scorer.target.fast_space), layout, notes
    )


@dataclass(frozen=True)
class MemoryChange:
    """A tensor that an instruction reads from, or writes to (``is_output``), another memory than before."""

    tensor: int
    """Number of the tensor."""
    is_output: bool
    to_fast: bool
    """Whether it is in fast memory now, or more of it than before; otherwise in slow memory."""


@dataclass(frozen=True)
class InstructionChange:
    """An instruction whose cycles differ."""

    name: str
    opcode: str
    """Operation code, with the kind of a fusion."""
    runs: int
    """How often it runs."""
    before: int | None
    """Cycles of one run by default; None if the module has no such instruction."""
    after: int | None
    """Cycles of one run in the best result; None if the module has no such instruction."""
    memories: tuple[MemoryChange, ...] = ()
    """Its operands and results that are in another memory than before."""

    @property
    def cycles(self) -> int:
        """Change of the cycles of all runs; negative if the best is faster."""
        return self.runs * ((self.after or 0) - (self.before or 0))


@dataclass
class TensorChange:
    """A tensor that at least one instruction finds in another memory than before."""

    tensor: int
    """Number of the tensor."""
    uses: int = 0
    """Operands and results of instructions that are this tensor, each counted once however often the instruction runs."""
    fast_before: int = 0
    """Number of these uses in fast memory by default."""
    fast_after: int = 0
    """Number of these uses in fast memory in the best result."""
    traffic: int = 0
    """Change of the bytes that are served by fast memory, over all runs."""
    cycles: int = 0
    """Change of the cycles of the instructions that find the tensor in another memory, over all runs."""


@dataclass(frozen=True)
class Changes:
    """Differences between the two trials, sorted."""

    instructions: tuple[InstructionChange, ...]
    """All instructions whose cycles differ, the largest gain first. Their changes add up to the difference of the modules'
    cycles."""
    tensors: tuple[TensorChange, ...] = field(default=())
    """Tensors that moved, the largest change of traffic first."""

    @property
    def gained(self) -> tuple[InstructionChange, ...]:
        """Instructions with fewer cycles, the largest gain first."""
        return tuple(change for change in self.instructions if change.cycles < 0)

    @property
    def lost(self) -> tuple[InstructionChange, ...]:
        """Instructions with more cycles, the largest loss first."""
        return tuple(change for change in reversed(self.instructions) if change.cycles > 0)


def compare_trials(comparison: Comparison) -> Changes:
    """The differences of the best result from the default."""
    before, after = comparison.before, comparison.after
    memories = {name: tuple(_memory_changes(comparison, name)) for name in comparison.signatures}
    instructions = []
    for name in {**before.steps, **after.steps}:
        first, second = before.steps.get(name), after.steps.get(name)
        either = first or second
        assert either is not None
        change = InstructionChange(
            name, _opcode(comparison, either), either.weight, _cycles(first), _cycles(second), memories.get(name, ())
        )
        if change.cycles:
            instructions.append(change)
    instructions.sort(key=lambda change: (change.cycles, change.name))
    return Changes(tuple(instructions), tuple(_tensor_changes(comparison, memories)))


def _cycles(step: ProgramStep | None) -> int | None:
    return None if step is None else step.cycles or 0


def _opcode(comparison: Comparison, step: ProgramStep) -> str:
    """Operation code of a step, with the kind of a fusion."""
    signature = comparison.signatures.get(step.name)
    return f"{step.opcode}\N{NO-BREAK SPACE}({signature.kind})" if signature is not None and signature.kind else step.opcode


def _memory_changes(comparison: Comparison, name: str) -> Iterator[MemoryChange]:
    """Changes of one step: each tensor once as an operand and once as a result."""
    first, second = (trial.assignment.steps.get(name) for trial in (comparison.before, comparison.after))
    if first is None or second is None or first.pattern == second.pattern:
        return
    program = comparison.program
    signature, step = comparison.signatures[name], program.steps[program.step_index[name]]
    for use, mask in signature.used_leaves().items():
        if (first.pattern ^ second.pattern) & mask:
            # A tensor that is read from both memories counts as moved if more or less of it is in fast memory.
            to_fast = (second.pattern & mask).bit_count() > (first.pattern & mask).bit_count()
            yield MemoryChange(step.uses[use].tensor, step.uses[use].is_output, to_fast)


def _tensor_changes(comparison: Comparison, memories: dict[str, tuple[MemoryChange, ...]]) -> list[TensorChange]:
    """Changes of all tensors that moved."""
    moved = {change.tensor for changes in memories.values() for change in changes}
    rows = {tensor: TensorChange(tensor) for tensor in moved}
    for step in comparison.program.steps:
        signature = comparison.signatures.get(step.name)
        first, second = (trial.assignment.steps.get(step.name) for trial in (comparison.before, comparison.after))
        if signature is None or first is None or second is None:
            continue
        for use, mask in signature.used_leaves().items():
            row = rows.get(step.uses[use].tensor)
            if row is not None:
                row.uses += 1
                row.fast_before += bool(first.pattern & mask)
                row.fast_after += bool(second.pattern & mask)
        for bit, leaf in enumerate(signature.leaves):
            row = rows.get(step.uses[leaf.use].tensor) if leaf.use != NO_USE else None
            if row is not None:
                row.traffic += step.weight * leaf.moved * ((second.pattern >> bit & 1) - (first.pattern >> bit & 1))
        if first.cycles is not None and second.cycles is not None:
            for tensor in {change.tensor for change in memories[step.name]}:
                rows[tensor].cycles += step.weight * (second.cycles - first.cycles)
    sizes = comparison.program.tensors
    return sorted(rows.values(), key=lambda row: (-abs(row.traffic), -sizes[row.tensor].size, row.tensor))
