"""A candidate of a kind, as the run knows it before it starts: its name, its share of the time, and where it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Place = Literal["process", "thread", "compiled thread"]
"""Where a candidate runs: in a process of its own; or in a thread of the calling process, from the first moment, which takes
little memory and is for what looks at the clock often; ``compiled thread`` is for what works until the limit in compiled loops,
so that others are started beside it at once."""

Turn = Literal["share", "presolver", "reserve"]
"""When a candidate runs: for its share of the time; before all others, done within a second or two, with a share that is not
taken from theirs; or in the place of one that has ended before its time, with none set aside for it, as in the second turn of a
candidate that its share has stopped."""


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
    place: Place = "process"
    turn: Turn = "share"
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
    def in_thread(self) -> bool:
        """Whether it runs in a thread of the calling process."""
        return self.place != "process"

    @property
    def makes_baseline(self) -> bool:
        """Whether it is of the family ``baseline``."""
        return self.family == "baseline"
