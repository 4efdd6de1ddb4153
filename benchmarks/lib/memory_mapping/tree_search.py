"""Tree search with the true rules and without learning: the ablation of MMap-MuZero's other half (Wang et al. 2023, figure 7).

Monte-Carlo tree search with PUCT and a uniform prior. A leaf is worth what a playout from it to the end of the game returns.
A game of one player without chance allows for more: the best return of an action counts beside the mean (as in Schadd et al.
2008, "Single-player Monte-Carlo tree search"), and what has been seen to its end is not visited again. Moves without a choice
are made at once.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.memory_mapping.budget import Budget, games_at_once
from benchmarks.lib.memory_mapping.random_play import play_random
from stowplan.compiled import Floats2D, Ints2D, njit, njit_inner, records
from stowplan.errors import UsageError
from stowplan.learned_guidance.memory_mapping.game.compiled import layout
from stowplan.learned_guidance.memory_mapping.game.compiled.readers import action_of, is_over, used
from stowplan.learned_guidance.memory_mapping.game.compiled.rules import step
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame, play_greedy
from stowplan.learned_guidance.memory_mapping.game.compiled.tables import Ints, Tables
from stowplan.learned_guidance.memory_mapping.game.game import Best

Floats = NDArray[np.float64]

#: Moves played between two looks at the clock: some milliseconds.
MOVES_AT_ONCE = 10_000

#: Less than any return.
NONE_PS = -(1 << 62)


@dataclass(frozen=True)
class TreeSearchConfig:
    """How to search. UsageError where a value makes no sense."""

    simulations: int = 400
    """Playouts from a move's root, with those kept from the moves before (Wang et al. 2023, table 6)."""
    playout: Literal["random", "greedy"] = "random"
    """How a leaf's game is played to its end. Greedy games would be all alike: each further one has twice the simulations."""
    exploration: float = 0.5
    """Weight of the prior in PUCT."""
    best_share: float = 0.3
    """Share of an action's best return in its value; its mean has the rest."""

    def __post_init__(self) -> None:
        if self.simulations < 1:
            raise UsageError(f"tree search: simulations is {self.simulations}, expected 1 or more")
        if self.playout not in ("random", "greedy"):
            raise UsageError(f"tree search: playout is {self.playout!r}, expected random or greedy")
        if not 0 <= self.exploration < math.inf:
            raise UsageError(f"tree search: exploration is {self.exploration}, expected a number that is not negative")
        if not 0 <= self.best_share <= 1:
            raise UsageError(f"tree search: best_share is {self.best_share}, expected 0 to 1")


def search_games(
    game: CompiledGame,
    config: TreeSearchConfig | None = None,
    *,
    games: int | None = None,
    time_limit: float | None = None,
    seed: int = 0,
    should_stop: Callable[[], bool] | None = None,
) -> Best:
    """Play games by search, one after the other, and keep the best of them and of all their playouts.

    It ends early where the search has seen all games there are; the best is then proven to be the best.

    Parameters
    ----------
    config
        Of the search; the defaults where None.
    games, time_limit, should_stop
        What ends it: a number of finished games (each playout is one), seconds, a callback; at least one game is played.
    seed
        Decides all playouts, so that with ``games`` alone the result is the same every time.

    Returns
    -------
    Best
        The best game, how many were played, and whether it is proven to be the best.

    Raises
    ------
    UsageError
        If nothing would end it.
    """
    budget = Budget("tree search", games, time_limit, should_stop)
    config = config or TreeSearchConfig()
    best = Best()
    seeds = np.random.default_rng(seed)
    at_once = games_at_once(game, MOVES_AT_ONCE)
    drawn = np.zeros(0, np.int64)
    root, leaf = game.reset().data, game.reset().data
    simulations = config.simulations
    tree = _empty_tree(simulations, len(game.moves))
    _begin(game.tables, root, tree)
    while best.games < budget.most and not budget.is_over(best):
        missing = int(min(at_once, budget.most - best.games)) - len(drawn)
        fresh = seeds.integers(1 << 62, size=missing) if config.playout == "random" else np.full(missing, -1)
        drawn = np.concatenate([drawn, fresh])
        played = _search(game.tables, root, leaf, tree, simulations, config.exploration, config.best_share, drawn)
        # What a game leaves over is for the next, so that results do not depend on how often the clock is read.
        drawn = drawn[played:]
        best.offer(tree.state[0].best_ps, tree.actions, games=max(played, 0 if best.games else 1))
        if tree.state[0].is_solved:
            break
        if tree.state[0].is_finished:
            if config.playout == "greedy":
                simulations *= 2
                tree = _empty_tree(simulations, len(game.moves))
            _begin(game.tables, root, tree)
    return best


