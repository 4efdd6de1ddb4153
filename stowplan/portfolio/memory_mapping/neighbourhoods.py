"""Chooses neighbourhoods for the large-neighbourhood search for memory mapping.

This search keeps most of a plan and lets an exact solver find the best plan for a part of it, the neighbourhood. A
neighbourhood is a window of the program and a list of tensors, the most important ones first. The search *frees* as many of
them as it can solve, that is, within the window these tensors may change their place in memory. As in Pisinger and Ropke,
"Large neighborhood search" (Handbook of Metaheuristics, 2010), there are several ways to choose neighbourhoods. Some choose
tensors that are close to each other, some choose those that could save most.

A *step* is an instruction of the program, and a *boundary* is the moment before a step or after the last one. A *use* is the
read or write of one tensor by one step, and an *access* is all uses of a tensor by one step. A use is *fast* if it is served
from fast memory, otherwise *slow*. The time that a tensor, a use or an access could save by being fast is its *gain*, in ps. A
*residency* is the stay of a tensor in fast memory from one boundary to another. A *timeline* is a plan with the times of its
steps (:class:`~stowplan.models.memory_mapping.copy_engine.PlanTimeline`). Nothing in this module raises an error.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from stowplan.models.hint import Hint
from stowplan.models.memory_mapping.copy_engine import PlanTimeline, ProblemFacts
from stowplan.models.memory_mapping.hint import FAST
from stowplan.models.memory_mapping.problem import Step
from stowplan.parameters import Parameters, parameters

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int64]


class ArmsParameters(Parameters, frozen=True):
    """Parameters of the choice of neighbourhoods."""

    negligible: float = 1e-5
    """Fraction of the largest possible gain, which is the latency with all tensors in slow memory, less a simple lower bound on
    the latency of every plan. Tensors with a smaller gain than this fraction are never freed."""


PARAMS = parameters(ArmsParameters, __name__)


class Free(NamedTuple):
    """A neighbourhood: a window of the program, and tensors that may change within it."""

    tensors: list[int]
    """Numbers of the tensors, the most important ones first."""
    start: int
    """Boundary at which the window begins."""
    end: int
    """Boundary at which the window ends."""


class Chooser:
    """Draws neighbourhoods of a plan at random.

    Parameters
    ----------
    facts
        The problem.
    seed
        Seed of the random numbers.
    """

    def __init__(self, facts: ProblemFacts, seed: int):
        self._facts = facts
        self._random = random.Random(seed)
        problem = facts.problem
        self._horizon = problem.horizon
        self._accesses = [access for sequence in facts.sequences for access in sequence.accesses]
        self._owner = np.repeat(np.arange(len(facts.sequences)), [len(sequence) for sequence in facts.sequences])
        self._access_gain = access_gains(facts)
        self._gain = np.bincount(self._owner, self._access_gain, len(facts.sequences))
        floor = problem.floor_ps
        saves_enough = self._gain >= PARAMS.negligible * max(1, problem.all_slow_ps - floor)
        self._is_worthwhile = saves_enough & np.array(facts.is_candidate, np.bool_)
        self._worthwhile: Ints = np.flatnonzero(self._is_worthwhile)
        self._first = np.array([s.accesses[0].step if len(s) else 0 for s in facts.sequences], np.int64)
        self._last = np.array([s.accesses[-1].step if len(s) else -1 for s in facts.sequences], np.int64)
        self.ways: dict[str, Callable[[PlanTimeline, int], Free | None]] = {
            "lost": self._lost,
            "window": self._window,
            "tight": self._tight,
            "random": self._anywhere,
        }
        """Ways to draw a neighbourhood by name, the most promising first. Each is a function of a timeline and a number of
        tensors. It returns None if it finds no neighbourhood, and may return more or fewer tensors than the number says."""

    def follow(self, hint: Hint) -> None:
        """Use a hint for one more way to draw neighbourhoods; a later hint replaces it.

        A hint gives for each access a number from 0 to 1 that says how likely it is fast in a good plan, for example its value
        in the linear relaxation. The new way frees tensors for which the plan and the hint disagree, and fixes tensors for
        which they agree (after Danna, Rothberg and Le Pape, "Exploring relaxation induced neighborhoods to improve MIP
        solutions", Mathematical Programming 102, 2005).
        """
        self._hinted = np.array(hint.values[FAST], np.float64)
        self._steps = np.array([access.step for access in self._accesses], np.int64)
        self.ways["disagreeing"] = self._find_disagreeing

    @property
    def count(self) -> int:
        """Number of tensors that are worth freeing."""
        return len(self._worthwhile)

    def _window(self, timeline: PlanTimeline, count: int) -> Free | None:
        """The tensors that are used in a random segment of the program, which is made so long that there are ``count`` of them,
        if possible."""
        centre = self._random.randrange(self._horizon)
        reach = 2
        while True:
            start, end = max(0, centre - reach), min(self._horizon, centre + reach)
            used = [t for t in self._alive(start, end) if self._is_used(t, start, end)]
            if len(used) >= count or end - start == self._horizon:
                return Free(self._shuffle(used), start, end)
            reach += 1 + reach // 4

    def _lost(self, timeline: PlanTimeline, count: int) -> Free | None:
        """A tensor with slow uses that would save time if they were fast, and tensors that may be in its way."""
        lost = lost_gains(timeline)[self._worthwhile]
        if lost.sum() <= 0:
            return None
        tensor = int(self._worthwhile[self._random.choices(range(len(lost)), weights=lost.tolist())[0]])
        accesses = self._facts.sequences[tensor].accesses
        slow = [j for j, access in enumerate(accesses) if not timeline.fast[access.uses[0]]]
        j = self._random.choice(slow) if slow else 0
        start = accesses[max(0, j - 1)].step
        end = accesses[min(len(accesses) - 1, j + self._random.randint(0, 1))].step + 1
        return self._around(timeline, tensor, start, end, count)

    def _find_disagreeing(self, timeline: PlanTimeline, count: int) -> Free | None:
        """A tensor for which plan and hint disagree, followed by tensors that are alive at nearby steps.

        Tensors for which plan and hint disagree at these steps come before the rest.
        """
        is_fast = [all(timeline.fast[use] for use in access.uses) for access in self._accesses]
        disagreement = np.abs(self._hinted - np.array(is_fast, np.float64)) * self._access_gain
        tensors = len(self._facts.sequences)
        by_tensor = np.bincount(self._owner, disagreement, tensors)[self._worthwhile]
        if by_tensor.sum() <= 0:
            return None
        tensor = int(self._worthwhile[self._random.choices(range(len(by_tensor)), weights=by_tensor.tolist())[0]])
        its_accesses = np.flatnonzero(self._owner == tensor)
        centre = int(self._steps[self._random.choices(its_accesses.tolist(), weights=disagreement[its_accesses].tolist())[0]])
        reach = 2 + self._random.randrange(1 + min(30, self._horizon // 6))
        start, end = max(0, centre - reach), min(self._horizon, centre + reach)
        near = np.bincount(self._owner, disagreement * ((self._steps >= start) & (self._steps < end)), tensors)
        others = [other for other in self._alive(start, end) if other != tensor]
        keys = {other: float(near[other]) * (0.2 + self._random.random()) for other in others}
        # Tensors for which plan and hint agree come last, because they may have to make space.
        others = sorted(self._shuffle(others), key=lambda other: -keys[other])
        return Free([tensor, *others][: max(1, count)], start, end)

    def _tight(self, timeline: PlanTimeline, count: int) -> Free | None:
        """The tensor of a random residency (a stay in fast memory), and tensors that compete with it for memory then."""
        stays = [stay for stay in timeline.plan.residencies if self._is_worthwhile[stay.tensor]]
        if not stays:
            return None
        stay = self._random.choice(stays)
        return self._around(timeline, stay.tensor, stay.start, stay.end, count)

    def _anywhere(self, timeline: PlanTimeline, count: int) -> Free | None:
        """Random tensors whose lives overlap that of one random tensor, for the whole of their lives."""
        if not len(self._worthwhile):
            return None
        centre = int(self._random.choice(self._worthwhile.tolist()))
        alive = self._alive(int(self._first[centre]), int(self._last[centre]) + 1)
        chosen = [centre, *[t for t in self._shuffle(alive) if t != centre][: count - 1]]
        return Free(chosen, int(self._first[chosen].min()), int(self._last[chosen].max()) + 1)

    def _around(self, timeline: PlanTimeline, tensor: int, start: int, end: int, count: int) -> Free:
        """A tensor, and other tensors that are used or in fast memory between two boundaries or a little outside of them.

        After ``tensor``, large tensors that are alive for a large part of this time tend to come first. There are at most
        ``count`` tensors.
        """
        pad = 1 + self._random.randrange(1 + min(20, self._horizon // 8))
        start, end = max(0, start - pad), min(self._horizon, end + pad)
        alive = [
            other
            for other in self._alive(start, end)
            if other != tensor
            and (
                self._is_used(other, start, end)
                or any(stay.start < end and stay.end > start for stay in timeline.residencies[other])
            )
        ]
        size = self._facts.units
        keys = {}
        for other in alive:
            shared = min(end, int(self._last[other]) + 1) - max(start, int(self._first[other]))
            keys[other] = shared * size[other] * self._random.random() ** 2
        alive.sort(key=lambda other: -keys[other])
        return Free([tensor, *alive][: max(1, count)], start, end)

    def _alive(self, start: int, end: int) -> list[int]:
        """The tensors worth freeing whose lives overlap the steps ``[start, end)``."""
        worthwhile = self._worthwhile
        return [int(t) for t in worthwhile[(self._first[worthwhile] < end) & (self._last[worthwhile] >= start)]]

    def _is_used(self, tensor: int, start: int, end: int) -> bool:
        """Whether a tensor is used in the steps ``[start, end)``."""
        return any(start <= access.step < end for access in self._facts.sequences[tensor].accesses)

    def _shuffle(self, tensors: list[int]) -> list[int]:
        """The tensors in a random order in which those with larger gains tend to come first."""
        keys = {tensor: (0.1 + self._random.random()) * float(self._gain[tensor]) ** 0.5 for tensor in tensors}
        return sorted(tensors, key=lambda tensor: -keys[tensor])


def access_gains(facts: ProblemFacts) -> Floats:
    """Returns the gain of each access, in the order in which hints list accesses.

    The gain is the most that the access can save if it is fast, in the best case over all choices for other accesses.
    """
    gains: dict[tuple[int, int], float] = {}
    for index, step in enumerate(facts.problem.steps):
        for place, use in enumerate(step.uses):
            key = (use.tensor, index)
            gains[key] = gains.get(key, 0.0) + step.weight * _largest_gain(step, place)
    return np.array([gains[s.tensor, access.step] for s in facts.sequences for access in s.accesses], np.float64)


def _largest_gain(step: Step, place: int) -> int:
    """The most that a use can save in one run of a step if it is fast, in the best case over all choices for the other uses."""
    if step.table is not None:
        if place not in step.table.uses:
            return 0
        bit = 1 << step.table.uses.index(place)
        table = step.table.latency_ps
        return max(0, *(value - table[mask | bit] for mask, value in enumerate(table) if not mask & bit))
    return max(0, *(piece.slow_ps[place] - piece.fast_ps[place] for piece in step.pieces))


def lost_gains(timeline: PlanTimeline) -> Floats:
    """Returns for each tensor the gain that the plan misses.

    It is the sum, over all slow uses of the tensor, of the time that would be saved if only this use became fast.
    """
    facts = timeline.facts
    gains = np.zeros(len(facts.sequences))
    for index, step in enumerate(facts.problem.steps):
        first = facts.problem.first_use[index]
        fast = timeline.fast[first : first + len(step.uses)]
        if timeline.durations[index] <= facts.problem.floors_ps[index]:
            continue
        for place, use in enumerate(step.uses):
            if not fast[place]:
                fast[place] = True
                gains[use.tensor] += max(0, timeline.durations[index] - step.weight * step.latency_ps(fast))
                fast[place] = False
    return gains
