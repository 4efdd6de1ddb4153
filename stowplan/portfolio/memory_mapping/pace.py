"""How searches share the machine: how often they report, and when ruin and recreate ends for another search's sake.

Every better plan is verified by the run, on a core that others could use. On large programs ruin and recreate finds most of
what it finds in seconds, and neighbourhoods go on for minutes (``docs/results/guidance.md``). So a second neighbourhood search
takes its place.
"""

from __future__ import annotations

import time

from stowplan.kernel.context import Options
from stowplan.models.memory_mapping.problem import Problem

#: The complete model is tried up to this many uses; beyond it proves nothing in minutes.
COMPLETE_MODEL_USES = 400

#: Seconds between two reports of a candidate: at least, and for each use, as verifying a plan takes longer.
REPORT_SECONDS, REPORT_SECONDS_A_USE = 0.5, 1.2e-4

#: From so many uses on; smaller programs are soon closed, or have no neighbourhoods that ruin and recreate does not find.
LARGE_USES = 2_000

#: With more workers there is a place for everybody.
MOST_WORKERS = 3

#: Its gain is looked at over so many seconds, and it is little where in all the time left it would, at this rate, close less
#: than this part of the gap.
SECONDS, LEAST_PART = 1.5, 0.25


def report_every(problem: Problem) -> float:
    """Seconds between two reports of a better plan."""
    return max(REPORT_SECONDS, REPORT_SECONDS_A_USE * problem.use_count)


def is_large(problem: Problem, options: Options) -> bool:
    """Whether a second large-neighbourhood search is worth a place."""
    return problem.use_count >= LARGE_USES and options.workers > 1 and not options.deterministic


def ends_on_stagnation(problem: Problem, options: Options) -> bool:
    """Whether ruin and recreate ends where it gains too little, so that there is such a place."""
    waits = not {"exact", "lns2"}.isdisjoint(options.candidates)
    return waits and options.workers <= MOST_WORKERS and is_large(problem, options)


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
        if seconds < SECONDS:
            return False
        gained, self._gained, self._since = self._gained, 0, now
        return gained * left < LEAST_PART * gap * seconds


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
