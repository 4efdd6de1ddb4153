"""Trains the PPO mapper: by steps of imitation if there are plans to imitate, then by rounds of MaskablePPO, which is PPO with
a mask that excludes illegal actions.

An iteration is a number of imitation steps, or one round: placements in all environments side by side, and updates on them.
Each round begins new episodes and seeds all random numbers from the seed of the run and the index of the round, so that a
stopped run continues with the same bits. The network is a policy of sb3-contrib's MaskablePPO, and a callback records its
rollouts.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, cast

import numpy as np
import numpy.typing as npt
import torch
from gymnasium import spaces
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.distributions import MaskableDistribution
from sb3_contrib.common.maskable.policies import MaskableMultiInputActorCriticPolicy
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.logger import Logger
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv
from torch import Tensor

from stowplan.errors import InputError
from stowplan.learned_guidance.modulo_scheduling.body import Body
from stowplan.learned_guidance.modulo_scheduling.ppo.config import CHECKPOINT, POLICY, PpoConfig
from stowplan.learned_guidance.modulo_scheduling.ppo.lessons import Curriculum, Examples, Lesson, imitate, lessons, limits_of
from stowplan.learned_guidance.modulo_scheduling.ppo.network import Network
from stowplan.learned_guidance.modulo_scheduling.state import Mapping
from stowplan.learned_guidance.training import checkpoint
from stowplan.learned_guidance.training.curve import Column, Report, mean
from stowplan.learned_guidance.training.run import Allowance, BaseTrainer, Counts, InterruptedIterationError
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem


class _PassThrough(BaseFeaturesExtractor):
    """Passes observations to the network unchanged."""

    def __init__(self, observation_space: spaces.Space[Any]):
        super().__init__(observation_space, features_dim=1)


class MapperPolicy(MaskableMultiInputActorCriticPolicy):
    """Adapts a :class:`~stowplan.learned_guidance.modulo_scheduling.ppo.network.Network` as actor and critic."""

    def __init__(self, *arguments: Any, config: PpoConfig, **options: Any):
        self._config = config
        options["features_extractor_class"] = _PassThrough
        super().__init__(*arguments, **options)

    def _build(self, lr_schedule: Any) -> None:
        """Make the network and the optimizer, in place of those of the base class."""
        self.network = Network(self._config)
        self.optimizer = self.optimizer_class(self.parameters(), lr=lr_schedule(1), **self.optimizer_kwargs)  # type: ignore[call-arg]

    def _score_places(self, obs: Any, masks: Any) -> tuple[MaskableDistribution, Tensor]:
        """Return the distribution of actions and the values [B, 1]."""
        scores, values = self.network(obs)
        distribution = self.action_dist.proba_distribution(action_logits=scores.flatten(1))
        if masks is not None:
            distribution.apply_masking(masks)
        return distribution, values[:, None]

    def forward(
        self, obs: Any, deterministic: bool = False, action_masks: npt.NDArray[Any] | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """Return actions, values and logarithms of probabilities."""
        distribution, values = self._score_places(obs, action_masks)
        actions = distribution.get_actions(deterministic=deterministic)
        return actions, values, distribution.log_prob(actions)

    def evaluate_actions(
        self, obs: Any, actions: Tensor, action_masks: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor | None]:
        """Return values, logarithms of the probabilities of these actions, and entropies."""
        distribution, values = self._score_places(obs, action_masks)
        return values, distribution.log_prob(actions), distribution.entropy()

    def get_distribution(self, obs: Any, action_masks: npt.NDArray[Any] | None = None) -> MaskableDistribution:
        """Return the distribution of actions."""
        return self._score_places(obs, action_masks)[0]

    def predict_values(self, obs: Any) -> Tensor:
        """Return the values [B, 1]."""
        values: Tensor = self.network(obs)[1]
        return values[:, None]


class Watcher(BaseCallback):
    """Records the results of episodes for reports, and stops collecting when the time of the run is over."""

    def __init__(self) -> None:
        super().__init__()
        self.episodes: list[dict[str, Any]] = []
        """Results of the episodes of this round."""
        self.allowance = Allowance()
        """The remaining time of the run."""

    def _on_rollout_start(self) -> None:
        self.episodes = []

    def _on_step(self) -> bool:
        for number, info in enumerate(self.locals["infos"]):
            if self.locals["dones"][number]:
                reward = float(self.locals["rewards"][number])
                self.episodes.append({"failed": info["failed"], "reward": reward, "excess": info["excess"]})
        return not self.allowance.is_over()


@dataclass(frozen=True)
class Progress(Report):
    """Results of a round of placements and updates, or of steps of imitation. Unknown numbers are NaN."""

    round: int
    """Number of reports so far, this one included."""
    seconds: Annotated[float, Column(form=".3f")]
    """Seconds of training, earlier runs included."""
    steps: int
    """Placements since the beginning of training."""
    episodes: int
    """Mappings since the beginning of training, complete or not."""
    success: float = math.nan
    """Fraction of this round's mappings that were completed."""
    mean_reward: float = math.nan
    """Mean reward of this round's mappings, which the paper plots."""
    mean_excess: float = math.nan
    """Mean initiation interval of the completed mappings minus the lower bound."""
    imitation_loss: float = math.nan
    """Mean cross entropy of the imitated places, in nats."""
    policy_loss: float = math.nan
    """Mean of PPO's clipped loss of the policy."""
    value_loss: float = math.nan
    """Mean squared error of the values."""
    entropy: float = math.nan
    """Mean entropy of the policy, in nats."""
    divergence: float = math.nan
    """Approximate KL divergence of the last update of this round."""
    steps_per_second: float = math.nan
    """Placements per second of the whole round."""

    @property
    def line(self) -> str:
        """A short line for the terminal."""
        if not math.isnan(self.imitation_loss):
            return f"[{self.seconds:6.1f} s] imitation, loss {self.imitation_loss:.3f}"
        return (
            f"[{self.seconds:6.1f} s] {self.steps} steps, {self.episodes} mappings, {self.success:.0%} complete, "
            f"mean reward {self.mean_reward:.3f}, II {self.mean_excess:+.2f} above the bounds, entropy {self.entropy:.2f}"
        )


