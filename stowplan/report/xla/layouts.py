"""XLA's plans of two trials, played with the cycles of their own modules."""

from __future__ import annotations

from dataclasses import dataclass

from stowplan import files
from stowplan.backends.xla.evidence import Evidence, Trial
from stowplan.backends.xla.score import FAST_MARK
from stowplan.frontends.hlo import read_program
from stowplan.hardware.simulator import play
from stowplan.models.memory_mapping.plan import Plan
from stowplan.report.memory_mapping.scene import Scene, TimeAxis, build_scene


@dataclass(frozen=True)
class TrialLayout:
    """The plan of a trial, ready to be drawn."""

    scene: Scene
    notes: tuple[str, ...]
    """What differs from what XLA does, for people to read."""


def trial_layout(evidence: Evidence, trial: Trial, time: TimeAxis = "steps") -> TrialLayout:
    """XLA's plan of a trial as the judge sees it: every step lasts as long as the compiler says."""
    judge, program = evidence.judge, evidence.program
    cycles = {step.name: step.cycles or 0 for step in read_program(trial.compiled.module_path).steps}
    durations = [step.weight * judge.target.cycles_ps(cycles.get(step.name, 0)) for step in program.steps]
    if FAST_MARK in files.read_text(trial.compiled.assigned_path):
        imported = judge.plan(trial.compiled)
        plan, notes = imported.plan, imported.notes
    else:
        plan = Plan(problem=judge.problem.digest, objective_ps=sum(durations), program=program.name, target=judge.target.name)
        notes = ("everything in slow memory",)
    return TrialLayout(build_scene(judge.problem, plan, time, play(judge.problem, plan, durations)), notes)
