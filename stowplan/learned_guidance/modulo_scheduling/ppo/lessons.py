"""Training data: the problem and initiation interval of each episode, and plans to imitate.

Imitation precedes all episodes. Its loss is the cross entropy of the places that the plans chose.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any, SupportsFloat

import gymnasium
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stowplan.errors import InputError
from stowplan.learned_guidance.modulo_scheduling.body import Body
from stowplan.learned_guidance.modulo_scheduling.environment import SLACK, ModuloSchedulingEnv
from stowplan.learned_guidance.modulo_scheduling.observation import Observation, observe
from stowplan.learned_guidance.modulo_scheduling.ppo.config import PpoConfig
from stowplan.learned_guidance.modulo_scheduling.ppo.network import Network, as_tensors
from stowplan.learned_guidance.modulo_scheduling.state import Mapping
from stowplan.learned_guidance.modulo_scheduling.view import Limits
from stowplan.models.modulo_scheduling.bounds import least_ii
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Problem


class Curriculum:
    """Decides the problem and initiation interval of the next episode; shared by all environments of a run."""

    def __init__(self, problems: Sequence[Problem]):
        self.problems = tuple(problems)
        self.least = [least_ii(problem) for problem in problems]
        """Lower bound of the initiation interval of each problem. It rises when an episode finds that no instruction can be
        placed at an interval."""
        self.next = list(self.least)
        """Initiation interval of the next episode of each problem."""
        self.best: list[tuple[int, list[int], list[int]] | None] = [None] * len(problems)
        """Interval, tiles and slots of the best complete mapping of each problem."""
        self.objectives = [1 << 60] * len(problems)
        """Objective of this mapping, or a large number."""
        self.open = list(range(len(problems)))
        """Problems that are not known to be impossible."""

    def draw(self, rng: np.random.Generator) -> int:
        """Draw the index of the next episode's problem; raise InputError if no problem can be mapped."""
        if not self.open:
            raise InputError("found no problem that can be mapped, expected at least one")
        return self.open[int(rng.integers(len(self.open)))]

    def refuse(self, number: int, ii: int, most: int) -> None:
        """Record that no instruction of the problem with this number can be placed at the interval ``ii``. If there is no
        larger interval, that is, if ``ii`` is at least ``most``, exclude the problem."""
        self.least[number] = max(self.least[number], ii + 1)
        self.next[number] = max(self.next[number], ii + 1)
        if ii >= most and number in self.open:
            self.open.remove(number)

    def end(self, number: int, plan: Plan | None, ii: int, most: int) -> None:
        """Record the end of an episode at the interval ``ii``. After a plan the next interval is 1 smaller, but not below the
        least one; after a failure (``plan`` is None) it is 1 larger, but not above ``most``."""
        self.next[number] = min(ii + 1, most) if plan is None else max(ii - 1, self.least[number])
        if plan is not None and plan.objective < self.objectives[number]:
            self.objectives[number] = plan.objective
            self.best[number] = (plan.ii, list(plan.tiles), list(plan.slots))

    def state_dict(self) -> dict[str, Any]:
        """Return the state as plain values."""
        return {
            "least": list(self.least),
            "next": list(self.next),
            "objectives": list(self.objectives),
            "open": list(self.open),
            "best": [None if best is None else list(best) for best in self.best],
        }

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Continue from values that :meth:`state_dict` returned; raise ValueError if they belong to another number of
        problems."""
        if any(len(state[name]) != len(self.problems) for name in ("least", "next", "objectives", "best")):
            raise ValueError("a curriculum of another number of problems")
        self.least, self.next = [int(ii) for ii in state["least"]], [int(ii) for ii in state["next"]]
        self.objectives = [int(objective) for objective in state["objectives"]]
        self.open = [int(number) for number in state["open"]]
        self.best = [None if best is None else (int(best[0]), list(best[1]), list(best[2])) for best in state["best"]]


class Lesson(gymnasium.Env[Observation, np.int64]):
    """An environment whose episodes have the problems and intervals that the curriculum chooses."""

    def __init__(self, env: ModuloSchedulingEnv, curriculum: Curriculum):
        self._env, self._curriculum = env, curriculum
        self.observation_space, self.action_space = env.observation_space, env.action_space
        self.metadata, self.render_mode = env.metadata, None
        self._rng = np.random.default_rng(0)
        self._number = 0

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Observation, dict[str, Any]]:
        """Begin an episode of a problem that can be mapped; ``options`` have no effect. The seed is for all later draws. Raise
        InputError if no problem can be mapped."""
        if seed is not None:
            self._rng = np.random.default_rng(seed)
        while True:
            self._number = number = self._curriculum.draw(self._rng)
            ii = self._curriculum.next[number]
            try:
                return self._env.reset(options={"problem": number, "ii": ii})
            except InputError:
                self._curriculum.refuse(number, ii, self._most(number))

    def step(self, action: npt.ArrayLike) -> tuple[Observation, SupportsFloat, bool, bool, dict[str, Any]]:
        """Make a step in the environment, and report the end of an episode to the curriculum."""
        seen, reward, ended, cut, info = self._env.step(action)
        if ended:
            plan = info.pop("plan", None)
            self._curriculum.end(self._number, plan, int(info["ii"]), self._most(self._number))
            info["excess"] = int(info["ii"]) - self._curriculum.least[self._number]
        return seen, reward, ended, cut, info

    def action_masks(self) -> npt.NDArray[np.bool_]:
        """Return the action masks of the environment."""
        return self._env.action_masks()

    def _most(self, number: int) -> int:
        """Largest initiation interval of a problem."""
        return min(self._env.limits.slots, self._curriculum.problems[number].machine.spoke_depth)


def limits_of(problems: Sequence[Problem]) -> Limits:
    """Return *limits*, the sizes of the padded arrays of an observation, into which all problems fit.

    There are slots for intervals up to :data:`.SLACK` above the lower bound of each problem, as far as its spoke RAM has
    entries. Raise ValueError if there are no problems.
    """
    return Limits.of(tuple(problems), max(min(problem.machine.spoke_depth, least_ii(problem) + SLACK) for problem in problems))


def lessons(problems: Sequence[Problem], config: PpoConfig, curriculum: Curriculum) -> list[Lesson]:
    """Return the environments of a run, ``config.environments`` of them. They share the data of the problems. Raise InputError
    if a problem cannot be mapped."""
    first = ModuloSchedulingEnv(
        list(problems),
        first=config.first,
        iterations=config.iterations,
        shaping=config.shaping,
        limits=limits_of(problems),
    )
    return [Lesson(copy.copy(first), curriculum) for _ in range(config.environments)]


#: Largest number of steps that are added to a batch each time a plan is drawn.
TOGETHER = 12


class Examples:
    """Observations of partial mappings, each with the place to choose."""

    def __init__(self, limits: Limits):
        self.limits = limits
        self._plans: list[tuple[list[Observation], list[int]]] = []

    def __len__(self) -> int:
        return len(self._plans)

    def add(self, body: Body, ii: int, tiles: Sequence[int], slots: Sequence[int]) -> None:
        """Add the steps of a plan, given by its interval and the tile and slot of each instruction.

        Raises
        ------
        InputError
            If the plan breaks a rule, or does not fit the limits.
        """
        mapping = Mapping(body, ii)
        steps: list[tuple[Observation, int]] = []
        while mapping.current >= 0:
            tile, slot = tiles[mapping.current], slots[mapping.current]
            steps.append((observe(mapping, self.limits), tile * self.limits.slots + slot))
            try:
                mapping.place(tile, slot)
            except ValueError as error:
                raise InputError(f"is no plan that can be followed step by step: {error}") from error
        if steps:
            self._plans.append(([seen for seen, _ in steps], [action for _, action in steps]))

    def batch(self, size: int, rng: np.random.Generator) -> tuple[dict[str, Tensor], Tensor]:
        """Draw ``size`` steps, and return their observations and the actions to choose.

        Plans are drawn one after the other, and each gives up to :data:`TOGETHER` different steps. Steps of the same plan are
        cheaper than steps of different ones, because they share the embedding of the plan's graph. Raise ValueError if there is
        no plan.
        """
        seen: list[Observation] = []
        actions: list[int] = []
        while len(seen) < size:
            observations, chosen = self._plans[int(rng.integers(len(self._plans)))]
            count = min(TOGETHER, len(observations), size - len(seen))
            for at in rng.choice(len(observations), count, replace=False):
                seen.append(observations[at])
                actions.append(chosen[at])
        arrays = {name: np.stack([observation[name] for observation in seen]) for name in seen[0]}
        return as_tensors(arrays), torch.tensor(actions)


def imitate(network: Network, optimizer: torch.optim.Optimizer, batch: tuple[dict[str, Tensor], Tensor], clip: float) -> float:
    """Make one step of the optimizer on a batch of :meth:`Examples.batch`, with gradients clipped to the norm ``clip``; return
    the cross entropy before it."""
    seen, actions = batch
    scores = network(seen)[0].flatten(1).masked_fill(seen["mask"].flatten(1) == 0, -1e8)
    loss = torch.nn.functional.cross_entropy(scores, actions)
    optimizer.zero_grad()
    loss.backward()  # type: ignore[no-untyped-call]
    torch.nn.utils.clip_grad_norm_(network.parameters(), clip)
    optimizer.step()
    return float(loss.detach())