#: Steps of imitation in an iteration.
IMITATIONS = 20

#: Last fraction of the imitation, over which its learning rate falls to 0.
FALLING = 0.6


class Trainer(BaseTrainer[PpoConfig, Progress]):
    """Trains the PPO mapper, as the docstring of the module describes.

    Parameters
    ----------
    problems
        Loop bodies to learn on; each episode draws one.
    config
        Sizes of the network, and settings of training.
    seed
        Seed of all random numbers.
    weights
        Initial weights, from a network of the same sizes; None for random ones.
    clock
        A monotonic clock in seconds.

    Raises
    ------
    InputError
        If a problem cannot be mapped, or the weights have other sizes.
    UsageError
        If the seed is not valid.
    """

    CHECKPOINT, POLICY, COLUMNS = CHECKPOINT, POLICY, Progress.columns()

    def __init__(
        self,
        problems: Sequence[Problem],
        config: PpoConfig,
        *,
        seed: int = 0,
        weights: dict[str, Tensor] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        super().__init__(problems, config, seed=seed, clock=clock)
        self.curriculum = Curriculum(self.problems)
        self.rounds = self.imitated = self.episodes = 0
        environments = lessons(self.problems, config, self.curriculum)
        with _seed_generators(seed, 0):
            self.model = self._make(environments)
        self._watcher = Watcher()
        self._watcher.init_callback(self.model)
        if weights is not None:
            try:
                self.network.load_state_dict(weights)
            except RuntimeError as error:
                raise InputError("the policy's network is of other sizes than the configuration asks for") from error
        self.examples = Examples(limits_of(self.problems))
        self._demonstrations: list[tuple[int, int, list[int], list[int]]] = []
        """(number of the problem, initiation interval, tiles, slots) of each plan to imitate."""
        self._bodies: dict[int, Body] = {}

    def _make(self, environments: Sequence[Lesson]) -> MaskablePPO:
        """Return the agent of sb3-contrib, with the settings of the configuration."""
        config = self.config
        model = MaskablePPO(
            MapperPolicy,
            DummyVecEnv([partial(_identity, env) for env in environments]),
            learning_rate=config.rate,
            n_steps=config.rollout_steps,
            batch_size=config.batch_size,
            n_epochs=config.epochs,
            gamma=config.discount,
            gae_lambda=config.gae,
            clip_range=config.clip,
            ent_coef=config.entropy,
            vf_coef=config.value_weight,
            max_grad_norm=config.clip_norm,
            target_kl=config.most_divergence,
            policy_kwargs={"config": config},
            device="cpu",
        )
        model.set_logger(Logger(None, []))
        model.ep_info_buffer, model.ep_success_buffer = deque(maxlen=1), deque(maxlen=1)
        return model

    @property
    def network(self) -> Network:
        """The network of actor and critic."""
        return cast(Network, self.model.policy.network)

    @property
    def steps(self) -> int:
        """Number of placements so far."""
        return int(self.model.num_timesteps)

    @property
    def iteration(self) -> int:
        """Number of reports so far, including earlier runs."""
        return self.rounds + self.imitated // IMITATIONS

    @property
    def done(self) -> bool:
        """Whether the configured number of placements has been made."""
        return self.steps >= self.config.steps and not self._to_imitate

    @property
    def _to_imitate(self) -> int:
        """Number of imitation steps that are left."""
        return max(0, self.config.imitation_steps - self.imitated) if len(self.examples) else 0

    def demonstrate(self, number: int, plan: Plan) -> None:
        """Add a plan of the problem with this number to imitate before all rounds; raise InputError if it is of another
        problem, or if its mapping is not legal."""
        problem = self.problems[number]
        if plan.problem != problem.digest:
            raise InputError(f"is a plan of another problem, expected one of {problem.name}")
        self._add_example(number, plan.ii, list(plan.tiles), list(plan.slots))

    def _add_example(self, number: int, ii: int, tiles: list[int], slots: list[int]) -> None:
        """Add a plan to imitate; raise InputError if its mapping is not legal."""
        if number not in self._bodies:
            self._bodies[number] = Body(self.problems[number])
        body = self._bodies[number]
        self.examples.add(body, ii, tiles, slots)
        self._demonstrations.append((number, ii, tiles, slots))

    def _iterate(self, allowance: Allowance) -> Progress:
        return self._imitate() if self._to_imitate else self._round(allowance)

    def _imitate(self) -> Progress:
        """Do some imitation steps."""
        config = self.config
        rng = np.random.default_rng([self.seed, 1, self.imitated])
        losses = []
        self.model.policy.set_training_mode(True)
        for _ in range(min(IMITATIONS, self._to_imitate)):
            left = (config.imitation_steps - self.imitated) / config.imitation_steps
            for group in self.model.policy.optimizer.param_groups:
                group["lr"] = config.imitation_rate * min(1.0, left / FALLING)
            batch = self.examples.batch(config.imitation_batch, rng)
            losses.append(imitate(self.network, self.model.policy.optimizer, batch, config.clip_norm))
            self.imitated += 1
        return Progress(self.iteration, self.seconds, self.steps, self.episodes, imitation_loss=mean(losses))

    def _round(self, allowance: Allowance) -> Progress:
        """Do one round of placements and updates; raise InterruptedIterationError if the time is over first."""
        model, began = self.model, self._clock()
        self._watcher.allowance = allowance
        with _seed_generators(self.seed, 2 + self.rounds) as first:
            environments = model.get_env()
            assert environments is not None
            environments.seed(first)
            model._last_obs = environments.reset()  # type: ignore[assignment]
            model._last_episode_starts = np.ones(environments.num_envs, bool)
            if not model.collect_rollouts(environments, self._watcher, model.rollout_buffer, model.n_steps):
                raise InterruptedIterationError
            model.train()
        self.rounds += 1
        logged = model.logger.name_to_value
        ended = self._watcher.episodes
        self.episodes += len(ended)
        completed = [episode for episode in ended if not episode["failed"]]
        report = Progress(
            round=self.iteration,
            seconds=self.seconds,
            steps=self.steps,
            episodes=self.episodes,
            success=mean([float(not episode["failed"]) for episode in ended]),
            mean_reward=mean([episode["reward"] for episode in ended]),
            mean_excess=mean([float(episode["excess"]) for episode in completed]),
            policy_loss=float(logged["train/policy_gradient_loss"]),
            value_loss=float(logged["train/value_loss"]),
            entropy=-float(logged["train/entropy_loss"]),
            divergence=float(logged["train/approx_kl"]),
            steps_per_second=model.n_steps * model.n_envs / max(self._clock() - began, 1e-9),
        )
        model.logger.name_to_value.clear()
        return report

    # Plans and files

    def plan(self, number: int) -> Plan | None:
        """Return the best plan for the problem with this number that training has found; None if there is none."""
        best = self.curriculum.best[number]
        if best is None:
            return None
        ii, tiles, slots = best
        mapping = Mapping(self.problems[number], ii, look_ahead=False)
        while mapping.current >= 0:
            mapping.place(tiles[mapping.current], slots[mapping.current])
        return mapping.plan(list_scheduled=True)

    @property
    def counts(self) -> Counts:
        """Counts of the training so far; moves are placements."""
        return Counts(self.rounds + self.imitated, self.episodes, self.steps)

    def policy_values(self) -> dict[str, Any]:
        """Return the weights of actor and critic."""
        return {"weights": checkpoint.plain_weights(self.network.state_dict())}

    def state_dict(self) -> dict[str, Any]:
        """Return all state that the next iteration depends on."""
        return super().state_dict() | {
            "counters": [self.rounds, self.imitated, self.episodes, self.steps],
            "weights": checkpoint.plain_weights(self.network.state_dict()),
            "optimizer": self.model.policy.optimizer.state_dict(),
            "curriculum": self.curriculum.state_dict(),
            "shown": [list(example) for example in self._demonstrations],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from a state that :meth:`state_dict` returned; raise one of ``checkpoint.DAMAGE`` if it is not valid."""
        super().load_state_dict(state)
        self.rounds, self.imitated, self.episodes, steps = (int(counter) for counter in state["counters"])
        self.model.num_timesteps = steps
        self.network.load_state_dict(state["weights"])
        self.model.policy.optimizer.load_state_dict(state["optimizer"])
        self.curriculum.load_state_dict(state["curriculum"])
        for number, ii, tiles, slots in state["shown"]:
            self._add_example(int(number), int(ii), list(tiles), list(slots))


def _identity(environment: Lesson) -> Lesson:
    """Return the environment: Stable-Baselines3 requires functions that make environments."""
    return environment


@contextmanager
def _seed_generators(seed: int, part: int) -> Iterator[int]:
    """Seed the global generators of torch and NumPy, which Stable-Baselines3 uses, and restore them afterwards."""
    first, second, third = (int(word) for word in np.random.SeedSequence([seed, part]).generate_state(3))
    before = np.random.get_state()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(first)
        np.random.seed(second)
        try:
            yield third >> 1
        finally:
            np.random.set_state(before)
