"""What holding a tensor is worth under prices of fast memory and of copies; and games played by that.

With a price for a byte held one step, and one for the channel's time, tensors have nothing to do with each other: the best way
of one through its moves is a dynamic programme over three states: not held, held with a valid slow copy, held only. A move's
action is then worth its reward, less what it occupies and takes, and what the tensor is worth from there on.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from itertools import accumulate
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from stowplan.compiled import Floats2D, njit, njit_inner
from stowplan.learned_guidance.memory_mapping.game.game import Game
from stowplan.learned_guidance.memory_mapping.game.kernel.layout import (
    COPY,
    DROP,
    NEVER,
    POSITION,
    RETURN_PS,
    SLOW_FROM,
    TENSOR,
)
from stowplan.learned_guidance.memory_mapping.game.kernel.readers import benefit, is_over, legal, placement
from stowplan.learned_guidance.memory_mapping.game.kernel.rules import step
from stowplan.learned_guidance.memory_mapping.game.kernel.tables import Ints, Tables
from stowplan.learned_guidance.memory_mapping.observation.observer import occupied

Floats = NDArray[np.float64]

#: Price of memory, of the whole saving over capacity times steps; and of copies, of the whole saving over the channel's time.
MEMORY_PRICE, COPY_PRICE = 0.1, 0.5

#: Of memory, at least this part of the density of what first finds no room at a step when memory is given to the densest first.
DENSITY_PRICE = 0.5

#: Part of what a move saves that is what it saves at once; the rest is its part of what its steps save in all.
AT_ONCE = 0.5

#: States of a tensor: not held, held with a valid slow copy, held only.
NOT_HELD, HELD_TWICE, HELD_ONLY = 0, 1, 2

#: Worth of what is not possible.
IMPOSSIBLE = -1e30


class Estimates(NamedTuple):
    """What worths are made of, of a game of M moves and T steps."""

    single: Floats
    """(M,) ps that a move saves where all else is slow."""
    shared: Floats
    """(M,) its part of what a step saves with all fast."""
    held_from: Ints
    """(M,) boundary up to which a tensor that is held has been paid for."""
    copy_bound: Ints
    """(M,) where a copy begins (in) or ends (out) with the channel free; -1 where there is no time."""
    density: Floats
    """(T,) ps for a byte: density of what first finds no room at a step."""
    memory_ps: float
    """The whole saving for a byte for a step, of all there are."""
    copy_ps: float
    """The whole saving for a ps of the channel's time."""

    def memory(self) -> Floats:
        """(T + 1,) price of a byte from the first step up to each boundary."""
        prices = np.maximum(MEMORY_PRICE * self.memory_ps, DENSITY_PRICE * self.density)
        return np.concatenate([[0.0], np.cumsum(prices)])


def estimate(game: Game) -> Estimates:
    """Of a game."""
    problem, moves = game.problem, game.moves
    clock = [0, *accumulate(game.slots.supply_ps)]
    bounds = game.slots.boundaries
    single, shared = _savings(game)
    held_from, copy_bound = np.zeros(len(moves), np.int64), np.full(len(moves), -1, np.int64)
    paid: dict[int, int] = {}
    visited: dict[int, int] = {}
    for number, move in enumerate(moves):
        tensor = problem.tensors[move.tensor]
        held_from[number] = paid.get(move.tensor, move.start)
        if move.is_output:
            first, last = game.slots.number(move.end), game.slots.number(move.copy_out_limit)
            end = bisect_left(clock, clock[first] + max(tensor.copy_out_ps, 1), lo=first) if first < last else last + 1
            if game.may_copy[move.tensor] and end <= last:
                copy_bound[number] = bounds[end]
            paid[move.tensor] = max(move.end, int(copy_bound[number]))
        else:
            first, last = game.slots.number(visited.get(move.tensor, 0)), game.slots.number(move.start)
            start = bisect_right(clock, clock[last] - max(tensor.copy_in_ps, 1)) - 1
            if game.may_copy[move.tensor] and first < last and start >= first:
                copy_bound[number] = bounds[start]
            paid[move.tensor] = move.end
        visited[move.tensor] = move.end
    saving = max(float(problem.all_slow_ps - problem.floor_ps), 1.0)
    return Estimates(
        single,
        shared,
        held_from,
        copy_bound,
        _density(game, shared),
        saving / max(problem.capacity * problem.horizon, 1),
        saving / max(clock[-1], 1),
    )


def _density(game: Game, savings: Floats) -> Floats:
    """(T,) as :class:`Estimates` has it: a step is full for good once something has found no room there."""
    contents, tensors = occupied(game), game.problem.tensors
    sizes = [tensors[move.tensor].size for move in game.moves]
    areas = np.array([size * (end - start) for size, (start, end) in zip(sizes, contents, strict=True)], float)
    densities = savings / np.maximum(areas, 1.0)
    free = np.full(game.problem.horizon, float(game.problem.capacity))
    prices = np.zeros(game.problem.horizon)
    for number in np.argsort(-densities, kind="stable").tolist():
        start, end = contents[number]
        here = free[start:end]
        first = (here >= 0) & (here < sizes[number])
        prices[start:end][first] = max(float(densities[number]), 0.0)
        here[first] = -1.0
        here[here >= 0] -= sizes[number]
    return prices


