"""What a kind brings to the validation of its policies, and which policy plays which kind."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from stowplan.deadline import Deadline
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
