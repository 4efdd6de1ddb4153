"""Criteria for ending a run of :func:`stowplan.solve` early, in addition to the time limit and a proof.

A criterion is a function of a :class:`stowplan.Progress` that returns whether to stop. The usual criteria are defined here and
can be combined:

    stowplan.solve(problem, stop=any_of(Target(1_048_576), NoImprovement(5.0)))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stowplan.arguments import number, whole
from stowplan.result import Progress, is_within

Criterion = Callable[[Progress], bool]
"""A criterion is called several times a second, in the thread that called :func:`stowplan.solve`. An error that it raises ends
the run."""


@dataclass(frozen=True)
class MaxSeconds:
    """Stops ``seconds`` after the call of ``solve``. In contrast to a time limit, candidates do not know this end, so that they
    cannot plan for it. Raises UsageError if ``seconds`` is not a finite number of at least 0."""

    seconds: float

    def __post_init__(self) -> None:
        number("{} seconds", self.seconds, 0.0)

    def __call__(self, progress: Progress) -> bool:
        """Whether this many seconds have passed."""
        return progress.seconds >= self.seconds


@dataclass(frozen=True)
class NoImprovement:
    """Stops if no better plan has been found for ``seconds``. It never stops a run that has no plan yet. Raises UsageError if
    ``seconds`` is not a finite number of at least 0."""

    seconds: float

    def __post_init__(self) -> None:
        number("{} seconds without a better plan", self.seconds, 0.0)

    def __call__(self, progress: Progress) -> bool:
        """Whether the last improvement of the plan is this long ago."""
        return progress.improved is not None and progress.seconds - progress.improved >= self.seconds


@dataclass(frozen=True)
class Target:
    """Stops once there is a plan of at most this objective, in the unit of the kind. Raises UsageError if ``objective`` is not
    a whole number of at least 0."""

    objective: int

    def __post_init__(self) -> None:
        whole("a target of {}", self.objective, 0)

    def __call__(self, progress: Progress) -> bool:
        """Whether there is such a plan."""
        return progress.objective is not None and progress.objective <= self.objective


@dataclass(frozen=True)
class WithinGap:
    """Stops once ``(objective - bound) / objective`` is at most ``gap``, a number from 0 to less than 1. Raises UsageError for
    any other ``gap``."""

    gap: float

    def __post_init__(self) -> None:
        number("a gap of {}", self.gap, 0.0, 1.0)

    def __call__(self, progress: Progress) -> bool:
        """Whether the gap is small enough; False if the objective or the bound is missing."""
        return is_within(self.gap, progress.objective, progress.bound)


@dataclass(frozen=True)
class FirstPlan:
    """Stops once there is a plan."""

    def __call__(self, progress: Progress) -> bool:
        """Whether there is a plan."""
        return progress.objective is not None


def any_of(*criteria: Criterion) -> Criterion:
    """Returns a criterion that stops if at least one of the given criteria does; without any, it never stops."""
    return lambda progress: any(criterion(progress) for criterion in criteria)


def all_of(*criteria: Criterion) -> Criterion:
    """Returns a criterion that stops if all of the given criteria do; without any, it stops at once."""
    return lambda progress: all(criterion(progress) for criterion in criteria)
