"""Rows of the copy channels: copies that must run within a window take no more time than passes in it (lemma B2 of
``docs/reference/memory-mapping-models.md``).

Where stalls are forbidden, that is the time the steps of the window take at least. Where they are allowed, it is a sum of
columns, waits included. There are as many rows as pairs of boundaries; only those that a solution violates are added.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import numpy.typing as npt

from stowplan.models.memory_mapping.milp.model import RelaxationModel, Rows

FloatArray = npt.NDArray[np.float64]
Window = tuple[int, int]

#: See :func:`_diverse`.
MOST_OVERLAP = 0.6


class WindowSeparator:
    """Finds violated windows, and makes rows of them."""

    def __init__(self, model: RelaxationModel):
        self.model = model
        jobs = [job for job in model.jobs if job.duration_ps]
        self._column = np.array([job.column for job in jobs], dtype=np.int64)
        self._minus = np.array([-1 if job.minus is None else job.minus for job in jobs], dtype=np.int64)
        self._release = np.array([job.release for job in jobs], dtype=np.int64)
        self._deadline = np.array([job.deadline for job in jobs], dtype=np.int64)
        self._duration = np.array([job.duration_ps for job in jobs], dtype=np.int64)
        self._channels = model.problem.channels
        self.found: dict[Window, None] = {}
        """All windows found, in this order."""

    def find(self, values: FloatArray, *, tolerance_ps: float, limit: int) -> list[Window]:
        """For each deadline the window that ``values`` violates most; of these at most ``limit``, none found before.

        Windows that share most of their time say nearly the same, so the less violated of two such is left for another round.

        Parameters
        ----------
        values : shape ``[columns]``
            A solution of the relaxation.
        """
        if not len(self._column):
            return []
        share = values[self._column] - np.where(self._minus >= 0, values[self._minus], 0.0)
        active = np.flatnonzero(share > 1e-7)
        if not len(active):
            return []
        arrive, leave = self._moments(values)
        starts, place = np.unique(self._release[active], return_inverse=True)
        demand = share[active] * self._duration[active]
        order = np.argsort(self._deadline[active], kind="stable")
        ends, first = np.unique(self._deadline[active][order], return_index=True)
        # load[k]: demand of the copies released at starts[k] or later, with a deadline up to the one at hand.
        load = np.zeros(len(starts))
        offset = self._channels * arrive[starts]
        found: list[tuple[float, int, int]] = []
        for number, end in enumerate(ends.tolist()):
            stop = first[number + 1] if number + 1 < len(ends) else len(order)
            for job in order[first[number] : stop]:
                load[: place[job] + 1] += demand[job]
            reach = int(np.searchsorted(starts, end, side="right"))
            excess = load[:reach] + offset[:reach]
            best = int(np.argmax(excess))
            violation = float(excess[best]) - self._channels * float(leave[end])
            if violation > tolerance_ps and (int(starts[best]), end) not in self.found:
                found.append((-violation, int(starts[best]), end))
        found.sort()
        windows = _diverse([(start, end) for _, start, end in found], limit)
        self.found |= dict.fromkeys(windows)
        return windows

    def _moments(self, values: FloatArray) -> tuple[FloatArray, FloatArray]:
        """When each boundary is reached and when it is left, in ps; shapes ``[T + 1]``."""
        model = self.model
        if not model.stall:
            floors = np.array(model.floor_until, dtype=np.float64)
            return floors, floors
        stall = values[np.array(model.stall)]
        latency = np.array([constant + sum(v * values[c] for c, v in terms) for constant, terms in model.step_terms])
        leave = np.cumsum(stall) + np.concatenate([[0.0], np.cumsum(latency)])
        return leave - stall, leave

    def rows(self, windows: Iterable[Window]) -> Rows:
        """One row for each window."""
        model, rows = self.model, Rows()
        for start, end in windows:
            inside = np.flatnonzero((self._release >= start) & (self._deadline <= end))
            duration = self._duration[inside].tolist()
            terms = list(zip(self._column[inside].tolist(), duration, strict=True))
            terms += [(c, -d) for c, d in zip(self._minus[inside].tolist(), duration, strict=True) if c >= 0]
            if model.stall:
                constant, elapsed = model.elapsed(start, end)
                terms += [(column, -self._channels * value) for column, value in elapsed]
            else:
                constant = model.floor_until[end] - model.floor_until[start]
            rows.add(terms, upper=self._channels * constant)
        return rows


def _diverse(windows: list[Window], limit: int) -> list[Window]:
    """The first windows of a list, without those that overlap an earlier one by more than ``MOST_OVERLAP`` of their union."""
    chosen: list[Window] = []
    for start, end in windows:
        if len(chosen) == limit:
            break
        # Counted in boundaries, of which even an empty window has one.
        if all(
            min(end, other_end) - max(start, other_start) + 1
            <= MOST_OVERLAP * (max(end, other_end) - min(start, other_start) + 1)
            for other_start, other_end in chosen
        ):
            chosen.append((start, end))
    return chosen
