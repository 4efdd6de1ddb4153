"""Files of agents: checkpoints, from which training continues, and policies.

Both are torch archives of plain values and tensors. Loading a file does not execute code from it. A file is written under a
temporary name and then renamed. Like all files of the package, it contains a format and a version. It also contains the agent's
configuration, its *provenance* (how it was trained, and on which problems), and the agent's own values.
"""

from __future__ import annotations

import hashlib
import io
import json
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import Any, Generic, TypeVar

import msgspec
import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from stowplan import files
from stowplan.errors import InputError, StowplanError, brief
from stowplan.version import VERSION

C = TypeVar("C")
N = TypeVar("N", bound=nn.Module)

#: Version of the files of all agents. An earlier version is rejected, because its configuration may no longer be supported.
FILE_VERSION = 5

#: Exceptions that an agent may raise when it continues from a damaged file.
DAMAGE = (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError)


@dataclass(frozen=True)
class FileFormat(Generic[C]):
    """A file format of an agent."""

    name: str
    """The ``format`` that files state."""
    config: type[C]
    """The type of the configuration, for msgspec."""


@dataclass(frozen=True)
class PolicyFormat(FileFormat[C], Generic[C, N]):
    """A format of policy files, which contain only a network."""

    network: Callable[[Content[C]], N]
    """Makes a network with the sizes in a file."""


def _versions() -> dict[str, str]:
    return {"stowplan": VERSION} | {name: metadata.version(name) for name in ("torch", "numpy")}


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an agent's network was trained."""

    programs: tuple[str, ...]
    """Names of the problems it was trained on."""
    digests: tuple[str, ...]
    """Digests of these problems."""
    seed: int
    training_steps: int
    """Number of updates of the network."""
    games: int
    """Number of finished episodes."""
    moves: int
    """Number of decisions in all episodes."""
    seconds: float
    """Seconds of training."""
    versions: dict[str, str] = msgspec.field(default_factory=_versions)
    """Versions of stowplan, torch and NumPy, by name."""

    def training(self, episodes: str = "games") -> str:
        """Return a description of the training; ``episodes`` is the agent's word for games."""
        if self.games:
            return f"trained on {self.games:,} {episodes} of its own"
        return f"trained by imitation alone, no {episodes} of its own" if self.training_steps else "untrained"


@dataclass(frozen=True, eq=False)
class Content(Generic[C]):
    """The content of a file."""

    config: C
    provenance: Provenance
    values: dict[str, Any]
    """The agent's own values: weights, or its state."""
    digest: str
    """SHA-256 of the file."""


def encoded(file_format: FileFormat[C], config: C, provenance: Provenance, values: dict[str, Any]) -> bytes:
    """Encode plain values and tensors as the bytes of a file."""
    stream = io.BytesIO()
    head = {"format": file_format.name, "version": FILE_VERSION}
    described = {"config": _json(config), "provenance": _json(provenance)}
    torch.save({**head, **described, "values": values}, stream)
    return stream.getvalue()


def write(path: str | Path, data: bytes) -> str:
    """Write a file encoded by :func:`encoded`; return its SHA-256. Raise InputError if it cannot be written."""
    files.write_atomic(path, data)
    return hashlib.sha256(data).hexdigest()


def save(path: str | Path, file_format: FileFormat[C], config: C, provenance: Provenance, values: dict[str, Any]) -> str:
    """Encode plain values and tensors, and write them to a file; return its SHA-256. Raise InputError if it cannot be
    written."""
    return write(path, encoded(file_format, config, provenance, values))


def load(path: str | Path, file_format: FileFormat[C]) -> Content[C]:
    """Read a file encoded by :func:`encoded`.

    Returns
    -------
    Content
        Configuration, provenance, the agent's own values, and the SHA-256 of the file.

    Raises
    ------
    InputError
        If the file cannot be read, is damaged or truncated, has another format or version, or contains other data than plain
        values and tensors.
    """
    name = file_format.name
    data, stored = _read(path, f"a {name} file")
    if not isinstance(stored, dict) or stored.get("format") != name:
        raise InputError(f"found format {_format(stored)!r}, expected {name!r}", source=path, place="format")
    version: Any = stored.get("version")
    if version != FILE_VERSION:
        raise InputError(f"found version {version!r}, expected {FILE_VERSION} (train it anew)", source=path, place="version")
    try:
        config = msgspec.json.decode(stored.get("config", ""), type=file_format.config)
    except (msgspec.MsgspecError, StowplanError, TypeError, UnicodeError, RecursionError) as error:
        raise InputError(f"{error}", source=path, place="config") from error
    try:
        provenance, values = _provenance(stored), dict(stored["values"])
    except (*DAMAGE, msgspec.MsgspecError) as error:
        raise InputError(f"damaged {name} file: {error}", source=path) from error
    return Content(config, provenance, values, hashlib.sha256(data).hexdigest())


