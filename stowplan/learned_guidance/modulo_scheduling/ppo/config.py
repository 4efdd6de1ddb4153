"""The hyperparameters with which the PPO mapper is trained, and the formats of its files.

The mapper is a policy that places the instructions of a loop body on the tiles of a CGRA, one after the other. The default
values suit training on CPUs. A *round* of training collects samples in all environments and then updates the network.
"""

from __future__ import annotations

from typing import Annotated, Literal

from stowplan.errors import UsageError
from stowplan.learned_guidance.modulo_scheduling.ppo.network import Network
from stowplan.learned_guidance.training.checkpoint import FileFormat, PolicyFormat
from stowplan.learned_guidance.training.settings import Fraction, Hyperparameters, Range


class PpoConfig(Hyperparameters, frozen=True, kw_only=True):
    """The hyperparameters of training. Raises UsageError if a value has a wrong type, is out of range, or does not fit another
    value."""

    steps: Annotated[int, Range(1)] = 200_000
    """Number of placements, that is, steps of all environments together, after which training ends."""

    # Network
    hidden: Annotated[int, Range(1)] = 48
    """Width of the hidden layers, a multiple of ``heads``."""
    layers: Annotated[int, Range(0)] = 2
    """Number of message-passing layers of the graph network; 0 for no graph network."""
    heads: Annotated[int, Range(1)] = 4
    """Number of attention heads."""

    # Episodes
    first: Literal["ii", "latency"] = "ii"
    """Which of the two objectives the reward counts first: the initiation interval, or the latency of one iteration."""
    shaping: Literal["none", "placed"] = "placed"
    """Additional reward. ``placed``: a mapping that fails gets the fraction of its instructions that were placed."""
    iterations: Annotated[int, Range(1)] = 100
    """The reward depends on the cycles that this many iterations of the loop body take."""

    # Samples
    environments: Annotated[int, Range(1)] = 16
    """Number of environments, in which episodes run side by side."""
    rollout_steps: Annotated[int, Range(2)] = 128
    """Number of placements in each environment in one round."""

    # Updates
    batch_size: Annotated[int, Range(2)] = 512
    """Number of samples of one step of the optimizer."""
    epochs: Annotated[int, Range(1)] = 3
    """How often the samples of a round are used."""
    rate: Annotated[float, Range(0.0)] = 3e-4
    """Learning rate."""
    discount: Fraction = 1.0
    """Factor by which a reward counts less for each step until it is earned."""
    gae: Fraction = 0.95
    """Lambda of generalised advantage estimation (Schulman et al. 2016)."""
    clip: Annotated[float, Range(1e-06)] = 0.2
    """Range to which PPO clips the ratio of probabilities: from 1 - clip to 1 + clip."""
    entropy: Annotated[float, Range(0.0)] = 0.005
    """Weight of the entropy of the policy, which is rewarded."""
    value_weight: Annotated[float, Range(0.0)] = 0.5
    """Weight of the loss of the value network."""
    clip_norm: Annotated[float, Range(1e-06)] = 0.5
    """Norm to which the gradient is clipped."""
    most_divergence: Annotated[float | None, Range(1e-06)] = 0.03
    """The updates of a round end early if the KL divergence from the policy that collected the samples exceeds 1.5 times this
    value. None sets no limit."""
    # Imitation of demonstrations, if there are any, before the first round
    imitation_steps: Annotated[int, Range(0)] = 1_000
    """Number of steps of the optimizer."""
    imitation_batch: Annotated[int, Range(1)] = 192
    """Number of placements in a batch."""
    imitation_rate: Annotated[float, Range(0.0)] = 1e-3
    """Learning rate."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.hidden % self.heads:
            raise UsageError(f"training: hidden is {self.hidden}, expected a multiple of heads ({self.heads})")
        if self.batch_size > self.environments * self.rollout_steps:
            most = self.environments * self.rollout_steps
            raise UsageError(f"training: batch_size is {self.batch_size}, expected {most} at most, what a round collects")


POLICY = PolicyFormat("stowplan.ppo.policy", PpoConfig, lambda content: Network(content.config))
CHECKPOINT = FileFormat("stowplan.ppo.checkpoint", PpoConfig)
