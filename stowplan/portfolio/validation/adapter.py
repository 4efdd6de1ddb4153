"""The interface between a kind and the validation of its learned policies: players, games, decisions and the adapter.

``stowplan validate`` measures how far policies are from the optimum. A *policy* is a neural network that makes a plan decision
by decision. Making one whole plan in this way is a *game*; a game is *lost* if it ends without a plan. A *position* is the
state of a game between two decisions. During a game, the agent that learns gets *rewards*, numbers that are larger for better
plans. The *return* from a position is the sum of rewards from there to the end of the game. To *complete* a game is to find the
best plan that keeps its first decisions, by an exact solver. A kind whose policies can be validated provides an
:class:`Adapter` in its module ``validation``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from stowplan.deadline import Deadline
from stowplan.portfolio.policies import PolicySource

Stop = Callable[[], bool]
"""A function that says whether to return now, because time is up or the run was cancelled."""


class Estimate(NamedTuple):
    """A policy's estimate of the return from one position, with the actual return."""

    position: int
    """Number of decisions that were made before the position. Positions with the same number are compared with each other."""
    value: float
    """The policy's estimate of the return from the position."""
    returned: float
    """The actual return from the position to the end of the game, in the same unit as ``value``."""


@dataclass(frozen=True)
class Game:
    """A finished game of a policy."""

    plan: Any
    """The resulting plan, which is not verified; None if the game was lost."""
    estimates: tuple[Estimate, ...] = ()
    """The policy's estimates of the positions; empty if the policy makes none."""
    reward: int | None = None
    """The sum of the game's rewards, in the kind's unit; None if the kind does not compare it with a latency."""
    trace: Any = None
    """A record of the game in a form of the kind's own, from which :attr:`Adapter.decisions` derives its decisions; None if the
    plan is enough."""


class Player(Protocol):
    """A policy, or its control (an untrained network of equal size), that plays problems of its kind."""

    def likeliest(self, problem: Any, stop: Stop) -> Game | None:
        """The game in which every decision is the most likely one; None if it was stopped before its end.

        Raises
        ------
        InputError
            The policy cannot play this problem.
        """
        ...

    def sampled(self, problem: Any, count: int, seed: int, stop: Stop) -> Sequence[Game]:
        """Games with decisions drawn from the policy's probabilities; fewer than ``count`` if they were stopped.

        ``seed`` is the seed of the random numbers. Raises InputError as :meth:`likeliest` does.
        """
        ...

    def searched(self, problem: Any, seed: int, stop: Stop) -> Game | None:
        """The best game that the agent's own search finds with a fixed effort; None if it was stopped.

        ``seed`` is the seed of the random numbers. Raises InputError as :meth:`likeliest` does.
        """
        ...


class Completion(NamedTuple):
    """The result of solving the problem with the first decisions of a game fixed, which *completes* the game."""

    objective: int
    """Objective of the best plan that was found."""
    bound: int
    """Proven lower bound for plans with these decisions. It equals the objective if the plan is proven optimal among them."""


class Effort(NamedTuple):
    """The limits of one completion."""

    seconds: float
    """Time limit in seconds, infinite in deterministic runs."""
    work: float | None
    """Work limit of a deterministic run, in the deterministic seconds that the kind's solver counts; None if time is the
    limit."""
    seed: int
    """Seed of the solvers."""
    bound: int
    """Proven lower bound of the problem without any fixed decision."""
    deadline: Deadline
    """Deadline of all completions together, which also expires if the run is cancelled."""

    def stop(self) -> bool:
        """Whether to return now, because the deadline has expired."""
        return self.deadline.expired


class Decisions(Protocol):
    """The decisions of one game in the order in which they were made, with a method that completes the game."""

    @property
    def names(self) -> Sequence[str]:
        """A name for each decision, for the report."""
        ...

    @property
    def rest(self) -> str:
        """A description, for the report, of the choices that a game makes besides these decisions."""
        ...

    def best(self, count: int, effort: Effort) -> Completion:
        """Solve the problem with the first ``count`` decisions fixed; the result is never worse than the game's plan.

        ``count`` is from 0 to the number of names.
        """
        ...


@dataclass(frozen=True)
class Adapter:
    """How the policies of one kind are validated. The text of a function begins with its arguments, in parentheses."""

    agent: str
    """Name of the agent that trains and uses the policy, for the report: ``MMap-MuZero``, ``EGRL`` or ``PPO``."""
    source: PolicySource[Any]
    """Where the policy comes from if the user names no policy file."""
    format: str
    """The format that policy files of this kind name."""
    player: Callable[[Any], Player]
    """(policy): returns a player with that policy."""
    untrained: Callable[[Any], Any]
    """(policy): returns an untrained policy with a network of equal size, initialized with torch's random numbers."""
    decisions: Callable[[Any, Game, Any], Decisions | None]
    """(problem, most likely game, best known plan): returns the decisions of the game; None if there are none to examine."""
    simulated: Callable[[Any, Any], int] | None = None
    """(problem, plan): returns the latency that a simulator measures; None for kinds without a simulator."""
    rival: Callable[[Any, Stop], tuple[str, float]] | None = None
    """(problem, stop): returns name and objective of a second baseline, for kinds whose own baseline is often weak. The better
    one counts."""
    episodes: str = "games"
    """The agent's word for the episodes that it learns from."""
    values: str = ""
    """The reason why the policies make no estimates of returns; empty if they make some."""
