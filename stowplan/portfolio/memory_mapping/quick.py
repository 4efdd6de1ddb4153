"""A plan in a moment, without compiled code: tensors in fast memory for all of their lives, by what they save for their room.

No copy runs beside the program. A tensor is written fast and stays until its last use; or it is an input, and in place before
the program starts, or copied in while the program waits. What a production compiler does is better, and takes longer
(:mod:`stowplan.portfolio.memory_mapping.heuristics`).
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple

import msgspec

from stowplan.hardware.simulator import simulate
from stowplan.models.memory_mapping.accesses import TensorAccesses, access_sequences
from stowplan.models.memory_mapping.plan import Copy, Plan, Residency
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.context import Options
from stowplan.portfolio.first_fit import FirstFit

#: Tensors that are ranked, and that are placed, however little time there is: a hundredth of a second.
RANKED = PLACED = 500


class _Life(NamedTuple):
    """A residency that serves all uses of its tensor."""

    start: int
    end: int
    uses: tuple[int, ...]
    source: Literal["written", "preloaded", "copied"]
    wait_ps: int = 0
    """What a copy before it takes."""


def quick_plan(problem: Problem, options: Options, should_stop: Callable[[], bool]) -> tuple[str, Plan] | None:
    """The plan, under the name ``quick``; stopped early, with the tensors placed so far. None where nothing is saved."""
    latencies = _Latencies(problem)
    room = FirstFit(problem.capacity)
    residencies: list[Residency] = []
    copies: list[Copy] = []
    uses: list[int] = []
    preloads = 0
    for rank, (tensor, lives) in enumerate(_ranked(problem, latencies, should_stop)):
        if rank >= PLACED and should_stop():
            break
        saved = latencies.saved_ps(lives[0].uses)
        for life in lives:
            is_preload = life.source == "preloaded"
            if saved <= life.wait_ps or (is_preload and preloads >= problem.max_preloads):
                continue
            offset = room.take(life.start, life.end, problem.tensors[tensor].size, problem.alignment)
            if offset is None:
                continue
            residencies.append(Residency(tensor, life.start, life.end, offset, is_preload))
            if life.source == "copied":
                copies.append(Copy(tensor, "in", life.start, life.start))
            preloads += is_preload
            uses += life.uses
            latencies.make_fast(life.uses)
            break
    if not residencies:
        return None
    plan = Plan(
        problem=problem.digest,
        objective_ps=0,
        residencies=tuple(sorted(residencies, key=lambda each: (each.start, each.offset, each.tensor))),
        copies=tuple(sorted(copies, key=lambda each: (each.start, each.tensor))),
        fast_uses=tuple(sorted(uses)),
        program=problem.name,
        target=problem.target,
    )
    return "quick", msgspec.structs.replace(plan, objective_ps=simulate(problem, plan).total_ps)


def _ranked(
    problem: Problem, latencies: _Latencies, should_stop: Callable[[], bool]
) -> Iterator[tuple[int, tuple[_Life, ...]]]:
    """Tensors with the lives they may have, the best one first; by what they save for each byte and step."""
    found: list[tuple[float, int, tuple[_Life, ...]]] = []
    for accesses in access_sequences(problem):
        if accesses.tensor >= RANKED and should_stop():
            break
        lives = _lives(problem, accesses)
        saved = latencies.saved_ps(lives[0].uses) if lives else 0
        if saved > 0:
            found.append((saved / (accesses.size * (lives[-1].end - lives[-1].start)), accesses.tensor, lives))
    for _, tensor, lives in sorted(found, key=lambda each: (-each[0], each[1])):
        yield tensor, lives


def _lives(problem: Problem, accesses: TensorAccesses) -> tuple[_Life, ...]:
    if not len(accesses) or accesses.size > problem.capacity:
        return ()
    written = any(access.write is not None for access in accesses.accesses)
    # Written in fast memory, an output would have to be copied out.
    if written and accesses.is_output:
        return ()
    first, last = accesses.accesses[0].step, accesses.accesses[-1].step
    end = int(accesses.residency.next[last + 1])
    uses = tuple(use for access in accesses.accesses for use in access.uses)
    if accesses.may_begin_by_write(0):
        return (_Life(first, end, uses, "written"),)
    if not accesses.is_input:
        return ()
    preloaded = _Life(0, end, uses, "preloaded")
    if problem.stalls == "forbidden":
        return (preloaded,)
    copied = _Life(int(accesses.copy.prev[first]), end, uses, "copied", problem.tensors[accesses.tensor].copy_in_ps)
    return preloaded, copied


class _Latencies:
    """Latencies of all steps, for a set of fast uses that grows."""

    def __init__(self, problem: Problem):
        self._steps = problem.steps
        # Step of each use, and its place in the step.
        self._place = [(number, place) for number, step in enumerate(problem.steps) for place in range(len(step.uses))]
        self._fast = [[False] * len(step.uses) for step in problem.steps]
        self._now_ps: dict[int, int] = {}

    def saved_ps(self, uses: tuple[int, ...]) -> int:
        """What serving these from fast memory, too, takes off the program."""
        by_step: defaultdict[int, list[int]] = defaultdict(list)
        for use in uses:
            number, place = self._place[use]
            by_step[number].append(place)
        saved = 0
        for number, places in by_step.items():
            step, fast = self._steps[number], self._fast[number]
            if number not in self._now_ps:
                self._now_ps[number] = step.latency_ps(fast)
            then = fast.copy()
            for place in places:
                then[place] = True
            saved += step.weight * (self._now_ps[number] - step.latency_ps(then))
        return saved

    def make_fast(self, uses: tuple[int, ...]) -> None:
        """Serve these from fast memory from now on."""
        for use in uses:
            number, place = self._place[use]
            self._fast[number][place] = True
            self._now_ps.pop(number, None)
