"""Tree search with the rules of the game, against all games and against a plain search of node objects."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, field

import numpy as np
import pytest

from benchmarks.lib.memory_mapping import tree_search
from benchmarks.lib.memory_mapping.optimum import game_optimum
from benchmarks.lib.memory_mapping.random_play import play_at_random, play_random
from benchmarks.lib.memory_mapping.tree_search import TreeSearchConfig, search_games
from stowplan.errors import UsageError
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame, CompiledState, play_greedy
from stowplan.models.memory_mapping.verify import verify
from tests.models.memory_mapping.cases import random_problem
from tests.patience import no_hang


def game_of(seed: str, steps: int, tensors: int, **options: bool) -> CompiledGame:
    return CompiledGame(random_problem(random.Random(seed), steps=steps, tensors=tensors), **options)


# The plain search.


@dataclass
class Node:
    state: CompiledState
    edges: dict[int, Edge] = field(default_factory=dict)

    @property
    def choices(self) -> list[int]:
        return np.flatnonzero(self.state.legal).tolist()

    @property
    def is_done(self) -> bool:
        tried = len(self.edges) == len(self.choices)
        return tried and all(edge.child.is_done for edge in self.edges.values())

    @property
    def visits(self) -> int:
        return sum(len(edge.returns) for edge in self.edges.values())

    def all_edges(self) -> list[Edge]:
        return [found for edge in self.edges.values() for found in (edge, *edge.child.all_edges())]


@dataclass
class Edge:
    child: Node
    returns: list[int] = field(default_factory=list)

    def value(self, best_share: float) -> float:
        return (1 - best_share) * np.mean(self.returns) + best_share * max(self.returns)


def after(state: CompiledState, action: int | None = None) -> CompiledState:
    """The next state with a choice."""
    state = state.copy()
    if action is not None:
        state.step(action)
    while state.legal.sum() == 1:
        state.step(int(np.argmax(state.legal)))
    return state


def plain_search(game: CompiledGame, config: TreeSearchConfig, seeds: list[int]) -> tuple[list[int], list[int]]:
    """Returns of the playouts of one game, and of the game itself where the seeds were enough for it."""
    playouts: list[int] = []
    root = Node(after(game.reset()))
    while not root.state.is_over:
        # Values fall and rise as playouts come; the search keeps the range they have had since the move's root was chosen.
        seen = [edge.value(config.best_share) for edge in root.all_edges()]
        while root.visits < config.simulations and not root.is_done:
            if len(playouts) == len(seeds):
                return playouts, []
            node, path = root, []
            while True:
                untried = [action for action in node.choices if action not in node.edges]
                if untried:
                    break
                span = max(1, max(seen) - min(seen))
                weight = config.exploration / len(node.choices) * math.sqrt(1 + node.visits)
                edge = max(
                    (edge for _, edge in sorted(node.edges.items()) if not edge.child.is_done),
                    key=lambda edge: edge.value(config.best_share) / span + weight / (1 + len(edge.returns)),
                )
                path.append(edge)
                node = edge.child
            edge = Edge(Node(after(node.state, untried[0])))
            node.edges[untried[0]] = edge
            path.append(edge)
            leaf = edge.child.state.copy()
            if config.playout == "greedy":
                play_greedy(game.tables, leaf.data)
            else:
                play_random(game.tables, leaf.data, seeds[len(playouts)])
            playouts.append(leaf.return_ps)
            for edge in path:
                edge.returns.append(leaf.return_ps)
                seen.append(edge.value(config.best_share))
        if root.is_done:
            chosen = max(root.edges, key=lambda action: max(root.edges[action].returns))
        else:
            chosen = max(root.edges, key=lambda a: (len(root.edges[a].returns), max(root.edges[a].returns)))
        root = root.edges[chosen].child
    return playouts, [root.state.return_ps]


@pytest.mark.slow
@pytest.mark.parametrize("playout", ["random", "greedy"])
@pytest.mark.parametrize("simulations", [1, 4, 25])
def test_equals_a_plain_search(playout, simulations):
    config = TreeSearchConfig(simulations, playout, exploration=0.4, best_share=0.25)
    for number in range(6):
        game = game_of(f"plain {number}", 9, 4, drop_backup=number % 2 == 0)
        seeds = np.random.default_rng(number).integers(1 << 62, size=5_000)
        playouts, returns = plain_search(game, config, seeds.tolist())
        assert returns
        tree = tree_search._empty_tree(simulations, len(game.moves))
        root, leaf = game.reset().data, game.reset().data
        tree_search._begin(game.tables, root, tree)
        count, best = 0, []
        while not tree.state[0].is_finished and not tree.state[0].is_solved:
            some = seeds[count : count + 3] if playout == "random" else np.full(3, -1)
            count += tree_search._search(game.tables, root, leaf, tree, simulations, 0.4, 0.25, some)
            best.append(int(tree.state[0].best_ps))
        assert count == len(playouts)
        assert best[-1] == max(playouts or returns)
        if tree.state[0].is_finished:
            assert CompiledState(game, root).return_ps == returns[0]


def test_small_programs_are_searched_to_their_best_game():
    solved = 0
    for seed in range(25):
        game = game_of(f"tiny {seed}", 6, 3)
        best = search_games(game, TreeSearchConfig(simulations=100_000), games=100_000, seed=seed)
        assert best.games < 100_000
        assert best.return_ps == game_optimum(game.problem).return_ps
        solved += best.games > 10
    assert solved > 15


@pytest.mark.parametrize("playout", ["random", "greedy"])
def test_the_best_game_is_a_valid_plan_with_its_return(playout):
    for seed in range(15):
        game = game_of(f"tree search {seed}", 12, 6)
        best = search_games(game, TreeSearchConfig(20, playout), games=700, seed=seed)
        state = game.reset()
        assert state.play(best.actions) == best.return_ps
        assert state.is_over
        assert verify(game.problem, state.plan()).ok
        assert [point.return_ps for point in best.points][-1] == best.return_ps


def test_is_better_than_as_many_random_games():
    searched, drawn = [], []
    for seed in range(6):
        game = game_of(f"better {seed}", 40, 12)
        best = search_games(game, TreeSearchConfig(50), games=2_000, seed=seed)
        assert best.games == 2_000
        searched.append(best.return_ps)
        drawn.append(play_at_random(game, games=2_000, seed=seed).return_ps)
    assert sum(searched) > 1.03 * sum(drawn)
    assert sum(one > other for one, other in zip(searched, drawn, strict=True)) >= 5


def test_a_seed_gives_the_same_games_again_however_often_the_clock_is_read(monkeypatch):
    game = game_of("seeds", 25, 8)
    config = TreeSearchConfig(30)
    runs = [search_games(game, config, games=2_000, seed=seed) for seed in (3, 3, 4)]
    monkeypatch.setattr(tree_search, "MOVES_AT_ONCE", 1)
    runs.append(search_games(game, config, games=2_000, seed=3))
    assert runs[0].actions.tolist() == runs[1].actions.tolist() == runs[3].actions.tolist()
    assert runs[0].return_ps == runs[3].return_ps
    assert [point.return_ps for point in runs[0].points] != [point.return_ps for point in runs[2].points]


def test_greedy_playouts_go_on_with_more_simulations():
    game = game_of("doubling", 25, 8)
    few = search_games(game, TreeSearchConfig(2, "greedy"), games=20)
    many = search_games(game, TreeSearchConfig(2, "greedy"), games=20_000)
    greedy = game.reset()
    assert play_greedy(game.tables, greedy.data) <= few.return_ps < many.return_ps


def test_a_program_without_a_choice():
    game = game_of("tiny 0", 1, 1)
    assert len(game.moves) <= 2
    best = search_games(game, games=5)
    assert best.return_ps == game_optimum(game.problem).return_ps


@pytest.mark.parametrize("limit", [{"time_limit": 0.0}, {"should_stop": lambda: True}, {"games": 0}])
def test_something_is_played_whatever_the_limit(limit):
    assert search_games(game_of("limits", 12, 5), **limit).games >= 1


def test_time_ends_it_within_a_game():
    game = game_of("limits", 60, 20)
    search_games(game, games=1)
    with no_hang():
        search_games(game, TreeSearchConfig(simulations=10_000_000), time_limit=0.2)


def test_refuses_to_play_for_ever():
    with pytest.raises(UsageError, match="no limit"):
        search_games(game_of("limits", 12, 5))


@pytest.mark.parametrize(
    ("name", "value"),
    [("simulations", 0), ("playout", "best"), ("exploration", -1.0), ("exploration", math.nan), ("best_share", 2)],
)
def test_settings_out_of_range_are_refused(name, value):
    with pytest.raises(UsageError, match=name):
        TreeSearchConfig(**{name: value})
