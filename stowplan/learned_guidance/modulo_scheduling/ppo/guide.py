"""Where a trained mapper tends to place instructions, as a hint: what some roll-outs have in common."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from stowplan.learned_guidance.modulo_scheduling.rollouts import Player, never
from stowplan.learned_guidance.modulo_scheduling.state import Body, Mapping
from stowplan.models.hint import Hint
from stowplan.models.modulo_scheduling.hint import hint
from stowplan.models.modulo_scheduling.problem import Problem

SOURCE = "ppo"

#: Roll-outs at an interval, and their temperature.
ROLLOUTS, TEMPERATURE = 16, 0.5


def policy_hint(
    player: Player, problem: Problem, intervals: Sequence[int], seed: int, *, stop: Callable[[], bool] = never
) -> Hint | None:
    """How often each tile is taken, and how early instructions issue, over the roll-outs that come furthest.

    Parameters
    ----------
    player
        A policy, or a control.
    problem
        Without values that pass through tiles.
    intervals
        Initiation intervals to try, until one has a complete roll-out; the last that is tried is the one that counts.
    seed
        Of the draws.
    stop
        Asked at each step.

    Returns
    -------
    Hint or None
        Instructions that none of them has placed have a confidence of 0. None where time was up before anything was placed.
    """
    chance, body = np.random.default_rng(seed), Body(problem)
    found: list[Mapping] = []
    for ii in intervals:
        first = Mapping(body, ii)
        drawn = player.place(
            [first, *(first.copy() for _ in range(ROLLOUTS - 1))], chance, temperature=TEMPERATURE, resample=True, stop=stop
        )
        if stop():
            break
        found = drawn
        if any(each.current < 0 for each in found):
            break
    most = max((each.placed for each in found), default=0)
    if not most:
        return None
    # Those that were stuck and went on as copies of others count once.
    furthest = {(*each.tile.tolist(), *each.time.tolist()): each for each in found if each.placed == most}.values()
    count, tiles = len(problem.instructions), problem.machine.tiles
    times, taken, placed = np.zeros(count), np.zeros((tiles, count)), np.zeros(count)
    for each in furthest:
        at, time = np.array(each.tile), np.array(each.time)
        known = np.flatnonzero(at >= 0)
        last = max(1, int(time[known].max()))
        times[known] += np.clip(time[known] / last, 0.0, 1.0)
        taken[at[known], known] += 1
        placed[known] += 1
    many = np.maximum(placed, 1)
    sure = (placed > 0).astype(float)
    return hint(problem, (times / many).tolist(), (taken / many).tolist(), confidence=sure.tolist(), source=SOURCE)