class SearchState:
    """Where a search is."""

    root: int
    """Node of the move that is searched."""
    nodes: int
    is_first: int
    """No move has been chosen yet in this game."""
    is_finished: int
    """The game is over."""
    is_solved: int
    """The tree has seen all games."""
    best_ps: int
    """Best return of this game and its playouts."""


class Tree(NamedTuple):
    """Nodes are states in which there is a choice, and ends of games; a child has a larger number than its parent."""

    state: Sequence[SearchState]
    """[1]"""
    bounds: Floats
    """[2]: least and greatest value of an action in the tree."""
    legal: Ints
    """[N]: legal actions as bits; 0 at the end of a game."""
    is_done: Ints
    """[N]: everything below has been seen."""
    visits: Ints2D
    """[N, 3]: playouts that passed the action."""
    total_ps: Floats2D
    """[N, 3]: sum of their returns."""
    best_ps: Ints2D
    """[N, 3]: best of their returns."""
    child: Ints2D
    """[N, 3]: node that the action leads to; -1 where it has not been tried."""
    number: Ints
    """[N]: scratch."""
    path: Ints2D
    """[N, 2]: node and action of every choice on the way down."""
    actions: Ints
    """[M]: the best game; -1 throughout where it was lost."""


def _empty_tree(simulations: int, moves: int) -> Tree:
    # As many nodes as playouts, and the root.
    nodes = simulations + 1
    return Tree(
        state=records(SearchState, 1),
        bounds=np.zeros(2),
        legal=np.zeros(nodes, np.int64),
        is_done=np.zeros(nodes, np.int64),
        visits=np.zeros((nodes, 3), np.int64),
        total_ps=np.zeros((nodes, 3)),
        best_ps=np.zeros((nodes, 3), np.int64),
        child=np.zeros((nodes, 3), np.int64),
        number=np.zeros(nodes, np.int64),
        path=np.zeros((nodes, 2), np.int64),
        actions=np.zeros(moves, np.int64),
    )


@njit
def _begin(tables: Tables, root: Ints, tree: Tree) -> None:
    """A new game, up to the first choice, and a tree of its root alone."""
    for cell in range(len(root)):
        root[cell] = tables.initial[cell]
    _make_forced_moves(tables, root)
    state = tree.state[0]
    state.root = 0
    state.nodes = 0
    state.is_first = 1
    state.is_finished = 0
    state.best_ps = NONE_PS
    tree.bounds[0], tree.bounds[1] = np.inf, -np.inf
    _add_node(tables, root, tree)


@njit
def _search(
    tables: Tables,
    root: Ints,
    leaf: Ints,
    tree: Tree,
    simulations: int,
    exploration: float,
    best_share: float,
    seeds: Ints,
) -> int:
    """Go on with a game for as many playouts as there are seeds, or to its end; how many there were. -1 is for a greedy one."""
    state = tree.state[0]
    played = 0
    while not is_over(tables, root):
        now = state.root
        visits = tree.visits[now, 0] + tree.visits[now, 1] + tree.visits[now, 2]
        if visits < simulations and not tree.is_done[now]:
            if played == len(seeds):
                return played
            _simulate(tables, root, leaf, tree, exploration, best_share, seeds[played])
            played += 1
            continue
        if state.is_first and tree.is_done[now]:
            state.is_solved = 1
            return played
        state.is_first = 0
        action = _choose(tree, now)
        step(tables, root, action)
        _make_forced_moves(tables, root)
        _move_root(tree, tree.child[now, action], best_share)
    state.is_finished = 1
    if state.is_first:
        # There was nothing to choose.
        state.is_solved = 1
        _offer(tables, root, tree)
    return played


@njit_inner
def _simulate(tables: Tables, root: Ints, leaf: Ints, tree: Tree, exploration: float, best_share: float, seed: int) -> None:
    """Down the tree to an untried action, a playout from there, and back up."""
    for cell in range(used(tables, root)):
        leaf[cell] = root[cell]
    node, depth = tree.state[0].root, 0
    while True:
        action = _select(tree, node, exploration, best_share)
        tree.path[depth, 0], tree.path[depth, 1] = node, action
        depth += 1
        step(tables, leaf, action)
        _make_forced_moves(tables, leaf)
        if tree.child[node, action] < 0:
            break
        node = tree.child[node, action]
    tree.child[node, action] = _add_node(tables, leaf, tree)
    return_ps = play_greedy(tables, leaf) if seed < 0 else play_random(tables, leaf, seed)
    _offer(tables, leaf, tree)
    for index in range(depth - 1, -1, -1):
        node, action = tree.path[index, 0], tree.path[index, 1]
        tree.visits[node, action] += 1
        tree.total_ps[node, action] += return_ps
        tree.best_ps[node, action] = max(tree.best_ps[node, action], return_ps)
        _widen(tree, node, action, best_share)
        tree.is_done[node] = _is_done(tree, node)


