"""Search trees of many games at once, compiled: selection of a leaf, its expansion, and the backup of its value.

There are B games with N nodes each and A actions. Node 0 is the root, and simulation i creates node i + 1. An *edge* is an
action at a node; its value Q is the mean, over the simulations that passed it, of the discounted rewards from the edge on plus
the value of the leaf. A logit of -inf marks an action as illegal.

There are two methods of selection. *PUCT* is that of MuZero (Schrittwieser et al. 2020, appendix B): at each node, the action
with the largest upper confidence bound. The *Gumbel method* (Danihelka et al. 2022) adds Gumbel noise to the logits at the root
and divides the simulations among its actions by *sequential halving*: the worse half of the actions is given up, again and
again. Its *improved policy* is the softmax of the logits plus a scaled Q; for an action without a visit, an estimate takes the
place of Q (*completed Q*). Nothing in this module raises an error.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from stowplan.compiled import Bools2D, Floats2D, Floats3D, Ints2D, Ints3D, njit, njit_small

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class Rules(NamedTuple):
    """The settings that selection depends on; :class:`~stowplan.learned_guidance.mcts.search.SearchConfig` explains them."""

    is_gumbel: bool
    min_span: float
    c_init: float
    c_base: float
    c_visit: float
    c_scale: float


class Tree(NamedTuple):
    """The trees of B games."""

    visits: Ints3D
    """[B, N, A]: number of simulations that passed the edge."""
    total: Floats3D
    """[B, N, A]: sum of their returns from the edge on; Q = total / visits."""
    reward: Floats3D
    """[B, N, A]: reward of each visited edge."""
    child: Ints3D
    """[B, N, A]: node that the edge leads to, -1 before its first visit."""
    prior: Floats3D
    """[B, N, A]: probability that the policy gives the action; at a root, with noise."""
    logits: Floats3D
    """[B, N, A]: logarithm of the policy's probability, without noise; -inf if the action is illegal."""
    value: Floats2D
    """[B, N]: the model's value of the node."""
    low: Floats
    """[B]: least value in the tree so far, of the model at a node or of an edge; inf before the first."""
    high: Floats
    """[B]: greatest value in the tree so far; -inf before the first."""
    gumbel: Floats2D
    """[B, A]: random part of the root's logits."""
    level: Ints2D
    """[B, N]: for sequential halving, the number of earlier visits of the root's action that simulation i passes."""
    path: Ints3D
    """[B, N, 2]: edges (node, action) that the current simulation has passed."""
    depth: Ints
    """[B]: number of these edges."""
    scores: Floats
    """[A]: scratch space."""


def empty_tree(batch: int, nodes: int, actions: int) -> Tree:
    """Trees without roots for ``batch`` games (B), with space for ``nodes`` nodes (N) and ``actions`` actions (A)."""
    edges = (batch, nodes, actions)
    return Tree(
        visits=np.zeros(edges, np.int64),
        total=np.zeros(edges),
        reward=np.zeros(edges),
        child=np.full(edges, -1, np.int64),
        prior=np.zeros(edges),
        logits=np.zeros(edges),
        value=np.zeros((batch, nodes)),
        low=np.full(batch, np.inf),
        high=np.full(batch, -np.inf),
        gumbel=np.zeros((batch, actions)),
        level=np.zeros((batch, nodes), np.int64),
        path=np.zeros((batch, nodes, 2), np.int64),
        depth=np.zeros(batch, np.int64),
        scores=np.zeros(actions),
    )


@njit
def set_roots(tree: Tree, logits: Floats2D, value: Floats, legal: Bools2D) -> None:
    """Create node 0 of every game from the model's ``logits`` (B, A) and ``value`` (B,); ``legal`` (B, A) is bool."""
    for game in range(len(value)):
        for action in range(logits.shape[1]):
            tree.logits[game, 0, action] = logits[game, action] if legal[game, action] else -np.inf
        _set_node(tree, game, 0, value[game])


