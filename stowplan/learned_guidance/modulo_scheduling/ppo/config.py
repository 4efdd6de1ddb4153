"""Everything that decides how the PPO mapper is trained: values for processors, the paper's reading, and the ablations."""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from stowplan.errors import UsageError
from stowplan.learned_guidance.modulo_scheduling.ppo.network import Shape
from stowplan.learned_guidance.training.settings import check_ranges, check_types


class PpoConfig(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How to train."""

    steps: int = 200_000
    """Training ends after so many placements."""

    # Network
    hidden: int = 48
    layers: int = 2
    """Rounds of messages of the graph network."""
    heads: int = 4
    graph_network: bool = True
    attention: bool = True
    masks: bool = True
    """Whether places that are not legal are left out; else they end an episode as a mapping that gets stuck does."""
    lookahead: bool = True
    """Whether the network sees what a tile would leave to neighbours that are not placed."""

    # Episodes
    first: Literal["ii", "latency"] = "ii"
    """What counts first."""
    shaping: Literal["none", "cycles", "placed"] = "placed"
    """What placements earn beside the reward; ``placed``: a mapping that fails earns the part of it that is placed."""
    iterations: int = 100
    """Iterations of the loop body whose cycles are the reward."""
    interval: Literal["rising", "least"] = "rising"
    """Initiation interval of episodes: one more after a mapping that failed, one less after one that did not; or the least."""

    # Samples
    environments: int = 16
    rollout_steps: int = 128
    """Placements in each environment before an update."""
    unsuccessful: float | None = None
    """Samples of mappings that failed, at most, for each of those that did not: the paper's balancing. None keeps all."""

    # Updates
    batch_size: int = 512
    epochs: int = 3
    rate: float = 3e-4
    discount: float = 1.0
    gae: float = 0.95
    """Lambda of generalised advantage estimation (Schulman et al. 2016)."""
    clip: float = 0.2
    entropy: float = 0.005
    value_weight: float = 0.5
    clip_norm: float = 0.5
    most_divergence: float | None = 0.03
    """An update ends early once its policy is further (KL divergence) than 1.5 times this from the one that collected."""

    # Imitation, before all else, where there are demonstrations
    imitation_steps: int = 1_000
    imitation_batch: int = 192
    imitation_rate: float = 1e-3

    def __post_init__(self) -> None:
        check_types(self)
        check_ranges(self, _AT_LEAST, ("discount", "gae"))
        if self.hidden % self.heads:
            raise UsageError(f"training: hidden is {self.hidden}, expected a multiple of heads ({self.heads})")
        if self.batch_size > self.environments * self.rollout_steps:
            most = self.environments * self.rollout_steps
            raise UsageError(f"training: batch_size is {self.batch_size}, expected {most} at most, what a round collects")

    @property
    def shape(self) -> Shape:
        """Of the network."""
        return Shape(
            hidden=self.hidden,
            layers=self.layers if self.graph_network else 0,
            heads=self.heads,
            attention=self.attention,
            lookahead=self.lookahead,
            masks=self.masks,
        )

    @classmethod
    def cpu(cls, **changes: Any) -> PpoConfig:
        """Values for processors."""
        return cls(**changes)

    @classmethod
    def paper(cls, **changes: Any) -> PpoConfig:
        """What the paper describes: no look-ahead, no imitation, balanced samples. It states no sizes and no rates."""
        values: dict[str, Any] = {
            "lookahead": False,
            "imitation_steps": 0,
            "unsuccessful": 1.0,
            "interval": "least",
            "shaping": "none",
            "iterations": 1,
            "steps": 1_000_000,
            **changes,
        }
        return cls(**values)

    def changed(self, **changes: Any) -> PpoConfig:
        """The same with other values for some fields."""
        return msgspec.structs.replace(self, **changes)


_AT_LEAST: dict[str, float] = {
    "steps": 1,
    "hidden": 1,
    "layers": 1,
    "heads": 1,
    "iterations": 1,
    "environments": 1,
    "rollout_steps": 2,
    "unsuccessful": 0.0,
    "batch_size": 2,
    "epochs": 1,
    "rate": 0.0,
    "clip": 1e-6,
    "entropy": 0.0,
    "value_weight": 0.0,
    "clip_norm": 1e-6,
    "most_divergence": 1e-6,
    "imitation_steps": 0,
    "imitation_batch": 1,
    "imitation_rate": 0.0,
}
