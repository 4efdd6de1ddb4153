"""How policies of EGRL are validated: their maps, and the best maps that keep some tensors in the policy's tiers.

A *tier* is one memory of a chip's memory hierarchy. A *map* assigns a tier to every tensor. EGRL, the agent that trains the
policies, makes a whole map at once, which here counts as a *game*; its decisions are the tiers of the tensors. A map is
*decoded* from the network's probabilities, so that no capacity is exceeded. :mod:`stowplan.portfolio.validation.adapter`
explains the other terms of a validation.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from stowplan.errors import InputError
from stowplan.models.tier_placement.plan import Plan, placed
from stowplan.models.tier_placement.problem import Problem
from stowplan.portfolio.tier_placement.learned import POLICY
from stowplan.portfolio.validation.adapter import Adapter, Completion, Effort, Game, Stop

if TYPE_CHECKING:
    from stowplan.learned_guidance.tier_placement.egrl.policy import Policy


#: Number of maps that the search of :meth:`EgrlPlayer.searched` evaluates.
EVALUATIONS = 100


class EgrlPlayer:
    """A player with a graph network, which gives its most likely map and random maps. Both are decoded to valid maps.

    The search is a training run of EGRL on this problem alone that starts with the policy's weights. Its result is the better
    one of two maps: that of the trained network and that of the original one. Games have no estimates of positions, because a
    policy of EGRL makes none.
    """

    def __init__(self, policy: Policy):
        self.policy = policy

    def likeliest(self, problem: Problem, stop: Stop) -> Game | None:
        """See :class:`~stowplan.portfolio.validation.adapter.Player`. It also raises InputError if a tensor finds no place."""
        return None if stop() else Game(self.policy.place(problem))

    def sampled(self, problem: Problem, count: int, seed: int, stop: Stop) -> Sequence[Game]:
        """See :class:`~stowplan.portfolio.validation.adapter.Player`. Raises InputError under the same conditions as
        :meth:`likeliest`."""
        from stowplan.learned_guidance.tier_placement.decode import Decoder
        from stowplan.learned_guidance.tier_placement.egrl.population import draw

        chance, decoder, games = np.random.default_rng(seed), Decoder(problem), list[Game]()
        probabilities = self.policy.posterior(problem)
        one_tier = np.eye(probabilities.shape[-1])
        while len(games) < count and not stop():
            games.append(Game(decoder.likeliest(one_tier[draw(probabilities, chance)])))
        return games

    def searched(self, problem: Problem, seed: int, stop: Stop) -> Game | None:
        """See :class:`~stowplan.portfolio.validation.adapter.Player`. The game is lost if the policy cannot play this problem,
        or if the chip's own compiler finds no map."""
        from stowplan.learned_guidance.tier_placement.egrl.trainer import Trainer
        from stowplan.learned_guidance.training.run import run

        config, weights = self.policy.config.changed(evaluations=EVALUATIONS), self.policy.actor.row.detach().numpy()
        try:
            own = self.policy.place(problem)
            trainer = Trainer([problem], config, seed=seed, weights=weights)
        except InputError:  # the chip's compiler finds no map to measure others by
            return Game(None)
        run(trainer, should_stop=stop)
        evolved = trainer.networks[0].plan() or own
        return None if stop() else Game(min(own, evolved, key=lambda plan: plan.objective))


class Tiers:
    """A map as a sequence of decisions: the tier of each tensor, in the order of the layers, weights before the output.

    ``plan`` is the plan of the map.
    """

    rest = "offsets"

    def __init__(self, problem: Problem, plan: Plan):
        self.problem, self.plan = problem, plan
        self._tensors = placed(problem)

    @cached_property
    def names(self) -> Sequence[str]:
        """A name for each decision, such as ``weights of L in T``."""
        problem = self.problem
        return [
            f"{tensor.what} of {problem.layers[tensor.layer].name} in {problem.tiers[tensor.tier(self.plan)].name}"
            for tensor in self._tensors
        ]

    def best(self, count: int, effort: Effort) -> Completion:
        """See :class:`~stowplan.portfolio.validation.adapter.Decisions`."""
        from stowplan.models.tier_placement.milp import solve_milp

        outcome = solve_milp(
            self.problem,
            time_limit=effort.seconds,
            pins={tensor: tensor.tier(self.plan) for tensor in self._tensors[:count]},
            seed=effort.seed,
            deterministic_limit=effort.work,
            hint=self.plan,
            should_stop=effort.stop,
        )
        plan = outcome.plan or self.plan
        return Completion(plan.objective, max(effort.bound, outcome.bound or 0))


ADAPTER = Adapter(
    agent="EGRL",
    source=POLICY,
    format="stowplan.egrl.policy",
    player=EgrlPlayer,
    untrained=lambda policy: type(policy)(policy.file, type(policy.actor)(policy.actor.shape)),
    decisions=lambda problem, game, best_plan: Tiers(problem, game.plan),
    episodes="evaluations",
    values="a policy file of EGRL has no critic",
)
