"""How searches share the machine: how often they report, and when ruin and recreate ends to make way for another search.

The run verifies every reported plan, which takes time on a core that searches could use, so that reports must not come too
often. On large programs, ruin and recreate finds most of its improvements within seconds, while large-neighbourhood search goes
on improving for minutes (``docs/results/guidance.md``). A second large-neighbourhood search therefore takes its place.
"""

from __future__ import annotations

import time

from stowplan.kernel.context import Options
from stowplan.models.memory_mapping.problem import Problem
from stowplan.parameters import Parameters, parameters


class PaceParameters(Parameters, frozen=True):
    """Parameters that decide when a search reports and when it ends."""

    complete_model_uses: int = 400
    """Uses up to which the complete model is tried; beyond, it proves nothing in minutes."""
    report_seconds: float = 0.5
    """Seconds between two reports of a candidate, at least."""
    report_seconds_a_use: float = 1.2e-4
    """Seconds for each use between two reports, because verifying a larger plan takes longer."""
    large_uses: int = 2_000
    """Uses from which on ruin and recreate ends when it stagnates. Smaller programs are soon solved to optimality, or have no
    neighbourhoods that ruin and recreate does not find.
    """
    most_workers: int = 3
    """Workers up to which it ends when it stagnates; with more there is a worker for every candidate."""
    seconds: float = 1.5
    """Seconds over which its gain is measured."""
    least_part: float = 0.25
    """Part of the gap that it must be expected to close in the remaining time, at the measured rate, to go on."""


PARAMS = parameters(PaceParameters, __name__)


def report_every(problem: Problem) -> float:
    """Seconds between two reports of better plans."""
    return max(PARAMS.report_seconds, PARAMS.report_seconds_a_use * problem.use_count)


def is_large(problem: Problem, options: Options) -> bool:
    """Whether a second large-neighbourhood search is worth a worker."""
    return problem.use_count >= PARAMS.large_uses and options.workers > 1 and not options.deterministic


def ends_on_stagnation(problem: Problem, options: Options) -> bool:
    """Whether ruin and recreate ends when it gains too little, to free a worker for that search."""
    waits = not {"exact", "lns2"}.isdisjoint(options.candidates)
    return waits and options.workers <= PARAMS.most_workers and is_large(problem, options)


class Stagnation:
    """Measures what a search gains, to find out whether it stagnates.

    Parameters
    ----------
    now
        Current time in seconds, on the same clock as that of :meth:`is_reached`.
    """

    def __init__(self, now: float):
        self._since, self._gained = now, 0

    def add(self, gained: int) -> None:
        """Add what a slice of the search has gained (ps)."""
        self._gained += gained

    def is_reached(self, now: float, left: float, gap: int) -> bool:
        """Whether too little was gained since the last measurement; always False if that was only a short time ago.

        Parameters
        ----------
        now
            Current time in seconds.
        left
            Remaining time of the search in seconds.
        gap
            Difference between objective and bound (ps).
        """
        seconds = now - self._since
        if seconds < PARAMS.seconds:
            return False
        gained, self._gained, self._since = self._gained, 0, now
        return gained * left < PARAMS.least_part * gap * seconds


class Stopwatch:
    """The time of a search in seconds: of the clock, or, if ``is_counted``, the sum of the seconds that its work stands for.

    Work is counted in deterministic runs.
    """

    def __init__(self, is_counted: bool):
        self.is_counted = is_counted
        self._counted = 0.0

    def now(self) -> float:
        """Seconds since some fixed moment."""
        return self._counted if self.is_counted else time.monotonic()

    def spend(self, seconds: float, work: float) -> float:
        """Add seconds of the clock, and those that the work stands for; returns whichever of the two counts."""
        self._counted += work
        return work if self.is_counted else seconds
