"""What training reports of each round, and how it stands in the training curve."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from stowplan.learned_guidance.training.curve import Column, Report


@dataclass(frozen=True)
class Progress(Report):
    """What a round came to: updates on samples of one rollout, or steps of imitation. What is not known is NaN."""

    round: int
    seconds: Annotated[float, Column(form=".3f")]
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
    def line(self) -> str:
        """The same in short, for people."""
        if not math.isnan(self.imitation_loss):
            return f"[{self.seconds:6.1f} s] imitation, loss {self.imitation_loss:.3f}"
        return (
            f"[{self.seconds:6.1f} s] {self.steps} steps, {self.episodes} mappings, {self.success:.0%} complete, "
            f"mean reward {self.mean_reward:.3f}, II {self.mean_excess:+.2f} above the bounds, entropy {self.entropy:.2f}"
        )


#: Columns of the training curve.
COLUMNS = Progress.columns()
