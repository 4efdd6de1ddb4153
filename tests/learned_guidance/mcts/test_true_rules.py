"""The search with a model that holds the true rules of a game of five actions, against exhaustive search."""

from __future__ import annotations

import numpy as np
import pytest

from stowplan.learned_guidance.mcts.search import SearchConfig, search

ACTIONS, MOVES = 5, 3


class Game:
    """A random tree: a state is its number, rewards hang on its edges, and some actions are not legal. As the search's model,
    it knows nothing of what is worth what: the policy is even and all values are 0.
    """

    def __init__(self, seed: int):
        rng = np.random.default_rng(seed)
        self.inner = sum(ACTIONS**depth for depth in range(MOVES))
        self.reward = rng.random((self.inner, ACTIONS)) ** 3
        self.legal = rng.random((self.inner, ACTIONS)) < 0.7
        self.legal[np.arange(self.inner), rng.integers(ACTIONS, size=self.inner)] = True

    def is_over(self, state: int) -> bool:
        return state >= self.inner

    def best(self, state: int) -> float:
        """Best return from a state, by looking at all games."""
        if self.is_over(state):
            return 0.0
        return max(self.value(state, action) for action in np.flatnonzero(self.legal[state]))

    def value(self, state: int, action: int) -> float:
        return self.reward[state, action] + self.best(ACTIONS * state + 1 + action)

    def initial(self, states):
        over = states >= self.inner
        legal = self.legal[np.where(over, 0, states)] | over[:, None]
        return states, np.where(legal, 0.0, -np.inf), np.zeros(len(states))

    def recurrent(self, states, actions):
        over = states >= self.inner
        reward = np.where(over, 0.0, self.reward[np.where(over, 0, states), actions])
        after, logits, value = self.initial(np.where(over, states, ACTIONS * states + 1 + actions))
        return after, reward, logits, value


@pytest.mark.parametrize("method", ["puct", "gumbel"])
def test_searched_games_are_the_best_there_are(method: str) -> None:
    config = SearchConfig(method=method, simulations=1500, discount=1.0)  # type: ignore[arg-type]
    for seed in range(4):
        game, state, earned = Game(seed), 0, 0.0
        while not game.is_over(state):
            legal = game.legal[[state]]
            found = search(game, np.array([state]), legal, config, np.random.default_rng(0), explore=False)
            assert found.visits.shape == found.policy.shape == (1, ACTIONS)
            assert not found.visits[~legal].any()
            action = int(found.action[0])
            earned += game.reward[state, action]
            state = ACTIONS * state + 1 + action
        assert earned == pytest.approx(game.best(0))


@pytest.mark.parametrize("method", ["puct", "gumbel"])
def test_no_illegal_action_is_searched_below_the_root(method: str) -> None:
    """Else what is promised would be more than the rules allow."""
    for seed in range(4):
        game = Game(seed)
        game.reward[~game.legal] = 100.0
        config = SearchConfig(method=method, simulations=300, discount=1.0)  # type: ignore[arg-type]
        found = search(game, np.zeros(1, int), game.legal[:1], config, np.random.default_rng(0), explore=True)
        for action in np.flatnonzero(game.legal[0]):
            assert not found.q[0, action] > game.value(0, action) + 1e-9


def test_all_actions_are_considered_and_halved() -> None:
    game = Game(0)
    game.legal[:] = True
    config = SearchConfig(method="gumbel", simulations=50, discount=1.0)
    found = search(game, np.zeros(1, int), game.legal[:1], config, np.random.default_rng(0), explore=False)
    assert (found.visits[0] > 0).all()
    few = search(
        game, np.zeros(1, int), game.legal[:1], config.changed(max_considered=2), np.random.default_rng(0), explore=False
    )
    assert (few.visits[0] > 0).sum() == 2
