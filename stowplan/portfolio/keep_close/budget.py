"""How much work may go into a closer plan: seconds, or in deterministic runs numbers of plans and deterministic seconds."""

from __future__ import annotations

import sys

from stowplan.deadline import Deadline
from stowplan.portfolio.context import Options

#: Part of a time limit that is kept for this, at most; a deterministic run does work that takes about a third of it.
SHARE = 0.25

#: Seconds that loading a solver may take.
LOADING = 2.0

#: Seconds for each literal of a model while it is built, at most.
BUILDING = 1e-4


class Budget:
    """What is left.

    Parameters
    ----------
    options
        Those of the whole run.
    deadline
        When it must be over.
    decisions
        How many a plan has: what making and checking one takes grows with that.
    """

    def __init__(self, options: Options, deadline: Deadline, decisions: int):
        self.options = options
        self._deadline = deadline
        self._seconds = SHARE * options.time_limit / 3
        self._checks = max(20, int(self._seconds / (1e-4 + 1e-5 * decisions))) if options.deterministic else None

    def is_spent(self) -> bool:
        """Whether to stop now."""
        return self._deadline.expired or self._checks == 0

    def check(self) -> None:
        """A plan is checked."""
        if self._checks:
            self._checks -= 1

    def allows(self, checks: int, seconds: float) -> bool:
        """Whether there is room for so many checks of so many seconds each, and as much again after them."""
        return 2 * checks <= self._checks if self._checks is not None else 2 * checks * seconds <= self._deadline.remaining

    def solver_limits(self, parts: int = 1) -> dict[str, float | int | None] | None:
        """Limits of an exact model's solver, one of so many models; None where there is no time for one."""
        if self.options.deterministic:
            return {
                "time_limit": self._deadline.remaining,
                "deterministic_limit": self._seconds / parts,
                "workers": 1,
                "seed": self.options.seed,
            }
        # A module that another thread has only begun to load is there, too, without what stands at its end.
        is_loaded = hasattr(sys.modules.get("ortools.sat.python.cp_model"), "CpSolver")
        loading = 0.0 if is_loaded else LOADING
        left = self._deadline.remaining - loading
        if left <= 0.1:
            return None
        return {"time_limit": left / parts, "workers": self.options.workers, "seed": self.options.seed}

    def has_room(self, literals: int) -> bool:
        """Whether a model of so many literals is built in a part of the time that is left, which nothing can interrupt."""
        return self._checks is not None or literals * BUILDING < 0.5 * self._deadline.remaining

    def should_stop(self) -> bool:
        """Whether a solver is to stop: the limit is over, or the run was cancelled."""
        return self._deadline.expired
