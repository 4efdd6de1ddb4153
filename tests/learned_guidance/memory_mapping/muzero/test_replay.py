"""The replay draws what it should, as often as it should, and keeps what is worth keeping; value targets against plain sums."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

pytest.importorskip("torch")

from stowplan.learned_guidance.memory_mapping.muzero.replay import Replay, Trajectory, full_returns, td_values
from tests.learned_guidance.memory_mapping.muzero.programs import small_config

REAL = st.floats(-4, 4, width=32)


def game(length: int = 5, *, program: int = 0, return_ps: int = 0, value: float = 0.0, **options: object) -> Trajectory:
    """A game that earned 1 with each move."""
    rng = np.random.default_rng(return_ps)
    return Trajectory(
        program=program,
        actions=rng.integers(3, size=length).astype(np.int8),
        policy=np.full((length, 3), 1 / 3, np.float32),
        value=np.full(length, value, np.float32),
        legal=np.ones((length, 3), np.bool_),
        rewards=np.ones(length, np.float32),
        return_ps=return_ps,
        **options,  # type: ignore[arg-type]
    )


@settings(max_examples=200)
@given(st.lists(st.tuples(REAL, REAL), min_size=1, max_size=12), st.sampled_from([1.0, 0.9999, 0.5]), st.integers(1, 14))
def test_value_targets_are_sums_of_rewards_and_a_stored_value(
    moves: list[tuple[float, float]], discount: float, steps: int
) -> None:
    rewards, values = (np.array(each, np.float32) for each in zip(*moves, strict=True))
    found = td_values(full_returns(rewards, discount), values, discount, steps)
    for position in range(len(rewards) + 1):
        ahead = rewards[position : position + steps].astype(float)
        expected = sum(discount**number * reward for number, reward in enumerate(ahead))
        if position + steps < len(values):
            expected += discount**steps * float(values[position + steps])
        assert found[position] == pytest.approx(expected, abs=1e-4)


def test_without_steps_the_target_is_the_full_return() -> None:
    rewards, values = np.array([1, 2, 4], np.float32), np.array([9, 9, 9], np.float32)
    assert td_values(full_returns(rewards, 0.5), values, 0.5, None).tolist() == [3.0, 4.0, 4.0, 0.0]


def test_the_oldest_own_games_leave_first() -> None:
    replay = Replay(small_config(replay_size=3, elite_games=0), 1)
    for number in range(7):
        replay.add(game(return_ps=number))
    assert sorted(each.return_ps for each in replay.recent) == [4, 5, 6]
    replay.add(game(return_ps=7))
    assert sorted(each.return_ps for each in replay.recent) == [5, 6, 7]


def test_the_best_games_of_each_program_stay() -> None:
    replay = Replay(small_config(replay_size=2, elite_games=2), 2)
    for return_ps in (5, 9, 9, 3, 7, 1):
        replay.add(game(return_ps=return_ps))
    replay.add(game(program=1, return_ps=2))
    assert [each.return_ps for each in replay.elite[0]] == [9, 7]
    assert [each.return_ps for each in replay.elite[1]] == [2]


def test_demonstrations_stay() -> None:
    replay = Replay(small_config(replay_size=1, elite_games=0), 1)
    for number in (1, 2, 3):
        replay.add(game(return_ps=number, is_demonstration=True))
    for number in range(10):
        replay.add(game(return_ps=number))
    assert [each.return_ps for each in replay.demonstrations] == [1, 2, 3]


def test_positions_are_drawn_in_proportion_to_their_priorities() -> None:
    replay = Replay(small_config(elite_games=0, priority_exponent=2.0, importance_exponent=0.5), 1)
    replay.add(game(2))
    replay.add(game(3))
    replay.restore(replay.recent, [np.array([1, 2], np.float32), np.array([0, 3, 1], np.float32)], 0)
    sample = replay.sample(20_000, np.random.default_rng(0))
    expected = np.array([[1, 4, 0], [0, 9, 1]]) / 15
    found = np.zeros((2, 3))
    np.add.at(found, (sample.slots, sample.positions), 1 / 20_000)
    assert np.abs(found - expected).max() < 0.015
    assert found[1, 0] == 0
    # Weights take the bias back: (1 / (N P)) ** 0.5, the largest 1.
    rare = sample.weights[(sample.slots == 0) & (sample.positions == 0)]
    often = sample.weights[(sample.slots == 1) & (sample.positions == 1)]
    assert rare == pytest.approx(1.0)
    assert often == pytest.approx(1 / 3)


def test_without_an_exponent_all_searched_positions_are_equal() -> None:
    replay = Replay(small_config(elite_games=0, priority_exponent=0.0), 1)
    replay.add(game(4, first=1, value=2.5))
    sample = replay.sample(9_000, np.random.default_rng(1))
    counts = np.bincount(sample.positions, minlength=4) / 9_000
    assert counts[0] == 0
    assert counts[1:] == pytest.approx(1 / 3, abs=0.02)
    assert sample.weights == pytest.approx(1.0)


def test_new_games_get_the_error_of_their_search_as_priority_and_training_changes_it() -> None:
    replay = Replay(small_config(elite_games=0, td_steps=None), 1)
    replay.add(game(3, value=1.0))
    assert replay.priorities[0] == pytest.approx([2, 1, 0], abs=2e-3)
    sample = replay.sample(4, np.random.default_rng(0))
    replay.update(sample, np.full(4, 7, np.float32))
    drawn = set(sample.positions.tolist())
    assert [priority > 6 for priority in replay.priorities[0]] == [position in drawn for position in range(3)]
    again = replay.sample(1_000, np.random.default_rng(0))
    assert set(again.positions.tolist()) <= {0, 1, 2}
    assert np.isin(again.positions, list(drawn)).mean() > 0.6


@pytest.mark.parametrize("with_recent", [True, False])
def test_kept_games_make_up_their_part_of_a_batch(with_recent: bool) -> None:
    replay = Replay(small_config(kept_fraction=0.25, elite_games=0), 1)
    replay.add(game(4, return_ps=3, is_demonstration=True))
    if with_recent:
        replay.add(game(4))
    sample = replay.sample(16, np.random.default_rng(0))
    is_kept = sample.slots < 0
    assert is_kept.sum() == (4 if with_recent else 16)
    assert [each.is_demonstration for each in sample.trajectories] == is_kept.tolist()


def test_nothing_can_be_drawn_from_nothing() -> None:
    with pytest.raises(ValueError, match="no games"):
        Replay(small_config(), 1).sample(4, np.random.default_rng(0))
