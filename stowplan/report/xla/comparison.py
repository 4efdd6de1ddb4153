"""XLA's default and the best of a tuning, read once for all that is said of them, and played with their own cycles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stowplan.backends.xla.score import Scorer, scored_program
from stowplan.backends.xla.store import Compiled, Record
from stowplan.backends.xla.tuning import TrialRecord, Tuning
from stowplan.errors import InputError
from stowplan.frontends.hlo import read_module
from stowplan.frontends.hlo.placed import read_assignment, sign_steps
from stowplan.hardware.costs.signatures import Assignment, StepSignature
from stowplan.hardware.program import Program, ProgramStep
from stowplan.hardware.targets import Target, load_target
from stowplan.models.memory_mapping.plan import Plan
from stowplan.report.memory_mapping.layout import Layout, build_layout


@dataclass(frozen=True)
class PlayedTrial:
    """A trial, ready to be compared and drawn."""

    label: str
    record: TrialRecord
    steps: Mapping[str, ProgramStep]
    """Of the compiled module, by name: XLA's own instructions among them."""
    assignment: Assignment
    layout: Layout
    notes: tuple[str, ...]
    """What the layout has otherwise than XLA, for people to read."""


@dataclass(frozen=True)
class Comparison:
    """Default and best of a tuning."""

    program: Program
    signatures: Mapping[str, StepSignature]
    target: Target
    trials: tuple[PlayedTrial, ...]
    """The default first; alone where it is the best."""
    made: Record
    """How the default was made."""
    same_program: bool = True
    """Whether the best is of the default's program; flags make others, whose instructions have names of their own."""

    @property
    def before(self) -> PlayedTrial:
        """XLA's default."""
        return self.trials[0]

    @property
    def after(self) -> PlayedTrial:
        """The best."""
        return self.trials[-1]

    @property
    def layouts(self) -> list[tuple[str, Layout]]:
        """What is drawn, with titles."""
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
    """A way of steering for people."""
    return way.replace("_", " ")


def read_comparison(tuning: Tuning, folder: str | Path) -> Comparison:
    """Read the results of two trials from the folder of results that the tuning was run with.

    Raises
    ------
    InputError
        A result is not there, cannot be read, or is another than the tuning's.
    """
    compiled = tuning.compiled(folder, 0)
    module = read_module(compiled.program_path)
    program = scored_program(module)
    signatures, scorer = sign_steps(module, program), Scorer(program, load_target(tuning.target))
    trials = [_played("XLA's default", tuning.default, compiled, scorer, signatures)]
    same = True
    if tuning.best:
        best, made = tuning.trials[tuning.best], tuning.compiled(folder, tuning.best)
        label = f"Best ({in_words(best.way)})"
        same = made.program_path.read_bytes() == compiled.program_path.read_bytes()
        own, known = scorer, signatures
        if not same:
            other = read_module(made.program_path)
            own = Scorer(scored_program(other), scorer.target)
            known = sign_steps(other, own.program)
        trials.append(_played(label, best, made, own, known))
    return Comparison(program, signatures, scorer.target, tuple(trials), compiled.record, same)


def _played(
    label: str,
    record: TrialRecord,
    compiled: Compiled,
    scorer: Scorer,
    signatures: Mapping[str, StepSignature],
) -> PlayedTrial:
    """As the score has it: every step lasts as long as the compiler says."""
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
