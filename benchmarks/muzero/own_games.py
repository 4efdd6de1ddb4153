"""A policy's own games (policy iteration): what it plays on programs, and what it is to learn there.

Beside the best game of a program, the policy's own likeliest game is looked at move by move: what it meets when it plays is not
what it meets in good games (Ross et al. 2011). What each action would come to there, the best game's following, says what it
should have done (Ross and Bagnell 2014).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.lib.memory_mapping.deviations import deviations
from benchmarks.lib.memory_mapping.imitation import Positions, positions_of, preferred
from benchmarks.muzero.demonstrations import Demonstrated, Program
from benchmarks.muzero.runs import normalised
from stowplan.learned_guidance.memory_mapping.game.kernel.state import CompiledGame
from stowplan.learned_guidance.memory_mapping.muzero.play import Played, Policy
from stowplan.learned_guidance.memory_mapping.muzero.self_play import ProgramGame
from stowplan.learned_guidance.memory_mapping.observation.layout import ObservationConfig
from stowplan.learned_guidance.memory_mapping.observation.observer import Observer

#: What a game may lose by being made plain, of its return.
SLACK = 5e-4


def play(policy: Policy, programs: Sequence[Program], seed: int) -> list[list[Played]]:
    """The likeliest game of each program, all side by side."""
    games = [ProgramGame(program.game, policy.config) for program in programs]
    return [[played] for played in policy.play(games, temperatures=np.zeros(len(games)), seed=seed)]


def note(program: Program, found: Demonstrated, games: Sequence[Played]) -> None:
    """Put what the policy reached beside the best game's R."""
    found.rewards["likeliest"] = normalised(program.problem, games[0].return_ps)


def positions(program: Program, found: Demonstrated, games: Sequence[Played], config: ObservationConfig) -> list[Positions]:
    """What is to be learned from a program; ``games`` are the policy's, if any. The best game becomes a plain one."""
    game = program.game
    observer = Observer(game, config)
    best = settled(game, found.actions)
    found.actions = best[0]
    found.rewards["plain"] = normalised(program.problem, int(best[1][-1, best[0][-1]]))
    wanted = preferred(best[1], best[0], game.unit_ps)
    parts = [positions_of(game, observer, best[0], wanted)]
    for played in games:
        state = game.reset()
        state.play(played.actions)
        own = np.array(state.actions, np.int8)
        # Where the policy is, the best action is that from which the best game goes on best; what was taken back is left out.
        returns = deviations(game, own, following=best[0])[1]
        parts.append(positions_of(game, observer, own, preferred(returns, best[0], game.unit_ps)))
    return parts + [positions_of(game, observer, other, np.zeros((len(other), 3))) for other in found.others]


def settled(game: CompiledGame, actions: Any) -> tuple[NDArray[np.int8], NDArray[np.int64]]:
    """The game made plain, and its deviations."""
    state = game.reset()
    state.play(actions)
    plain, _ = deviations(game, actions, slack_ps=int(SLACK * abs(state.return_ps)))
    return deviations(game, plain)
