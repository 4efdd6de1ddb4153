"""Priced play, which learns nothing across programs: the baseline of learned players.

The game is played by what holding tensors is worth under constant prices (``prices.py``). :func:`evolve_prices` changes
them, prices of blocks of steps, and weights of tensors, by a (1+1) evolution strategy, and keeps what plays no worse.
"""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np

from benchmarks.lib.memory_mapping.prices import (
    AT_ONCE,
    COPY_PRICE,
    DENSITY_PRICE,
    MEMORY_PRICE,
    Estimates,
    Floats,
    estimate,
    find_worths,
    play_priced,
)
from stowplan.compiled import Floats2D, njit
from stowplan.learned_guidance.memory_mapping.game.best import Best
from stowplan.learned_guidance.memory_mapping.game.kernel.readers import action_of
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.game.kernel.tables import Ints, Tables

#: Blocks of steps with a price of memory of their own.
BLOCKS = 16

#: Settings: factors of the two prices (logarithms), how far what a move saves is shared with its step's others, what part of it
#: is what it saves at once, and the factor of the density.
SETTINGS = 5

#: Standard deviations of changes: of settings, of blocks, of tensors' weights (logarithms).
SPREAD = 0.4, 0.6, 1.0


def first_settings() -> Floats:
    """The constant floors."""
    return np.array([np.log(MEMORY_PRICE), np.log(COPY_PRICE), 1.0, AT_ONCE, DENSITY_PRICE])


class PricedPlay:
    """Priced play of one game."""

    def __init__(self, game: CompiledGame):
        self.game = game
        self.estimates: Estimates = estimate(game)
        moves, tensors = len(game.moves), len(game.problem.tensors)
        self.values = np.concatenate([first_settings(), np.zeros(BLOCKS + tensors)])
        """Settings, logarithms of blocks' prices, logarithms of tensors' weights."""
        self._memory = np.zeros(game.problem.horizon + 1)
        self._savings, self._weights, self._worths = np.zeros(moves), np.ones(tensors), np.zeros((moves + 1, 3))
        self._data = game.reset().data
        self.actions = np.zeros(moves, np.int64)

    def play(self, values: Floats | None = None) -> int:
        """The return (ps) of one game; :attr:`actions` gets its actions."""
        each, values = self.estimates, self.values if values is None else values
        return int(
            play_by(
                self.game.tables,
                self._data,
                values,
                each.single,
                each.shared,
                each.held_from,
                each.copy_bound,
                each.density,
                each.memory_ps,
                each.copy_ps,
                self._memory,
                self._savings,
                self._weights,
                self._worths,
                self.actions,
            )
        )


def priced(game: CompiledGame) -> Best:
    """The one game by constant prices."""
    best, player = Best(), PricedPlay(game)
    best.offer(player.play(), player.actions)
    return best


def evolve_prices(
    game: CompiledGame,
    *,
    seed: int = 0,
    time_limit: float | None = None,
    rounds: int | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Best:
    """The best game by changed prices, weights and settings, within seconds of a processor's time or so many games."""
    player, best, rng = PricedPlay(game), Best(), np.random.default_rng(seed)
    values = player.values
    present = player.play(values)
    best.offer(present, player.actions)
    end = None if time_limit is None else time.process_time() + time_limit
    done = 1
    tensors = sorted({move.tensor for move in game.moves})
    while tensors and (rounds is None or done < rounds) and not (should_stop is not None and should_stop()):
        if end is not None and time.process_time() >= end:
            break
        changed = values.copy()
        way = rng.integers(4)
        if way == 0:
            changed[:2] += SPREAD[0] * rng.standard_normal(2)
            changed[2:SETTINGS] = np.clip(changed[2:SETTINGS] + SPREAD[0] * rng.standard_normal(3), 0.0, 1.0)
        elif way == 1:
            first = rng.integers(BLOCKS)
            last = first + 1 + rng.integers(4)
            changed[SETTINGS:][first : min(last, BLOCKS)] += SPREAD[1] * rng.standard_normal()
        else:
            count = 1 + int(rng.geometric(0.5)) if way == 2 else 1 + len(tensors) // 16
            chosen = rng.choice(tensors, min(count, len(tensors)), replace=False)
            changed[SETTINGS + BLOCKS + chosen] += SPREAD[2] * rng.standard_normal(len(chosen))
        found = player.play(changed)
        done += 1
        if found >= present:
            values, present = changed, found
            best.offer(present, player.actions)
        else:
            best.games += 1
    return best


@njit
def play_by(
    tables: Tables,
    data: Ints,
    values: Floats,
    single: Floats,
    shared: Floats,
    held_from: Ints,
    copy_bound: Ints,
    density: Floats,
    memory_ps: float,
    copy_ps: float,
    memory: Floats,
    savings: Floats,
    weights: Floats,
    worths: Floats2D,
    actions: Ints,
) -> int:
    """Play one game by these values; the return (ps). ``memory`` to ``worths`` are room; ``actions`` the game's."""
    steps = len(memory) - 1
    price, copies = np.exp(values[0]) * memory_ps, np.exp(values[1]) * copy_ps
    memory[0] = 0.0
    for step in range(steps):
        here = max(price, values[4] * density[step])
        memory[step + 1] = memory[step] + here * np.exp(values[SETTINGS + step * BLOCKS // steps])
    for tensor in range(len(weights)):
        weights[tensor] = np.exp(values[SETTINGS + BLOCKS + tensor])
    for position in range(len(savings)):
        savings[position] = weights[tables.moves[position].tensor] * (
            values[2] * shared[position] + (1.0 - values[2]) * single[position]
        )
    find_worths(tables, savings, held_from, copy_bound, memory, copies, worths)
    for cell in range(len(data)):
        data[cell] = tables.initial[cell]
    found = play_priced(tables, data, savings, weights, memory, copies, values[3], worths)
    for position in range(len(actions)):
        actions[position] = action_of(tables, data, position)
    return found
