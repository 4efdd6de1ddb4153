"""Files of MMap-MuZero: their formats, and games as they are kept in them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stowplan.learned_guidance.memory_mapping.game.best import Best, Point
from stowplan.learned_guidance.memory_mapping.muzero.config import NetworkConfig, TrainingConfig
from stowplan.learned_guidance.memory_mapping.muzero.replay import Trajectory
from stowplan.learned_guidance.memory_mapping.observation.layout import FIRST_ID
from stowplan.learned_guidance.training.checkpoint import FileFormat

#: What version 1 called fields of the training configuration.
RENAMED = {
    "opening_moves": "warm_start_moves",
    "leaning_fraction": "exploration_bias_fraction",
    "mend_moves": "local_search_moves",
}

#: Fields that are gone, with their values that mean what is done now: of the policy gradient that learned without search (with
#: search, its last two had no effect), and settings that nothing but their defaults was ever used of.
REMOVED: dict[str, tuple[Any, ...]] = {
    "use_search": (True,),
    "entropy_bonus": (),
    "ratio_clip": (),
    "warm_up_games": (1,),
    "greedy_games": (0,),
    "demonstration_limit": (None,),
    "reanalyse_simulations": (None,),
    "reanalyse_return_weight": (0,),
}

#: Networks of version 3 alone saw what hints say (:func:`without_hints`).
POLICY = FileFormat(
    "stowplan.mmap_muzero.policy", TrainingConfig, version=4, renamed={1: RENAMED, 2: {}, 3: {}}, removed=REMOVED
)
CHECKPOINT = FileFormat(
    "stowplan.mmap_muzero.checkpoint",
    TrainingConfig,
    version=4,
    removed=REMOVED,
    hint="train anew, or from a policy by --from",
)


#: The layer that reads the features of buffers, and which of its columns in version 3 were those of hints.
_READS_BUFFERS, _OF_HINTS = "encoder.of_buffers.layer.weight", slice(27, 31)


def without_hints(weights: dict[str, Tensor], config: NetworkConfig) -> dict[str, Tensor]:
    """Weights of a network that could be shown hints, as those of one that is shown none; others as they are."""
    reads = weights.get(_READS_BUFFERS)
    width = FIRST_ID + 2 * config.id_embedding + _OF_HINTS.stop - _OF_HINTS.start
    if not isinstance(reads, Tensor) or reads.ndim != 2 or reads.shape[1] != width:
        return weights
    return {**weights, _READS_BUFFERS: torch.cat([reads[:, : _OF_HINTS.start], reads[:, _OF_HINTS.stop :]], dim=1)}


def pack_games(games: Sequence[Trajectory]) -> dict[str, Any]:
    """Games as a few tensors, one after the other."""

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
    """Games as :func:`pack_games` packs them."""
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
    """A best game and its curve as plain values."""
    return {
        "games": best.games,
        "return_ps": best.return_ps,
        "actions": None if best.actions is None else best.actions.tolist(),
        "points": [[point.seconds, point.games, point.return_ps] for point in best.points],
    }


def unpack_best(packed: dict[str, Any], seconds: float, clock: Callable[[], float]) -> Best:
    """A best game as :func:`pack_best` packs it, ``seconds`` after the beginning of its curve."""
    best = Best(seconds_before=seconds, games_before=packed["games"], clock=clock)
    best.return_ps = packed["return_ps"]
    best.actions = None if packed["actions"] is None else np.array(packed["actions"], np.int8)
    best.points = [Point(*point) for point in packed["points"]]
    return best
