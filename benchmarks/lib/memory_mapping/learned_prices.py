"""Prototype: priced play with a few learned numbers."""
from __future__ import annotations
import math
import numpy as np
from stowplan.compiled import njit_inner, njit_outer
from stowplan.learned_guidance.memory_mapping.game.kernel.layout import *
from stowplan.learned_guidance.memory_mapping.game.kernel.readers import action_of, benefit, is_over, legal, placement, used
from stowplan.learned_guidance.memory_mapping.game.kernel.rules import step
from stowplan.learned_guidance.memory_mapping.game.kernel.tables import Ints, Tables
from stowplan.learned_guidance.memory_mapping.game.prices import estimate, IMPOSSIBLE
from stowplan.learned_guidance.memory_mapping.game.rollouts import ILLEGAL
Floats = np.ndarray

P = 14
LOG_MEMORY, LOG_COPY, SHARE, AT_ONCE, DENSITY, SIZE, LENGTH, BIAS_COPY, BIAS_NOCOPY, FILL, FUTURE, BIG, OUTPUT, WAIT = range(14)
FIRST = np.array([math.log(0.1), math.log(0.5), 1.0, 0.5, 0.5] + [0.0] * 9)

@njit_inner
def cost(size, big, output, lengthed, v):
    c = size
    if big: c *= math.exp(v[BIG])
    if output: c *= math.exp(v[OUTPUT])
    return c * lengthed

@njit_inner
def span_cost(memory, start, end, steps, v):
    if end <= start: return 0.0
    return (memory[end] - memory[start]) * ((end - start) / 8.0) ** v[LENGTH]

@njit_outer
def prepare(tables, v, single, shared, held_from, copy_bound, density, memory_ps, copy_ps, memory, savings, weights, worths):
    steps = len(memory) - 1
    program = tables.program[0]
    price = math.exp(v[LOG_MEMORY]) * memory_ps
    memory[0] = 0.0
    for t in range(steps):
        memory[t + 1] = memory[t] + max(price, v[DENSITY] * density[t])
    copies = math.exp(v[LOG_COPY]) * copy_ps
    moves = program.moves
    total = 0.0
    for p in range(moves):
        w = (max(float(tables.moves[p].bytes), 1.0) / program.capacity * 64.0) ** v[SIZE]
        weights[p] = w
        savings[p] = w * (v[SHARE] * shared[p] + (1.0 - v[SHARE]) * single[p])
        total += max(shared[p], 0.0)
    mean = total / max(moves, 1)
    later_part = math.exp(v[FUTURE])
    for s in range(3): worths[moves, s] = 0.0
    for position in range(moves - 1, -1, -1):
        move = tables.moves[position]
        later = move.later if move.later >= 0 else moves
        saved = savings[position]
        big = move.bytes >= program.large
        c = cost(float(move.bytes), big, move.is_output != 0, 1.0, v)
        bound = copy_bound[position]
        dropped = later_part * worths[later, 0]
        if move.is_output:
            begin = move.start if move.defines else move.end
            copied = IMPOSSIBLE
            if bound >= 0:
                copied = saved + v[BIAS_COPY] * mean - c * span_cost(memory, begin, bound, steps, v) - copies * move.demand + later_part * worths[later, 1]
            kept = IMPOSSIBLE
            if not move.is_final_output:
                kept = saved + v[BIAS_NOCOPY] * mean - c * span_cost(memory, begin, max(move.live_end, move.end), steps, v) + later_part * worths[later, 2]
            best = max(copied, kept)
            worths[position, 0] = max(dropped, best) if move.defines else dropped
            worths[position, 1] = max(dropped, best) if move.defines else best
            worths[position, 2] = worths[position, 1]
            continue
        copied = IMPOSSIBLE
        if bound >= 0:
            copied = saved + v[BIAS_COPY] * mean - c * span_cost(memory, bound, move.end, steps, v) - copies * move.demand + later_part * worths[later, 1]
        worths[position, 0] = max(dropped, copied)
        worths[position, 1] = max(dropped, saved - c * span_cost(memory, held_from[position], move.end, steps, v) + later_part * worths[later, 1])
        kept = saved + later_part * worths[later, 2]
        worths[position, 2] = kept if move.needs_content else max(dropped, kept)
    return mean

