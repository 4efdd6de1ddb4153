"""Games played side by side are whole games of the reference's rules, and what is kept of them says what happened."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

pytest.importorskip("torch")

from benchmarks.lib.memory_mapping.plain_game import reset
from stowplan.errors import InputError
from stowplan.learned_guidance.memory_mapping.game.game import Action
from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
from stowplan.learned_guidance.memory_mapping.muzero.exploration import EpisodeStart
from stowplan.learned_guidance.memory_mapping.muzero.learner import Learner
from stowplan.learned_guidance.memory_mapping.muzero.network import TorchModel
from stowplan.learned_guidance.memory_mapping.muzero.replay import Trajectory
from stowplan.learned_guidance.memory_mapping.muzero.self_play import ProgramGame, SelfPlay, episode_of, replay_actions
from tests.learned_guidance.memory_mapping.muzero.programs import other_program, small_config, small_program
from tests.learned_guidance.memory_mapping.programs import program

NOTHING = np.empty(0, np.int8)


def starts_of(*each: EpisodeStart) -> Iterator[EpisodeStart]:
    while True:
        yield from each


def finished(
    config: TrainingConfig, moves: int, *starts: EpisodeStart, seed: int = 0
) -> tuple[list[ProgramGame], list[Trajectory], SelfPlay]:
    programs = [ProgramGame(small_program(), config), ProgramGame(other_program(), config)]
    model = TorchModel(Learner(config, 0).network)
    begin = starts_of(*(starts or (EpisodeStart(0, NOTHING), EpisodeStart(1, NOTHING))))
    play = SelfPlay(programs, config, lambda: next(begin))
    rng = np.random.default_rng(seed)
    games = [game for _ in range(moves) for game in play.advance(model, 0, rng)]
    return programs, games, play


def check(program_game: ProgramGame, game: Trajectory) -> None:
    """Everything that is kept, against the reference."""
    state = reset(program_game.problem)
    for position, action in enumerate(game.actions.tolist()):
        legal = state.legal_actions()
        assert np.flatnonzero(game.legal[position]).tolist() == [int(each) for each in legal]
        reward = state.step(Action(action))
        assert game.rewards[position] == np.float32(reward / program_game.game.unit_ps)
        if position >= game.first:
            assert game.policy[position].sum() == pytest.approx(1.0, abs=1e-5)
            assert game.policy[position][~game.legal[position]] == pytest.approx(0.0, abs=1e-6)
        else:
            assert not game.policy[position].any()
    assert state.is_over
    assert state.return_ps == game.return_ps


def test_games_are_whole_games_of_the_reference() -> None:
    programs, games, _ = finished(small_config(), 30)
    assert {game.program for game in games} == {0, 1}
    for game in games:
        check(programs[game.program], game)
    assert len({game.actions.tobytes() for game in games}) > 2


def test_a_reset_by_drop_backup_is_part_of_the_game() -> None:
    # An update in place that finds no room for its copy: the game goes back.
    config = small_config()
    problem = program(
        ["a >b", "b >c", "c >b", "b >d", "d >c"], {"a": 10, "b": 40, "c": 30, "d": 30}, inputs="a", outputs="bcd", capacity=60
    )
    program_game = ProgramGame(problem, config)
    rng, lengths = np.random.default_rng(0), set()
    for _ in range(200):
        state = program_game.game.reset()
        actions = []
        while not state.is_over:
            actions.append(int(rng.choice(np.flatnonzero(state.legal))))
            state.step(actions[-1])
        check(program_game, replay_actions(program_game, 0, np.array(actions, np.int8), 1.0))
        lengths.add(len(actions))
    assert lengths


def test_a_game_may_begin_with_the_moves_of_another() -> None:
    config = small_config()
    _, games, _ = finished(config, 12, EpisodeStart(0, NOTHING))
    prefix = games[0].actions[:5]
    programs, games, _ = finished(config, 10, EpisodeStart(0, prefix))
    assert games
    for game in games:
        assert game.first == 5
        assert game.actions[:5].tolist() == prefix.tolist()
        check(programs[0], game)


def test_a_game_under_way_goes_on_from_what_is_kept_of_it() -> None:
    config = small_config()
    programs, _, play = finished(config, 9)
    for episode in play.episodes:
        again = episode_of(programs[episode.program], episode.trajectory(config.discount))
        assert again.state.position == episode.state.position
        assert again.state.return_ps == episode.state.return_ps
        assert (again.first, again.actions, again.rewards) == (
            episode.first,
            episode.actions,
            [float(np.float32(each)) for each in episode.rewards],
        )


def test_a_demonstration_is_a_whole_game_of_legal_actions() -> None:
    config = small_config()
    program_game = ProgramGame(small_program(), config)
    actions = np.full(len(program_game.game.moves), int(Action.DROP), np.int8)
    game = replay_actions(program_game, 0, actions, 1.0)
    assert game.is_demonstration
    assert game.return_ps == 0
    check(program_game, game)
    with pytest.raises(ValueError, match="do not end"):
        replay_actions(program_game, 0, actions[:-1], 1.0)
    with pytest.raises(ValueError, match="legal"):
        replay_actions(program_game, 0, np.full(len(actions), int(Action.NOCOPY), np.int8), 1.0)


def test_a_program_without_moves_is_refused() -> None:
    with pytest.raises(InputError, match="no moves"):
        SelfPlay(
            [ProgramGame(program([""], {}), small_config())], small_config(), lambda: EpisodeStart(0, np.empty(0, np.int8))
        )
