"""The search for plans with a host: which values are kept, recomputed or sent there, as a function of (problem, context).

Some values may go to the host: those go where they are evicted; others are recomputed. Which: those that the plan without a
host computes again at the highest cost for the time of a copy. How many is sought by drafts of two cuts. On graphs that are not
large follow simulations, in which a fetch has a price, the time that the channel takes times a factor. There may be sent all
values; those whose writers cost most for that time; or as above. All of these, prices, and limits of drafts a little below
that of the problem, which leave room for copies on their way, are tried in turn. Then the best choices are changed by chance,
towards what their plans compute again.
"""

from __future__ import annotations

import itertools
import math
from bisect import bisect_right
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from stowplan import work_rates
from stowplan.kernel.context import Context
from stowplan.models.rematerialization.cuts import Moments
from stowplan.models.rematerialization.moments import first_moments
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import Structure, build
from stowplan.models.rematerialization.verify import verify
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.rematerialization.greedy import Policy, assumed, simulate
from stowplan.portfolio.rematerialization.insertion import Insertion
from stowplan.portfolio.rematerialization.transfers import planned, unmade
from stowplan.portfolio.rematerialization.two_cuts import PARAMS as CUTS
from stowplan.portfolio.rematerialization.two_cuts import drafts


class OffloadParameters(Parameters, frozen=True):
    """Parameters of the search for what is fetched."""

    by_cuts: int = 50
    """Operators of a graph from which drafts are made from cuts."""
    steps: tuple[float, ...] = (0.2, 0.1, 0.05, 0.02, 0.01)
    """Parts of the operators' time in which copies are made, by which the best is sought in such a graph."""
    prices: tuple[float, ...] = (0.0, 1.0, 0.25)
    """Costs a unit of the channel's time of a fetch."""
    limits: tuple[float, ...] = (1.0, 0.9, 0.8)
    """Parts of the limit that drafts are made for."""
    dearest: tuple[float, ...] = (0.5, 0.25, 0.1, 0.05)
    """Parts of the values, the dearest to compute, that may be fetched."""
    budgets: tuple[float, ...] = (0.1, 0.25, 0.5)
    """Parts of the channel's time for what is computed again."""
    tries: int = 4
    """Drafts of one choice, each without what the one before had no room for on the host."""
    first_share: float = 0.6
    """Part of the time for the first choices, where they are made for several numbers of bytes that reservations count."""
    again: float = 0.6
    """Part of the rounds in which what is computed again is sent."""
    kept: int = 6
    """Choices that are changed."""
    rounds: int = 10_000
    """Rounds times operators of ruin and recreate for a draft of theirs."""


PARAMS = parameters(OffloadParameters, __name__)


#: How drafts choose what to evict; the first for those that are not changed by chance.
POLICIES = (Policy(), Policy(cost=1.5), Policy(time=0.5, cost=0.5))


class _Tried(NamedTuple):
    """A choice, and what came of it."""

    plan: Plan
    moved: Sequence[int]
    """Values that it may send."""
    price: float
    part: float
    """Of the limit, for its draft."""