def _savings(game: Game) -> tuple[Floats, Floats]:
    """What each move saves alone, and its part of what all uses of its steps save together."""
    problem = game.problem
    alone, together = np.zeros(problem.use_count), np.zeros(problem.use_count)
    for number, step_ in enumerate(problem.steps):
        count, first = len(step_.uses), problem.first_use[number]
        slow = step_.latency_ps([False] * count)
        here = [slow - step_.latency_ps([use == other for other in range(count)]) for use in range(count)]
        most = slow - step_.latency_ps([True] * count)
        kept = [max(each, 0) for each in here]
        # Where no use saves anything alone, those that move more bytes count more.
        parts = kept if sum(kept) else [use.bytes for use in step_.uses]
        whole = max(sum(parts), 1)
        alone[first : first + count] = [step_.weight * each for each in here]
        together[first : first + count] = [step_.weight * most * part / whole for part in parts]
    sums = [(float(alone[list(move.uses)].sum()), float(together[list(move.uses)].sum())) for move in game.moves]
    found = np.array(sums, np.float64).reshape(-1, 2)
    return found[:, 0].copy(), found[:, 1].copy()


@njit
def find_worths(
    tables: Tables, savings: Floats, held_from: Ints, copy_bound: Ints, memory: Floats, copies: float, out: Floats2D
) -> None:
    """Fill ``out`` (M + 1, 3): what a tensor is worth from a move on, by its state; the last row is 0.

    ``savings`` (M,) in ps; ``memory`` (T + 1,) the price of a byte from the first step up to each boundary; ``copies`` of a ps.
    """
    moves = tables.program[0].moves
    for state in range(3):
        out[moves, state] = 0.0
    for position in range(moves - 1, -1, -1):
        move = tables.moves[position]
        later = move.later if move.later >= 0 else moves
        saved, size = savings[position], float(move.bytes)
        bound = copy_bound[position]
        dropped = out[later, NOT_HELD]
        if move.is_output:
            begin = memory[move.start] if move.defines else memory[max(move.end, 0)]
            copied = IMPOSSIBLE
            if bound >= 0:
                copied = saved - size * (memory[bound] - begin) - copies * move.demand + out[later, HELD_TWICE]
            kept = IMPOSSIBLE
            if not move.is_final_output:
                kept = saved - size * (memory[max(move.live_end, move.end)] - begin) + out[later, HELD_ONLY]
            best = max(copied, kept)
            out[position, NOT_HELD] = max(dropped, best) if move.defines else dropped
            out[position, HELD_TWICE] = max(dropped, best) if move.defines else best
            out[position, HELD_ONLY] = out[position, HELD_TWICE]
            continue
        copied = IMPOSSIBLE
        if bound >= 0:
            copied = saved - size * (memory[move.end] - memory[bound]) - copies * move.demand + out[later, HELD_TWICE]
        out[position, NOT_HELD] = max(dropped, copied)
        longer = size * max(memory[move.end] - memory[held_from[position]], 0.0)
        out[position, HELD_TWICE] = max(dropped, saved - longer + out[later, HELD_TWICE])
        kept = saved + out[later, HELD_ONLY]
        out[position, HELD_ONLY] = kept if move.needs_content else max(dropped, kept)


@njit_inner
def worth(tables: Tables, data: Ints, action: int, saved: float, memory: Floats, copies: float, worths: Floats2D) -> float:
    """What a legal action of the present move is worth (ps); ``saved`` is what its uses save where it is Copy or NoCopy."""
    program = tables.program[0]
    move = tables.moves[data[POSITION]]
    later = move.later if move.later >= 0 else program.moves
    if action == DROP:
        return worths[later, NOT_HELD]  # type: ignore[no-any-return]
    start, end, _ = placement(data, action)
    cell = program.at_tensors + TENSOR * move.tensor
    found = saved - move.bytes * (memory[end] - memory[start])
    if action == COPY:
        return found - copies * move.demand + worths[later, HELD_TWICE]  # type: ignore[no-any-return]
    is_only = move.is_output or data[cell + SLOW_FROM] == NEVER
    return found + worths[later, HELD_ONLY if is_only else HELD_TWICE]  # type: ignore[no-any-return]


@njit
def play_priced(
    tables: Tables, data: Ints, savings: Floats, weights: Floats, memory: Floats, copies: float, share: float, worths: Floats2D
) -> int:
    """Play to the end, at each move the action that is worth most; the return (ps).

    What a move saves is ``share`` of what it saves at once, times its tensor's weight, and the rest of ``savings`` (M,).
    """
    while not is_over(tables, data):
        position = data[POSITION]
        saved = (
            share * weights[tables.moves[position].tensor] * benefit(tables, data, position) + (1.0 - share) * savings[position]
        )
        best, most = -1, 0.0
        for action in range(3):
            if not legal(tables, data, action):
                continue
            found = worth(tables, data, action, saved, memory, copies, worths)
            if best < 0 or found > most:
                best, most = action, found
        step(tables, data, best)
    return data[RETURN_PS]  # type: ignore[no-any-return]
