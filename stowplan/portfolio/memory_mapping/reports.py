"""How often searches report: every better plan is verified by the run, on a core that others could use."""

from __future__ import annotations

from stowplan.models.memory_mapping.problem import Problem

#: Seconds between two reports of a candidate: at least, and for each use, where to verify a plan takes some 15 us a use.
LEAST, EACH = 0.5, 1.2e-4


def report_every(problem: Problem) -> float:
    """Seconds between two reports of a better plan."""
    return max(LEAST, EACH * problem.use_count)