@njit_inner
def _select(tree: Tree, node: int, exploration: float, best_share: float) -> int:
    """An untried action, or the one of greatest upper confidence bound among those not seen to their ends."""
    legal, visits = tree.legal[node], tree.visits[node]
    choices = (legal & 1) + (legal >> 1 & 1) + (legal >> 2)
    weight = exploration / choices * math.sqrt(1 + visits[0] + visits[1] + visits[2])
    span = max(1.0, tree.bounds[1] - tree.bounds[0])
    best, best_score = -1, 0.0
    for action in range(3):
        if not legal >> action & 1:
            continue
        if not visits[action]:
            return action
        if tree.is_done[tree.child[node, action]]:
            continue
        score = _value(tree, node, action, best_share) / span + weight / (1 + visits[action])
        if best < 0 or score > best_score:
            best, best_score = action, score
    return best


@njit_inner
def _choose(tree: Tree, node: int) -> int:
    """The most visited action, of equals that of the best return; where everything has been seen the best return decides."""
    best = -1
    for action in range(3):
        if not tree.visits[node, action]:
            continue
        more = 0 if best < 0 or tree.is_done[node] else tree.visits[node, action] - tree.visits[node, best]
        if best < 0 or more > 0 or (more == 0 and tree.best_ps[node, action] > tree.best_ps[node, best]):
            best = action
    return best


@njit_inner
def _value(tree: Tree, node: int, action: int, best_share: float) -> float:
    """Value of a visited action (ps)."""
    mean = tree.total_ps[node, action] / tree.visits[node, action]
    return mean + best_share * (tree.best_ps[node, action] - mean)  # type: ignore[no-any-return]


@njit_inner
def _widen(tree: Tree, node: int, action: int, best_share: float) -> None:
    """Let the bounds include the value of an action."""
    value = _value(tree, node, action, best_share)
    tree.bounds[0] = min(tree.bounds[0], value)
    tree.bounds[1] = max(tree.bounds[1], value)


@njit_inner
def _is_done(tree: Tree, node: int) -> bool:
    """Whether all actions have been tried and seen to their ends."""
    for action in range(3):
        if tree.legal[node] >> action & 1 and (tree.child[node, action] < 0 or not tree.is_done[tree.child[node, action]]):
            return False
    return True


@njit_inner
def _add_node(tables: Tables, data: Ints, tree: Tree) -> int:
    """A node for a state."""
    node = tree.state[0].nodes
    tree.state[0].nodes = node + 1
    tree.legal[node] = data[layout.LEGAL]
    tree.is_done[node] = is_over(tables, data)
    for action in range(3):
        tree.visits[node, action] = 0
        tree.total_ps[node, action] = 0
        tree.best_ps[node, action] = NONE_PS
        tree.child[node, action] = -1
    return node


@njit_inner
def _move_root(tree: Tree, root: int, best_share: float) -> None:
    """Keep what is below a node, as the first nodes, in their order."""
    for node in range(root, tree.state[0].nodes):
        tree.number[node] = -1
    tree.number[root] = 0
    kept = 0
    for node in range(root, tree.state[0].nodes):
        if tree.number[node] < 0:
            continue
        tree.number[node] = kept
        kept += 1
        for action in range(3):
            if tree.child[node, action] >= 0:
                tree.number[tree.child[node, action]] = 0
    tree.bounds[0], tree.bounds[1] = np.inf, -np.inf
    for node in range(root, tree.state[0].nodes):
        number = tree.number[node]
        if number < 0:
            continue
        tree.legal[number] = tree.legal[node]
        tree.is_done[number] = tree.is_done[node]
        for action in range(3):
            child = tree.child[node, action]
            tree.visits[number, action] = tree.visits[node, action]
            tree.total_ps[number, action] = tree.total_ps[node, action]
            tree.best_ps[number, action] = tree.best_ps[node, action]
            tree.child[number, action] = tree.number[child] if child >= 0 else -1
            if child >= 0:
                _widen(tree, number, action, best_share)
    tree.state[0].root = 0
    tree.state[0].nodes = kept


@njit_inner
def _make_forced_moves(tables: Tables, data: Ints) -> None:
    """Play up to the next choice, or the end."""
    while not is_over(tables, data):
        legal = data[layout.LEGAL]
        if legal & (legal - 1):
            return
        step(tables, data, legal >> 1)


@njit_inner
def _offer(tables: Tables, data: Ints, tree: Tree) -> None:
    """Keep a finished game, if it is the best so far."""
    if data[layout.RETURN_PS] > tree.state[0].best_ps:
        tree.state[0].best_ps = data[layout.RETURN_PS]
        for position in range(len(tree.actions)):
            tree.actions[position] = action_of(tables, data, position)
