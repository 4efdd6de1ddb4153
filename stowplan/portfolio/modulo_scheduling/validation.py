"""How policies of PPO are validated: their mappings, and the best plans that keep some instructions where they put them."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from stowplan.models.modulo_scheduling.bounds import least_ii
from stowplan.models.modulo_scheduling.plan import Plan
from stowplan.models.modulo_scheduling.problem import Pin, Problem
from stowplan.portfolio.modulo_scheduling.learned import POLICY
from stowplan.portfolio.validation.adapter import Adapter, Completion, Effort, Estimate, Game, Stop

if TYPE_CHECKING:
    from stowplan.learned_guidance.modulo_scheduling.environment import ModuloSchedulingEnv
    from stowplan.learned_guidance.modulo_scheduling.ppo.policy import Policy


class Placed(NamedTuple):
    """The place of one instruction in a mapping."""

    instruction: int
    tile: int
    slot: int


#: Number of mappings that the search makes.
ROLL_OUTS = 64


@dataclass
class Attempt:
    """An episode: a mapping at one initiation interval (II), with the network's values and the rewards on the way."""

    env: ModuloSchedulingEnv
    observation: dict[str, Any]
    """The current observation."""
    ii: int
    placed: list[Placed] = field(default_factory=list)
    """The placements so far."""
    values: list[float] = field(default_factory=list)
    """The value that the network predicted before each placement."""
    rewards: list[float] = field(default_factory=list)
    """The reward of each placement."""
    plan: Plan | None = None
    """The plan of a complete mapping."""


class PpoPlayer:
    """A player with a policy of PPO: it maps at the least interval that bounds allow, then at the next, until one is complete.

    Its search is that of the candidate: roll-outs that continue as copies of others, and that repair earlier mappings.
    """

    def __init__(self, policy: Policy):
        self.policy = policy

    def likeliest(self, problem: Problem, stop: Stop) -> Game | None:
        """See :class:`~stowplan.portfolio.validation.adapter.Player`."""
        return next(iter(self._games(problem, 1, None, stop)), None)

    def sampled(self, problem: Problem, count: int, seed: int, stop: Stop) -> Sequence[Game]:
        """See :class:`~stowplan.portfolio.validation.adapter.Player`."""
        return self._games(problem, count, np.random.default_rng(seed), stop)

    def searched(self, problem: Problem, seed: int, stop: Stop) -> Game | None:
        """See :class:`~stowplan.portfolio.validation.adapter.Player`."""
        from stowplan.portfolio.modulo_scheduling.body import Body
        from stowplan.portfolio.modulo_scheduling.rollouts import RollOuts
        from stowplan.portfolio.modulo_scheduling.search import Tally

        tally = Tally(Body(problem))
        rolls = RollOuts(tally, self.policy, seed, repair=True)
        while tally.evaluations < ROLL_OUTS and not stop():
            rolls.step(tally.body.least_ii, stop, ROLL_OUTS - tally.evaluations)
        return None if stop() else Game(tally.best)

    def _games(self, problem: Problem, count: int, chance: np.random.Generator | None, stop: Stop) -> list[Game]:
        """Play games in parallel; returns none if stopped."""
        from stowplan.learned_guidance.modulo_scheduling.environment import SLACK, ModuloSchedulingEnv
        from stowplan.learned_guidance.modulo_scheduling.ppo.config import PpoConfig
        from stowplan.learned_guidance.modulo_scheduling.view import Limits

        config = PpoConfig() if self.policy.file is None else self.policy.file.config
        # Direct links only, as for the candidate.
        seen = msgspec.structs.replace(problem, rules=msgspec.structs.replace(problem.rules, pass_through=False))
        least = least_ii(seen)
        most = min(seen.machine.spoke_depth, least + SLACK)
        env = ModuloSchedulingEnv(
            seen,
            first=config.first,
            iterations=config.iterations,
            shaping=config.shaping,
            limits=Limits.of([seen], most),
        )
        attempts: list[list[Attempt]] = [[] for _ in range(count)]
        left = list(range(count))
        for ii in range(least, most + 1):
            started = {number: _start_mapping(env, ii) for number in left}
            going = {number: attempt for number, attempt in started.items() if attempt is not None}
            while going and not stop():
                going = self._step(going, attempts, chance)
            if going:
                return []
            left = [number for number in left if not attempts[number] or attempts[number][-1].plan is None]
        return [_record_game(problem, own, config.discount) for own in attempts]

    def _step(
        self, going: dict[int, Attempt], ended: list[list[Attempt]], chance: np.random.Generator | None
    ) -> dict[int, Attempt]:
        """Make one placement in each mapping; returns those that continue."""
        import torch

        from stowplan.learned_guidance.modulo_scheduling.ppo.network import as_tensors

        each_of = list(going.values())
        batch = {name: np.stack([attempt.observation[name] for attempt in each_of]) for name in each_of[0].observation}
        with torch.inference_mode():
            scores, values = (part.numpy() for part in self.policy.network(as_tensors(batch)))
        scores = np.where(batch["mask"] > 0, scores, -np.inf).reshape(len(each_of), -1)
        if chance is not None:
            # The maximum of scores with Gumbel noise is a sample from their softmax.
            scores = scores + chance.gumbel(size=scores.shape)
        left = {}
        actions, estimates = scores.argmax(axis=1).tolist(), values.tolist()
        for (number, attempt), action, value in zip(going.items(), actions, estimates, strict=True):
            env = attempt.env
            attempt.placed.append(Placed(env.mapping.current, *divmod(action, env.limits.slots)))
            attempt.values.append(value)
            attempt.observation, reward, is_over, _, info = env.step(np.int64(action))
            attempt.rewards.append(float(reward))
            if is_over:
                # As in the candidate, only the places count; the times are scheduled anew if that is better.
                attempt.plan = None if info["failed"] else env.mapping.plan(list_scheduled=True)
                ended[number].append(attempt)
            else:
                left[number] = attempt
        return left


