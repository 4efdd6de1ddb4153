"""The network as a policy of Stable-Baselines3's MaskablePPO, and what is noted of its rollouts."""

from __future__ import annotations

from typing import Any

import numpy.typing as npt
from gymnasium import spaces
from sb3_contrib.common.maskable.distributions import MaskableDistribution
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from torch import Tensor

from stowplan.learned_guidance.modulo_scheduling.ppo.config import PpoConfig
from stowplan.learned_guidance.modulo_scheduling.ppo.network import Network


class _Nothing(BaseFeaturesExtractor):
    """The network takes observations as they are."""

    def __init__(self, observation_space: spaces.Space[Any]):
        super().__init__(observation_space, features_dim=1)


class MapperPolicy(MaskableMultiInputActorCriticPolicy):
    """Actor and critic are one :class:`~stowplan.learned_guidance.modulo_scheduling.ppo.network.Network`."""

    def __init__(self, *arguments: Any, config: PpoConfig, **options: Any):
        self._config = config
        options["features_extractor_class"] = _Nothing
        super().__init__(*arguments, **options)

    def _build(self, lr_schedule: Any) -> None:
        self.network = Network(self._config)
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


class Watcher(BaseCallback):
    """Notes how episodes end, for reports."""

    def __init__(self) -> None:
        super().__init__()
        self.episodes: list[dict[str, Any]] = []

    def _on_rollout_start(self) -> None:
        self.episodes = []

    def _on_step(self) -> bool:
        for number, info in enumerate(self.locals["infos"]):
            if self.locals["dones"][number]:
                reward = float(self.locals["rewards"][number])
                self.episodes.append({"failed": info["failed"], "reward": reward, "excess": info["excess"]})
        return True
