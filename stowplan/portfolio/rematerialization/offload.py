"""The heuristic for rematerialization problems with a host: it decides which values are kept, recomputed, or sent to the host.

The *host* is a second memory; copies to it (*sends*) and back (*fetches*) run on two channels. A *candidate* is one method of a
run of ``solve``; it reports plans to its context and raises no errors of its own.

An *evicted* value is one that is given up before its last reader. A *choice* is a set of values that may be sent to the host.
If a plan evicts one of them, it is copied to the host and fetched back before its next reader. All other evicted values are
computed again. For each choice, a *draft* is made, which is a sequence of runs of operators that may exceed the limit, and
repaired to become a plan. A draft comes either from two minimum cuts (:mod:`stowplan.portfolio.rematerialization.two_cuts`) or
from a greedy simulation, which runs the operators in order and evicts values when the limit is reached
(:mod:`stowplan.portfolio.rematerialization.greedy`). The heuristic tries choices in three steps:

1. From the values that a plan without a host recomputes, it chooses those whose recomputation costs most in relation to the
   time of a copy. A line search finds out how many of them to choose. This step is taken only if drafts can come from two cuts.
2. On graphs that are not large, or if there is no plan yet, drafts from simulations follow. The choices are all values, the
   values whose writers cost most in relation to the time of a copy, and the same among the values that the best plan
   recomputes. In a simulation, a fetch costs the time that it takes on the channel times a factor. Several factors are tried,
   and several limits: that of the problem, and lower ones, since copies that are under way need space too.
3. The best choices are varied at random. Preferably, values that their plans recompute are added to the choice.
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
from stowplan.portfolio.rematerialization.greedy import Policy, simulate, with_assumed_reservations
from stowplan.portfolio.rematerialization.insertion import Insertion
from stowplan.portfolio.rematerialization.transfers import plan_of_draft, read_before_written
from stowplan.portfolio.rematerialization.two_cuts import PARAMS as CUTS
from stowplan.portfolio.rematerialization.two_cuts import drafts


class OffloadParameters(Parameters, frozen=True):
    """Parameters of the choice of values that go to the host."""

    by_cuts: int = 50
    """Number of operators from which on drafts are also made from two cuts."""
    steps: tuple[float, ...] = (0.2, 0.1, 0.05, 0.02, 0.01)
    """Fractions of the time of all operators: the step sizes of the line search, which looks for the best total time of
    copies."""
    prices: tuple[float, ...] = (0.0, 1.0, 0.25)
    """Costs of a fetch in simulations, as multiples of its time on the channel."""
    limits: tuple[float, ...] = (1.0, 0.9, 0.8)
    """Fractions of the problem's limit for which drafts are made."""
    dearest: tuple[float, ...] = (0.5, 0.25, 0.1, 0.05)
    """Fractions of all values that may be sent, in choices of step 2: those that are most expensive to recompute in relation to
    the time of a copy."""
    budgets: tuple[float, ...] = (0.1, 0.25, 0.5)
    """Fractions of the time of all operators: the largest total time of copies, in choices of step 2 among the values that the
    best plan recomputes."""
    tries: int = 4
    """Largest number of drafts for one choice. If the values of a draft do not fit on the host, the next draft may send
    fewer."""
    first_share: float = 0.6
    """Fraction of the time limit for steps 1 and 2 if the size of some reservation depends on the plan's own live bytes. A
    *reservation* is a number of bytes of the limit that something outside of the graph takes between two moments of a plan. The
    steps are then repeated with several assumptions on the live bytes."""
    again: float = 0.6
    """Probability that a variation of step 3 mainly adds or removes values that the plan recomputes."""
    kept: int = 6
    """Number of best choices that step 3 varies."""
    rounds: int = 10_000
    """Product of two numbers: the rounds of ruin and recreate for the draft of a variation, and the operators of the graph. At
    most 20 rounds are made."""


PARAMS = parameters(OffloadParameters, __name__)


#: Eviction policies of simulations. Variations of step 3 draw one of them at random; all other simulations use the first one.
POLICIES = (Policy(), Policy(cost=1.5), Policy(time=0.5, cost=0.5))


class _Tried(NamedTuple):
    """A choice that was tried, with its plan."""

    plan: Plan
    """The plan."""
    sendable: Sequence[int]
    """The choice, that is, the values that may be sent."""
    price: float
    """Cost of a fetch in the simulation, as a multiple of its time on the channel."""
    part: float
    """The limit for which the draft was made, as a fraction of the problem's limit."""


