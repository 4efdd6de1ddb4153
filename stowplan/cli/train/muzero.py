"""The command ``stowplan train muzero``: MMap-MuZero for memory mapping."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from stowplan.cli.options import FAST_MEMORY, chip_target, option
from stowplan.cli.train import Training, command
from stowplan.deadline import Deadline
from stowplan.errors import UsageError

if TYPE_CHECKING:
    from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer
    from stowplan.models.memory_mapping.problem import Problem

#: Time limit of the local search that improves a demonstration, as a fraction of the time limit of the search for it.
LOCAL_SEARCH_SHARE = 0.5


@dataclass(kw_only=True)
class _Training(Training["Trainer"]):
    """Train MMap-MuZero, which decides the use of fast memory.

    The agent decides which tensors of a compiled program are in fast memory, where and when. It is a variant of MuZero, an
    algorithm that learns to play games: making a plan is a game, and each decision is a move. docs/reference/mmap-muzero.md
    describes the agent and its hyperparameters.
    """

    KIND = ("memory mapping", "a compiled program")
    INPUTS = ("target", "capacity", "cost_model")
    TEXTS = FAST_MEMORY | chip_target("compiled programs", "PROGRAM")
    AMOUNT, AMOUNT_IN_CONFIG, UNIT = "steps", "training_steps", "training steps"
    NETWORK = ("network",)

    sources: Annotated[
        list[Path],
        typer.Argument(metavar="PROGRAM...", help="Compiled programs (XLA's HLO as text), or problem files of memory mapping."),
    ]
    steps: Annotated[
        int | None,
        option(
            "--steps",
            "N",
            "Stop after this many training steps (updates of the network's weights), even before the time limit; by default "
            "20000, or 1000000 with --preset paper.",
        ),
    ] = None
    device: Annotated[str, option("--device", "NAME", "Device on which the network runs: cpu or cuda.")] = "cpu"
    demonstrate: Annotated[
        float | None,
        option(
            "--demonstrate",
            "SECONDS",
            "Before training, search for a plan of each program for this long, then improve it by local search, and learn "
            "from the result. By default, there is no such search. With --time-limit, all searches together take about 40 "
            "% of that limit at most.",
        ),
    ] = None
    windows: Annotated[
        int | None,
        option(
            "--windows",
            "N",
            "Train on N random parts (windows) of each program instead of the whole program. The size of fast memory and "
            "the times of copies vary from window to window. By default, the agent trains on whole programs.",
        ),
    ] = None
    window_moves: Annotated[
        int, option("--window-moves", "N", "Approximate maximum number of moves, that is, decisions, in a window of --windows.")
    ] = 400

    @property
    def trainer(self) -> type[Trainer]:
        from stowplan.learned_guidance.memory_mapping.muzero.trainer import Trainer

        return Trainer

    def check(self) -> None:
        if self.device not in ("cpu", "cuda"):
            raise UsageError(f"--device: found {self.device!r}, expected cpu or cuda")
        if self.device == "cuda":
            import torch

            if not torch.cuda.is_available():
                raise UsageError("--device: cuda was asked for, but torch finds no such device")

    def training_problems(self, problems: list[Problem]) -> list[Problem]:
        """Random windows of the programs if ``--windows`` is given, otherwise the programs. The seed decides which windows."""
        if self.windows is None:
            return problems
        if self.windows < 1 or self.window_moves < 1:
            raise UsageError(f"--windows and --window-moves: found {self.windows} and {self.window_moves}, expected 1 or more")
        import numpy as np

        from stowplan.learned_guidance.memory_mapping.game.programs import training_variants

        rng, moves = np.random.default_rng(self.seed or 0), self.window_moves
        windows = [part for problem in problems for part in training_variants(problem, rng, moves=moves, count=self.windows)]
        if not windows:
            raise UsageError("--windows: hardly any window of these programs has something to gain")
        return windows

    @property
    def trainer_arguments(self) -> dict[str, Any]:
        return {"device": self.device}

    def learn_from_search(self, trainer: Trainer, index: int, limit: float, deadline: Deadline) -> None:
        """Searches for a plan, improves it by local search, and learns from the game that leads to it."""
        from stowplan.kernel.solve import solve
        from stowplan.learned_guidance.memory_mapping.game.local_search import improve_plan
        from stowplan.learned_guidance.memory_mapping.game.programs import as_played

        game, seed = trainer.programs[index].game, self.seed or 0
        played = as_played(trainer.programs[index].problem)
        plan = solve(played, time_limit=limit, candidates=self.CANDIDATES, seed=seed, cancel=deadline.cancelled).plan
        if plan is not None:
            limit = LOCAL_SEARCH_SHARE * limit
            improved = improve_plan(game, plan, seed=seed, time_limit=limit, should_stop=deadline.stopper())
            if improved.actions is not None:
                trainer.demonstrate(index, improved.actions)

    def figures(self, trainer: Trainer) -> dict[str, Any]:
        return {"training_steps": trainer.learner.steps, "games": trainer.games, "moves": trainer.moves}

    def headline(self, trainer: Trainer) -> str:
        return f"{trainer.learner.steps} training steps, {trainer.games} games"

    def rows(self, trainer: Trainer) -> tuple[str, list[dict[str, Any]]]:
        return "programs", [
            {
                "program": program.problem.name,
                "problem": program.problem.digest,
                "moves": len(program.game.moves),
                "games": best.games,
                "return_ps": best.return_ps,
                "normalised_return": None if best.return_ps is None else program.normalised(best.return_ps),
            }
            for program, best in zip(trainer.programs, trainer.best, strict=True)
        ]

    def line(self, row: dict[str, Any]) -> str:
        best = "no game finished" if row["return_ps"] is None else f"best R {row['normalised_return']:.4f}"
        return f"{best}, {row['games']} games of {row['moves']} moves"


train_muzero_command = command(_Training)
