"""How policies of PPO are validated: their mappings, and the best plans in which some instructions keep the policy's places.

A *place* is a tile (a processing element) and a slot, which is a clock modulo the initiation interval (II). A *mapping* gives
places to instructions; it is complete if all have one. A *game* here is a series of *attempts*, mappings at one II after the
other, until one is complete. The *return* before a placement is the discounted sum of the rewards from there to the end of the
attempt. :mod:`stowplan.portfolio.validation.adapter` explains the other terms of a validation.
"""

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
    """Number of the instruction."""
    tile: int
    """Number of the tile."""
    slot: int
    """Issue clock modulo the II."""


#: Number of evaluations that the search of :meth:`PpoPlayer.searched` makes. An evaluation is the work of placing every
#: instruction once.
ROLL_OUTS = 64


@dataclass
class Attempt:
    """An episode: a mapping at one II, with the values that the network predicted and the rewards."""

    env: ModuloSchedulingEnv
    """The environment of the episode."""
    observation: dict[str, Any]
    """The current observation."""
    ii: int
    """The initiation interval, in clocks."""
    placed: list[Placed] = field(default_factory=list)
    """The placements so far."""
    values: list[float] = field(default_factory=list)
    """The return that the network predicted before each placement."""
    rewards: list[float] = field(default_factory=list)
    """The reward of each placement."""
    plan: Plan | None = None
    """The plan, if the mapping is complete; otherwise None."""


class PpoPlayer:
    """A player with a policy of PPO. It maps at the least II that bounds allow, then at the next, until a mapping is complete.

    A game is lost if no mapping is complete up to the largest II that is tried.

    Its search is that of the candidate ``ppo``: roll-outs that continue as copies of others, and that repair earlier mappings.
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
        """Play ``count`` games in parallel; returns an empty list if they were stopped.

        With ``chance``, decisions are drawn at random; otherwise each is the most likely one.
        """
        from stowplan.learned_guidance.modulo_scheduling.environment import SLACK, ModuloSchedulingEnv
        from stowplan.learned_guidance.modulo_scheduling.ppo.config import PpoConfig
        from stowplan.learned_guidance.modulo_scheduling.view import Limits

        config = PpoConfig() if self.policy.file is None else self.policy.file.config
        # As in the candidate, values use direct links only.
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
        """Make one placement in each mapping of ``going``, by the number of its game; returns the mappings that continue.

        Mappings that end are appended to the list of their game in ``ended``.
        """
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
                # As in the candidate, only the places count. The times are scheduled anew if the plan is then better.
                attempt.plan = None if info["failed"] else env.mapping.plan(list_scheduled=True)
                ended[number].append(attempt)
            else:
                left[number] = attempt
        return left


def _start_mapping(env: ModuloSchedulingEnv, ii: int) -> Attempt | None:
    """An empty mapping at an II; None if no mapping is possible at this II."""
    from stowplan.errors import InputError

    own = copy.copy(env)
    try:
        observation, _ = own.reset(options={"ii": ii})
    except InputError:
        return None
    return Attempt(own, observation, ii)


def _record_game(problem: Problem, attempts: Sequence[Attempt], discount: float) -> Game:
    """The record of a game, which consists of attempts at one II after the other; returns are discounted by ``discount``."""
    estimates = []
    for attempt in attempts:
        returned = 0.0
        for at in range(len(attempt.rewards) - 1, -1, -1):
            returned = attempt.rewards[at] + discount * returned
            # Positions at different IIs get different numbers, so that they are not compared.
            estimates.append(Estimate(attempt.ii * len(problem.instructions) + at, attempt.values[at], returned))
    plan = attempts[-1].plan if attempts else None
    if plan is not None:
        plan = msgspec.structs.replace(plan, problem=problem.digest)
    return Game(plan, tuple(estimates), None, {attempt.ii: tuple(attempt.placed) for attempt in attempts})


class Places:
    """A mapping as a sequence of decisions: tile and slot of each instruction, in the order in which they were placed.

    If the policy needed a larger II than necessary, the mapping is the incomplete one at the II of the best known plan. A
    decision after which there is no plan then counts as if it led to the plan that the policy completed at a larger II.
    ``plan`` is the plan of the game, and ``placed`` has the decisions.
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
            # Once it is proven that no plan is better than the policy's own, the result is clear.
            should_stop=lambda: effort.stop() or proven >= ceiling,
        )
        if outcome.status == "infeasible":
            return Completion(ceiling, ceiling)
        objective = ceiling if outcome.plan is None else min(ceiling, outcome.plan.objective)
        return Completion(objective, min(objective, max(proven, outcome.bound or 0)))


def with_places(problem: Problem, placed: Sequence[Placed]) -> Problem:
    """The problem with some instructions pinned to a tile and a slot, in addition to its own pins.

    A tile or slot that a pin of the problem fixes already is replaced. Raises InputError if a tile is not one of the machine's.
    """
    pins = {pin.instruction: pin for pin in problem.pins}
    for number, tile, slot in placed:
        name = problem.instructions[number].id
        pins[name] = msgspec.structs.replace(pins.get(name, Pin(instruction=name)), tile=tile, slot=slot)
    return msgspec.structs.replace(problem, pins=tuple(pins.values()))


def _decisions(problem: Problem, game: Game, best_plan: Plan | None) -> Places | None:
    """The decisions of a game at the II of the best known plan or, if that is smaller, of its own plan.

    The result is None if the game has no plan, or no attempt at this II.
    """
    if game.plan is None:
        return None
    ii = game.plan.ii if best_plan is None else min(best_plan.ii, game.plan.ii)
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
