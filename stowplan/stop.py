"""When to stop solving, beside the time limit and a proof: criteria for :func:`stowplan.solve`, alone or combined.

A criterion is any function of a :class:`stowplan.Progress` that says whether to stop; the usual ones are here:

    stowplan.solve(problem, stop=any_of(Target(1_048_576), NoImprovement(5.0)))
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from stowplan.arguments import number, whole
from stowplan.result import Progress, is_within

Criterion = Callable[[Progress], bool]
"""Asked several times a second, from the thread that called :func:`stowplan.solve`: what it raises ends the run."""


@dataclass(frozen=True)
class MaxSeconds:
    """So many seconds have passed. Unlike a time limit it plans nothing: what runs is not told of it."""

    seconds: float

    def __post_init__(self) -> None:
        number("{} seconds", self.seconds, 0.0)

    def __call__(self, progress: Progress) -> bool:
        """Whether they have."""
        return progress.seconds >= self.seconds


@dataclass(frozen=True)
class NoImprovement:
    """For so many seconds no better plan has come; without a plan it never holds."""

    seconds: float

    def __post_init__(self) -> None:
        number("{} seconds without a better plan", self.seconds, 0.0)

    def __call__(self, progress: Progress) -> bool:
        """Whether none has."""
        return progress.improved is not None and progress.seconds - progress.improved >= self.seconds


@dataclass(frozen=True)
class Target:
    """There is a plan of this objective, in the kind's unit, or a better one."""

    objective: int

    def __post_init__(self) -> None:
        whole("a target of {}", self.objective, 0)

    def __call__(self, progress: Progress) -> bool:
        """Whether there is."""
        return progress.objective is not None and progress.objective <= self.objective


@dataclass(frozen=True)
class WithinGap:
    """(objective - bound) / objective is at most this."""

    gap: float

    def __post_init__(self) -> None:
        number("a gap of {}", self.gap, 0.0, 1.0)

    def __call__(self, progress: Progress) -> bool:
        """Whether it is; not while either is missing."""
        return is_within(self.gap, progress.objective, progress.bound)


@dataclass(frozen=True)
class FirstPlan:
    """There is a plan."""

    def __call__(self, progress: Progress) -> bool:
        """Whether there is."""
        return progress.objective is not None


def any_of(*criteria: Criterion) -> Criterion:
    """One of them holds."""
    return lambda progress: any(criterion(progress) for criterion in criteria)


def all_of(*criteria: Criterion) -> Criterion:
    """All of them hold."""
    return lambda progress: all(criterion(progress) for criterion in criteria)