class _Search:
    def __init__(self, structure: Structure, context: Context, limit: int, part: float):
        problem = structure.problem
        assert problem.channel is not None
        self.problem, self.context, self.limit, self.host_limit = problem, context, limit, problem.channel.limit
        self.structure, self.is_over = structure, context.within(part)
        self.movable = self.structure.movable
        self.copy_cost = {value: problem.copy_cost(self.structure.tensor[value]) for value in self.movable}
        self.chance = context.rng()
        self.best: Plan | None = None
        self.tried: list[_Tried] = []
        self.left = context.work(work_rates.REMAT_DRAFTS, max(1, self.structure.ops), least=60)
        self.moments = Moments(self.structure) if self.structure.ops >= PARAMS.by_cuts else None
        """Of graphs whose drafts are made from cuts."""
        self.first = first_moments(self.structure, 1)

    def is_done(self) -> bool:
        """Whether there is nothing left to find, or no time."""
        is_best = self.best is not None and self.best.objective == 0
        return is_best or self.is_over() or (self.left is not None and self.left <= 0)

    def recompute_cost(self, value: int) -> float:
        """Of the writer alone; of inputs infinite."""
        structure, op = self.structure, self.structure.writer[value]
        return float("inf") if op < 0 or structure.once[op] else float(structure.cost[op])

    def choices(self) -> list[list[int]]:
        """Values that may be sent, in several ways; each is a choice."""
        movable, count = self.movable, len(self.movable)
        dearest = self.by_density(movable)
        choices = [movable, *(sorted(dearest[: max(1, int(part * count))]) for part in PARAMS.dearest)]
        if self.moments is None:
            # Else this draft has been made.
            self.draft([], 0.0, 1.0)
        again = [] if self.best is None else self.by_density(self.again(self.best))
        for part in PARAMS.budgets if again else ():
            spent = itertools.accumulate(self.copy_cost[value] for value in again)
            within = sum(time <= part * sum(self.structure.cost) for time in spent)
            choices.append(sorted(again[: max(1, within)]))
        return choices

    def again(self, plan: Plan) -> list[int]:
        """Values of operators that a plan runs again."""
        counts = Counter(plan.sequence)
        return [value for value in self.movable if counts[self.structure.writer[value]] > 1]

    def draft(
        self, moved: Sequence[int], price: float, part: float, rounds: int = 0, is_by_cuts: bool = True
    ) -> tuple[Plan, Sequence[int]] | None:
        """A plan that may send some values, told where it is better, and those of them that it may send within the host."""
        for _ in range(PARAMS.tries):
            if self.is_done():
                return None
            self.left = None if self.left is None else self.left - 1
            prices = [round(price * self.copy_cost[value]) for value in moved]
            graph, aim = self.structure.with_fetches(moved, prices), int(part * self.limit)
            policy = POLICIES[int(self.chance.integers(len(POLICIES)))] if rounds else POLICIES[0]
            insertion = Insertion(graph)
            repaired = self.by_cuts(insertion, aim) if is_by_cuts else None
            if repaired is None:
                sequence = simulate(graph, graph.order, aim, policy, self.context.closed)
                if sequence is None or len(sequence) > insertion.room:
                    sequence = graph.order
                repaired = insertion.repaired(sequence, aim, self.context.closed)
            if repaired is None:
                return None
            if rounds:
                seed = int(self.chance.integers(1, 1 << 62))
                repaired = insertion.recreated(repaired, aim, seed, 300, 0.0, rounds)
            if early := unmade(self.structure, repaired):
                moved = [value for value in moved if value not in early]
                continue
            plan = planned(self.structure, moved, repaired, self.limit)
            if plan is None:
                return None
            verification = verify(self.problem, plan)
            if verification.ok:
                self.offer(plan)
                return plan, moved
            if any(violation.code != "over_host_limit" for violation in verification.violations):
                return None
            moved = self.within_host(plan, moved)
        return None

    def by_cuts(self, insertion: Insertion, aim: int) -> list[int] | None:
        """A draft from two cuts; None where there is none."""
        if self.moments is None:
            return None
        moments, closed = self.moments.with_fetches(insertion.structure), self.context.closed
        # Of many such drafts each is to be there soon.
        for sequence in drafts(insertion, moments, aim, should_stop=closed, first=self.first, is_thorough=False) or ():
            repaired = insertion.repaired(sequence, aim, closed, CUTS.most_added // self.structure.ops)
            if repaired is not None:
                return repaired
        return None

    def climb(self) -> None:
        """Send more or less of the dearest values that plans without a host compute again."""
        for is_by_cuts in (True, False):
            drafted = self.draft([], 0.0, 1.0, is_by_cuts=is_by_cuts)
            if drafted is not None:
                self._climb(self.by_density(self.again(drafted[0])))

    def _climb(self, values: list[int]) -> None:
        """Send as many of the values, in their order, as are best."""
        spent = [*itertools.accumulate(self.copy_cost[value] for value in values)]
        costs: dict[float, float] = {}

        def cost(part: float) -> float:
            """Of the plan where copies take a part of the time of all operators, at most."""
            if part <= 0:
                return float("inf")
            if part not in costs:
                count = bisect_right(spent, part * sum(self.structure.cost))
                drafted = self.draft(sorted(values[:count]), 0.0, 1.0) if count else None
                costs[part] = float("inf") if drafted is None else drafted[0].objective
                if drafted is not None:
                    self.tried.append(_Tried(*drafted, 0.0, 1.0))
            return costs[part]

        part = PARAMS.steps[0]
        for step in PARAMS.steps:
            while not self.is_done():
                near = min((part - step, part + step), key=cost)
                if cost(near) >= cost(part):
                    break
                part = near

    def by_density(self, values: Sequence[int]) -> list[int]:
        """Values, those first whose writers cost most for the time of a copy."""
        return sorted(values, key=lambda value: -self.recompute_cost(value) / self.copy_cost[value])

    def within_host(self, plan: Plan, moved: Sequence[int]) -> list[int]:
        """Of the values that a plan fetches, those that are dearest to recompute for their bytes and fit on the host."""
        size, left, kept = self.structure.size, self.host_limit, list[int]()
        fetched = {move.tensor for move in plan.moves or ()}
        used = [value for value in moved if self.structure.tensor[value] in fetched]
        for value in sorted(used, key=lambda value: -self.recompute_cost(value) / size[value]):
            if size[value] <= left:
                left -= size[value]
                kept.append(value)
        # One fewer at least: else nothing would change.
        return sorted(kept) if len(kept) < len(moved) else sorted(kept[:-1])

    def offer(self, plan: Plan) -> None:
        """Tell a valid plan where it is better."""
        if self.best is None or plan.objective < self.best.objective:
            self.best = plan
            self.context.plan(plan, "offload")


def offload(problem: Problem, context: Context) -> None:
    """Plans that send values to the host; nothing where there is no limit, or no host."""
    if problem.limit is None or problem.channel is None or not problem.ops:
        return
    every = assumed(build(problem), problem.limit)
    part = math.inf if len(every) == 1 else PARAMS.first_share / len(every)
    runs = [_first_choices(_Search(structure, context, problem.limit, part)) for structure in every]
    best = min(runs, key=lambda run: math.inf if run.best is None else run.best.objective)
    best.is_over = context.closed
    _change(best, best.tried)


def _first_choices(run: _Search) -> _Search:
    """Try what is sent by cuts, and in several ways; the same search."""
    if run.moments is not None:
        run.climb()
    if run.structure.ops < CUTS.large or run.best is None:
        different = [list(choice) for choice in dict.fromkeys(map(tuple, run.choices()))]
        for part, price, choice in itertools.product(PARAMS.limits, PARAMS.prices, different):
            drafted = run.draft(choice, price, part, is_by_cuts=False)
            if drafted is not None:
                run.tried.append(_Tried(*drafted, price, part))
    return run


def _change(run: _Search, tried: list[_Tried]) -> None:
    """Change the values that may be sent, and what a draft goes by, from the best choices on."""
    chance = run.chance
    tried = sorted(tried, key=lambda choice: choice.plan.objective)[: PARAMS.kept]
    rounds = min(20, 1 + PARAMS.rounds // run.structure.ops)
    while tried and not run.is_done():
        choice = tried[int(chance.integers(len(tried)))]
        # What is computed again, the dearer the sooner, may be sent; or any values change sides.
        again = run.again(choice.plan) if chance.random() < PARAMS.again else []
        values = again or run.movable
        weights = np.array([1.0 + run.recompute_cost(value) if again else 1.0 for value in values])
        count = min(len(values), int(chance.choice([1, 2, 4, 1 + len(values) // 10])))
        changed = {values[at] for at in chance.choice(len(values), count, replace=False, p=weights / weights.sum())}
        if again and choice.moved and chance.random() < 0.5:
            changed.add(choice.moved[int(chance.integers(len(choice.moved)))])
        price = float(np.clip(choice.price * chance.choice([0.7, 1.0, 1.0, 1.4]), 0.0, 16.0))
        part = float(np.clip(choice.part + chance.choice([-0.03, 0.0, 0.0, 0.03]), 0.5, 1.0))
        drafted = run.draft(sorted({*choice.moved} ^ changed), price, part, rounds, bool(chance.random() < 0.5))
        if drafted is not None and drafted[0].objective <= choice.plan.objective:
            tried = sorted([*tried, _Tried(*drafted, price, part)], key=lambda other: other.plan.objective)[: PARAMS.kept]
