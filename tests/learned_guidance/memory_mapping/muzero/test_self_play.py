"""Games played side by side are whole games of the reference's rules, and what is kept of them says what happened."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("torch")

from stowplan.errors import InputError
from stowplan.learned_guidance.memory_mapping.game.game import Action, reset
from stowplan.learned_guidance.memory_mapping.muzero.learner import Learner
from stowplan.learned_guidance.memory_mapping.muzero.model import TorchModel
from stowplan.learned_guidance.memory_mapping.muzero.replay import Trajectory
from stowplan.learned_guidance.memory_mapping.muzero.self_play import (
    Arena,
    Opening,
    SelfPlay,
    masked_softmax,
    replayed,
    seat_of,
)
from stowplan.learned_guidance.memory_mapping.muzero.training_config import TrainingConfig
from tests.learned_guidance.memory_mapping.muzero.programs import other_program, small_config, small_program
from tests.learned_guidance.memory_mapping.programs import program

NOTHING = np.empty(0, np.int8)


def openings(*each: Opening) -> Iterator[Opening]:
    while True:
        yield from each


def finished(
    config: TrainingConfig, moves: int, *starts: Opening, seed: int = 0
) -> tuple[list[Arena], list[Trajectory], SelfPlay]:
    arenas = [Arena(small_program(), config), Arena(other_program(), config)]
    model = TorchModel(Learner(config, 0).network)
    begin = openings(*(starts or (Opening(0, NOTHING), Opening(1, NOTHING))))
    play = SelfPlay(arenas, config, lambda: next(begin))
    play.start()
    rng = np.random.default_rng(seed)
    games = [game for _ in range(moves) for game in play.advance(model, 0, rng)]
    return arenas, games, play


def check(arena: Arena, game: Trajectory) -> None:
    """Everything that is kept, against the reference."""
    state = reset(arena.problem)
    for position, action in enumerate(game.actions.tolist()):
        legal = state.legal_actions()
        assert np.flatnonzero(game.legal[position]).tolist() == [int(each) for each in legal]
        reward = state.step(Action(action))
        assert game.rewards[position] == np.float32(reward / arena.game.unit_ps)
        if position >= game.first:
            assert game.policy[position].sum() == pytest.approx(1.0, abs=1e-5)
            assert game.policy[position][~game.legal[position]] == pytest.approx(0.0, abs=1e-6)
        else:
            assert not game.policy[position].any()
    assert state.is_over
    assert state.return_ps == game.return_ps


@pytest.mark.parametrize("use_search", [True, False])
def test_games_are_whole_games_of_the_reference(use_search: bool) -> None:
    arenas, games, _ = finished(small_config(use_search=use_search), 30)
    assert {game.program for game in games} == {0, 1}
    for game in games:
        check(arenas[game.program], game)
    assert len({game.actions.tobytes() for game in games}) > 2


def test_a_reset_by_drop_backup_is_part_of_the_game() -> None:
    # An update in place that finds no room for its copy: the game goes back.
    config = small_config()
    problem = program(
        ["a >b", "b >c", "c >b", "b >d", "d >c"], {"a": 10, "b": 40, "c": 30, "d": 30}, inputs="a", outputs="bcd", capacity=60
    )
    arena = Arena(problem, config)
    rng, lengths = np.random.default_rng(0), set()
    for _ in range(200):
        state = arena.game.reset()
        actions = []
        while not state.is_over:
            actions.append(int(rng.choice(np.flatnonzero(state.legal))))
            state.step(actions[-1])
        check(arena, replayed(arena, 0, np.array(actions, np.int8), 1.0))
        lengths.add(len(actions))
    assert lengths


def test_a_game_may_begin_with_the_moves_of_another() -> None:
    config = small_config()
    _, games, _ = finished(config, 12, Opening(0, NOTHING))
    prefix = games[0].actions[:5]
    arenas, games, _ = finished(config, 10, Opening(0, prefix))
    assert games
    for game in games:
        assert game.first == 5
        assert game.actions[:5].tolist() == prefix.tolist()
        check(arenas[0], game)


def test_greedy_games_play_what_their_search_likes_best() -> None:
    _, games, _ = finished(small_config(greedy_games=4), 24)
    for game in games:
        liked = np.where(game.legal, game.policy, -1).argmax(axis=1)
        assert liked.tolist() == game.actions.tolist()


def test_without_search_actions_are_drawn_from_the_policy() -> None:
    logits = np.array([[0.0, 5.0, 1.0], [2.0, 0.0, 0.0]], np.float32)
    legal = np.array([[True, False, True], [False, True, False]])
    policy = masked_softmax(logits, legal, 1.0)
    assert policy[0] == pytest.approx([1 / (1 + np.e), 0, np.e / (1 + np.e)])
    assert policy[1].tolist() == [0, 1, 0]
    assert masked_softmax(logits, legal, 0.0)[0].tolist() == [0, 0, 1]


def test_a_game_under_way_goes_on_from_what_is_kept_of_it() -> None:
    config = small_config()
    arenas, _, play = finished(config, 9)
    for seat in play.seats:
        again = seat_of(arenas[seat.program], seat.trajectory(config.discount))
        assert again.state.position == seat.state.position
        assert again.state.return_ps == seat.state.return_ps
        assert (again.first, again.actions, again.rewards) == (
            seat.first,
            seat.actions,
            [float(np.float32(each)) for each in seat.rewards],
        )


def test_a_demonstration_is_a_whole_game_of_legal_actions() -> None:
    config = small_config()
    arena = Arena(small_program(), config)
    actions = np.full(len(arena.game.moves), int(Action.DROP), np.int8)
    game = replayed(arena, 0, actions, 1.0)
    assert game.is_demonstration
    assert game.return_ps == 0
    check(arena, game)
    with pytest.raises(ValueError, match="do not end"):
        replayed(arena, 0, actions[:-1], 1.0)
    with pytest.raises(ValueError, match="legal"):
        replayed(arena, 0, np.full(len(actions), int(Action.NOCOPY), np.int8), 1.0)


def test_a_program_without_moves_is_refused() -> None:
    with pytest.raises(InputError, match="no moves"):
        Arena(program([""], {}), small_config())
