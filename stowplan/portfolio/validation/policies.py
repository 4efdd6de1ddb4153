"""Which policy plays which kind: those that are named, or the package's own."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterator, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple, cast

from stowplan import files, kinds
from stowplan.errors import InputError, MissingDependencyError
from stowplan.portfolio.kind import Kind, kind
from stowplan.portfolio.validation.adapter import Adapter, Player


class Opened(NamedTuple):
    """A policy ready to play, and its control."""

    path: str
    digest: str
    """sha256 of its file."""
    adapter: Adapter
    policy: Player
    control: Player
    training: str = ""
    """How it was trained, by what its file says."""


class Policies:
    """The policies of a run.

    Parameters
    ----------
    paths
        Policy files, one for each kind at most. Other kinds have the policies that their candidates play with.
    seed
        Of the controls.

    Raises
    ------
    MissingDependencyError
        Without torch.
    InputError
        A file that is no policy, is damaged, or is the second of its kind.
    """

    def __init__(self, paths: Sequence[str | Path] = (), seed: int = 0):
        if find_spec("torch") is None:
            raise MissingDependencyError("trained policies need torch: pip install 'stowplan[learned]'")
        self._seed = seed
        self._named: dict[str, Path] = {}
        self._opened: dict[str, Opened] = {}
        known = {adapter.format: name for name, adapter in _adapters()} if paths else {}
        for path in map(Path, paths):
            name = _kind_of(path, known)
            if name in self._named:
                raise InputError(
                    f"found a second policy of {kinds.named(name).title} beside {self._named[name]}, expected one of each kind",
                    source=path,
                )
            self._named[name] = path
        # Whatever is wrong with them is found before anything is solved.
        for name in self._named:
            self.of(kind(name))

    def idle(self, played: Container[str]) -> list[InputError]:
        """What to say of policies that were named for kinds, by name, of which there was no problem."""
        return [
            InputError(f"found a policy of {kinds.named(name).title}, and no problem for it in the suite", source=path)
            for name, path in self._named.items()
            if name not in played
        ]

    def of(self, wanted: Kind) -> Opened:
        """The policy of a kind.

        Raises
        ------
        InputError
            No policy plays the kind, or the package's own, which plays where none is named, cannot be read.
        """
        title = wanted.modules.title
        if not wanted.validation:
            raise InputError(f"found a problem of {title}, expected one of {', '.join(_playable())}: no policy plays others")
        if wanted.name not in self._opened:
            adapter = adapter_of(wanted)
            path = self._named.get(wanted.name, adapter.source.path)
            digest = hashlib.sha256(files.read_bytes(path)).hexdigest()
            # Sums must not depend on how many cores there are.
            _one_thread()
            policy = adapter.load(path)
            control = adapter.untrained(policy, self._seed)
            training = _training_of(path, adapter.episodes)
            self._opened[wanted.name] = Opened(files.printable(path), digest, adapter, policy, control, training)
        return self._opened[wanted.name]


def adapter_of(wanted: Kind) -> Adapter:
    """How the policies of a kind are validated."""
    return cast(Adapter, kinds.load(wanted.validation))


def _adapters() -> Iterator[tuple[str, Adapter]]:
    for each in kinds.registered():
        found = kind(each.name)
        if found.validation:
            yield each.name, adapter_of(found)


def _playable() -> list[str]:
    return [kinds.named(name).title for name, _ in _adapters()]


def _kind_of(path: Path, known: dict[str, str]) -> str:
    from stowplan.learned_guidance.training.checkpoint import format_of

    found = format_of(path)
    if found not in known:
        raise InputError(f"found format {found!r}, expected one of {', '.join(known)}", source=path, place="format")
    return known[found]


def _training_of(path: Path, episodes: str) -> str:
    from stowplan.learned_guidance.training.checkpoint import provenance_of

    return provenance_of(path).training(episodes)


def _one_thread() -> None:
    import torch

    set_threads: Callable[[int], None] = torch.set_num_threads
    set_threads(1)