@njit_small
def _set_node(tree: Tree, game: int, node: int, value: float) -> None:
    """Set the value of a node, and normalize its logits to logarithms of probabilities."""
    logits, prior = tree.logits[game, node], tree.prior[game, node]
    most = _greatest(logits)
    total = 0.0
    for action in range(len(prior)):
        prior[action] = math.exp(logits[action] - most)
        total += prior[action]
    shift = most + math.log(total)
    for action in range(len(prior)):
        prior[action] /= total
        logits[action] -= shift
    tree.value[game, node] = value
    # MuZero uses the range of the edges' values alone. Here the model's values count as well, because edges are also compared
    # with them as long as some edges have no visit.
    tree.low[game] = min(tree.low[game], value)
    tree.high[game] = max(tree.high[game], value)


@njit_small
def _greatest(values: Any) -> Any:
    """The greatest of a few numbers."""
    most = values[0]
    for action in range(1, len(values)):
        most = max(most, values[action])
    return most


@njit
def select(tree: Tree, rules: Rules, simulation: int, games: Ints, parents: Ints, actions: Ints) -> None:
    """Descend the trees of ``games`` (G,) to the edges that this simulation expands: ``parents`` and ``actions`` (G,)."""
    for index in range(len(games)):
        game = games[index]
        node, depth = 0, 0
        while True:
            if not rules.is_gumbel:
                action = _by_puct(tree, rules, game, node)
            elif node == 0:
                action = _by_halving(tree, rules, game, tree.level[game, simulation])
            else:
                action = _by_improved_policy(tree, rules, game, node)
            tree.path[game, depth, 0], tree.path[game, depth, 1] = node, action
            depth += 1
            child = tree.child[game, node, action]
            if child < 0:
                break
            node = child
        tree.depth[game] = depth
        parents[index], actions[index] = node, action


@njit_small
def _by_puct(tree: Tree, rules: Rules, game: int, node: int) -> int:
    """The action with the greatest upper confidence bound; ties go to the first (MuZero, equations 2, 3 and 5).

    The evaluation of the node itself counts as a visit, so that the prior decides the first one. For an unvisited action MuZero
    uses the least Q of the whole tree; here it is the least value at the node. In MMapGame, future returns shrink with every
    move, so that the small values deep in the tree would make any visited action near the root look good.
    """
    visits, total, prior = tree.visits[game, node], tree.total[game, node], tree.prior[game, node]
    count = 1
    for action in range(len(visits)):
        count += visits[action]
    weight = math.sqrt(count) * (rules.c_init + math.log((count + rules.c_base + 1) / rules.c_base))
    low, span = _low_and_span(tree, rules, game, node)
    best, best_score = -1, 0.0
    for action in range(len(visits)):
        if tree.logits[game, node, action] == -np.inf:
            continue
        score = weight * prior[action] / (1 + visits[action])
        if visits[action]:
            score += (total[action] / visits[action] - low) / span
        if best < 0 or score > best_score:
            best, best_score = action, score
    return best


@njit_small
def _by_halving(tree: Tree, rules: Rules, game: int, level: int) -> int:
    """The action at the root in sequential halving with Gumbel noise: of those visited ``level`` times, the best score."""
    _improve(tree, rules, game, 0)
    best, best_score = -1, 0.0
    for action in range(len(tree.scores)):
        if tree.visits[game, 0, action] != level or tree.logits[game, 0, action] == -np.inf:
            continue
        score = tree.gumbel[game, action] + tree.scores[action]
        if best < 0 or score > best_score:
            best, best_score = action, score
    return best


@njit_small
def _by_improved_policy(tree: Tree, rules: Rules, game: int, node: int) -> int:
    """The action at an inner node; visits become proportional to the improved policy (Danihelka et al., equation 14)."""
    _improve(tree, rules, game, node)
    visits, scores = tree.visits[game, node], tree.scores
    most = _greatest(scores)
    total, count = 0.0, 1
    for action in range(len(scores)):
        scores[action] = math.exp(scores[action] - most)
        total += scores[action]
        count += visits[action]
    best, best_score = -1, 0.0
    for action in range(len(scores)):
        score = scores[action] / total - visits[action] / count
        if best < 0 or score > best_score:
            best, best_score = action, score
    return best


