"""Trials read once for all that is said of them: the steps of the compiled module, and XLA's plan played with their cycles."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from stowplan import files
from stowplan.backends.xla.evidence import Evidence, Trial
from stowplan.backends.xla.score import FAST_MARK
from stowplan.frontends.hlo import read_program
from stowplan.hardware.program import ProgramStep
from stowplan.hardware.simulator import play
from stowplan.models.memory_mapping.plan import Plan
from stowplan.report.memory_mapping.scene import Scene, TimeAxis, build_scene


@dataclass(frozen=True)
class PlayedTrial:
    """A trial, ready to be compared and drawn."""

    trial: Trial
    steps: Mapping[str, ProgramStep]
    """Of the compiled module, by name: XLA's own instructions among them."""
    scene: Scene
    notes: tuple[str, ...]
    """What the scene has otherwise than XLA, for people to read."""


def play_trial(evidence: Evidence, trial: Trial, time: TimeAxis = "steps") -> PlayedTrial:
    """Read a trial and play its plan as the judge does: every step lasts as long as the compiler says."""
    judge, program = evidence.judge, evidence.program
    steps = {step.name: step for step in read_program(trial.compiled.module_path).steps}
    cycles = {name: step.cycles or 0 for name, step in steps.items()}
    durations = [step.weight * judge.target.cycles_ps(cycles.get(step.name, 0)) for step in program.steps]
    if FAST_MARK in files.read_text(trial.compiled.assigned_path):
        imported = judge.plan(trial.compiled)
        plan, notes = imported.plan, imported.notes
    else:
        plan = Plan(problem=judge.problem.digest, objective_ps=sum(durations), program=program.name, target=judge.target.name)
        notes = ("everything in slow memory",)
    return PlayedTrial(trial, steps, build_scene(judge.problem, plan, time, play(judge.problem, plan, durations)), notes)
