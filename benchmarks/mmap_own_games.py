"""A policy's own games (expert iteration): what it plays on programs, and what it is to learn from their best games.

The best game of a program is shown with its hint and without. Besides, at the positions of the policy's own likeliest games,
it is shown what the best game does there (Ross et al. 2011, DAgger): what it meets when it plays is not what it meets in good
games.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from mmap_demonstrations import Demonstrated, Program, game_reward
from numpy.typing import NDArray

from stowplan.learned_guidance.memory_mapping.game.demonstrations import ORDERS
from stowplan.learned_guidance.memory_mapping.game.game import Action
from stowplan.learned_guidance.memory_mapping.game.kernel import CompiledGame
from stowplan.learned_guidance.memory_mapping.muzero.imitation import Positions, positions_of
from stowplan.learned_guidance.memory_mapping.muzero.play import Played, Policy, Seat
from stowplan.learned_guidance.memory_mapping.observation.config import ObservationConfig
from stowplan.learned_guidance.memory_mapping.observation.observer import Observer

#: Temperatures of a program's games: the likeliest with its hint and without, and drawn ones.
TEMPERATURES = (0.0, 0.0, 0.3, 0.5, 0.7, 1.0)


def play(policy: Policy, programs: Sequence[Program], seed: int) -> list[list[Played]]:
    """Games of each program, all side by side: the likeliest with its hint, without, and drawn ones."""
    seats: list[Seat] = []
    for program in programs:
        shown, bare = (Seat.of(program.game, policy.config, hint) for hint in (program.hint, None))
        seats += [shown, bare, *[shown] * (len(TEMPERATURES) - 2)]
    games = policy.play(seats, temperatures=np.array(TEMPERATURES * len(programs)), seed=seed)
    return [games[first : first + len(TEMPERATURES)] for first in range(0, len(games), len(TEMPERATURES))]


def note(program: Program, found: Demonstrated, games: Sequence[Played]) -> None:
    """Put what the policy reached beside the best game's R."""
    rewards = [game_reward(program.problem, played.return_ps) for played in games]
    found.rewards.update({"likeliest": rewards[0], "likeliest without hint": rewards[1], "drawn": max(rewards)})


def positions(program: Program, found: Demonstrated, games: Sequence[Played], config: ObservationConfig) -> list[Positions]:
    """What is to be learned from a program; ``games`` are the policy's, where there is one."""
    game = program.game
    shown, bare = Observer(game, config, program.hint), Observer(game, config)
    parts = [positions_of(game, observer, found.actions) for observer in (shown, bare)]
    for observer, played in zip((shown, bare), games[:2], strict=False):
        parts.append(positions_of(game, observer, played.actions, advised(game, played.actions, found.actions)))
    others = [*found.others, *(played.actions for played in games[-1:])]
    return parts + [positions_of(game, shown, other, np.full(len(other), -1)) for other in others]


def advised(game: CompiledGame, actions: NDArray[np.int8], best: Any) -> NDArray[np.int8]:
    """At each position of a game what the best game does there, or what comes nearest to it."""
    state, wanted = game.reset(), np.zeros(len(actions), np.int8)
    for number, action in enumerate(actions.tolist()):
        legal = state.legal
        wanted[number] = next(order for order in ORDERS[Action(int(best[state.position]))] if legal[order])
        state.step(action)
    return wanted
