"""The optimum within the game against all games, and against the optimum over all plans."""

from __future__ import annotations

import random
import threading
from collections.abc import Hashable, Iterator

import pytest

from benchmarks.lib.memory_mapping.future import Future, OptimisticReturn
from benchmarks.lib.memory_mapping.optimum import GameOptimum, game_optimum
from benchmarks.lib.memory_mapping.plain_channel import Window
from benchmarks.lib.memory_mapping.plain_game import PlainGame, State, reset
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify
from tests.learned_guidance.memory_mapping.programs import play, play_on, program
from tests.models.memory_mapping import brute_force
from tests.models.memory_mapping.cases import random_problem
from tests.models.memory_mapping.relaxations import relaxation_bound

MOST_MOVES = 10


def all_games(state: State) -> int | None:
    """Best return over all games from here on; None where all are lost."""
    if state.is_over:
        return None if state.is_lost else state.return_ps
    found = []
    for action in state.legal_actions():
        child = state.copy()
        child.step(action)
        found.append(all_games(child))
    return max((value for value in found if value is not None), default=None)


def small_problems(name: str, count: int) -> list[Problem]:
    rng = random.Random(name)
    found: list[Problem] = []
    while len(found) < count:
        problem = random_problem(rng, steps=rng.randint(4, 8), tensors=rng.randint(2, 4))
        if len(reset(problem).game.moves) <= MOST_MOVES:
            found.append(problem)
    return found


@pytest.mark.parametrize("strict", [False, True])
def test_equals_the_best_of_all_games(strict: bool) -> None:
    gains = 0
    for problem in small_problems(f"all games {strict}", 150):
        found = game_optimum(problem, strict_copy_windows=strict)
        assert found.is_proven
        assert found.return_ps == all_games(reset(problem, strict_copy_windows=strict, drop_backup=False))
        assert_is_its_game(problem, found, strict)
        gains += found.return_ps > 0
    assert gains > 100


def assert_is_its_game(problem: Problem, found: GameOptimum, strict: bool) -> None:
    state = reset(problem, strict_copy_windows=strict, drop_backup=False)
    assert sum(state.step(action) for action in found.actions) == found.return_ps
    assert state.plan() == found.plan
    assert verify(problem, found.plan).ok


def test_never_better_than_the_best_plan_and_its_bounds() -> None:
    reached = missed = 0
    for problem in small_problems("best plan", 100):
        best = brute_force.optimum(problem)
        bound = relaxation_bound(problem, integer=True)
        for strict in (False, True):
            objective = problem.all_slow_ps - game_optimum(problem, strict_copy_windows=strict).return_ps
            assert bound <= best <= objective
            reached += objective == best
            missed += objective > best
    assert reached > 50
    # The game cannot reach every plan.
    assert missed > 10


def test_no_play_is_better_and_none_at_all_with_backup() -> None:
    rng = random.Random("play")
    for problem in small_problems("play", 60):
        best = game_optimum(problem).return_ps
        for manner in ("random", "greedy", "place"):
            assert play_on(reset(problem), rng, manner) <= best


def futures(state: State, future: Future, bound: OptimisticReturn) -> Iterator[tuple[Hashable, int | None]]:
    """Key and best further return of this state and of all states that follow; the bound must hold for each."""
    if state.is_over:
        return
    best = all_games(state)
    assert best is None or bound(state) >= best
    yield future.key(state), None if best is None else best - state.return_ps
    for action in state.legal_actions():
        child = state.copy()
        child.step(action)
        yield from futures(child, future, bound)


def test_equal_keys_have_equal_futures() -> None:
    merged = 0
    for problem in small_problems("futures", 60):
        game = PlainGame(problem, drop_backup=False)
        if len(game.moves) > 8:
            continue
        further: dict[Hashable, int | None] = {}
        for key, gain in futures(game.reset(), Future(game), OptimisticReturn(game)):
            merged += key in further
            assert further.setdefault(key, gain) == gain
    assert merged > 200


def keys_of(problem: Problem, *games: str) -> list[Hashable]:
    """Keys of the states that these actions lead to."""
    game = PlainGame(problem, drop_backup=False)
    found = []
    for actions in games:
        state = game.reset()
        play(state, actions)
        found.append(Future(game).key(state))
    return found


def test_keys_tell_which_uses_of_an_open_step_are_fast() -> None:
    one, two, three = keys_of(program(["", "", "a b c"], {"a": 1, "b": 1, "c": 1}, inputs="abc"), "cd", "dc", "dd")
    assert len({one, two, three}) == 3


def test_keys_tell_what_the_channel_has_left() -> None:
    problem = program([">a", "", "a", "b"], {"a": 4, "b": 2}, inputs="b")
    held, copied = keys_of(problem, "nn", "cn")
    # Memory is the same, and a is not used again; but its copy out has taken the time in which b could come in.
    assert held != copied
    assert game_optimum(problem).return_ps == 300


@pytest.mark.parametrize(("one", "two", "equal"), [((0, 4), (1, 4), True), ((1, 4), (2, 4), False), ((0, 1), (0, 2), True)])
def test_keys_forget_where_a_window_began_before(one: Window, two: Window, equal: bool) -> None:
    """The first move is at step 2, and nothing reaches back from there."""
    game = PlainGame(program(["", "", ">a", "", ""], {"a": 1}), drop_backup=False)
    states = [game.reset(), game.reset()]
    for state, window in zip(states, (one, two), strict=True):
        state.channel.windows.append(window)
    keys = {Future(game).key(state) for state in states}
    assert len(keys) == (1 if equal else 2)


def larger_problem() -> Problem:
    problem = random_problem(random.Random(11), steps=20, tensors=10, stalls="forbidden", loops=1)
    assert 40 <= len(reset(problem).game.moves) <= 50
    return problem


def test_limits_leave_a_game_and_a_bound() -> None:
    problem = larger_problem()
    bounds = []
    for limit in (0, 1, 50, 500):
        found = game_optimum(problem, node_limit=limit)
        assert found.nodes <= limit
        assert found.return_ps < found.bound_ps
        assert not found.is_proven
        assert_is_its_game(problem, found, strict=False)
        bounds.append(found.bound_ps)
    assert bounds == sorted(bounds, reverse=True)
    assert game_optimum(problem, time_limit=0.0).nodes == 0
    stop = threading.Event()
    stop.set()
    assert game_optimum(problem, should_stop=stop.is_set).nodes == 0


def test_a_bound_from_outside_ends_the_search() -> None:
    ended = 0
    for problem in small_problems("bounds", 40):
        alone = game_optimum(problem)
        helped = game_optimum(problem, objective_bound_ps=brute_force.optimum(problem))
        assert (helped.return_ps, helped.bound_ps) == (alone.return_ps, alone.bound_ps)
        assert helped.nodes <= alone.nodes
        ended += helped.nodes < alone.nodes
    assert ended > 0


def test_the_same_search_twice() -> None:
    problem = larger_problem()
    assert game_optimum(problem, node_limit=200) == game_optimum(problem, node_limit=200)