@njit_outer
def play2(tables, data, v, copies, mean, memory, savings, weights, worths):
    program = tables.program[0]
    steps = len(memory) - 1
    later_part = math.exp(v[FUTURE])
    while not is_over(tables, data):
        position = data[POSITION]
        move = tables.moves[position]
        later = move.later if move.later >= 0 else program.moves
        saved = v[AT_ONCE] * weights[position] * benefit(tables, data, position) + (1.0 - v[AT_ONCE]) * savings[position]
        big = move.bytes >= program.large
        best, most = -1, 0.0
        for action in range(3):
            if not legal(tables, data, action): continue
            if action == DROP:
                found = later_part * worths[later, 0]
            else:
                start, end, offset = placement(data, action)
                fill = offset / program.capacity if big else 1.0 - (offset + move.bytes) / program.capacity
                c = cost(float(move.bytes), big, move.is_output != 0, 1.0, v) * (1.0 + v[FILL] * fill)
                found = saved - c * span_cost(memory, start, end, steps, v)
                if action == COPY:
                    found += v[BIAS_COPY] * mean - copies * move.demand + later_part * worths[later, 1]
                else:
                    if end > start: found += v[BIAS_NOCOPY] * mean
                    cell = program.at_tensors + TENSOR * move.tensor
                    only = move.is_output or data[cell + SLOW_FROM] == NEVER
                    found += later_part * worths[later, 2 if only else 1]
            if best < 0 or found > most:
                best, most = action, found
        step(tables, data, best)
    return data[RETURN_PS]

@njit_outer
def game2(tables, data, v, single, shared, held_from, copy_bound, density, memory_ps, copy_ps, memory, savings, weights, worths):
    mean = prepare(tables, v, single, shared, held_from, copy_bound, density, memory_ps, copy_ps, memory, savings, weights, worths)
    for cell in range(len(data)): data[cell] = tables.initial[cell]
    return play2(tables, data, v, math.exp(v[LOG_COPY]) * copy_ps, mean, memory, savings, weights, worths)

@njit_outer
def roll2(tables, data, trial, v, single, shared, held_from, copy_bound, density, memory_ps, copy_ps, memory, savings, weights, worths):
    mean = prepare(tables, v, single, shared, held_from, copy_bound, density, memory_ps, copy_ps, memory, savings, weights, worths)
    copies = math.exp(v[LOG_COPY]) * copy_ps
    for cell in range(len(data)): data[cell] = tables.initial[cell]
    top = -(1 << 62)
    while not is_over(tables, data):
        best, most = -1, 0
        for action in range(3):
            if not legal(tables, data, action): continue
            for cell in range(used(tables, data)): trial[cell] = data[cell]
            step(tables, trial, action)
            found = play2(tables, trial, v, copies, mean, memory, savings, weights, worths)
            if best < 0 or found > most: best, most = action, found
        top = max(top, most)
        step(tables, data, best)
    return max(top, data[RETURN_PS])

class Player:
    def __init__(self, game):
        self.game = game
        e = estimate(game); n = len(game.moves)
        self.args = (e.single, e.shared, e.held_from, e.copy_bound, e.density, e.memory_ps, e.copy_ps, np.zeros(game.problem.horizon + 1), np.zeros(n), np.ones(n), np.zeros((n + 1, 3)))
        self.data = game.reset().data; self.trial = self.data.copy()
    def play(self, v): return int(game2(self.game.tables, self.data, v, *self.args))
    def roll(self, v): return int(roll2(self.game.tables, self.data, self.trial, v, *self.args))
