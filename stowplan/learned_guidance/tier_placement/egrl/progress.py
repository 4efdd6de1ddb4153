"""What training reports of each generation, and how it stands in the training curve."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Annotated, Any

from stowplan.learned_guidance.tier_placement.egrl.learner import Losses
from stowplan.learned_guidance.training.curve import Column, Report, mean


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


@dataclass
class Tally:
    """What is counted of one generation."""

    rewards: list[float] = field(default_factory=list)
    losses: list[Losses] = field(default_factory=list)
    evaluation_seconds: float = 0.0
    learning_seconds: float = 0.0

    @property
    def mean_losses(self) -> Losses | None:
        """None without steps."""
        return Losses(*(mean(each) for each in zip(*self.losses, strict=True))) if self.losses else None

    @property
    def valid(self) -> float:
        """Part of the proposals that could be executed; all others have negative rewards."""
        return mean([float(reward > 0) for reward in self.rewards])

    def state_dict(self) -> dict[str, Any]:
        """As plain values."""
        return {
            "rewards": list(self.rewards),
            "losses": [list(each) for each in self.losses],
            "seconds": [self.evaluation_seconds, self.learning_seconds],
        }

    @classmethod
    def of(cls, state: dict[str, Any]) -> Tally:
        """One that goes on from such a state."""
        evaluation, learning = state["seconds"]
        return cls([*state["rewards"]], [Losses(*each) for each in state["losses"]], evaluation, learning)
