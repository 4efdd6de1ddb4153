"""The batched search against plain ones of one game and node objects, on random models; and what a search is for."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import pytest

from stowplan.errors import UsageError
from stowplan.learned_guidance.mcts import search as searching
from stowplan.learned_guidance.mcts.search import SearchConfig, search

PUCT = SearchConfig(simulations=30, discount=0.97, forced_simulations=30)
GUMBEL = PUCT.changed(method="gumbel")


class TableModel:
    """A random model over a few hundred states; a hidden state is the number of the state."""

    def __init__(self, seed: int, *, states: int = 300, reward_scale: float = 0.1):
        rng = np.random.default_rng(seed)
        self.next = rng.integers(states, size=(states, 3))
        self.reward = rng.normal(size=(states, 3)) * reward_scale
        self.logits = rng.normal(size=(states, 3)).astype(np.float32)
        self.value = rng.normal(size=states).astype(np.float32)

    def initial(self, observations):
        return observations, self.logits[observations], self.value[observations]

    def recurrent(self, hidden, actions):
        after = self.next[hidden, actions]
        return after, self.reward[hidden, actions], self.logits[after], self.value[after]


# The plain searches: one game, nodes and edges as objects.


@dataclass
class Edge:
    prior: float
    logit: float
    visits: int = 0
    total: float = 0.0
    reward: float = 0.0
    child: Node | None = None

    @property
    def q(self) -> float:
        return self.total / self.visits


@dataclass
class Node:
    state: int
    value: float
    edges: dict[int, Edge] = field(default_factory=dict)

    @property
    def visits(self) -> int:
        return sum(edge.visits for edge in self.edges.values())

    @property
    def mean(self) -> float:
        """Mean over the evaluation of the node and all simulations through it."""
        return (self.value + sum(edge.total for edge in self.edges.values())) / (1 + self.visits)

    @property
    def completed(self) -> dict[int, float]:
        """Q of all actions: of unvisited ones the mixed value."""
        seen = [edge for edge in self.edges.values() if edge.visits]
        mixed = self.value
        if seen:
            under_prior = sum(edge.prior * edge.q for edge in seen) / sum(edge.prior for edge in seen)
            mixed = (self.value + self.visits * under_prior) / (1 + self.visits)
        return {action: edge.q if edge.visits else mixed for action, edge in self.edges.items()}


class PlainSearch:
    def __init__(self, model, state, legal, config, *, noise=None, gumbel=(0, 0, 0)):
        self.model, self.config, self.gumbel = model, config, gumbel
        self.seen: list[float] = []
        self.root = self.node(state, [action for action in range(3) if legal[action]])
        if noise is not None:
            for action, edge in self.root.edges.items():
                edge.prior = (1 - config.noise_fraction) * edge.prior + config.noise_fraction * noise[action]
        if config.method == "puct":
            for _ in range(config.simulations):
                self.simulate(self.by_puct(self.root))
        else:
            self.halve()

    def node(self, state, actions):
        logits = {action: float(self.model.logits[state, action]) for action in actions}
        norm = sum(math.exp(logit) for logit in logits.values())
        edges = {action: Edge(math.exp(logit) / norm, logit) for action, logit in logits.items()}
        self.seen.append(float(self.model.value[state]))
        return Node(state, float(self.model.value[state]), edges)

    def simulate(self, action):
        """One simulation that begins with an action of the root."""
        path, node = [], self.root
        while True:
            edge = node.edges[action]
            path.append(edge)
            if edge.child is None:
                break
            node = edge.child
            action = self.by_puct(node) if self.config.method == "puct" else self.by_improved_policy(node)
        edge.reward = self.model.reward[node.state, action]
        edge.child = self.node(self.model.next[node.state, action], range(3))
        found = edge.child.value
        for edge in reversed(path):
            found = edge.reward + self.config.discount * found
            edge.visits += 1
            edge.total += found
            self.seen.append(edge.q)

    def bounds(self, node):
        here = [node.mean] + [edge.q for edge in node.edges.values() if edge.visits]
        return min(here), max(max(self.seen) - min(self.seen), self.config.min_span)

    def by_puct(self, node):
        low, span = self.bounds(node)
        visits = 1 + node.visits
        weight = self.config.c_init + math.log((visits + self.config.c_base + 1) / self.config.c_base)

        def bound(action):
            edge = node.edges[action]
            q = (edge.q - low) / span if edge.visits else 0.0
            return q + weight * edge.prior * math.sqrt(visits) / (1 + edge.visits)

        return max(node.edges, key=bound)

    def improved(self, node):
        low, span = self.bounds(node)
        scale = (self.config.c_visit + max(edge.visits for edge in node.edges.values())) * self.config.c_scale
        return {action: node.edges[action].logit + scale * (q - low) / span for action, q in node.completed.items()}

    def improved_policy(self, node):
        logits = self.improved(node)
        norm = sum(math.exp(logit) for logit in logits.values())
        return {action: math.exp(logit) / norm for action, logit in logits.items()}

    def by_improved_policy(self, node):
        policy = self.improved_policy(node)
        return max(policy, key=lambda action: policy[action] - node.edges[action].visits / (1 + node.visits))

    def best_at_root(self, actions):
        logits = self.improved(self.root)
        return max(actions, key=lambda action: self.gumbel[action] + logits[action])

    def halve(self):
        """Sequential halving (Danihelka et al., algorithm 2); a phase's candidates are settled by its first round."""
        budget = left = self.config.simulations
        candidates, count = list(self.root.edges), min(self.config.max_considered, len(self.root.edges))
        rounds = math.ceil(math.log2(count)) if count > 1 else 1
        while left:
            per_candidate = max(1, int(budget / (rounds * count)))
            for _ in range(per_candidate):
                waiting, visited = list(candidates), []
                while len(visited) < count and left:
                    action = self.best_at_root(waiting)
                    waiting.remove(action)
                    visited.append(action)
                    self.simulate(action)
                    left -= 1
                if left:
                    candidates = sorted(visited)
            count = max(min(2, count), count // 2)

    def chosen(self):
        most = max(edge.visits for edge in self.root.edges.values())
        return self.best_at_root([action for action, edge in self.root.edges.items() if edge.visits == most])


def random_legal(rng, batch):
    legal = rng.random((batch, 3)) < 0.7
    legal[np.arange(batch), rng.integers(3, size=batch)] = True
    return legal


@pytest.mark.parametrize("simulations", [1, 7, 60])
@pytest.mark.parametrize("seed", range(4))
def test_puct_equals_a_plain_search(seed, simulations):
    rng, batch = np.random.default_rng(seed), 12
    model, legal, states = TableModel(seed), random_legal(rng, batch), rng.integers(300, size=batch)
    config = PUCT.changed(simulations=simulations, forced_simulations=simulations)
    result = search(model, states, legal, config, rng, explore=False)
    for game in range(batch):
        root = PlainSearch(model, states[game], legal[game], config).root
        assert {action: edge.visits for action, edge in root.edges.items()} == {
            action: result.visits[game, action] for action in np.flatnonzero(legal[game])
        }
        for action, edge in root.edges.items():
            if edge.visits:
                assert result.q[game, action] == pytest.approx(edge.q, abs=1e-12)
                assert result.policy[game, action] == pytest.approx(edge.visits / simulations)
        mean = sum(edge.total for edge in root.edges.values()) / simulations
        assert result.value[game] == pytest.approx(mean, abs=1e-12)


@pytest.mark.parametrize(("simulations", "max_considered"), [(1, 3), (2, 2), (3, 3), (16, 3), (17, 2), (60, 3), (20, 1)])
@pytest.mark.parametrize("seed", range(3))
def test_gumbel_equals_a_plain_search(seed, simulations, max_considered):
    rng, batch = np.random.default_rng(seed), 12
    model, legal, states = TableModel(seed), random_legal(rng, batch), rng.integers(300, size=batch)
    config = GUMBEL.changed(simulations=simulations, forced_simulations=simulations, max_considered=max_considered)
    drawn = -np.log(-np.log(np.random.default_rng(seed).random((batch, 7))[:, :3]))
    result = search(model, states, legal, config, np.random.default_rng(seed), explore=True)
    for game in range(batch):
        plain = PlainSearch(model, states[game], legal[game], config, gumbel=drawn[game])
        policy, completed = plain.improved_policy(plain.root), plain.root.completed
        assert {action: edge.visits for action, edge in plain.root.edges.items()} == {
            action: result.visits[game, action] for action in np.flatnonzero(legal[game])
        }
        assert result.action[game] == plain.chosen()
        assert result.value[game] == pytest.approx(sum(policy[action] * completed[action] for action in policy), abs=1e-9)
        for action in range(3):
            assert result.policy[game, action] == pytest.approx(policy.get(action, 0.0), abs=1e-9)


def test_puct_with_noise_equals_a_plain_search():
    rng, batch = np.random.default_rng(5), 20
    model, legal, states = TableModel(5), random_legal(rng, batch), rng.integers(300, size=batch)
    config = PUCT.changed(noise_alpha=0.7)
    result = search(model, states, legal, config, np.random.default_rng(9), explore=True)
    silent = search(model, states, legal, config, rng, explore=False)
    tree = searching.trees.empty_tree(batch, 1, 3)
    searching._mix_in_noise(tree, searching._uniform(np.random.default_rng(9), batch, 3), legal, config)
    for game in range(batch):
        noise = tree.prior[game, 0] / config.noise_fraction
        root = PlainSearch(model, states[game], legal[game], config, noise=noise).root
        assert [root.edges[action].visits for action in np.flatnonzero(legal[game])] == list(result.visits[game][legal[game]])
    assert (result.visits != silent.visits).any()


@pytest.mark.parametrize("alpha", [0.03, 0.5, 3.0])
def test_noise_is_a_dirichlet_variate_over_legal_actions(alpha):
    batch = 20_000
    config = SearchConfig(noise_alpha=alpha, noise_fraction=1)
    for legal, count in (((True, True, True), 3), ((True, False, True), 2)):
        tree = searching.trees.empty_tree(batch, 1, 3)
        uniform = searching._uniform(np.random.default_rng(3), batch, 3)
        searching._mix_in_noise(tree, uniform, np.array([legal] * batch), config)
        noise = tree.prior[:, 0][:, np.array(legal)]
        assert noise.sum(axis=1) == pytest.approx(1)
        assert tree.prior[:, 0].sum(axis=1) == pytest.approx(1)
        mean = 1 / count
        assert noise.mean(axis=0) == pytest.approx(mean, abs=0.012)
        assert noise.var(axis=0) == pytest.approx(mean * (1 - mean) / (count * alpha + 1), rel=0.05)


@pytest.mark.parametrize("config", [PUCT, GUMBEL, PUCT.changed(temperature=0)], ids=["puct", "gumbel", "cold"])
@pytest.mark.parametrize("batch", [1, 64])
@pytest.mark.parametrize("explore", [False, True])
def test_illegal_actions_are_never_visited_nor_chosen(config, batch, explore):
    rng = np.random.default_rng(batch)
    for seed in range(4):
        config = config.changed(simulations=int(rng.integers(1, 20)), forced_simulations=int(rng.integers(3)))
        legal = random_legal(rng, batch)
        states = rng.integers(300, size=batch)
        result = search(TableModel(seed), states, legal, config, rng, explore=explore)
        assert result.visits.shape == result.policy.shape == result.q.shape == (batch, 3)
        assert result.value.shape == result.action.shape == (batch,)
        assert not result.visits[~legal].any()
        assert not result.policy[~legal].any()
        assert np.isnan(result.q[~legal]).all()
        assert legal[np.arange(batch), result.action].all()
        assert result.policy.sum(axis=1) == pytest.approx(1)
        is_free = legal.sum(axis=1) > 1
        assert (result.visits.sum(axis=1)[is_free] == config.simulations).all()
        assert (result.visits.sum(axis=1)[~is_free] == min(config.forced_simulations, config.simulations)).all()
        assert np.isfinite(result.value).all()


@pytest.mark.parametrize("config", [PUCT, GUMBEL], ids=["puct", "gumbel"])
def test_same_seed_same_search(config):
    rng = np.random.default_rng(1)
    legal, states, model = random_legal(rng, 16), rng.integers(300, size=16), TableModel(1)
    first, second = (search(model, states, legal, config, np.random.default_rng(7), explore=True) for _ in range(2))
    other = search(model, states, legal, config, np.random.default_rng(8), explore=True)
    for name in ("visits", "policy", "value", "action"):
        assert np.array_equal(getattr(first, name), getattr(second, name))
    assert not np.array_equal(first.visits, other.visits)


@pytest.mark.parametrize("config", [PUCT.changed(forced_simulations=1), GUMBEL], ids=["puct", "gumbel"])
def test_a_state_is_searched_alike_in_any_batch(config):
    rng = np.random.default_rng(2)
    legal, states, model = random_legal(rng, 16), rng.integers(300, size=16), TableModel(2)
    whole = search(model, states, legal, config, rng, explore=False)
    order = rng.permutation(16)[:5]
    part = search(model, states[order], legal[order], config, rng, explore=False)
    shared = search(model, states, legal, config, np.random.default_rng(3), explore=True)
    first = search(model, states[:6], legal[:6], config, np.random.default_rng(3), explore=True)
    for name in ("visits", "policy", "value", "action"):
        assert np.array_equal(getattr(whole, name)[order], getattr(part, name))
        assert np.array_equal(getattr(shared, name)[:6], getattr(first, name))


def test_actions_are_drawn_by_visits_and_temperature():
    model, batch = TableModel(3), 4000
    legal, states = np.ones((batch, 3), bool), np.full(batch, 17)
    for temperature in (1.0, 0.5):
        config = PUCT.changed(simulations=12, noise_fraction=0, temperature=temperature)
        result = search(model, states, legal, config, np.random.default_rng(4), explore=True)
        expected = result.visits[0] ** (1 / temperature)
        assert np.bincount(result.action, minlength=3) / batch == pytest.approx(expected / expected.sum(), abs=0.03)
    calm = search(model, states, legal, PUCT.changed(simulations=12), np.random.default_rng(4), explore=False)
    assert (calm.action == np.argmax(calm.visits, axis=1)).all()


@pytest.mark.parametrize("config", [PUCT, GUMBEL], ids=["puct", "gumbel"])
def test_where_all_is_equal_nothing_is_preferred(config):
    model = TableModel(0, reward_scale=0)
    model.logits[:], model.value[:] = 0, 1
    config = config.changed(simulations=31, discount=1.0)
    result = search(model, np.arange(4), np.ones((4, 3), bool), config, np.random.default_rng(0), explore=False)
    if config.method == "puct":
        assert (np.ptp(result.visits, axis=1) <= 1).all()
    else:
        assert result.policy == pytest.approx(1 / 3)
    assert result.value == pytest.approx(1)


def test_differences_below_the_least_span_do_not_decide():
    model = TableModel(0, reward_scale=1e-9)
    model.logits[:], model.value[:] = 0, 1
    config = PUCT.changed(simulations=30, discount=1.0, min_span=1e-3)
    result = search(model, np.arange(4), np.ones((4, 3), bool), config, np.random.default_rng(0), explore=False)
    assert (np.ptp(result.visits, axis=1) <= 1).all()
    keen = search(
        model, np.arange(4), np.ones((4, 3), bool), config.changed(min_span=1e-12), np.random.default_rng(0), explore=False
    )
    assert (np.ptp(keen.visits, axis=1) > 1).all()


@pytest.mark.parametrize("config", [PUCT, GUMBEL], ids=["puct", "gumbel"])
def test_a_forced_move_has_the_value_of_the_model_where_nothing_is_simulated(config):
    legal = np.array([[False, True, False], [True, True, True], [False, False, True]])
    model, states = TableModel(4), np.array([5, 6, 7])
    result = search(model, states, legal, config.changed(forced_simulations=0), np.random.default_rng(0), explore=True)
    assert result.policy[0].tolist() == [0, 1, 0]
    assert result.action.tolist()[::2] == [1, 2]
    assert result.value[::2] == pytest.approx(model.value[[5, 7]], abs=1e-6)
    once = search(model, states, legal, config.changed(forced_simulations=1), np.random.default_rng(0), explore=True)
    after = model.next[5, 1]
    assert once.q[0, 1] == pytest.approx(model.reward[5, 1] + config.discount * model.value[after])


# What a search is for.


class TreeMdp(TableModel):
    """A game of ``depth`` moves with random rewards, known in full; a state is the moves made, and after the last it stays."""

    def __init__(self, seed: int, depth: int):
        rng = np.random.default_rng(seed)
        self.states = (3 ** (depth + 1) - 1) // 2
        inner = (3**depth - 1) // 2
        self.next = np.repeat(np.arange(self.states)[:, None], 3, axis=1)
        self.next[:inner] = 3 * np.arange(inner)[:, None] + [1, 2, 3]
        self.reward = np.zeros((self.states, 3))
        self.reward[:inner] = rng.random((inner, 3)) / depth
        self.logits = np.zeros((self.states, 3), np.float32)
        self.value = np.zeros(self.states, np.float32)
        self.inner = inner

    def values(self, policy=None):
        """(states, 3): values of all actions under the policy, or the best one."""
        value, q = np.zeros(self.states), np.zeros((self.states, 3))
        for state in reversed(range(self.inner)):
            q[state] = self.reward[state] + value[self.next[state]]
            value[state] = q[state].max() if policy is None else q[state] @ policy[state]
        return q


@pytest.mark.parametrize("config", [PUCT, GUMBEL], ids=["puct", "gumbel"])
def test_a_search_without_knowledge_plays_nearly_the_best_game(config):
    config = config.changed(simulations=300, discount=1.0)
    depth, rng, reached = 5, np.random.default_rng(0), []
    for seed in range(6):
        model, state, total = TreeMdp(seed, depth), 0, 0.0
        best, mean = model.values().max(axis=1)[0], model.values(np.full((model.states, 3), 1 / 3)).mean(axis=1)[0]
        for _ in range(depth):
            result = search(model, np.array([state]), np.ones((1, 3), bool), config, rng, explore=False)
            total += model.reward[state, result.action[0]]
            state = model.next[state, result.action[0]]
        reached.append((total - mean) / (best - mean))
    assert min(reached) > 0.5
    assert np.mean(reached) > 0.8
    assert max(reached) == pytest.approx(1)


@pytest.mark.parametrize("simulations", [2, 3, 8])
def test_gumbel_improves_any_policy_whose_values_are_known(simulations):
    depth, batch = 4, 300
    config = GUMBEL.changed(simulations=simulations, discount=1.0)
    gains = []
    for seed in range(8):
        model = TreeMdp(seed, depth)
        model.logits = np.random.default_rng(seed).normal(size=(model.states, 3)).astype(np.float32)
        policy = np.exp(model.logits) / np.exp(model.logits).sum(axis=1, keepdims=True)
        q = model.values(policy)
        model.value = (policy * q).sum(axis=1)
        roots = np.zeros(batch, np.int64)
        result = search(model, roots, np.ones((batch, 3), bool), config, np.random.default_rng(seed), explore=True)
        if simulations <= 3:  # One for an action: their Q are the true ones, not yet better ones of a search below.
            assert (result.policy @ q[0] >= model.value[0] - 1e-9).all()
        # The action played is drawn from the policy by Gumbel-top-k, and halved: no worse on average, but for the draws.
        gains.append(q[0][result.action].mean() - model.value[0])
    assert min(gains) > -0.01
    assert np.mean(gains) > 0.02


def test_hidden_states_may_be_tensors():
    torch = pytest.importorskip("torch")

    class TensorModel(TableModel):
        def initial(self, observations):
            hidden, *rest = super().initial(observations)
            return torch.from_numpy(hidden.astype(np.float32))[:, None].repeat(1, 4), *rest

        def recurrent(self, hidden, actions):
            hidden, *rest = super().recurrent(hidden[:, 3].numpy().astype(np.int64), actions)
            return torch.from_numpy(hidden.astype(np.float32))[:, None].repeat(1, 4), *rest

    rng = np.random.default_rng(0)
    legal, states, config = random_legal(rng, 8), rng.integers(300, size=8), PUCT.changed(forced_simulations=2)
    found = [search(model(7), states, legal, config, rng, explore=False) for model in (TableModel, TensorModel)]
    assert np.array_equal(found[0].visits, found[1].visits)
    assert np.array_equal(found[0].value, found[1].value)


def test_bad_calls_are_refused():
    model, rng = TableModel(0), np.random.default_rng(0)
    with pytest.raises(ValueError, match="legal action"):
        search(model, np.arange(2), np.array([[True, False, False], [False] * 3]), PUCT, rng, explore=False)
    model.value[1] = np.nan
    with pytest.raises(ValueError, match="no finite numbers"):
        search(model, np.arange(2), np.ones((2, 3), bool), PUCT, rng, explore=False)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("method", "uct"),
        ("simulations", 0),
        ("discount", 1.1),
        ("min_span", 0),
        ("noise_alpha", -1.0),
        ("temperature", math.nan),
    ],
)
def test_settings_out_of_range_are_refused(field, value):
    with pytest.raises(UsageError, match=field):
        SearchConfig(**{field: value})