class _Search:
    """The state of the heuristic: the best plan, the choices that were tried, and the number of drafts that may still be made.

    ``limit`` is that of the problem in bytes, and ``part`` is the part of the time limit for this search, infinite for all of
    it. ``left`` is the number of drafts that may still be made, None unless the run is deterministic.
    """

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
        """The cuts of the graph; None if drafts are made by simulation alone."""
        self.first = first_moments(self.structure, 1)

    def is_done(self) -> bool:
        """Whether the best plan adds no cost, or the time or the work is used up."""
        is_best = self.best is not None and self.best.objective == 0
        return is_best or self.is_over() or (self.left is not None and self.left <= 0)

    def recompute_cost(self, value: int) -> float:
        """Cost of running the writer of a value again; infinite for inputs and for operators that may run only once."""
        structure, op = self.structure, self.structure.writer[value]
        return float("inf") if op < 0 or structure.once[op] else float(structure.cost[op])

    def choices(self) -> list[list[int]]:
        """The choices of step 2."""
        movable, count = self.movable, len(self.movable)
        dearest = self.by_density(movable)
        choices = [movable, *(sorted(dearest[: max(1, int(part * count))]) for part in PARAMS.dearest)]
        if self.moments is None:
            # The plan that sends no value is made first. If drafts are made from cuts, step 1 has made this plan already.
            self.draft([], 0.0, 1.0)
        again = [] if self.best is None else self.by_density(self.again(self.best))
        for part in PARAMS.budgets if again else ():
            copy_times = itertools.accumulate(self.copy_cost[value] for value in again)
            count_within = sum(time <= part * sum(self.structure.cost) for time in copy_times)
            choices.append(sorted(again[: max(1, count_within)]))
        return choices

    def again(self, plan: Plan) -> list[int]:
        """The values that a plan recomputes, that is, whose writers it runs several times."""
        counts = Counter(plan.sequence)
        return [value for value in self.movable if counts[self.structure.writer[value]] > 1]

    def draft(
        self, sendable: Sequence[int], price: float, part: float, rounds: int = 0, is_by_cuts: bool = True
    ) -> tuple[Plan, Sequence[int]] | None:
        """Make a plan for a choice, and report it if it is better.

        Parameters
        ----------
        sendable
            The choice, that is, the values that may be sent.
        price
            Cost of a fetch, as a multiple of its time on the channel.
        part
            The limit for the draft, as a fraction of the problem's limit.
        rounds
            Number of rounds of ruin and recreate that improve the draft; 0 for none.
        is_by_cuts
            Whether to try a draft from cuts before a simulation.

        Returns
        -------
        tuple or None
            The plan, and those values of ``sendable`` that its draft could send. None if no valid plan was found.
        """
        for _ in range(PARAMS.tries):
            if self.is_done():
                return None
            self.left = None if self.left is None else self.left - 1
            prices = [round(price * self.copy_cost[value]) for value in sendable]
            graph, aim = self.structure.with_fetches(sendable, prices), int(part * self.limit)
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
            if early := read_before_written(self.structure, repaired):
                sendable = [value for value in sendable if value not in early]
                continue
            plan = plan_of_draft(self.structure, sendable, repaired, self.limit)
            if plan is None:
                return None
            verification = verify(self.problem, plan)
            if verification.ok:
                self.report_if_better(plan)
                return plan, sendable
            if any(violation.code != "over_host_limit" for violation in verification.violations):
                return None
            sendable = self.fitting_on_host(plan, sendable)
        return None

    def by_cuts(self, insertion: Insertion, aim: int) -> list[int] | None:
        """A draft from two cuts for a limit of ``aim`` bytes; None if there is none."""
        if self.moments is None:
            return None
        moments, closed = self.moments.with_fetches(insertion.structure), self.context.closed
        # Many such drafts are made, so each of them must be quick.
        for sequence in drafts(insertion, moments, aim, should_stop=closed, first=self.first, is_thorough=False) or ():
            repaired = insertion.repaired(sequence, aim, closed, CUTS.most_added // self.structure.ops)
            if repaired is not None:
                return repaired
        return None

    def find_number_to_send(self) -> None:
        """Step 1: find out how many of the values should be sent that a plan without copies recomputes."""
        for is_by_cuts in (True, False):
            drafted = self.draft([], 0.0, 1.0, is_by_cuts=is_by_cuts)
            if drafted is not None:
                self._line_search(self.by_density(self.again(drafted[0])))

    def _line_search(self, values: list[int]) -> None:
        """Line search for the number of values at the front of the list that should be sent; tried choices are recorded."""
        copy_times = [*itertools.accumulate(self.copy_cost[value] for value in values)]
        costs: dict[float, float] = {}

        def cost(part: float) -> float:
            """Cost of the plan if the copies of the choice take at most the fraction ``part`` of the time of all operators."""
            if part <= 0:
                return float("inf")
            if part not in costs:
                count = bisect_right(copy_times, part * sum(self.structure.cost))
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
        """The values in the order of their cost of recomputation divided by the time of a copy, the largest first."""
        return sorted(values, key=lambda value: -self.recompute_cost(value) / self.copy_cost[value])

    def fitting_on_host(self, plan: Plan, sendable: Sequence[int]) -> list[int]:
        """As many of the values that a plan fetches as fit on the host together, but fewer than ``sendable``.

        The values with the largest cost of recomputation for each byte are taken first.
        """
        size, bytes_left, fitting = self.structure.size, self.host_limit, list[int]()
        fetched = {move.tensor for move in plan.moves or ()}
        used = [value for value in sendable if self.structure.tensor[value] in fetched]
        for value in sorted(used, key=lambda value: -self.recompute_cost(value) / size[value]):
            if size[value] <= bytes_left:
                bytes_left -= size[value]
                fitting.append(value)
        # At least one value is left out, so that the next draft differs.
        return sorted(fitting) if len(fitting) < len(sendable) else sorted(fitting[:-1])

    def report_if_better(self, plan: Plan) -> None:
        """Report a valid plan if it is the best so far."""
        if self.best is None or plan.objective < self.best.objective:
            self.best = plan
            self.context.plan(plan, "offload")


def offload(problem: Problem, context: Context) -> None:
    """The candidate ``offload``: it makes plans that send values to the host. Without a limit or a host it does nothing."""
    if problem.limit is None or problem.channel is None or not problem.ops:
        return
    variants = with_assumed_reservations(build(problem), problem.limit)
    part = math.inf if len(variants) == 1 else PARAMS.first_share / len(variants)
    runs = [_first_choices(_Search(structure, context, problem.limit, part)) for structure in variants]
    best = min(runs, key=lambda run: math.inf if run.best is None else run.best.objective)
    best.is_over = context.closed
    _change(best, best.tried)


def _first_choices(run: _Search) -> _Search:
    """Carry out steps 1 and 2 of the docstring of this module; returns ``run`` itself."""
    if run.moments is not None:
        run.find_number_to_send()
    if run.structure.ops < CUTS.large or run.best is None:
        different = [list(choice) for choice in dict.fromkeys(map(tuple, run.choices()))]
        for part, price, choice in itertools.product(PARAMS.limits, PARAMS.prices, different):
            drafted = run.draft(choice, price, part, is_by_cuts=False)
            if drafted is not None:
                run.tried.append(_Tried(*drafted, price, part))
    return run


def _change(run: _Search, tried: list[_Tried]) -> None:
    """Carry out step 3: vary the best choices at random, that is, their values, the cost of a fetch, and the limit of the
    draft.

    ``tried`` has the choices to begin with; without any, nothing is done.
    """
    chance = run.chance
    tried = sorted(tried, key=lambda choice: choice.plan.objective)[: PARAMS.kept]
    rounds = min(20, 1 + PARAMS.rounds // run.structure.ops)
    while tried and not run.is_done():
        choice = tried[int(chance.integers(len(tried)))]
        # Some values are added to the choice or removed from it. They are drawn from the values that the plan recomputes, where
        # expensive ones are more likely, or from all values.
        again = run.again(choice.plan) if chance.random() < PARAMS.again else []
        values = again or run.movable
        weights = np.array([1.0 + run.recompute_cost(value) if again else 1.0 for value in values])
        count = min(len(values), int(chance.choice([1, 2, 4, 1 + len(values) // 10])))
        changed = {values[at] for at in chance.choice(len(values), count, replace=False, p=weights / weights.sum())}
        if again and choice.sendable and chance.random() < 0.5:
            changed.add(choice.sendable[int(chance.integers(len(choice.sendable)))])
        price = float(np.clip(choice.price * chance.choice([0.7, 1.0, 1.0, 1.4]), 0.0, 16.0))
        part = float(np.clip(choice.part + chance.choice([-0.03, 0.0, 0.0, 0.03]), 0.5, 1.0))
        drafted = run.draft(sorted({*choice.sendable} ^ changed), price, part, rounds, bool(chance.random() < 0.5))
        if drafted is not None and drafted[0].objective <= choice.plan.objective:
            tried = sorted([*tried, _Tried(*drafted, price, part)], key=lambda other: other.plan.objective)[: PARAMS.kept]
