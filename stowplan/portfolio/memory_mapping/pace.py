"""How searches share the machine: how often they report, and when ruin and recreate ends for another search's sake.

Every better plan is verified by the run, on a core that others could use. On large programs ruin and recreate finds most of
what it finds in seconds, and neighbourhoods go on for minutes (``docs/results/guidance.md``). So a second neighbourhood search
takes its place.
"""

from __future__ import annotations

import time

from stowplan.kernel.context import Options
from stowplan.models.memory_mapping.problem import Problem
from stowplan.parameters import Parameters, parameters


class PaceParameters(Parameters, frozen=True):
    """Parameters of when a search reports, and when it ends."""

    complete_model_uses: int = 400
    """Uses up to which the complete model is tried: beyond it proves nothing in minutes."""
    report_seconds: float = 0.5
    """Seconds between two reports of a candidate, at least."""
    report_seconds_a_use: float = 1.2e-4
    """Seconds a use between two reports, as verifying a plan takes longer."""
    large_uses: int = 2_000
    """Uses from which a search ends where it stagnates; smaller programs are soon closed, or have no neighbourhoods that ruin
    and recreate does not find.
    """
    most_workers: int = 3
    """Workers up to which it ends: with more there is a place for everybody."""
    seconds: float = 1.5
    """Seconds over which its gain is looked at."""
    least_part: float = 0.25
    """Part of the gap that it must close in all the time left, at this rate, to go on."""


PARAMS = parameters(PaceParameters, __name__)


def report_every(problem: Problem) -> float:
    """Seconds between two reports of a better plan."""
    return max(PARAMS.report_seconds, PARAMS.report_seconds_a_use * problem.use_count)


def is_large(problem: Problem, options: Options) -> bool:
    """Whether a second large-neighbourhood search is worth a place."""
    return problem.use_count >= PARAMS.large_uses and options.workers > 1 and not options.deterministic


def ends_on_stagnation(problem: Problem, options: Options) -> bool:
    """Whether ruin and recreate ends where it gains too little, so that there is such a place."""
    waits = not {"exact", "lns2"}.isdisjoint(options.candidates)
    return waits and options.workers <= PARAMS.most_workers and is_large(problem, options)


class Stagnation:
    """What a search has gained lately.

    Parameters
    ----------
    now
        Seconds, on the clock that it is asked by.
    """

    def __init__(self, now: float):
        self._since, self._gained = now, 0

    def add(self, gained: int) -> None:
        """Take in what one stretch of the search has gained (ps)."""
        self._gained += gained

    def is_reached(self, now: float, left: float, gap: int) -> bool:
        """Whether too little was gained since the last time this could be said.

        Parameters
        ----------
        left
            Seconds.
        gap
            What lies between objective and bound (ps).
        """
        seconds = now - self._since
        if seconds < PARAMS.seconds:
            return False
        gained, self._gained, self._since = self._gained, 0, now
        return gained * left < PARAMS.least_part * gap * seconds


class Stopwatch:
    """Seconds of a search: of the machine's clock, or where work is counted in their place, those that it stands for.

    ``is_counted`` in deterministic runs.
    """

    def __init__(self, is_counted: bool):
        self.is_counted = is_counted
        self._counted = 0.0

    def now(self) -> float:
        """Seconds since some moment."""
        return self._counted if self.is_counted else time.monotonic()

    def spend(self, seconds: float, work: float) -> float:
        """Note what something took, in seconds of the machine and in those that its work stands for; returns which counts."""
        self._counted += work
        return work if self.is_counted else seconds
