"""A candidate of a kind, as the run knows it before it starts: its name, its share of the time, and where it runs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Candidate:
    """A way to find plans or bounds, run in a process of its own or in a thread of the calling process."""

    name: str
    """By which :attr:`Kind.function` knows what it does; the candidates and the baselines of a kind have different names."""
    family: str
    """``heuristic``, ``learned`` or ``exact``; or ``baseline``, of what makes the plan of the baseline that it is named after.

    Such a one comes first, takes no share of the others' time, and the run waits for it.
    """
    share: float = 1.0
    """Part of the time limit after which it makes way for candidates that have not run yet. It has more where none is left, and
    another turn where others were done before their time."""
    in_thread: bool = False
    """Run in a thread of the calling process, from the first moment: it takes little memory and looks at the clock often."""
    is_long: bool = False
    """With ``in_thread``: it works until the limit in compiled loops, so that others are started beside it at once."""
    is_presolver: bool = False
    """Done within a second or two: its share is not taken from the others."""
    takes_over: bool = False
    """Takes the place of one that has ended before its time: no time is set aside for it, as for the second turn of a
    candidate that its share has stopped."""
    proves_only: bool = False
    """Gives bounds and no plans, so that the plan does not depend on how far it comes."""
    by_name_only: bool = False
    """Runs where it is asked for by name, not with its family."""
    unavailable: str = ""
    """Why it cannot run here; empty where it can."""
    checkpoint: str | None = None
    """Hash of the policy file that it plays with, of a learned one."""
    training: str = ""
    """How that policy was trained, of the package's own."""

    @property
    def makes_baseline(self) -> bool:
        """Whether it is of the family ``baseline``."""
        return self.family == "baseline"
