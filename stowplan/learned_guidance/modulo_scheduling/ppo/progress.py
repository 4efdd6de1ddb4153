"""What training reports of each round, and how it stands in the training curve."""

from __future__ import annotations

import math
from dataclasses import dataclass

from stowplan.learned_guidance.training.curve import cell

#: Columns of the training curve.
COLUMNS = (
    "round",
    "seconds",
    "steps",
    "episodes",
    "success",
    "mean_reward",
    "mean_excess",
    "imitation_loss",
    "policy_loss",
    "value_loss",
    "entropy",
    "divergence",
    "steps_per_second",
)


@dataclass(frozen=True)
class Progress:
    """What a round came to: updates on samples of one rollout, or steps of imitation. What is not known is NaN."""

    round: int
    seconds: float
    """Of training, earlier runs included."""
    steps: int
    """Placements since the beginning."""
    episodes: int
    """Mappings since the beginning, complete or not."""
    success: float
    """Part of this round's mappings that were completed."""
    mean_reward: float
    """Of this round's mappings, as the paper's curve has it."""
    mean_excess: float
    """Initiation intervals of the completed ones above the least of the bounds."""
    imitation_loss: float = math.nan
    policy_loss: float = math.nan
    value_loss: float = math.nan
    entropy: float = math.nan
    divergence: float = math.nan
    steps_per_second: float = math.nan

    @property
    def row(self) -> list[str]:
        """A text for each of the columns; empty for what is not known."""
        whole = (str(self.round), f"{self.seconds:.3f}", str(self.steps), str(self.episodes))
        real = (self.success, self.mean_reward, self.mean_excess, self.imitation_loss, self.policy_loss, self.value_loss)
        return [*whole, *map(cell, (*real, self.entropy, self.divergence, self.steps_per_second))]

    @property
    def line(self) -> str:
        """The same in short, for people."""
        if not math.isnan(self.imitation_loss):
            return f"[{self.seconds:6.1f} s] imitation, loss {self.imitation_loss:.3f}"
        return (
            f"[{self.seconds:6.1f} s] {self.steps} steps, {self.episodes} mappings, {self.success:.0%} complete, "
            f"mean reward {self.mean_reward:.3f}, II {self.mean_excess:+.2f} above the bounds, entropy {self.entropy:.2f}"
        )
