"""What training reports of each generation, and how it stands in the training curve."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from stowplan.learned_guidance.tier_placement.egrl.learner import Losses
from stowplan.learned_guidance.training.curve import Column, Report


@dataclass(frozen=True)
class Progress(Report):
    """What a generation came to."""

    generation: int
    seconds: Annotated[float, Column(form=".3f")]
    """Of training, earlier runs included."""
    evaluations: int
    """Since the beginning."""
    best: Annotated[float, Column(("best_speedup",))]
    """Speedup of the best map as it was measured, in the mean over networks that have one; NaN before."""
    mean_reward: float
    """Of this generation's proposals; so are the two below."""
    valid: Annotated[float, Column(("valid_part",))]
    """Part of the proposals that could be executed as they were."""
    chromosomes: int
    """Members of the population that are Boltzmann chromosomes."""
    losses: Annotated[Losses | None, Column(("critic_loss", "actor_loss", "entropy", "value_error"))]
    """Means of this generation; None without steps of the learner."""
    evaluations_per_second: Annotated[float, Column(form=".1f")]
    """Of proposals and evaluations alone."""
    steps_per_second: Annotated[float, Column(form=".2f")]
    """Of the learner's steps alone."""

    @property
    def line(self) -> str:
        """The same in short, for people."""
        best = "no map yet" if math.isnan(self.best) else f"best speedup {self.best:.4f}"
        learning = (
            "" if self.losses is None else f", value error {self.losses.value_error:.3f}, entropy {self.losses.entropy:.3f}"
        )
        return (
            f"[{self.seconds:6.1f} s] {best}, {self.evaluations} evaluations, mean reward {self.mean_reward:.3f}, "
            f"{self.valid:.0%} valid, {self.chromosomes} chromosomes{learning}"
        )
