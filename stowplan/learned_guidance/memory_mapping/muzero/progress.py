"""What training reports of each iteration, and how it stands in the training curve."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated

from stowplan.learned_guidance.memory_mapping.muzero.learner import Losses
from stowplan.learned_guidance.training.curve import Column, Report, mean


@dataclass(frozen=True)
class Progress(Report):
    """What an iteration came to."""

    iteration: int
    seconds: Annotated[float, Column(form=".3f")]
    """Of training, earlier runs included."""
    games: int
    """Finished since the beginning; so are the two below."""
    moves: int
    training_steps: int
    best: Annotated[float, Column(("best_R",))]
    """Normalised return of the best game, in the mean over programs that have one; NaN before."""
    mean: Annotated[float, Column(("mean_R",))]
    """Normalised return of the games that this iteration finished, in the mean; NaN without any."""
    losses: Annotated[
        Losses | None, Column(("loss", "policy_loss", "value_loss", "reward_loss", "gradient_norm", "entropy", "value_error"))
    ]
    """Means of this iteration; None without training steps."""
    temperature: float
    moves_per_second: Annotated[float, Column(form=".1f")]
    """Of self-play alone."""
    updates_per_second: Annotated[float, Column(("steps_per_second",), form=".2f")]
    """Of training steps alone."""

    @property
    def line(self) -> str:
        """The same in short, for people."""
        best = "no game yet" if math.isnan(self.best) else f"best R {self.best:.4f}"
        mean = "" if math.isnan(self.mean) else f", mean {self.mean:.4f}"
        learning = "" if self.losses is None else f", loss {self.losses.total:.3f}, value error {self.losses.value_error:.3f}"
        return (
            f"[{self.seconds:6.1f} s] {best}{mean}, {self.games} games, {self.training_steps} steps{learning}, "
            f"{self.moves_per_second:.0f} moves/s"
        )


#: Columns of the training curve.
COLUMNS = Progress.columns()


@dataclass
class Tally:
    """What is counted of one iteration."""

    returns: list[float] = field(default_factory=list)
    losses: list[Losses] = field(default_factory=list)
    moves: int = 0
    play_seconds: float = 0.0
    learn_seconds: float = 0.0

    @property
    def mean_losses(self) -> Losses | None:
        """None without training steps."""
        return Losses(*(mean(each) for each in zip(*self.losses, strict=True))) if self.losses else None
