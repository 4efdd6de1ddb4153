"""The network as a policy of Stable-Baselines3's MaskablePPO, and the rollout buffer with the paper's balancing of samples."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import numpy as np
import numpy.typing as npt
from gymnasium import spaces
from sb3_contrib.common.maskable.buffers import MaskableDictRolloutBuffer, MaskableDictRolloutBufferSamples
from sb3_contrib.common.maskable.distributions import MaskableDistribution
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor

from stowplan.learned_guidance.modulo_scheduling.ppo.network import Network, Shape


class _Nothing(BaseFeaturesExtractor):
    """The network takes observations as they are."""

    def __init__(self, observation_space: spaces.Space[Any]):
        super().__init__(observation_space, features_dim=1)


class MapperPolicy(MaskableMultiInputActorCriticPolicy):
    """Actor and critic are one :class:`~stowplan.learned_guidance.modulo_scheduling.ppo.network.Network`."""

    def __init__(self, *arguments: Any, shape: Shape, **options: Any):
        self._shape = shape
        options["features_extractor_class"] = _Nothing
        super().__init__(*arguments, **options)

    def _build(self, lr_schedule: Any) -> None:
        self.network = Network(self._shape)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]

    def _judged(self, obs: Any, masks: Any) -> tuple[MaskableDistribution, Tensor]:
        scores, values = self.network(obs)
        distribution = self.action_dist.proba_distribution(action_logits=scores.flatten(1))
        if masks is not None:
            distribution.apply_masking(masks)
        return distribution, values[:, None]

    def forward(
        self, obs: Any, deterministic: bool = False, action_masks: npt.NDArray[Any] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Actions, values and logarithms of probabilities."""
        distribution, values = self._judged(obs, action_masks)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, values, distribution.log_prob(actions)

    def evaluate_actions(
        self, obs: Any, actions: Tensor, action_masks: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Values, logarithms of the probabilities of these actions, and entropies."""
        distribution, values = self._judged(obs, action_masks)
        return values, distribution.log_prob(actions), distribution.entropy()

    def get_distribution(self, obs: Any, action_masks: npt.NDArray[Any] | None = None) -> MaskableDistribution:
        """Distribution of actions."""
        return self._judged(obs, action_masks)[0]

    def predict_values(self, obs: Any) -> Tensor:
        """[B, 1]"""
        values: Tensor = self.network(obs)[1]
        return values[:, None]


class BalancedBuffer(MaskableDictRolloutBuffer):
    """Samples of a round, of which those of mappings that failed can be thinned out.

    Parameters
    ----------
    unsuccessful
        Samples of mappings that failed, at most, for each of those that did not; None keeps all. Where no mapping succeeded,
        all are kept: there is nothing to balance against.
    """

    def __init__(self, *arguments: Any, unsuccessful: float | None = None, **options: Any):
        self.unsuccessful = unsuccessful
        self.outcomes: npt.NDArray[np.int8] = np.zeros((0, 0), np.int8)
        """[steps, environments] 1: the mapping was completed, -1: it failed, 0: it is not known."""
        super().__init__(*arguments, **options)

    def get(  # type: ignore[override]
        self, batch_size: int | None = None
    ) -> Generator[MaskableDictRolloutBufferSamples, None, None]:
        """Batches of the samples that are kept, in an order drawn anew."""
        count = self.buffer_size * self.n_envs
        if self.unsuccessful is None:
            yield from super().get(batch_size)
            return
        if not self.generator_ready:
            # Arrays are made flat by the parent, at its first batch.
            next(iter(super().get(count)))
        kept = np.random.permutation(self.kept())
        for begin in range(0, len(kept), batch_size or count):
            part = kept[begin : begin + (batch_size or count)]
            # Advantages of a batch are normalised: one alone has none.
            if len(part) > 1:
                yield self._get_samples(part)

    def kept(self) -> npt.NDArray[np.int64]:
        """Numbers of the samples to learn from; which of the failed ones is drawn."""
        outcomes = self.outcomes.swapaxes(0, 1).reshape(-1)
        failed = np.flatnonzero(outcomes < 0)
        good = int((outcomes > 0).sum())
        most = len(failed) if self.unsuccessful is None or not good else int(self.unsuccessful * good)
        if len(failed) > most:
            failed = np.random.choice(failed, most, replace=False)
        return np.sort(np.concatenate([np.flatnonzero(outcomes >= 0), failed]))


class Watcher(BaseCallback):
    """Notes how episodes end, for the buffer and for reports."""

    def __init__(self) -> None:
        super().__init__()
        self.episodes: list[dict[str, Any]] = []

    def _on_rollout_start(self) -> None:
        buffer = self.model.rollout_buffer  # type: ignore[attr-defined]
        self.episodes = []
        self._outcomes = np.zeros((buffer.buffer_size, buffer.n_envs), np.int8)
        self._begins = np.zeros(buffer.n_envs, np.int64)

    def _on_step(self) -> bool:
        at = int(self.locals["n_steps"])
        for env, (done, info) in enumerate(zip(self.locals["dones"], self.locals["infos"], strict=True)):
            if done:
                self._outcomes[self._begins[env] : at + 1, env] = -1 if info["failed"] else 1
                self._begins[env] = at + 1
                reward = float(self.locals["rewards"][env])
                self.episodes.append(
                    {"failed": info["failed"], "reward": reward, "excess": info["excess"], "steps": info["placed"]}
                )
        return True

    def _on_rollout_end(self) -> None:
        self.model.rollout_buffer.outcomes = self._outcomes  # type: ignore[attr-defined]
