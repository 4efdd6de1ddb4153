"""What a kind brings to the validation of its policies, and which policy plays which kind."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from stowplan import files
from stowplan.deadline import Deadline
from stowplan.errors import InputError, MissingDependencyError, to_install
from stowplan.kernel.kind import Kind, kind, registered
from stowplan.portfolio.policies import PolicySource

Stop = Callable[[], bool]


class Estimate(NamedTuple):
    """What a policy thought of a position, and what came of it."""

    position: int
    """Decisions made before it; positions of one number are compared with each other."""
    value: float
    """The policy's estimate of the return from there."""
    returned: float
    """Return from there to the end of the game, in the same unit."""


@dataclass(frozen=True)
class Game:
    """A finished game of a policy."""

    plan: Any
    """What it came to; None where the game was lost."""
    estimates: tuple[Estimate, ...] = ()
    reward: int | None = None
    """The game's own reward, in the kind's unit; None where that is not the point."""
    trace: Any = None
    """What the kind's decisions are made of."""


class Player(Protocol):
    """A policy, or its control, on any problem of its kind."""

    def likeliest(self, problem: Any, stop: Stop) -> Game | None:
        """The game of the likeliest decisions; None where it was stopped before its end.

        Raises
        ------
        InputError
            The policy cannot play this problem.
        """
        ...

    def sampled(self, problem: Any, count: int, seed: int, stop: Stop) -> Sequence[Game]:
        """Games with decisions drawn from the policy; fewer than ``count`` where they were stopped."""
        ...

    def searched(self, problem: Any, seed: int, stop: Stop) -> Game | None:
        """The best that the agent's own search finds with an effort that is always the same; None where it was stopped."""
        ...


class Completion(NamedTuple):
    """The best that can be made of some decisions."""

    objective: int
    """Of the best plan found."""
    bound: int
    """No plan is better; equal to the objective where that is proven."""


class Effort(NamedTuple):
    """What may go into one completion."""

    seconds: float
    """Wall time, infinite in deterministic runs."""
    work: float | None
    """Deterministic limit, in the kind's deterministic seconds; None where time is the limit."""
    seed: int
    bound: int
    """Proven of the problem without any decision."""
    deadline: Deadline
    """Of all completions, and how they are cancelled."""

    def stop(self) -> bool:
        """Whether to return now."""
        return self.deadline.expired


class Decisions(Protocol):
    """The decisions of one game, in order, and the best plan that keeps the first of them."""

    @property
    def names(self) -> Sequence[str]:
        """Of the decisions, for people."""
        ...

    @property
    def rest(self) -> str:
        """What is decided beside them, for people."""
        ...

    def best(self, count: int, effort: Effort) -> Completion:
        """The best plan with the first ``count`` decisions as in the game; never worse than the game's own."""
        ...


@dataclass(frozen=True)
class Adapter:
    """How the policies of one kind are validated."""

    agent: str
    """Name of the agent, for people."""
    source: PolicySource[Any]
    """The policy where none is named."""
    format: str
    """Of its policy files."""
    player: Callable[[Any], Player]
    """What plays with a policy, as its class loads it."""
    untrained: Callable[[Any], Any]
    """(policy) to one of the same sizes that has learned nothing, by torch's random numbers, to be decoded alike."""
    decisions: Callable[[Any, Game, Any], Decisions | None]
    """(problem, likeliest game, best plan known) to its decisions; None where there are none."""
    simulated: Callable[[Any, Any], int] | None = None
    """(problem, plan) to the latency that the simulator measures, where there is a simulator beside the objective."""
    rival: Callable[[Any, Stop], tuple[str, float]] | None = None
    """(problem, stop) to name and objective of another baseline, where the kind's own is often weak; the better counts."""
    episodes: str = "games"
    """What the agent calls that which it learns from by playing."""
    values: str = ""
    """Why there are no value estimates; empty where there are."""


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
            raise MissingDependencyError(f"trained policies need torch: {to_install('learned')}")
        self._seed = seed
        self._named: dict[str, Path] = {}
        self._opened: dict[str, Opened] = {}
        known = {adapter.format: name for name, adapter in _adapters()} if paths else {}
        for path in map(Path, paths):
            name = _kind_of(path, known)
            if name in self._named:
                raise InputError(
                    f"found a second policy of {kind(name).title} beside {self._named[name]}, expected one of each kind",
                    source=path,
                )
            self._named[name] = path
        # Whatever is wrong with them is found before anything is solved.
        for name in self._named:
            self.of(kind(name))

    def idle(self, played: Container[str]) -> list[InputError]:
        """What to say of policies that were named for kinds, by name, of which there was no problem."""
        return [
            InputError(f"found a policy of {kind(name).title}, and no problem for it in the suite", source=path)
            for name, path in self._named.items()
            if name not in played
        ]

    def of(self, wanted: Kind[Any, Any]) -> Opened:
        """The policy of a kind.

        Raises
        ------
        InputError
            No policy plays the kind, or the package's own, which plays where none is named, cannot be read.
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
    for known in registered():
        adapter = known.extras().adapter
        if adapter is not None:
            yield known.name, adapter


def _playable() -> list[str]:
    return [kind(name).title for name, _ in _adapters()]


def _kind_of(path: Path, known: dict[str, str]) -> str:
    from stowplan.learned_guidance.training.checkpoint import format_of

    policy_format = format_of(path)
    if policy_format not in known:
        raise InputError(f"found format {policy_format!r}, expected one of {', '.join(known)}", source=path, place="format")
    return known[policy_format]


def _untrained(adapter: Adapter, policy: Any, seed: int) -> Any:
    import torch

    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        return adapter.untrained(policy)
