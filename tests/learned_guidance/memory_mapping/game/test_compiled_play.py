"""Whole games in compiled code, the windows of the compiled channel, and what other compiled code reads."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest

from benchmarks.lib.memory_mapping.evolution import play_preferences
from benchmarks.lib.memory_mapping.plain_channel import Channel, Window, meet
from benchmarks.lib.memory_mapping.plain_game import reset
from benchmarks.lib.memory_mapping.random_play import play_random
from stowplan.learned_guidance.memory_mapping.game.compiled import layout, places, readers
from stowplan.learned_guidance.memory_mapping.game.compiled.state import CompiledGame, CompiledState, play_greedy
from stowplan.learned_guidance.memory_mapping.game.compiled.tables import Ints, Tables
from stowplan.learned_guidance.memory_mapping.game.game import Action
from stowplan.models.memory_mapping.problem import Problem
from tests.learned_guidance.memory_mapping.programs import play_on
from tests.models.memory_mapping.cases import random_problem

DROP = Action.DROP


def problems(name: str, count: int) -> list[Problem]:
    rng = random.Random(name)
    return [random_problem(rng, steps=rng.randint(1, 14), tensors=rng.randint(1, 6)) for _ in range(count)]


# Games


def test_random_play_ends_in_a_plan_and_is_the_same_for_a_seed() -> None:
    resets = 0
    for problem in problems("random play", 40):
        game = CompiledGame(problem)
        ends = []
        for seed in (1, 1, 2, 3, 2**40):
            state = game.reset()
            assert play_random(game.tables, state.data, seed) == state.return_ps
            assert state.is_over
            # The game that it says it played.
            again = game.reset()
            assert again.play(state.actions) == state.return_ps
            assert again.plan() == state.plan()
            ends.append(state)
            resets += state.resets
        assert np.array_equal(ends[0].data, ends[1].data)
    assert resets > 0


def test_random_play_takes_all_actions_alike() -> None:
    """Of three legal actions each is taken a third of the time, whatever the seed; of two, half of it."""
    problem = max(problems("alike", 60), key=lambda problem: _choices(problem, 3) * _choices(problem, 2))
    game = CompiledGame(problem)
    taken: dict[tuple[int, tuple[bool, ...]], np.ndarray[Any, Any]] = {}
    for seed in range(3000):
        state = game.reset()
        play_random(game.tables, state.data, seed)
        if state.resets:
            continue
        again = game.reset()
        for action in state.actions:
            taken.setdefault((again.position, tuple(again.legal)), np.zeros(3, int))[action] += 1
            again.step(action)
    sizes = set()
    for (_, legal), counts in taken.items():
        total, options = counts.sum(), sum(legal)
        if total >= 300:
            sizes.add(options)
            # Five standard deviations.
            expected = total / options
            assert (np.abs(counts[np.array(legal)] - expected) <= 5 * np.sqrt(expected)).all()
    assert sizes >= {2, 3}


def _choices(problem: Problem, options: int) -> int:
    """How many moves of a greedy game have so many legal actions; none where games of the problem are ever reset."""
    state = reset(problem)
    if any(move.alias_group >= 0 for move in state.game.moves):
        return 0
    found = 0
    while not state.is_over:
        found += len(state.legal_actions()) == options
        state.step(state.legal_actions()[0])
    return found


def test_preferences_choose_among_what_is_legal() -> None:
    rng = np.random.default_rng(0)
    resets = 0
    for problem in problems("preferences", 60):
        game = CompiledGame(problem)
        preferences = rng.integers(0, 3, (len(game.moves), 3)).astype(np.float32)
        state, out = game.reset(), np.full(len(game.moves), 7)
        assert play_preferences(game.tables, state.data, preferences, out) == state.return_ps
        plain = game.reset()
        while not plain.is_over:
            plain.step(int(np.argmax(np.where(plain.legal, preferences[plain.position], -np.inf))))
        assert np.array_equal(plain.data, state.data)
        assert game.reset().play(out) == state.return_ps
        resets += state.resets
    assert resets > 0


def test_a_lost_game_has_no_actions() -> None:
    lost = 0
    for problem in problems("lost", 60):
        game = CompiledGame(problem, drop_backup=False)
        state, out = game.reset(), np.full(len(game.moves), 7)
        returned = play_preferences(game.tables, state.data, np.array([[1, 1, 0]] * len(out), np.float32).reshape(-1, 3), out)
        if state.is_lost:
            assert returned == 0
            assert (out == -1).all()
            lost += 1
    assert lost > 0


def test_greedy_play_takes_the_largest_reward() -> None:
    equal = 0
    for problem in problems("greedy", 60):
        game = CompiledGame(problem)
        state = game.reset()
        play_greedy(game.tables, state.data)
        reference = reset(problem)
        play_on(reference, random.Random(0), "greedy")
        # The reference looks ahead at what a reset would take back.
        if not state.resets and not reference.resets:
            assert state.plan() == reference.plan()
            equal += 1
    assert equal > 40


# Copy windows


def random_channel(rng: random.Random) -> Channel:
    """Windows that do not meet, whether play would come to them or not, and supplies that are left."""
    count = rng.randint(1, 12)
    found: list[Window] = []
    for _ in range(rng.randint(0, 8)):
        first = rng.randrange(count)
        window = (first, min(count, first + rng.choice([1, 1, 2, 3, 5])))
        if not any(meet(window, other) for other in found):
            found.append(window)
    return Channel([rng.choice([0, 0, 1, 2, 5]) for _ in range(count)], found)


def marked(channel: Channel) -> Ints:
    """The slots of a compiled state with the same windows and supplies."""
    data = np.zeros((len(channel.supply_ps), layout.SLOT), np.int64)
    data[:, layout.SUPPLY_PS] = channel.supply_ps
    for first, last in channel.windows:
        data[first:last, layout.MARKS] += layout.COVERED
        data[first : last - 1, layout.MARKS] += layout.CROSSED
        data[first + 1 : last - 1, layout.MARKS] += layout.INTERIOR
    return data.reshape(-1)


@pytest.mark.parametrize("direction", ["in", "out"])
def test_windows_are_those_of_the_reference(direction: str) -> None:
    rng = random.Random(f"windows {direction}")
    search = places.latest_window if direction == "in" else places.earliest_window
    found = jumped = 0
    for _ in range(2500):
        channel = random_channel(rng)
        data = marked(channel)
        count = len(channel.supply_ps)
        for strict in (False, True):
            demand, first, last = rng.choice([0, 1, 3, 6]), rng.randint(0, count // 2), rng.randint(count // 3, count)
            best = (channel.latest if direction == "in" else channel.earliest)(demand, first, last, strict=strict)
            assert search(data, 0, demand, first, last, strict) == (best or (-1, -1)), (channel.supply_ps, channel.windows)
            found += best is not None
            jumped += best is not None and (best[1] < last if direction == "in" else best[0] > first)
    assert found > 700
    assert jumped > 100


# Readers


def read_all(tables: Tables, data: Ints, tensors: Ints, slots: Ints, uses: Ints, residencies: Ints, groups: Ints) -> int:
    """Fill arrays with everything that compiled code may read; ``uses`` has the move of each use."""
    for number in range(len(tensors)):
        tensors[number, 0] = readers.latest_residency(tables, data, number)
        tensors[number, 1] = readers.slow_from(tables, data, number)
        tensors[number, 2] = readers.tensor_flags(tables, data, number)
    for number in range(len(slots)):
        slots[number, 0] = readers.supply_ps(tables, data, number)
        slots[number, 1] = readers.windows_over(tables, data, number)
    for number in range(len(uses)):
        uses[number] = readers.action_of(tables, data, uses[number]) in (0, 1)
    for number in range(data[layout.RESIDENCIES]):
        residencies[number] = readers.residency(tables, data, number)[:4]
    for number in range(len(groups)):
        groups[number] = readers.is_dropped(tables, data, number)
    return readers.used(tables, data)  # type: ignore[no-any-return]


def read_move(tables: Tables, data: Ints) -> tuple[int, int, int, tuple[int, int, int], tuple[int, int, int]]:
    legal = 0
    for action in range(3):
        legal += readers.legal(tables, data, action) << action
    last = readers.action_of(tables, data, data[layout.POSITION] - 1)
    next_one = readers.action_of(tables, data, data[layout.POSITION])
    return legal, last, next_one, readers.placement(data, 0), readers.placement(data, 1)


def test_readers_say_what_the_reference_says() -> None:
    rng = random.Random("readers")
    resets = 0
    for problem in problems("readers", 12):
        reference = reset(problem)
        game = CompiledGame(problem)
        state = game.reset()
        at = game.tables.program[0]
        while not reference.is_over:
            action = rng.choice([each for each in reference.legal_actions() if each != DROP] or reference.legal_actions())
            reference.step(action)
            state.step(action)
            tensors, slots = np.zeros((len(problem.tensors), 3), np.int64), np.zeros((at.slots, 2), np.int64)
            uses, residencies = np.zeros(problem.use_count, np.int64), np.zeros((len(game.moves), 4), np.int64)
            uses[[use for move in game.moves for use in move.uses]] = [
                number for number, move in enumerate(game.moves) for _ in move.uses
            ]
            groups = np.zeros(at.at_rows - at.at_dropped, np.int64)
            used = read_all(game.tables, state.data, tensors, slots, uses, residencies, groups)
            assert [None if latest < 0 else latest for latest in tensors[:, 0]] == [one.latest for one in reference.tensors]
            assert [None if slow == layout.NEVER else slow for slow in tensors[:, 1]] == [
                one.slow_from for one in reference.tensors
            ]
            assert [bool(flags & layout.HELD) for flags in tensors[:, 2]] == [one.is_held for one in reference.tensors]
            assert slots[:, 0].tolist() == reference.channel.supply_ps
            assert slots[:, 1].sum() == sum(last - first for first, last in reference.channel.windows)
            assert uses.tolist() == reference.fast
            placed = [(item.tensor, item.start, item.end, item.offset) for item in reference.residencies]
            assert [tuple(row) for row in residencies[: len(placed)].tolist()] == placed
            assert set(np.flatnonzero(groups)) == reference.dropped
            if not reference.is_over and reference.position:
                legal, last, next_one, copy, nocopy = read_move(game.tables, state.data)
                assert legal == sum(1 << each for each in reference.legal_actions())
                assert (last, next_one) == (state.actions[-1], -1)
                assert [copy, nocopy] == [tuple(row) for row in state.placements[:2].tolist()]
            # What is not used may be anything.
            other = CompiledState(game, np.full_like(state.data, 99))
            other.data[:used] = state.data[:used]
            ends = [one.copy() for one in (state, other)]
            returns = [play_random(game.tables, one.data, 5) for one in ends]
            assert returns[0] == returns[1]
            assert ends[0].plan() == ends[1].plan()
        resets += reference.resets
    assert resets > 0
