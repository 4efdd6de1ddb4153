"""The command ``stowplan train ppo``: the PPO mapper for modulo scheduling."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stowplan.cli.options import chip_target, option
from stowplan.cli.train import Training, command
from stowplan.errors import InputError, MissingDependencyError, to_install

if TYPE_CHECKING:
    from stowplan.learned_guidance.modulo_scheduling.ppo.trainer import Trainer
    from stowplan.models.modulo_scheduling.problem import Problem


@dataclass(kw_only=True)
class _Training(Training["Trainer"]):
    """Train the PPO mapper, which places the instructions of loops.

    The agent decides on which processing element (tile) of an array each instruction of a loop runs. It learns by proximal
    policy optimization (PPO). docs/reference/ppo.md describes the agent and its hyperparameters.
    """

    KIND = ("modulo scheduling", "a loop body")
    INPUTS = ("target", "rules", "fixed", "op_table")
    TEXTS = chip_target("data-flow graphs", "GRAPH")
    AMOUNT, AMOUNT_IN_CONFIG, UNIT = "steps", "steps", "placements"
    CANDIDATES = "heuristic"
    NETWORK = ("hidden", "layers", "heads")

    sources: Annotated[
        list[Path],
        typer.Argument(
            metavar="GRAPH...",
            help="Data-flow graphs of loop bodies (docs/reference/loop-bodies.md), or problem files of modulo scheduling.",
        ),
    ]
    steps: Annotated[
        int | None,
        option(
            "--steps", "N", "Stop after this many instructions have been placed, even before the time limit; 200000 by default."
        ),
    ] = None
    preset: str | None = field(default=None, init=False)
    """This agent has no choice of presets."""
    demonstrate: Annotated[
        float | None,
        option(
            "--demonstrate",
            "SECONDS",
            "Before training, search for a plan of each graph for this long, with heuristics, and let the agent imitate "
            "the result. By default, there is no such search. With --time-limit, all searches together take about 40 % of "
            "that limit at most.",
        ),
    ] = None

    @property
    def trainer(self) -> type[Trainer]:
        from stowplan.learned_guidance.modulo_scheduling.ppo.trainer import Trainer

        return Trainer

    def check(self) -> None:
        if find_spec("torch") and find_spec("sb3_contrib") is None:
            raise MissingDependencyError(f"training a mapper needs sb3-contrib: {to_install('learned')}")

    def check_problem(self, problem: Problem, others: Sequence[Problem]) -> None:
        from stowplan.models.modulo_scheduling.bounds import find_obstacle

        obstacle = find_obstacle(problem) if problem.instructions else "it has no instructions"
        if obstacle is not None:
            raise InputError(f"cannot be mapped: {obstacle}")
        if problem.rules.pass_through:
            raise InputError("found the rule pass_through, expected single links")

    def figures(self, trainer: Trainer) -> dict[str, Any]:
        return {
            "steps": trainer.steps,
            "episodes": trainer.episodes,
            "training_steps": trainer.rounds + trainer.imitated,
        }

    def headline(self, trainer: Trainer) -> str:
        return f"{trainer.steps} placements in {trainer.episodes} mappings, {trainer.imitated} steps of imitation"

    def rows(self, trainer: Trainer) -> tuple[str, list[dict[str, Any]]]:
        plans = (trainer.plan(index) for index in range(len(trainer.problems)))
        rows = zip(trainer.problems, trainer.curriculum.least, plans, strict=True)
        return "graphs", [
            {
                "graph": problem.name,
                "problem": problem.digest,
                "instructions": len(problem.instructions),
                "least_ii": least,
                "ii": None if plan is None else plan.ii,
                "latency": None if plan is None else plan.makespan,
            }
            for problem, least, plan in rows
        ]

    def line(self, row: dict[str, Any]) -> str:
        best = "no mapping completed" if row["ii"] is None else f"II {row['ii']}, latency {row['latency']}"
        return f"{best}, {row['instructions']} instructions"


train_ppo_command = command(_Training)
