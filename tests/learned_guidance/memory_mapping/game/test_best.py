"""Curves of best returns."""

import numpy as np

from stowplan.learned_guidance.memory_mapping.game.game import Best, Point


class Clock:
    def __init__(self):
        self.now = 100.0

    def __call__(self):
        return self.now


def test_only_better_games_are_kept():
    clock = Clock()
    best = Best(clock=clock)
    assert (best.return_ps, best.actions, best.points) == (None, None, [])
    clock.now += 1
    assert best.offer(-5, [2, 0])
    clock.now += 1
    assert not best.offer(-5, [0, 0])
    clock.now += 1
    assert best.offer(7, [1, 1], games=10)
    assert best.return_ps == 7
    assert best.actions.tolist() == [1, 1]
    assert best.points == [Point(1.0, 1, -5), Point(3.0, 12, 7)]
    assert best.seconds == 3.0


def test_the_best_game_is_a_copy():
    actions = np.array([0, 1, 2], np.int8)
    best = Best()
    best.offer(3, actions)
    actions[:] = 2
    assert best.actions.tolist() == [0, 1, 2]


def test_a_resumed_run_goes_on_counting():
    clock = Clock()
    best = Best(seconds_before=50.0, games_before=8, clock=clock)
    clock.now += 2
    best.offer(1, [0])
    assert best.points == [Point(52.0, 9, 1)]
