"""Files of MMap-MuZero: checkpoints that training goes on from, and policies to play with.

Both are torch archives of plain values and tensors. They are loaded without running any code of theirs, written to a temporary
name and renamed, and carry a format and a version like all files of the package.
"""

from __future__ import annotations

import hashlib
import io
import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from stowplan import files
from stowplan.errors import InputError, StowplanError
from stowplan.learned_guidance.memory_mapping.muzero.replay import Trajectory
from stowplan.learned_guidance.memory_mapping.muzero.training_config import TrainingConfig, from_json

CHECKPOINT_FORMAT = "stowplan.mmap_muzero.checkpoint"
POLICY_FORMAT = "stowplan.mmap_muzero.policy"
VERSION = 1


def save(path: str | Path, format_name: str, values: dict[str, Any]) -> str:
    """Write plain values and tensors; the file's sha256."""
    stream = io.BytesIO()
    torch.save({"format": format_name, "version": VERSION, **values}, stream)
    data = stream.getvalue()
    files.write_atomic(path, data)
    return hashlib.sha256(data).hexdigest()


def load(path: str | Path, format_name: str) -> tuple[dict[str, Any], str]:
    """Values of a file and its sha256.

    Raises
    ------
    InputError
        If the file cannot be read, is damaged or truncated, is not of this format or version, or holds anything but plain
        values and tensors.
    """
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", source=path) from error
    try:
        values = torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever it meets in a damaged file
        reason = str(error).strip().partition("\n")[0][:100] or type(error).__name__
        raise InputError(f"not a {format_name} file, or a damaged one: {reason}", source=path) from error
    if not isinstance(values, dict) or values.get("format") != format_name:
        found = values.get("format") if isinstance(values, dict) else type(values).__name__
        raise InputError(f"found format {found!r}, expected {format_name!r}", source=path, place="format")
    if values.get("version") != VERSION:
        raise InputError(f"found version {values.get('version')!r}, expected {VERSION}", source=path, place="version")
    return values, hashlib.sha256(data).hexdigest()


def read_config(text: Any, path: str | Path) -> TrainingConfig:
    """The configuration in a file; InputError where it is none."""
    try:
        return from_json(text)
    except (msgspec.MsgspecError, StowplanError, TypeError) as error:
        raise InputError(f"{error}", source=path, place="config") from error


# Games


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


def pack_arrays(arrays: Sequence[NDArray[np.float32]]) -> dict[str, Tensor]:
    """Lists of numbers as two tensors."""
    return {
        "lengths": torch.tensor([len(array) for array in arrays], dtype=torch.int64),
        "values": torch.from_numpy(np.concatenate([np.empty(0, np.float32), *arrays])),
    }


def unpack_arrays(packed: dict[str, Tensor]) -> list[NDArray[np.float32]]:
    """Arrays as :func:`pack_arrays` packs them."""
    ends = np.cumsum(packed["lengths"].numpy())
    return [part.copy() for part in np.split(packed["values"].numpy(), ends)[:-1]]


# Generators


def pack_generator(generator: np.random.Generator) -> str:
    """State of a generator as JSON; its integers are too large for a tensor."""
    return json.dumps(generator.bit_generator.state)


def unpack_generator(text: str) -> np.random.Generator:
    """A generator that goes on from a packed state."""
    generator = np.random.default_rng()
    generator.bit_generator.state = json.loads(text)
    return generator


# Policies


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How a policy came to be."""

    programs: tuple[str, ...]
    """Names of the programs it was trained on."""
    digests: tuple[str, ...]
    """Digests of their problems."""
    seed: int
    training_steps: int
    games: int
    moves: int
    seconds: float
    versions: dict[str, str]


@dataclass(frozen=True, eq=False)
class PolicyFile:
    """A trained network, what it needs to play, and where it is from."""

    config: TrainingConfig
    weights: dict[str, Tensor]
    provenance: Provenance
    digest: str
    """sha256 of the file."""


def save_policy(path: str | Path, config: TrainingConfig, weights: dict[str, Tensor], provenance: Provenance) -> str:
    """Write a policy; the file's sha256."""
    values = {
        "config": config.to_json(),
        "weights": {name: weight.detach().cpu().contiguous() for name, weight in weights.items()},
        "provenance": msgspec.json.encode(provenance).decode(),
    }
    return save(path, POLICY_FORMAT, values)


def load_policy(path: str | Path) -> PolicyFile:
    """Read a policy.

    Raises
    ------
    InputError
        If the file is none, is damaged, or is of another version.
    """
    values, digest = load(path, POLICY_FORMAT)
    config = read_config(values.get("config"), path)
    try:
        provenance = msgspec.json.decode(values["provenance"], type=Provenance)
        weights = dict(values["weights"])
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        raise InputError(f"damaged policy: {error}", source=path) from error
    return PolicyFile(config, weights, provenance, digest)
