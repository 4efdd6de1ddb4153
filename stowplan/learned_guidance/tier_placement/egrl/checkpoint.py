"""The file formats of EGRL, and encoding of members and maps."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from stowplan.learned_guidance.tier_placement.egrl.config import EgrlConfig
from stowplan.learned_guidance.tier_placement.egrl.network import Actor, Shape
from stowplan.learned_guidance.tier_placement.egrl.population import Chromosome, Member
from stowplan.learned_guidance.training.checkpoint import FileFormat, PolicyFormat, plain_weights

Ints = npt.NDArray[np.int64]

POLICY = PolicyFormat(
    "stowplan.egrl.policy", EgrlConfig, lambda content: Actor(msgspec.convert(content.values["shape"], Shape))
)
CHECKPOINT = FileFormat("stowplan.egrl.checkpoint", EgrlConfig)


def policy_values(actor: Actor) -> dict[str, Any]:
    """Return the values of a policy file: the weights and the sizes of the network."""
    return {"weights": plain_weights(actor.state_dict()), "shape": asdict(actor.shape)}


def pack_members(members: Sequence[Member]) -> list[dict[str, Any]]:
    """Encode members as plain values and tensors."""
    return [_pack_encoding(member) | {"fitness": float(member.fitness), "is_judged": member.is_judged} for member in members]


def _pack_encoding(member: Member) -> dict[str, Tensor]:
    """Encode the chromosome of a member, or the weights of its graph network."""
    encoding = member.encoding
    if isinstance(encoding, Chromosome):
        return {"prior": _tensor(encoding.prior), "temperature": _tensor(encoding.temperature)}
    return {"weights": _tensor(encoding)}


def unpack_members(packed: Sequence[dict[str, Any]], weights: int, tensors: tuple[int, int, int]) -> list[Member]:
    """Decode members that :func:`pack_members` encoded.

    Parameters
    ----------
    weights
        Number of weights of a graph network.
    tensors
        Shape ``[N, 2, T]`` of a chromosome's prior.

    Raises
    ------
    ValueError
        If a member has other sizes.
    """
    return [
        Member(_unpack_encoding(entry, weights, tensors), float(entry["fitness"]), bool(entry["is_judged"])) for entry in packed
    ]


def _unpack_encoding(packed: dict[str, Any], weights: int, tensors: tuple[int, int, int]) -> Any:
    """Decode a chromosome, or the weights of a graph network."""
    if "weights" in packed:
        return array_of(packed["weights"], np.float32, (weights,))
    return Chromosome(array_of(packed["prior"], np.float32, tensors), array_of(packed["temperature"], np.float32, tensors[:2]))


def pack_maps(maps: Sequence[Ints]) -> list[Tensor]:
    """Encode maps ``[N, 2]`` with a byte for each tier."""
    return [_tensor(tiers.astype(np.int8)) for tiers in maps]


def unpack_maps(packed: Sequence[Tensor], layers: int) -> list[Ints]:
    """Decode maps that :func:`pack_maps` encoded; raise ValueError if one has another size."""
    return [array_of(tiers, np.int8, (layers, 2)).astype(np.int64) for tiers in packed]


def array_of(tensor: Tensor, kind: type[Any], shape: tuple[int, ...]) -> npt.NDArray[Any]:
    """Convert a tensor to an array of its own; raise ValueError if it has another type or shape."""
    array = tensor.numpy()
    if array.dtype != kind or array.shape != shape:
        raise ValueError(f"found {array.dtype} of shape {array.shape}, expected {np.dtype(kind)} of shape {shape}")
    return array.copy()


def _tensor(array: npt.NDArray[Any]) -> Tensor:
    return torch.from_numpy(array.copy())
