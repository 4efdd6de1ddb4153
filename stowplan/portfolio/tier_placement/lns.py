"""Large-neighbourhood search with the MILP inside, for networks whose MILP is too large to branch on: most tensors stay.

After Shaw (CP 1998), and Danna, Rothberg and Le Pape, "Exploring relaxation induced neighborhoods to improve MIP solutions"
(Mathematical Programming 102, 2005): first what the relaxation has elsewhere than the best map is free, then what neighbouring
layers move, and tensors anywhere.
"""

from __future__ import annotations

import random
import time

from stowplan.models.hint import Hint
from stowplan.models.tier_placement.plan import Placed, Plan, placed
from stowplan.models.tier_placement.problem import Problem
from stowplan.portfolio.context import Context

#: Seconds for one neighbourhood, and of deterministic runs the units of :func:`solve_milp` instead.
ROUND_SECONDS, ROUND_UNITS = 5.0, 0.2

#: Tensors freed together: at first, at least, and how their number grows and shrinks.
FIRST, LEAST, GROWTH, SHRINKAGE = 300.0, 20.0, 1.3, 0.7

#: A neighbourhood solved in this part of its time was too small.
EASY = 0.4

#: The relaxation has a tensor where the map has it with at least this share.
AGREES = 0.999

#: Rounds of a deterministic run for each second of its limit.
DETERMINISTIC_ROUNDS = 0.2


class Neighbourhoods:
    """Draws the tensors that are free, ways by turns, and as many as can be solved."""

    def __init__(self, problem: Problem, hint: Hint | None, seed: int):
        self._tensors = placed(problem)
        self._layers = problem.layers
        self._tiers = [tier.name for tier in problem.tiers]
        self._hint = hint
        self._chance = random.Random(seed)
        self.sizes: dict[str, float] = dict.fromkeys(("near", "anywhere"), FIRST)
        self._turn = 0

    def draw(self, plan: Plan) -> tuple[str, set[Placed]]:
        """The way, and what it frees."""
        self._turn += 1
        if self._turn == 1 and self._hint is not None:
            return "relaxation", self._disagreeing(plan, self._hint)
        way = ("near", "anywhere")[self._turn % 2]
        count = round(self.sizes[way])
        if way == "anywhere":
            return way, {*self._chance.sample(self._tensors, min(count, len(self._tensors)))}
        free: set[Placed] = set()
        layer = self._chance.randrange(len(self._layers))
        reach = 0
        while len(free) < min(count, len(self._tensors)) and reach <= len(self._layers):
            for other in {layer - reach, layer + reach}:
                if 0 <= other < len(self._layers):
                    free.add(Placed(other, True))
                    free |= {Placed(other, False)} if self._layers[other].weight_bytes else set()
            reach += 1
        return way, free

    def learn(self, way: str, *, easy: bool, hard: bool) -> None:
        """Free more next time, or less."""
        if way in self.sizes:
            self.sizes[way] = max(LEAST, self.sizes[way] * (GROWTH if easy else SHRINKAGE if hard else 1.0))

    def pins(self, plan: Plan, free: set[Placed]) -> dict[tuple[int, bool], int]:
        """The tiers of all that is not free."""
        return {each: each.tier(plan) for each in self._tensors if each not in free}

    def _disagreeing(self, plan: Plan, hint: Hint) -> set[Placed]:
        shares = [hint.values[name] for name in self._tiers]
        return {each for number, each in enumerate(self._tensors) if shares[each.tier(plan)][number] < AGREES}


def lns(problem: Problem, context: Context) -> None:
    """Improve the best plan known until time is up; in deterministic runs that at the start, by rounds of limited work."""
    from stowplan.models.tier_placement.milp import solve_milp

    rounds = context.work(DETERMINISTIC_ROUNDS, least=1)
    plan: Plan | None = context.start_plan if rounds is not None else context.incumbent()[0]
    if plan is None:
        context.note("found no plan to begin with")
        return
    neighbourhoods = Neighbourhoods(problem, next(iter(context.hints()), None), context.seed())
    done = 0
    while not context.closed() and (rounds is None or done < rounds):
        other = context.incumbent()[0] if rounds is None else None
        if other is not None and other.objective < plan.objective:
            plan = other
        way, free = neighbourhoods.draw(plan)
        done += 1
        if not free:
            continue
        limit = min(ROUND_SECONDS, context.remaining()) if rounds is None else context.remaining()
        began = time.monotonic()
        outcome = solve_milp(
            problem,
            time_limit=limit,
            pins=neighbourhoods.pins(plan, free),
            seed=context.seed(done),
            deterministic_limit=None if rounds is None else ROUND_UNITS,
            hint=plan,
            should_stop=context.closed,
        )
        found, before = outcome.plan, plan.objective
        if found is not None and found.objective < before:
            plan = found
            context.plan(plan, "lns")
        solved = outcome.status == "optimal"
        quick = rounds is not None or time.monotonic() - began < EASY * limit
        neighbourhoods.learn(way, easy=solved and quick, hard=not solved and plan.objective == before)
    sizes = ", ".join(f"{way} {size:.0f}" for way, size in neighbourhoods.sizes.items())
    context.note(f"{done} neighbourhoods ({sizes})")
