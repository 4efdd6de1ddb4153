"""The description of a candidate before it starts: its name, its share of the time, and where it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

Place = Literal["process", "thread", "compiled thread"]
"""Where a candidate runs.

``process`` is a process of its own. ``thread`` is a thread of the calling process, which starts at once and takes little
memory; it suits candidates that check often whether to stop. ``compiled thread`` is a thread that runs compiled loops up to the
time limit. Such loops release the interpreter lock, so other candidates may start while it runs, as soon as it has reported
something or a warm process is free for them.
"""

Turn = Literal["share", "presolver", "reserve"]
"""When a candidate runs.

``share``: for its share of the time limit. ``presolver``: before all others, for a second or two, and its share is not taken
from theirs. ``reserve``: only after another candidate has ended early, with no time set aside for it. A candidate that was
stopped at the end of its share gets a second turn of this sort.
"""


@dataclass(frozen=True)
class Candidate:
    """A method to find plans or bounds, which runs in a process of its own or in a thread of the calling process."""

    name: str
    """The name that :attr:`Kind.function` is called with. It differs from the names of all other candidates and baselines of
    the kind."""
    family: str
    """``heuristic``, ``learned``, ``exact`` or ``baseline``.

    A candidate of the family ``baseline`` makes the plan of the baseline of the same name. It starts first, takes no share of
    the time of the others, and the run waits for it.
    """
    share: float = 1.0
    """Part of the time limit after which the candidate makes way for others that have not run yet. It runs longer if none is
    left, and gets another turn if others end early."""
    place: Place = "process"
    """Where it runs."""
    turn: Turn = "share"
    """When it runs."""
    proves_only: bool = False
    """Whether it finds only bounds and no plans, so that the plan of a run does not depend on its progress."""
    by_name_only: bool = False
    """Whether it runs only if it is named, and not with its family."""
    unavailable: str = ""
    """Why it cannot run here; empty if it can."""
    checkpoint: str | None = None
    """Hash of the file of its policy, if it is a learned candidate."""
    training: str = ""
    """How that policy was trained, if it comes with this package."""

    @property
    def in_thread(self) -> bool:
        """Whether it runs in a thread of the calling process."""
        return self.place != "process"

    @property
    def makes_baseline(self) -> bool:
        """Whether it makes the plan of a baseline."""
        return self.family == "baseline"
