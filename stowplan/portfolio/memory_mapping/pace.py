"""How searches share the machine: how often they report, and when ruin and recreate ends to make way for another search.

A *candidate* is one of the methods that a run tries side by side, for example ruin and recreate (``search``) or
large-neighbourhood search (``lns``). A *use* is the read or write of a tensor by a step; the number of uses measures the size
of a problem.

The run verifies every reported plan, which takes time on a core that searches could use, so that reports must not come too
often. On large programs, ruin and recreate finds most of its improvements within seconds, while large-neighbourhood search
finds improvements for minutes (``docs/results/guidance.md``). A second large-neighbourhood search therefore replaces ruin and
recreate. The functions raise no errors.
"""

from __future__ import annotations

import time

from stowplan.kernel.context import Options
from stowplan.models.memory_mapping.problem import Problem
from stowplan.parameters import Parameters, parameters


class PaceParameters(Parameters, frozen=True):
    """Parameters that decide when a search reports and when it ends."""

    complete_model_uses: int = 400
    """Number of uses of a problem up to which the complete CP-SAT model is tried. On larger problems it proves nothing within
    minutes."""
    report_seconds: float = 0.5
    """Least number of seconds that a candidate waits between two reports."""
    report_seconds_a_use: float = 1.2e-4
    """Seconds for each use of the problem. This time multiplied by the number of uses is the wait between two reports of a
    candidate if it is longer than ``report_seconds``, because larger plans take longer to verify."""
    large_uses: int = 2_000
    """Number of uses from which on a problem is large: a second large-neighbourhood search may run, and ruin and recreate may
    make way for it. A smaller problem is soon solved to optimality, or the second search finds nothing that ruin and recreate
    does not find.
    """
    most_workers: int = 3
    """Largest number of workers of a run in which ruin and recreate ends when it stagnates. With more workers, each candidate
    has a worker of its own."""
    seconds: float = 1.5
    """Seconds over which the gain of ruin and recreate is measured."""
    least_part: float = 0.25
    """Fraction of the difference between objective and bound. Ruin and recreate ends if it would close less than this fraction
    in the remaining time at the rate that was measured."""


PARAMS = parameters(PaceParameters, __name__)


def report_every(problem: Problem) -> float:
    """Seconds that a candidate waits between two reports of better plans."""
    return max(PARAMS.report_seconds, PARAMS.report_seconds_a_use * problem.use_count)


def is_large(problem: Problem, options: Options) -> bool:
    """Whether a second large-neighbourhood search is worth a worker: the problem is large, and the run has several workers and
    is not deterministic."""
    return problem.use_count >= PARAMS.large_uses and options.workers > 1 and not options.deterministic


def ends_on_stagnation(problem: Problem, options: Options) -> bool:
    """Whether ruin and recreate ends when it gains too little, to free its worker for the second large-neighbourhood search.

    That search runs only if the option ``candidates`` names it (``lns2``) or the family ``exact``, the group of candidates to
    which it belongs.
    """
    is_second_requested = not {"exact", "lns2"}.isdisjoint(options.candidates)
    return is_second_requested and options.workers <= PARAMS.most_workers and is_large(problem, options)


class Stagnation:
    """Measures how much a search improves the objective, to find out whether it stagnates.

    Parameters
    ----------
    now
        Current time in seconds, on the same clock as that of :meth:`is_reached`.
    """

    def __init__(self, now: float):
        self._since, self._gained = now, 0

    def add(self, gained: int) -> None:
        """Add the decrease (ps) of the objective since the last call."""
        self._gained += gained

    def is_reached(self, now: float, left: float, gap: int) -> bool:
        """End the measurement, begin the next one, and return whether the search gained too little.

        A measurement lasts for at least ``PARAMS.seconds``. Until then this method changes nothing and returns False.

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
    """The time that a search has spent, in seconds.

    In a deterministic run, nothing may depend on the clock. ``is_counted`` must then be True, and the time is the sum of
    estimated seconds, one estimate for each piece of work (:mod:`stowplan.work_rates`). In other runs it is the time of the
    clock.
    """

    def __init__(self, is_counted: bool):
        self.is_counted = is_counted
        self._counted = 0.0

    def now(self) -> float:
        """Seconds since some fixed moment."""
        return self._counted if self.is_counted else time.monotonic()

    def spend(self, seconds: float, work: float) -> float:
        """Count a piece of work that took ``seconds`` on the clock and for which ``work`` seconds are estimated.

        Returns the one of the two numbers that this stopwatch counts.
        """
        self._counted += work
        return work if self.is_counted else seconds
