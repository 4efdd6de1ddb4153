"""The interface between a kind and the validation of its learned policies: players, games, decisions and the adapter."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from stowplan.deadline import Deadline
from stowplan.portfolio.policies import PolicySource

Stop = Callable[[], bool]


class Estimate(NamedTuple):
    """A policy's estimate of a position, with the actual return."""

    position: int
    """Number of decisions made before it; positions of equal number are compared with each other."""
    value: float
    """The policy's estimate of the return from the position."""
    returned: float
    """The actual return from the position to the end of the game, in the same unit."""


@dataclass(frozen=True)
class Game:
    """A finished game of a policy."""

    plan: Any
    """The resulting plan; None if the game was lost."""
    estimates: tuple[Estimate, ...] = ()
    """The policy's estimates of the positions."""
    reward: int | None = None
    """The game's own reward, in the kind's unit; None if the kind does not compare it with anything."""
    trace: Any = None
    """The moves of the game, from which :attr:`Adapter.decisions` derives its decisions."""


class Player(Protocol):
    """A policy, or its control (an untrained network of equal size), that plays problems of its kind."""

    def likeliest(self, problem: Any, stop: Stop) -> Game | None:
        """The game of the most likely decisions; None if it was stopped before its end.

        Raises
        ------
        InputError
            The policy cannot play this problem.
        """
        ...

    def sampled(self, problem: Any, count: int, seed: int, stop: Stop) -> Sequence[Game]:
        """Games with decisions drawn from the policy; fewer than ``count`` if they were stopped."""
        ...

    def searched(self, problem: Any, seed: int, stop: Stop) -> Game | None:
        """The best game that the agent's own search finds with a fixed effort; None if it was stopped."""
        ...


class Completion(NamedTuple):
    """The result of completing a game: of solving the problem with some decisions fixed."""

    objective: int
    """Objective of the best plan found."""
    bound: int
    """Proven lower bound; equal to the objective if that is proven optimal."""


class Effort(NamedTuple):
    """The limits of one completion."""

    seconds: float
    """Time limit in seconds, infinite in deterministic runs."""
    work: float | None
    """Work limit in the kind's deterministic seconds; None if time is the limit."""
    seed: int
    """Seed of the solvers."""
    bound: int
    """Proven lower bound of the problem without any fixed decision."""
    deadline: Deadline
    """Deadline of all completions together, with their cancellation."""

    def stop(self) -> bool:
        """Whether to return now."""
        return self.deadline.expired


class Decisions(Protocol):
    """The decisions of one game in their order, and the best plans that keep the first of them."""

    @property
    def names(self) -> Sequence[str]:
        """A name for each decision, for the report."""
        ...

    @property
    def rest(self) -> str:
        """A description, for the report, of what a game decides besides these decisions."""
        ...

    def best(self, count: int, effort: Effort) -> Completion:
        """Solve the problem with the first ``count`` decisions fixed; the result is never worse than the game's plan."""
        ...


@dataclass(frozen=True)
class Adapter:
    """How the policies of one kind are validated. The functions take the arguments that are listed in parentheses."""

    agent: str
    """Name of the agent, for the report."""
    source: PolicySource[Any]
    """The source of the policy if none is named."""
    format: str
    """Format of its policy files."""
    player: Callable[[Any], Player]
    """(policy): a player with that policy."""
    untrained: Callable[[Any], Any]
    """(policy): an untrained policy with a network of equal size, initialized with torch's random numbers."""
    decisions: Callable[[Any, Game, Any], Decisions | None]
    """(problem, most likely game, best known plan): the decisions of the game; None if it has none."""
    simulated: Callable[[Any, Any], int] | None = None
    """(problem, plan): the latency that a simulator measures, if the kind has a simulator besides the objective."""
    rival: Callable[[Any, Stop], tuple[str, float]] | None = None
    """(problem, stop): name and objective of a second baseline, for kinds whose own is often weak; the better one counts."""
    episodes: str = "games"
    """The agent's word for the episodes that it learns from."""
    values: str = ""
    """Why there are no value estimates; empty if there are some."""
