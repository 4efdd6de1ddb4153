"""The policies of a call of ``stowplan validate``: which policy plays which kind of problem.

A *policy* is a neural network that makes a plan decision by decision. Its *control* is an untrained network of equal size,
which shows how much training contributes.
"""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from stowplan import files
from stowplan.errors import InputError, MissingDependencyError, to_install
from stowplan.kernel.kind import Kind, kind, registered
from stowplan.portfolio.validation.adapter import Adapter, Player


class Opened(NamedTuple):
    """A loaded policy with its control."""

    path: str
    """Path of the policy's file."""
    digest: str
    """SHA-256 hash of the policy's file, in hexadecimal digits."""
    adapter: Adapter
    """How policies of this kind are validated."""
    policy: Player
    """A player with the policy."""
    control: Player
    """A player with an untrained network of equal size."""
    training: str = ""
    """How the policy was trained, according to its file."""


class Policies:
    """The policies of a validation run.

    Parameters
    ----------
    paths
        Policy files, at most one for each kind. For other kinds, the policy is the one that their learned candidates use.
    seed
        Seed of the controls' random weights.

    Raises
    ------
    MissingDependencyError
        torch is not installed.
    InputError
        A file is no policy, is damaged, or is the second one for its kind.
    """

    def __init__(self, paths: Sequence[str | Path] = (), seed: int = 0):
        if find_spec("torch") is None:
            raise MissingDependencyError(f"trained policies need torch: {to_install('learned')}")
        self._seed = seed
        self._named: dict[str, Path] = {}
        self._opened: dict[str, Opened] = {}
        kinds = {adapter.format: name for name, adapter in _adapters()} if paths else {}
        for path in map(Path, paths):
            name = _kind_of(path, kinds)
            if name in self._named:
                raise InputError(
                    f"found a second policy of {kind(name).title} beside {self._named[name]}, expected one of each kind",
                    source=path,
                )
            self._named[name] = path
        # The policies are loaded now, so that errors show before anything is solved.
        for name in self._named:
            self.of(kind(name))

    def idle(self, played: Container[str]) -> list[InputError]:
        """Returns an error, which the caller may raise, for each policy file that was named although no problem of its kind was
        played. ``played`` has the names of the kinds that were."""
        return [
            InputError(f"found a policy of {kind(name).title}, and no problem for it in the suite", source=path)
            for name, path in self._named.items()
            if name not in played
        ]

    def of(self, wanted: Kind[Any, Any]) -> Opened:
        """The policy of the kind ``wanted``, which is loaded at the first call.

        Raises
        ------
        InputError
            No policy plays the kind, or the policy's file does not exist, cannot be read, is no policy or is damaged.
        """
        from stowplan.learned_guidance.training import checkpoint

        title = wanted.title
        adapter = wanted.extras().adapter
        if adapter is None:
            raise InputError(f"found a problem of {title}, expected one of {', '.join(_playable())}: no policy plays others")
        if wanted.name not in self._opened:
            path = self._named.get(wanted.name, adapter.source.path)
            digest = hashlib.sha256(files.read_bytes(path)).hexdigest()
            policy = adapter.source.load(path)
            policy, control = (adapter.player(agent) for agent in (policy, _untrained(adapter, policy, self._seed)))
            training = checkpoint.provenance_of(path).training(adapter.episodes)
            self._opened[wanted.name] = Opened(files.printable(path), digest, adapter, policy, control, training)
        return self._opened[wanted.name]


def _adapters() -> Iterator[tuple[str, Adapter]]:
    """Name and adapter of each kind that has learned policies."""
    for each in registered():
        adapter = each.extras().adapter
        if adapter is not None:
            yield each.name, adapter


def _playable() -> list[str]:
    """Titles of the kinds that have learned policies."""
    return [kind(name).title for name, _ in _adapters()]


def _kind_of(path: Path, kinds: dict[str, str]) -> str:
    """Name of the kind that a policy file is for; raises InputError if the file cannot be read or has another format.

    ``kinds`` maps the format of policy files to the name of the kind.
    """
    from stowplan.learned_guidance.training.checkpoint import format_of

    policy_format = format_of(path)
    if policy_format not in kinds:
        raise InputError(f"found format {policy_format!r}, expected one of {', '.join(kinds)}", source=path, place="format")
    return kinds[policy_format]


def _untrained(adapter: Adapter, policy: Any, seed: int) -> Any:
    """The untrained control of a policy, with random weights from ``seed``. The state of torch's random numbers is the same
    afterwards."""
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return adapter.untrained(policy)
