"""The formats of MMap-MuZero's files, and the games of training as they are stored in them.

Each ``pack`` function has an ``unpack`` function that restores its result. For damaged values, the ``unpack`` function raises
one of :data:`stowplan.learned_guidance.training.checkpoint.DAMAGE`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stowplan.learned_guidance.memory_mapping.game.game import Best, Point
from stowplan.learned_guidance.memory_mapping.muzero.config import TrainingConfig
from stowplan.learned_guidance.memory_mapping.muzero.network import MMapNetwork
from stowplan.learned_guidance.memory_mapping.muzero.replay import Replay, Trajectory
from stowplan.learned_guidance.memory_mapping.muzero.self_play import Episode, ProgramGame, episode_of
from stowplan.learned_guidance.training import checkpoint
from stowplan.learned_guidance.training.checkpoint import FileFormat, PolicyFormat

POLICY = PolicyFormat("stowplan.mmap_muzero.policy", TrainingConfig, lambda content: MMapNetwork(content.config.network))
CHECKPOINT = FileFormat("stowplan.mmap_muzero.checkpoint", TrainingConfig)


def pack_replay(replay: Replay) -> dict[str, Any]:
    """The games of a replay buffer as plain values and tensors."""
    return {
        "recent": pack_games(replay.recent),
        "priorities": checkpoint.pack_arrays(replay.priorities),
        "next_slot": replay.next_slot,
        "elite": [pack_games(games) for games in replay.elite],
        "demonstrations": pack_games(replay.demonstrations),
    }


def unpack_replay(packed: dict[str, Any], replay: Replay, discount: float) -> None:
    """Restore the games that :func:`pack_replay` has packed."""
    recent = unpack_games(packed["recent"], discount)
    replay.restore(recent, checkpoint.unpack_arrays(packed["priorities"]), packed["next_slot"])
    replay.elite = [unpack_games(games, discount) for games in packed["elite"]]
    replay.demonstrations = unpack_games(packed["demonstrations"], discount)


def pack_episodes(episodes: Sequence[Episode], discount: float) -> dict[str, Any]:
    """The games that are under way as plain values and tensors."""
    return {
        "episodes": pack_games([episode.trajectory(discount) for episode in episodes]),
        "biases": checkpoint.pack_arrays([episode.bias for episode in episodes]),
    }


def unpack_episodes(packed: dict[str, Any], programs: Sequence[ProgramGame], discount: float) -> list[Episode]:
    """The games that :func:`pack_episodes` has packed."""
    games, biases = unpack_games(packed["episodes"], discount), checkpoint.unpack_arrays(packed["biases"])
    return [episode_of(programs[game.program], game, bias) for game, bias in zip(games, biases, strict=True)]


def pack_games(games: Sequence[Trajectory]) -> dict[str, Any]:
    """Several games as a few tensors, one after the other."""

    def joined(arrays: list[NDArray[Any]], empty: NDArray[Any]) -> Tensor:
        return torch.from_numpy(np.concatenate(arrays) if arrays else empty)

    return {
        "head": torch.tensor(
            [[game.program, len(game), game.return_ps, game.first, int(game.is_demonstration)] for game in games],
            dtype=torch.int64,
        ).reshape(-1, 5),
        "actions": joined([game.actions for game in games], np.empty(0, np.int8)),
        "policy": joined([game.policy for game in games], np.empty((0, 3), np.float32)),
        "value": joined([game.value for game in games], np.empty(0, np.float32)),
        "legal": joined([game.legal for game in games], np.empty((0, 3), np.bool_)),
        "rewards": joined([game.rewards for game in games], np.empty(0, np.float32)),
    }


def unpack_games(packed: dict[str, Any], discount: float) -> list[Trajectory]:
    """The games that :func:`pack_games` has packed."""
    arrays = {name: packed[name].numpy() for name in ("actions", "policy", "value", "legal", "rewards")}
    games, start = [], 0
    for program, length, return_ps, first, is_demonstration in packed["head"].tolist():
        part = {name: array[start : start + length].copy() for name, array in arrays.items()}
        start += length
        games.append(
            Trajectory(
                program=program,
                return_ps=return_ps,
                first=first,
                is_demonstration=bool(is_demonstration),
                discount=discount,
                **part,
            )
        )
    return games


def pack_best(best: Best) -> dict[str, Any]:
    """The best game and the curve of best returns as plain values."""
    return {
        "games": best.games,
        "return_ps": best.return_ps,
        "actions": None if best.actions is None else best.actions.tolist(),
        "points": [[point.seconds, point.games, point.return_ps] for point in best.points],
    }


def unpack_best(packed: dict[str, Any], seconds: float, clock: Callable[[], float]) -> Best:
    """The best game and its curve that :func:`pack_best` has packed, ``seconds`` after the curve began; ``clock`` is a
    monotonic clock in seconds."""
    best = Best(seconds_before=seconds, games_before=packed["games"], clock=clock)
    best.return_ps = packed["return_ps"]
    best.actions = None if packed["actions"] is None else np.array(packed["actions"], np.int8)
    best.points = [Point(*point) for point in packed["points"]]
    return best
