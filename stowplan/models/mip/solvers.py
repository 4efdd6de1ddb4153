"""Which solvers there are, by name, and what they take."""

from __future__ import annotations

from stowplan.errors import UsageError

#: Solvers that come with OR-Tools and run in this process.
IN_PROCESS = ("gscip", "mathopt-highs", "cp-sat", "glop", "pdlp")

#: Those of them that know no integers.
LINEAR_ONLY = ("glop", "pdlp")

#: Solvers that prove something only where columns and coefficients are integers.
WHOLE_NUMBERS = ("cp-sat",)


def solvers() -> list[str]:
    """Names of all solvers there are on this machine, those in process first."""
    from stowplan.models.mip import with_pulp

    return [*IN_PROCESS, *with_pulp.available()]


def check_solver(solver: str) -> None:
    """Raise UsageError, naming the solvers that are there, where this one is not."""
    if solver not in IN_PROCESS and solver not in (known := solvers()):
        raise UsageError(f"found solver {solver!r}, expected one that is there: {', '.join(known)}")
