"""Files of agents: checkpoints that training goes on from, and policies to play with.

Both are torch archives of plain values and tensors. They are loaded without running any code of theirs, written to a temporary
name and renamed, and carry a format and a version like all files of the package, the agent's configuration, and where they are
from. What else is in them is the agent's.
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

#: Version of the files of all agents. An earlier one is refused: what its configuration asks for may be no more.
FILE_VERSION = 5

#: What a damaged file makes of an agent that is told to go on from it.
DAMAGE = (KeyError, IndexError, TypeError, ValueError, RuntimeError, AttributeError)


@dataclass(frozen=True)
class FileFormat(Generic[C]):
    """A kind of file of an agent."""

    name: str
    config: type[C]
    """What msgspec reads the configuration as."""


@dataclass(frozen=True)
class PolicyFormat(FileFormat[C], Generic[C, N]):
    """A kind of policy file: a network by itself, to play with."""

    network: Callable[[Content[C]], N]
    """Makes a network of the sizes that a file states."""


def _versions() -> dict[str, str]:
    return {"stowplan": VERSION} | {name: metadata.version(name) for name in ("torch", "numpy")}


class Provenance(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """How an agent's network came to be."""

    programs: tuple[str, ...]
    """Names of the problems it was trained on."""
    digests: tuple[str, ...]
    """Their digests."""
    seed: int
    training_steps: int
    games: int
    """Finished episodes."""
    moves: int
    """Decisions in all of them."""
    seconds: float
    versions: dict[str, str] = msgspec.field(default_factory=_versions)

    def training(self, episodes: str = "games") -> str:
        """How the network was trained, for people; ``episodes`` is what the agent calls its games."""
        if self.games:
            return f"trained on {self.games:,} {episodes} of its own"
        return f"trained by imitation alone, no {episodes} of its own" if self.training_steps else "untrained"


@dataclass(frozen=True, eq=False)
class Content(Generic[C]):
    """What a file holds."""

    config: C
    provenance: Provenance
    values: dict[str, Any]
    """The agent's own: weights, or its state."""
    digest: str
    """sha256 of the file."""


def encoded(file_format: FileFormat[C], config: C, provenance: Provenance, values: dict[str, Any]) -> bytes:
    """A file of plain values and tensors."""
    stream = io.BytesIO()
    head = {"format": file_format.name, "version": FILE_VERSION}
    described = {"config": _json(config), "provenance": _json(provenance)}
    torch.save({**head, **described, "values": values}, stream)
    return stream.getvalue()


def write(path: str | Path, data: bytes) -> str:
    """Write a file of :func:`encoded`; its sha256. Raises InputError where it cannot be written."""
    files.write_atomic(path, data)
    return hashlib.sha256(data).hexdigest()


def save(path: str | Path, file_format: FileFormat[C], config: C, provenance: Provenance, values: dict[str, Any]) -> str:
    """Write plain values and tensors, as :func:`encoded` and :func:`write` do."""
    return write(path, encoded(file_format, config, provenance, values))


def load(path: str | Path, file_format: FileFormat[C]) -> Content[C]:
    """Read a file of :func:`encoded`.

    Returns
    -------
    Content
        Configuration, provenance, the agent's own values, and the file's sha256.

    Raises
    ------
    InputError
        If the file cannot be read, is damaged or truncated, is not of this format or version, or holds anything but plain
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
    """Name of the format of an agent's file, whichever it is; raises InputError where it is none or is damaged."""
    return str(_format(_read(path, "a policy")[1]))


def provenance_of(path: str | Path) -> Provenance:
    """Where an agent's file is from, of whatever format; raises InputError where it does not say or is damaged."""
    try:
        return _provenance(_read(path, "a policy")[1])
    except (*DAMAGE, msgspec.MsgspecError) as error:
        raise InputError(f"damaged policy: {error}", source=path, place="provenance") from error


def _provenance(stored: Any) -> Provenance:
    return msgspec.json.decode(stored["provenance"], type=Provenance)


def _format(stored: Any) -> Any:
    return stored.get("format") if isinstance(stored, dict) else type(stored).__name__


def _read(path: str | Path, wanted: str) -> tuple[bytes, Any]:
    """Bytes of a torch archive, and what is in it."""
    try:
        data = Path(path).read_bytes()
    except OSError as error:
        raise InputError(f"cannot read: {error.strerror or error}", source=path) from error
    try:
        with warnings.catch_warnings():
            # What torch thinks of a damaged file is in its exception, too.
            warnings.simplefilter("ignore")
            return data, torch.load(io.BytesIO(data), map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises whatever it meets in a damaged file
        reason = str(error).strip().partition("\n")[0][:100] or type(error).__name__
        raise InputError(f"not {wanted}, or a damaged one: {reason}", source=path) from error


def _json(value: Any) -> str:
    return msgspec.json.encode(value).decode()


def plain_weights(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """A network's ``state_dict`` as it is written: on the processor, without what training knows of it."""
    return {name: weight.detach().cpu().contiguous() for name, weight in weights.items()}


def load_policy(path: str | Path, file_format: PolicyFormat[C, N]) -> tuple[Content[C], N]:
    """A policy file, and the network in it: its values have the ``weights``.

    Raises
    ------
    InputError
        The file is no policy, is damaged, or its weights do not fit the sizes that it states.
    """
    content = load(path, file_format)
    try:
        with torch.random.fork_rng(devices=[]):
            # First without memory: what is stated in a damaged file may be more than there is.
            with torch.device("meta"):
                file_format.network(content).load_state_dict(content.values["weights"], assign=True)
            network = file_format.network(content)
        network.load_state_dict(content.values["weights"])
    except (*DAMAGE, LookupError, ArithmeticError, MemoryError, msgspec.MsgspecError) as error:
        raise InputError(f"its weights do not fit its network: {brief(str(error), 160)}", source=path) from error
    return content, network


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


def pack_generator(generator: np.random.Generator) -> str:
    """State of a generator as JSON; its integers are too large for a tensor."""
    return json.dumps(generator.bit_generator.state)


def unpack_generator(text: str) -> np.random.Generator:
    """A generator that goes on from a packed state."""
    generator = np.random.default_rng()
    generator.bit_generator.state = json.loads(text)
    return generator
