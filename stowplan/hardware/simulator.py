"""Simulates a program with a memory-mapping plan: when each step and copy runs, and how long the program waits for copies.

The simulated machine is that of ``docs/reference/memory-mapping.md`` ("Copy engine"). Steps run one after the other. Copies
between slow and fast memory run concurrently with them on a few channels, in the order in which they were queued, and a step
waits for the copies that must be complete before it. *Boundary* ``t`` is the moment before step ``t``. A *use* is one access of
a tensor by a step; uses are numbered over all steps in their order. A plan says which uses are served from fast memory. A
tensor may be copied in *slices*, each of which is a copy of some of its bytes. Any plan can be simulated, even one that breaks
the rule against stalls, such as the plan of a production compiler. Only the verifier checks the other rules.

:func:`simulate` gives every copy the full bandwidth, whatever the steps read and write at the same time. The models that exact
solvers get assume the same. In :func:`play_shared`, copies share the bandwidth of slow memory with each other and with the
steps: while a step runs, copies have the bandwidth that the step does not use, in equal parts. Unless steps alone use more than
the bandwidth, a program with its copies therefore takes at least the time of its whole traffic with slow memory at the full
bandwidth.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import msgspec

from stowplan.models.memory_mapping.plan import Copy, Plan
from stowplan.models.memory_mapping.problem import Problem


class Transfer(msgspec.Struct, frozen=True):
    """A copy in a simulation; times are in picoseconds from the start of the program."""

    copy: int
    """Position in ``plan.copies``."""
    tensor: int
    """Number of the tensor."""
    direction: Literal["in", "out"]
    """Whether it copies to fast memory (``in``) or to slow memory (``out``)."""
    queued_ps: int
    """Time at which it was queued."""
    begin_ps: int
    """Time at which it began."""
    end_ps: int
    """Time at which it ended."""


class Timeline(msgspec.Struct, frozen=True):
    """Result of a simulation. Lists over boundaries have an entry for the boundary before each step, and a last one for the end
    of the program."""

    total_ps: int
    """Duration of the program."""
    stall_ps: int
    """Time for which the program waits for copies."""
    step_start_ps: list[int]
    """Time at which each step begins, after its wait; the last entry is ``total_ps``."""
    step_wait_ps: list[int]
    """Time for which the program waits for copies at each boundary."""
    transfers: list[Transfer]
    """The copies, in the order of ``plan.copies``."""

    @property
    def channel_busy_ps(self) -> int:
        """Sum of the durations of all copies."""
        return sum(transfer.end_ps - transfer.begin_ps for transfer in self.transfers)


class CopyEngine:
    """Channels that run copies in the order in which they are queued. Each of the ``channels`` channels, of which there is at
    least one, runs one copy at a time."""

    def __init__(self, channels: int):
        self._free_ps = [0] * channels

    def submit(self, now_ps: int, duration_ps: int) -> tuple[int, int]:
        """Queues a copy at ``now_ps``; returns the times at which it begins and ends."""
        begin = max(now_ps, self._free_ps[0])
        heapq.heapreplace(self._free_ps, begin + duration_ps)
        return begin, begin + duration_ps


def simulate(problem: Problem, plan: Plan) -> Timeline:
    """Simulates a plan; each copy has the full bandwidth.

    Numbers of tensors, boundaries and uses in the plan must be in range, which the verifier checks; otherwise IndexError may be
    raised.
    """
    return play(problem, plan, durations_ps(problem, plan.fast_uses))


def durations_ps(problem: Problem, fast_uses: Iterable[int]) -> list[int]:
    """Returns the duration of all runs of each step in ps, if exactly these uses are served from fast memory.

    ``fast_uses`` has their numbers.
    """
    fast, number = set(fast_uses), 0
    durations: list[int] = []
    for step in problem.steps:
        durations.append(step.weight * step.latency_ps([use in fast for use in range(number, number + len(step.uses))]))
        number += len(step.uses)
    return durations


def _transfer_ps(problem: Problem, copy: Copy) -> int:
    """The duration of a copy in ps, rounded such that the slices of a tensor together take exactly as long as the tensor."""
    tensor = problem.tensors[copy.tensor]
    full_ps = tensor.copy_in_ps if copy.direction == "in" else tensor.copy_out_ps
    if copy.part is None:
        return full_ps
    return full_ps * copy.part[1] // tensor.size - full_ps * copy.part[0] // tensor.size


def play(problem: Problem, plan: Plan, durations_ps: list[int]) -> Timeline:
    """Simulates the copies of a plan, each with the full bandwidth, and steps of given durations.

    ``durations_ps`` has the duration of all runs of each step. The numbers in the plan must be in range, as for
    :func:`simulate`.
    """
    horizon = problem.horizon
    queued_at: list[list[int]] = [[] for _ in range(horizon + 1)]
    due_at: list[list[int]] = [[] for _ in range(horizon + 1)]
    for index, copy in enumerate(plan.copies):
        queued_at[copy.start].append(index)
        due_at[copy.end].append(index)

    engine = CopyEngine(problem.channels)
    transfers: list[Transfer | None] = [None] * len(plan.copies)
    starts: list[int] = []
    waits: list[int] = []
    now = 0
    for boundary in range(horizon + 1):
        arrival = now
        # First, the step waits for copies that were queued at earlier boundaries. A copy that is queued at this boundary and
        # must be complete at it is waited for after it was queued.
        for index in due_at[boundary]:
            transfer = transfers[index]
            if transfer is not None:
                now = max(now, transfer.end_ps)
        for index in queued_at[boundary]:
            copy = plan.copies[index]
            begin, end = engine.submit(now, _transfer_ps(problem, copy))
            transfers[index] = Transfer(index, copy.tensor, copy.direction, now, begin, end)
        for index in due_at[boundary]:
            transfer = transfers[index]
            if transfer is not None:
                now = max(now, transfer.end_ps)
        starts.append(now)
        waits.append(now - arrival)
        if boundary < horizon:
            now += durations_ps[boundary]
    return Timeline(now, sum(waits), starts, waits, [transfer for transfer in transfers if transfer is not None])


#: A copy with at most so many bytes left is complete; rounding errors are smaller.
_ROUNDING_BYTES = 1e-6


@dataclass(slots=True)
class _Copy:
    """A copy in progress."""

    number: int
    """Position in ``plan.copies``."""
    latency_ps: float
    """Remaining part of its latency, during which it moves no bytes."""
    size: float
    """Remaining bytes."""


class _SharedEngines:
    """Copies in progress that share a bandwidth, and the queue of copies that wait for an engine."""

    def __init__(self, engines: int, latency_ps: int, copies: int):
        self.now = 0.0
        """The current time in ps."""
        self.began = [0.0] * copies
        """Time in ps at which each copy began."""
        self.ended: list[float | None] = [None] * copies
        """Time in ps at which each copy ended; None if it has not ended."""
        self._engines = engines
        self._latency_ps = latency_ps
        self._queue: deque[tuple[int, int]] = deque()
        self._active: list[_Copy] = []

    def submit(self, number: int, size: int) -> None:
        """Queues a copy of ``size`` bytes."""
        self._queue.append((number, size))
        self._fill()

    def run(self, until: float, rate: float) -> None:
        """Advances the time to ``until`` (ps), with ``rate`` bytes per picosecond for all copies together."""
        while self._active and self.now < until:
            self._advance(until - self.now, rate)
        self.now = max(self.now, until)

    def wait(self, numbers: Collection[int], rate: float) -> None:
        """Advances the time until these copies are complete, with ``rate`` bytes per picosecond for all copies together."""
        while any(self.ended[number] is None for number in numbers):
            self._advance(float("inf"), rate)

    def _fill(self) -> None:
        """Starts queued copies on the engines that are free."""
        while self._queue and len(self._active) < self._engines:
            number, size = self._queue.popleft()
            self.began[number] = self.now
            self._active.append(_Copy(number, self._latency_ps, size))

    def _advance(self, limit: float, rate: float) -> None:
        """Advances the time until the next copy ends or begins to move bytes, but at most by ``limit`` ps."""
        moving = [copy for copy in self._active if not copy.latency_ps]
        share = rate / len(moving) if moving else 0.0
        span = min(
            limit,
            min((copy.latency_ps for copy in self._active if copy.latency_ps), default=limit),
            min((copy.size for copy in moving), default=0.0) / share if share else limit,
        )
        self.now += span
        for copy in self._active:
            if copy.latency_ps:
                copy.latency_ps = max(0.0, copy.latency_ps - span)
            else:
                copy.size -= span * share
                if copy.size <= _ROUNDING_BYTES:
                    self.ended[copy.number] = self.now
        self._active = [copy for copy in self._active if self.ended[copy.number] is None]
        self._fill()


def play_shared(
    problem: Problem,
    plan: Plan,
    durations_ps: Sequence[int],
    slow_bytes: Sequence[int],
    *,
    bandwidth: int,
    engines: int,
    latency_ps: int,
) -> Timeline:
    """Simulates a plan's copies and steps of given durations, where all share the bandwidth of slow memory.

    If the bytes of a step need more than the bandwidth in its duration, the duration stays as it is given, because estimates of
    the two come from different sources. Copies move no bytes while such a step runs, so that no copy is simulated too fast.

    Parameters
    ----------
    problem, plan
        The numbers in the plan must be in range, as for :func:`simulate`.
    durations_ps, slow_bytes
        The duration of all runs of each step in ps, and the bytes that they read from and write to slow memory.
    bandwidth
        Bandwidth of slow memory in bytes per second.
    engines
        Largest number of copies in progress at the same time, at least 1.
    latency_ps
        Fixed part of the duration of every copy. During it, the copy occupies an engine but uses no bandwidth.
    """
    queued_at: list[list[int]] = [[] for _ in range(problem.horizon + 1)]
    due_at: list[list[int]] = [[] for _ in range(problem.horizon + 1)]
    sizes = []
    for number, copy in enumerate(plan.copies):
        queued_at[copy.start].append(number)
        due_at[copy.end].append(number)
        sizes.append(problem.tensors[copy.tensor].size if copy.part is None else copy.part[1] - copy.part[0])
    rate = bandwidth / 1e12
    state = _SharedEngines(engines, latency_ps, len(plan.copies))
    starts, waits = [], []
    for boundary in range(problem.horizon + 1):
        arrival = state.now
        # First, the step waits for copies that were queued at earlier boundaries, as in :func:`play`.
        state.wait([number for number in due_at[boundary] if plan.copies[number].start < boundary], rate)
        for number in queued_at[boundary]:
            state.submit(number, sizes[number])
        state.wait(due_at[boundary], rate)
        starts.append(round(state.now))
        waits.append(state.now - arrival)
        if boundary < problem.horizon:
            duration = durations_ps[boundary]
            drawn = slow_bytes[boundary] / duration if duration else 0.0
            state.run(state.now + duration, max(0.0, rate - drawn))
    transfers = [
        Transfer(number, copy.tensor, copy.direction, starts[copy.start], round(state.began[number]), round(end))
        for number, (copy, end) in enumerate(zip(plan.copies, state.ended, strict=True))
        if end is not None
    ]
    return Timeline(starts[-1], round(sum(waits)), starts, [round(wait) for wait in waits], transfers)
