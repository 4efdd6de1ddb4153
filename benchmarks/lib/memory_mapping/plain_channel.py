"""The copy channel of MMapGame: what is left of supplies, copy windows, and which windows may stand beside each other.

Equations 5 and 6 of Wang et al. 2023, appendix A, as a plain reference.
"""

from __future__ import annotations

from collections.abc import Sequence

Window = tuple[int, int]
"""Slots ``[first, last)`` of a copy; at least one."""


class Channel:
    """What copies have left of the supplies (the paper's W), and their windows."""

    def __init__(self, supply_ps: Sequence[int], windows: Sequence[Window] = ()):
        self.supply_ps = list(supply_ps)
        self.windows = list(windows)

    def copy(self) -> Channel:
        """An independent channel in the same state."""
        return Channel(self.supply_ps, self.windows)

    def latest(self, demand_ps: int, first: int, last: int, *, strict: bool) -> Window | None:
        """Window of a copy-in within the slots ``[first, last)``: the latest start, and for it the latest end.

        With ``strict`` it ends at ``last``.
        """
        best: Window | None = None
        for end in range(last, last - 1 if strict else first, -1):
            if best is not None and end - 1 <= best[0]:
                break
            found = self._latest_start(demand_ps, first, end)
            if found is not None and (best is None or found > best[0]):
                best = (found, end)
        return best

    def earliest(self, demand_ps: int, first: int, last: int, *, strict: bool) -> Window | None:
        """Window of a copy-out within the slots ``[first, last)``: the earliest end, and for it the earliest start.

        With ``strict`` it starts at ``first``.
        """
        best: Window | None = None
        for start in range(first, first + 1 if strict else last):
            if best is not None and start + 1 >= best[1]:
                break
            found = self._earliest_end(demand_ps, start, last)
            if found is not None and (best is None or found < best[1]):
                best = (start, found)
        return best

    def take(self, demand_ps: int, window: Window, *, from_end: bool) -> None:
        """Book a copy, its supply taken from the last slot backwards (a copy-in) or from the first one on (a copy-out)."""
        slots = range(*window)
        for slot in reversed(slots) if from_end else slots:
            taken = min(self.supply_ps[slot], demand_ps)
            self.supply_ps[slot] -= taken
            demand_ps -= taken
        if demand_ps:
            raise ValueError(f"window {window} lacks {demand_ps} ps of supply")
        self.windows.append(window)

    def _latest_start(self, demand_ps: int, first: int, end: int) -> int | None:
        supply = 0
        for start in range(end - 1, first - 1, -1):
            supply += self.supply_ps[start]
            if self._meets_another((start, end)):
                return None  # A longer window meets it all the more.
            if supply >= demand_ps:
                return start
        return None

    def _earliest_end(self, demand_ps: int, start: int, last: int) -> int | None:
        supply = 0
        for end in range(start + 1, last + 1):
            supply += self.supply_ps[end - 1]
            if self._meets_another((start, end)):
                return None
            if supply >= demand_ps:
                return end
        return None

    def _meets_another(self, window: Window) -> bool:
        return any(meet(window, other) for other in self.windows)


def meet(one: Window, two: Window) -> bool:
    """Whether two windows break equation 6: they share more than one slot, or one lies strictly inside the other.

    The slot they may share is the last of one and the first of the other, or either where one of them is a single slot.
    """
    shared = min(one[1], two[1]) - max(one[0], two[0])
    return shared > 1 or _inside(one, two) or _inside(two, one)


def _inside(inner: Window, outer: Window) -> bool:
    return outer[0] < inner[0] and inner[1] < outer[1]