def format_of(path: str | Path) -> str:
    """Return the name of the format that a torch archive states; ``"None"`` if it is a dictionary without a format, and the
    name of its type if it is no dictionary. Raise InputError if the file cannot be read, is no torch archive, or is damaged."""
    return str(_format(_read(path, "a policy")[1]))


def provenance_of(path: str | Path) -> Provenance:
    """Return the provenance in an agent's file of any format; raise InputError if the file cannot be read, is damaged, or has
    no provenance."""
    try:
        return _provenance(_read(path, "a policy")[1])
    except (*DAMAGE, msgspec.MsgspecError) as error:
        raise InputError(f"damaged policy: {error}", source=path, place="provenance") from error


def _provenance(stored: Any) -> Provenance:
    return msgspec.json.decode(stored["provenance"], type=Provenance)


def _format(stored: Any) -> Any:
    return stored.get("format") if isinstance(stored, dict) else type(stored).__name__


def _read(path: str | Path, wanted: str) -> tuple[bytes, Any]:
    """Return the bytes of a torch archive, and its content."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", source=path) from error
    try:
        with warnings.catch_warnings():
            # For a damaged file the exception contains the message of torch's warning as well.
            warnings.simplefilter("ignore")
            return data, torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch may raise any exception for a damaged file
        reason = str(error).strip().partition("\n")[0][:100] or type(error).__name__
        raise InputError(f"not {wanted}, or a damaged one: {reason}", source=path) from error


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def plain_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return a network's ``state_dict`` as it is written to files: on the CPU, without gradients."""
    return {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}


def load_policy(path: str | Path, file_format: PolicyFormat[C, N]) -> tuple[Content[C], N]:
    """Read a policy file, whose values contain ``weights``; return its content and the network.

    Raises
    ------
    InputError
        If the file cannot be read, is not a policy of this format and version, is damaged, or its weights do not fit its sizes.
    """
    content = load(path, file_format)
    try:
        with torch.random.fork_rng(devices=[]):
            # The first network is on torch's meta device, which allocates no memory, because a damaged file may state sizes
            # that exceed the memory.
            with torch.device("meta"):
                file_format.network(content).load_state_dict(content.values["weights"], assign=True)
            network = file_format.network(content)
        network.load_state_dict(content.values["weights"])
    except (*DAMAGE, LookupError, ArithmeticError, MemoryError, msgspec.MsgspecError) as error:
        raise InputError(f"its weights do not fit its network: {brief(str(error), 160)}", source=path) from error
    return content, network


def pack_arrays(arrays: Sequence[NDArray[np.float32]]) -> dict[str, Tensor]:
    """Encode a list of arrays as two tensors."""
    return {
        "lengths": torch.tensor([len(array) for array in arrays], dtype=torch.int64),
        "values": torch.from_numpy(np.concatenate([np.empty(0, np.float32), *arrays])),
    }


def unpack_arrays(packed: dict[str, Tensor]) -> list[NDArray[np.float32]]:
    """Decode arrays that :func:`pack_arrays` encoded; raise one of :data:`DAMAGE` if the tensors are not such."""
    ends = np.cumsum(packed["lengths"].numpy())
    return [part.copy() for part in np.split(packed["values"].numpy(), ends)[:-1]]


def pack_generator(generator: np.random.Generator) -> str:
    """Return the state of a generator as JSON, because its integers are too large for a tensor."""
    return json.dumps(generator.bit_generator.state)


def unpack_generator(text: str) -> np.random.Generator:
    """Return a generator that continues from a state of :func:`pack_generator`; raise one of :data:`DAMAGE` if it is not
    valid."""
    generator = np.random.default_rng()
    generator.bit_generator.state = json.loads(text)
    return generator
