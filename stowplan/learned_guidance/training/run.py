"""The run loop that every agent is trained by: limits, reports and checkpoints now and then.

A run is a sequence of *ticks* that should depend on problems, configuration and seed alone: limits only say after which tick to
stop. Where the agent's state holds all that the next tick needs, stopping and resuming then changes no bit.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, Literal, Protocol, TypeVar

from stowplan.arguments import number

P = TypeVar("P")
P_co = TypeVar("P_co", covariant=True)

Outcome = Literal["steps_done", "time_limit", "stopped"]


class Allowance:
    """What is left of a run's time, for ticks that take long.

    Parameters
    ----------
    seconds
        From now; None for no limit.
    should_stop
        Asked besides.
    """

    def __init__(
        self,
        seconds: float | None = None,
        should_stop: Callable[[], bool] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ):
        self._seconds, self._should_stop, self._clock = seconds, should_stop, clock
        self._began = clock()

    @property
    def used(self) -> float:
        """Part of the time that is gone, 1 or more where all of it is; 0 where there is no limit."""
        if self._seconds is None:
            return 0.0
        return (self._clock() - self._began) / self._seconds if self._seconds > 0 else 1.0

    @property
    def outcome(self) -> Outcome | None:
        """Why to stop now; None to go on."""
        if self.used >= 1.0:
            return "time_limit"
        return "stopped" if self._should_stop is not None and self._should_stop() else None

    def is_over(self) -> bool:
        """Whether to stop now."""
        return self.outcome is not None


class Agent(Protocol[P_co]):
    """What the run loop asks of an agent."""

    @property
    def done(self) -> bool:
        """Whether all is learned that was asked for."""

    def tick(self, allowance: Allowance) -> None:
        """A piece of work, short or at least one that stops soon once the allowance is over.

        A tick that stops early leaves the agent as it was before, so that it is done again when the run is resumed.
        """

    def progress(self) -> P_co | None:
        """What the ticks since the last report came to; None where there is nothing to report yet. Asked after each tick."""

    def state_dict(self) -> dict[str, Any]:
        """All that the next tick depends on: tensors and plain values."""

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from such a state; KeyError, TypeError, ValueError and the like where it is none."""


def run(
    agent: Agent[P],
    *,
    time_limit: float | None = None,
    should_stop: Callable[[], bool] | None = None,
    max_reports: int | None = None,
    on_progress: Callable[[P], None] | None = None,
    save: Callable[[], object] | None = None,
    save_every: float = 60.0,
    clock: Callable[[], float] = time.monotonic,
) -> Outcome:
    """Train until the agent is done, or a limit stops it.

    Parameters
    ----------
    time_limit
        Seconds from now.
    should_stop
        Asked before each tick, and within long ones.
    max_reports
        Stop after so many reports of this run.
    on_progress
        Called with each report.
    save
        Writes a checkpoint: called after reports, at most every ``save_every`` seconds, and at the end.

    Returns
    -------
    Outcome
        ``"steps_done"``, ``"time_limit"`` or ``"stopped"``.

    Raises
    ------
    UsageError
        A limit that is no number, or out of range.
    """
    if time_limit is not None:
        number("a time limit of {} s", time_limit, 0.0)
    number("{} s between two checkpoints", save_every, 0.0)
    allowance = Allowance(time_limit, should_stop, clock)
    saved, reports = clock(), 0
    outcome: Outcome | None = None
    while outcome is None:
        if agent.done:
            outcome = "steps_done"
        elif reports == max_reports:
            outcome = "stopped"
        elif (outcome := allowance.outcome) is None:
            agent.tick(allowance)
            report = agent.progress()
            if report is not None:
                reports += 1
                if on_progress is not None:
                    on_progress(report)
                if save is not None and clock() - saved >= save_every:
                    save()
                    saved = clock()
    if save is not None:
        save()
    return outcome