@njit_small
def _improve(tree: Tree, rules: Rules, game: int, node: int) -> None:
    """Fill ``tree.scores`` with logits + sigma(completed Q) (Danihelka et al., equation 11), up to a common constant."""
    visits, total = tree.visits[game, node], tree.total[game, node]
    unvisited = mixed_value(tree, game, node)
    span = _low_and_span(tree, rules, game, node)[1]
    scale = (rules.c_visit + _greatest(visits)) * rules.c_scale / span
    for action in range(len(visits)):
        tree.scores[action] = tree.logits[game, node, action]
        if visits[action]:
            tree.scores[action] += scale * (total[action] / visits[action] - unvisited)


@njit_small
def mixed_value(tree: Tree, game: int, node: int) -> float:
    """An estimate of Q for unvisited actions, from the model's value and visited ones (Danihelka et al., equation 33)."""
    count, weight, weighted = 0, 0.0, 0.0
    for action in range(len(tree.scores)):
        visits = tree.visits[game, node, action]
        if visits:
            prior = tree.prior[game, node, action]
            count += visits
            weight += prior
            weighted += prior * tree.total[game, node, action] / visits
    if weight <= 0:
        return tree.value[game, node]  # type: ignore[no-any-return]
    return (tree.value[game, node] + count * weighted / weight) / (1 + count)  # type: ignore[no-any-return]


@njit_small
def _low_and_span(tree: Tree, rules: Rules, game: int, node: int) -> tuple[float, float]:
    """The least value at a node, of its visited edges and its own mean; and the divisor of differences of values."""
    visits, total = tree.visits[game, node], tree.total[game, node]
    count, mean = 1, tree.value[game, node]
    for action in range(len(visits)):
        count += visits[action]
        mean += total[action]
    low = mean / count
    for action in range(len(visits)):
        if visits[action]:
            low = min(low, total[action] / visits[action])
    return low, max(tree.high[game] - tree.low[game], rules.min_span)


@njit
def expand_and_back_up(
    tree: Tree,
    discount: float,
    node: int,
    games: Ints,
    reward: Floats,
    logits: Floats2D,
    value: Floats,
) -> None:
    """Create node ``node`` in the trees of ``games`` (G,) from the model's evaluation, and back its value up along the path.

    ``reward`` (G,), ``logits`` (G, A), ``value`` (G,).
    """
    for index in range(len(games)):
        game = games[index]
        last = tree.depth[game] - 1
        parent, action = tree.path[game, last, 0], tree.path[game, last, 1]
        tree.reward[game, parent, action] = reward[index]
        tree.child[game, parent, action] = node
        for column in range(logits.shape[1]):
            tree.logits[game, node, column] = logits[index, column]
        _set_node(tree, game, node, value[index])

        backed_up = value[index]
        for step in range(last, -1, -1):
            parent, action = tree.path[game, step, 0], tree.path[game, step, 1]
            backed_up = tree.reward[game, parent, action] + discount * backed_up
            tree.visits[game, parent, action] += 1
            tree.total[game, parent, action] += backed_up
            q = tree.total[game, parent, action] / tree.visits[game, parent, action]
            tree.low[game] = min(tree.low[game], q)
            tree.high[game] = max(tree.high[game], q)


@njit
def improve_roots(tree: Tree, rules: Rules, policy: Floats2D, values: Floats, actions: Ints) -> None:
    """Write the results of the Gumbel method: improved ``policy`` (B, A), ``values`` (B,) under it, and ``actions`` (B,)."""
    for game in range(len(actions)):
        visits, total = tree.visits[game, 0], tree.total[game, 0]
        actions[game] = _by_halving(tree, rules, game, _greatest(visits))
        scores = tree.scores
        most = _greatest(scores)
        norm, value = 0.0, 0.0
        unvisited = mixed_value(tree, game, 0)
        for action in range(len(scores)):
            scores[action] = math.exp(scores[action] - most)
            norm += scores[action]
            value += scores[action] * (total[action] / visits[action] if visits[action] else unvisited)
        for action in range(len(scores)):
            policy[game, action] = scores[action] / norm
        values[game] = value / norm
