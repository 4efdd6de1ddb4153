"""The configuration of training of the PPO mapper, with values for CPUs; and the formats of its files."""

from __future__ import annotations

from typing import Annotated, Literal

from stowplan.errors import UsageError
from stowplan.learned_guidance.modulo_scheduling.ppo.network import Network
from stowplan.learned_guidance.training.checkpoint import FileFormat, PolicyFormat
from stowplan.learned_guidance.training.settings import Fraction, Hyperparameters, Range


class PpoConfig(Hyperparameters, frozen=True, kw_only=True):
    """Configuration of training."""

    steps: Annotated[int, Range(1)] = 200_000
    """Number of placements after which training ends."""

    # Network
    hidden: Annotated[int, Range(1)] = 48
    layers: Annotated[int, Range(0)] = 2
    """Rounds of messages of the graph network; 0 for no graph network."""
    heads: Annotated[int, Range(1)] = 4

    # Episodes
    first: Literal["ii", "latency"] = "ii"
    """The first objective."""
    shaping: Literal["none", "placed"] = "placed"
    """Additional reward; ``placed``: a failed mapping earns the fraction of its instructions that are placed."""
    iterations: Annotated[int, Range(1)] = 100
    """Iterations of the loop body whose cycles determine the reward."""

    # Samples
    environments: Annotated[int, Range(1)] = 16
    rollout_steps: Annotated[int, Range(2)] = 128
    """Placements in each environment before an update."""

    # Updates
    batch_size: Annotated[int, Range(2)] = 512
    epochs: Annotated[int, Range(1)] = 3
    rate: Annotated[float, Range(0.0)] = 3e-4
    discount: Fraction = 1.0
    gae: Fraction = 0.95
    """Lambda of generalised advantage estimation (Schulman et al. 2016)."""
    clip: Annotated[float, Range(1e-06)] = 0.2
    entropy: Annotated[float, Range(0.0)] = 0.005
    value_weight: Annotated[float, Range(0.0)] = 0.5
    clip_norm: Annotated[float, Range(1e-06)] = 0.5
    most_divergence: Annotated[float | None, Range(1e-06)] = 0.03
    """An update ends early once the KL divergence from the policy that collected the samples exceeds 1.5 times this."""
    # Imitation, before all rounds, if there are demonstrations
    imitation_steps: Annotated[int, Range(0)] = 1_000
    imitation_batch: Annotated[int, Range(1)] = 192
    imitation_rate: Annotated[float, Range(0.0)] = 1e-3

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden % self.heads:
            raise UsageError(f"training: hidden is {self.hidden}, expected a multiple of heads ({self.heads})")
        if self.batch_size > self.environments * self.rollout_steps:
            most = self.environments * self.rollout_steps
            raise UsageError(f"training: batch_size is {self.batch_size}, expected {most} at most, what a round collects")


POLICY = PolicyFormat("stowplan.ppo.policy", PpoConfig, lambda content: Network(content.config))
CHECKPOINT = FileFormat("stowplan.ppo.checkpoint", PpoConfig)
