"""What a run may still spend: compiles, and previews, which take the time of a part of one."""

from __future__ import annotations

from dataclasses import dataclass

from stowplan.deadline import Deadline

#: Previews that are chosen together: the next ones begin from the best of them.
BATCH = 4

#: Previews that take a compile's time together, about; measured were 9 to 40 of a program's compile.
PREVIEWS_OF_A_COMPILE = 20

#: Compiles' worth of time between two compiles of steers, that one included: the rest goes to previews.
ROUND = 1.6


@dataclass
class Budget:
    """The budget of one run, and what is spent of it."""

    compiles: int
    """At most, the default's included."""
    deadline: Deadline
    jobs: int = 1
    """Compiles side by side."""
    compiled: int = 0
    previewed: int = 0

    @property
    def left(self) -> float:
        """In compiles."""
        return self.compiles - self.compiled - self.previewed / PREVIEWS_OF_A_COMPILE

    @property
    def is_open(self) -> bool:
        """Whether there is anything left for a compile, and time."""
        return self.left >= 1 and not self.deadline.expired

    @property
    def side_by_side(self) -> int:
        """Compiles that come next."""
        return max(1, min(self.jobs, int(self.left)))

    @property
    def previews(self) -> int:
        """Previews before them that are within the budget; a few where there are none to choose from."""
        return max(0 if self.previewed else BATCH, round(PREVIEWS_OF_A_COMPILE * (self.left - self.side_by_side)))

    @property
    def previews_of_a_round(self) -> int:
        """Those of which one steer is chosen, so that each of the compiles left has as many."""
        rounds = max(1, round(self.left / ROUND))
        return min(self.previews, max(BATCH, int(PREVIEWS_OF_A_COMPILE * (self.left - rounds) / rounds)))

    @property
    def out_of_time(self) -> str:
        """Why there is no time left."""
        return "cancelled" if self.deadline.was_cancelled else "time_limit"
