"""The search for plans with a host: which values are kept, recomputed or sent there, as a function of (problem, context).

A price for the time of the channel decides: values whose fetch, at that price, costs less than their writer go to the host
where they are evicted; others are recomputed. Prices, parts of those values, and limits of drafts a little below that of the
problem, which leave room for copies on their way, are tried in turn; then the best choice of values is changed by chance.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import numpy as np

from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import build
from stowplan.models.rematerialization.verify import verify
from stowplan.portfolio.context import Context
from stowplan.portfolio.rematerialization.greedy import Policy, simulate
from stowplan.portfolio.rematerialization.host_draft import fetched, may_move, planned, with_fetches
from stowplan.portfolio.rematerialization.insertion import Insertion

#: Prices of a unit of the channel's time, parts of the values that are cheaper to fetch, and parts of the limit.
PRICES, PARTS, LIMITS = (0.0, 0.5, 1.0, 0.25, 2.0, 4.0), (1.0, 0.5, 0.75, 0.25), (1.0, 0.9, 0.8)

#: Drafts of deterministic runs for each second of the limit, times operators.
DRAFTS = 2_000

#: Rounds of ruin and recreate for a draft of the second phase.
ROUNDS = 20


class _Search:
    def __init__(self, problem: Problem, context: Context, limit: int):
        assert problem.channel is not None
        self.problem, self.context, self.limit, self.host_limit = problem, context, limit, problem.channel.limit
        self.structure = build(problem)
        self.movable = may_move(self.structure)
        self.copy_cost = {value: problem.copy_cost(self.structure.tensor[value]) for value in self.movable}
        self.chance = context.rng()
        self.best: Plan | None = None
        self.left = context.work(DRAFTS, max(1, self.structure.ops), least=60)

    def is_done(self) -> bool:
        """Whether there is nothing left to find, or no time."""
        is_over = self.left is not None and self.left <= 0
        return is_over or self.context.closed() or (self.best is not None and self.best.objective == 0)

    def recompute_cost(self, value: int) -> float:
        """Of the writer alone; of inputs infinite."""
        structure, op = self.structure, self.structure.writer[value]
        return float("inf") if op < 0 or structure.once[op] else float(structure.cost[op])

    def cheaper(self, price: float) -> list[int]:
        """Values that are cheaper to fetch than to compute."""
        return [value for value in self.movable if price * self.copy_cost[value] < self.recompute_cost(value) or not price]

    def draft(self, moved: Sequence[int], price: float, part: float, rounds: int = 0) -> tuple[Plan, Sequence[int]] | None:
        """A plan that may send some values, told where it is better, and those of them that it may send within the host."""
        policies = (Policy(), Policy(cost=1.5), Policy(time=0.5, cost=0.5))
        for _ in range(4):
            if self.is_done():
                return None
            self.left = None if self.left is None else self.left - 1
            prices = [round(price * self.copy_cost[value]) for value in moved]
            graph, aim = with_fetches(self.structure, moved, prices), int(part * self.limit)
            policy = policies[int(self.chance.integers(len(policies)))] if rounds else policies[0]
            sequence = simulate(graph, graph.order, aim, policy, self.context.closed)
            insertion = Insertion(graph)
            if sequence is None or len(sequence) > insertion.room:
                sequence = graph.order
            mended = insertion.mended(sequence, aim, self.context.closed)
            if mended is None:
                return None
            if rounds:
                seed = int(self.chance.integers(1, 1 << 62))
                mended = insertion.recreated(mended, aim, seed, 300, 0.0, rounds)
            plan = planned(self.structure, moved, mended, self.limit)
            if plan is None:
                return None
            found = verify(self.problem, plan)
            if found.ok:
                self.offer(plan)
                return plan, moved
            if any(violation.code != "over_host_limit" for violation in found.violations):
                return None
            moved = self.within_host(plan, moved)
        return None

    def within_host(self, plan: Plan, moved: Sequence[int]) -> list[int]:
        """Of the values that a plan fetches, those that are dearest to recompute for their bytes and fit on the host."""
        size, left, kept = self.structure.size, self.host_limit, list[int]()
        for value in sorted(fetched(self.structure, plan), key=lambda value: -self.recompute_cost(value) / size[value]):
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
    run = _Search(problem, context, problem.limit)
    choices: list[tuple[int, Sequence[int], float, float]] = []
    seen: set[tuple[tuple[int, ...], float, float]] = set()
    for part, share, price in itertools.product(LIMITS, PARTS, PRICES):
        cheaper = run.cheaper(price)
        moved = [value for at, value in enumerate(cheaper) if int((at + 1) * share) > int(at * share)]
        key = (tuple(moved), price, part)
        if run.is_done() or not moved or key in seen:
            continue
        seen.add(key)
        drafted = run.draft(moved, price, part)
        if drafted is not None:
            choices.append((drafted[0].objective, drafted[1], price, part))
    _change(run, choices)


def _change(run: _Search, choices: list[tuple[int, Sequence[int], float, float]]) -> None:
    """Change the values that may be sent, and what a draft goes by, from the best choices on."""
    chance = run.chance
    choices = sorted(choices, key=lambda choice: choice[0])[:4]
    while choices and not run.is_done():
        cost, moved, price, part = choices[int(chance.integers(len(choices)))]
        # A few values, or many, change sides.
        flip = chance.random(len(run.movable)) < chance.choice([0.02, 0.1, 0.3]) + 1.0 / len(run.movable)
        other = sorted({*moved} ^ {value for value, is_flipped in zip(run.movable, flip, strict=True) if is_flipped})
        price = float(np.clip(price * chance.choice([0.7, 1.0, 1.0, 1.4]), 0.0, 16.0))
        part = float(np.clip(part + chance.choice([-0.03, 0.0, 0.0, 0.03]), 0.5, 1.0))
        drafted = run.draft(other, price, part, ROUNDS)
        if drafted is not None and drafted[0].objective <= cost:
            choices = sorted([*choices, (drafted[0].objective, drafted[1], price, part)], key=lambda choice: choice[0])[:4]