def _start_mapping(env: ModuloSchedulingEnv, ii: int) -> Attempt | None:
    """An empty mapping at an interval; None if nothing can be placed at it."""
    from stowplan.errors import InputError

    own = copy.copy(env)
    try:
        observation, _ = own.reset(options={"ii": ii})
    except InputError:
        return None
    return Attempt(own, observation, ii)


def _record_game(problem: Problem, attempts: Sequence[Attempt], discount: float) -> Game:
    """The record of a game, which consists of attempts at one interval after the other."""
    estimates = []
    for attempt in attempts:
        returned = 0.0
        for at in range(len(attempt.rewards) - 1, -1, -1):
            returned = attempt.rewards[at] + discount * returned
            # Positions at different intervals get different numbers.
            estimates.append(Estimate(attempt.ii * len(problem.instructions) + at, attempt.values[at], returned))
    plan = attempts[-1].plan if attempts else None
    if plan is not None:
        plan = msgspec.structs.replace(plan, problem=problem.digest)
    return Game(plan, tuple(estimates), None, {attempt.ii: tuple(attempt.placed) for attempt in attempts})


class Places:
    """A mapping as a sequence of decisions: tile and slot of each instruction, in the order in which they were placed.

    If the policy needed a larger interval than necessary, the mapping is the one that got stuck at the least interval. A
    decision after which there is no plan then costs as much as the plan that the policy completed at a larger interval.
    """

    rest = "times at the places chosen"

    def __init__(self, problem: Problem, plan: Plan, placed: Sequence[Placed]):
        self.problem, self.plan, self._placed = problem, plan, placed

    @cached_property
    def names(self) -> Sequence[str]:
        """A name for each decision, such as ``I on tile T, slot S``."""
        names = [instruction.id for instruction in self.problem.instructions]
        return [f"{names[placement.instruction]} on tile {placement.tile}, slot {placement.slot}" for placement in self._placed]

    def best(self, count: int, effort: Effort) -> Completion:
        """See :class:`~stowplan.portfolio.validation.adapter.Decisions`."""
        from stowplan.models.modulo_scheduling.cpsat import solve

        ceiling, proven = self.plan.objective, effort.bound

        def note(bound: int) -> None:
            nonlocal proven
            proven = max(proven, bound)

        problem = with_places(self.problem, self._placed[:count])
        outcome = solve(
            problem,
            time_limit=effort.seconds,
            seed=effort.seed,
            deterministic_limit=effort.work,
            on_bound=note,
            # Plans that are no better than the policy's own are of no use.
            should_stop=lambda: effort.stop() or proven >= ceiling,
        )
        if outcome.status == "infeasible":
            return Completion(ceiling, ceiling)
        objective = ceiling if outcome.plan is None else min(ceiling, outcome.plan.objective)
        return Completion(objective, min(objective, max(proven, outcome.bound or 0)))


def with_places(problem: Problem, placed: Sequence[Placed]) -> Problem:
    """The loop body with instructions pinned to tile and slot, in addition to its own pins."""
    pins = {pin.instruction: pin for pin in problem.pins}
    for number, tile, slot in placed:
        name = problem.instructions[number].id
        pins[name] = msgspec.structs.replace(pins.get(name, Pin(instruction=name)), tile=tile, slot=slot)
    return msgspec.structs.replace(problem, pins=tuple(pins.values()))


def _decisions(problem: Problem, game: Game, known: Plan | None) -> Places | None:
    """The decisions of a game at the least interval of its own plan and of the best known one; None without a plan."""
    if game.plan is None:
        return None
    ii = game.plan.ii if known is None else min(known.ii, game.plan.ii)
    placed = game.trace.get(ii)
    return None if placed is None else Places(problem, game.plan, placed)


ADAPTER = Adapter(
    agent="PPO",
    source=POLICY,
    format="stowplan.ppo.policy",
    player=PpoPlayer,
    untrained=lambda policy: type(policy)(type(policy.network)(policy.network.config), policy.file),
    decisions=_decisions,
    episodes="mappings",
)
