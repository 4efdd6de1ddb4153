"""Large neighbourhoods of the best plan known, by CP-SAT: some operators are free to run again elsewhere, all else stays."""

from __future__ import annotations

import time
from collections import Counter

import numpy as np

from stowplan.models.rematerialization.neighbourhood import Neighbourhood
from stowplan.models.rematerialization.plan import Plan
from stowplan.models.rematerialization.problem import Problem
from stowplan.models.rematerialization.structure import Structure, build
from stowplan.models.rematerialization.verify import live_bytes, verify
from stowplan.portfolio.context import Context

#: Seconds for one neighbourhood, and CP-SAT's deterministic seconds of it in deterministic runs.
SECONDS, DETERMINISTIC = 2.0, 0.2

#: Operators that are free together: at first, at least; and how their number changes after easy and hard rounds.
FIRST, LEAST, GROWTH, SHRINKAGE = 32, 4, 1.3, 0.7

#: Runs that a model decides on, at most.
MOST_RUNS = 3000

#: A neighbourhood solved in this part of its time was easy.
EASY = 0.4

#: Rounds in deterministic runs for each second of the limit, of up to so many operators: presolving takes most of a round.
ROUNDS, ROUND_OPERATORS = 2.5, 200

#: Seconds between two looks for the first plan.
PATIENCE = 0.1


class _Chooser:
    """Draws operators that are free together: anywhere, near in the graph, or near in the sequence."""

    def __init__(self, structure: Structure, chance: np.random.Generator):
        self.structure, self.chance = structure, chance
        self.sizes = dict.fromkeys(("anywhere", "graph", "sequence"), float(FIRST))
        self.again = [
            op
            for op in range(structure.ops)
            if not structure.once[op]
            and any(structure.parent[value] < 0 and structure.size[value] for value in structure.writes[op])
        ]
        self._may_run = {*self.again}
        self._near: list[set[int]] = [set() for _ in range(structure.ops)]
        for op in range(structure.ops):
            for value in structure.needs[op]:
                for each in (structure.writer[value], structure.writer[structure.root[value]]):
                    if each >= 0:
                        self._near[op].add(each)
                        self._near[each].add(op)

    def draw(self, plan: Plan, round_: int) -> tuple[str, list[int]]:
        """The way, and operators; the first of them one that the plan runs again at a cost, where there is one."""
        way = list(self.sizes)[round_ % len(self.sizes)]
        size, chance = int(self.sizes[way]), self.chance
        counts = Counter(plan.sequence)
        dear = [op for op in self.again if counts[op] > 1 and self.structure.cost[op]] or self.again
        found = [int(chance.choice(dear))]
        if way == "anywhere":
            found += chance.permutation(self.again).tolist()
        elif way == "graph":
            reached, seen = [*found], {*found}
            for op in reached:
                if len(found) >= size:
                    break
                following = sorted(self._near[op] - seen)
                chance.shuffle(following)
                seen |= {*following}
                reached += following
                found += [each for each in following if each in self._may_run]
        else:
            begin = max(0, plan.sequence.index(found[0]) - int(chance.integers(0, 1 + size)))
            found += [op for op in plan.sequence[begin : begin + 2 * size] if op in self._may_run]
        return way, list(dict.fromkeys(found))[:size]

    def learn(self, way: str, easy: bool, hard: bool) -> None:
        """More operators after an easy round, fewer after a hard one."""
        if easy:
            self.sizes[way] = min(float(len(self.again)), self.sizes[way] * GROWTH)
        elif hard:
            self.sizes[way] = max(float(LEAST), self.sizes[way] * SHRINKAGE)


def neighbourhoods(problem: Problem, context: Context) -> None:
    """Improve the best plan known until time is up."""
    if problem.limit is None:
        return
    structure, chance = build(problem), context.rng(1)
    chooser = _Chooser(structure, chance)
    best: Plan | None = None
    rounds, left = 0, context.work(ROUNDS, max(1.0, structure.ops / ROUND_OPERATORS), least=1)
    while chooser.again and not context.closed() and (left is None or rounds < left):
        given, _ = context.incumbent()
        if given is not None and (best is None or given.objective < best.objective):
            best = given
        if best is None or best.objective == 0:
            if left is not None or best is not None:
                return
            time.sleep(PATIENCE)
            continue
        way, free = chooser.draw(best, rounds)
        rounds += 1
        began = time.monotonic()
        found = Neighbourhood(structure, problem.limit, best.sequence, live_bytes(problem, best), free)
        if found.size > MOST_RUNS:
            chooser.learn(way, easy=False, hard=True)
            continue
        limits = context.solver_limits(seconds=min(SECONDS, context.remaining()))
        if left is not None:
            limits["deterministic_limit"] = DETERMINISTIC
        limits["seed"] = int(chance.integers(1 << 30))
        sequence, is_solved = found.solve(**limits)
        quick = left is not None or time.monotonic() - began < EASY * SECONDS
        chooser.learn(way, easy=is_solved and quick, hard=not is_solved)
        plan = None if sequence is None else structure.made(sequence)
        if plan is not None and plan.objective < best.objective and verify(problem, plan).ok:
            best = plan
            context.plan(plan, "neighbourhoods")
    sizes = ", ".join(f"{way} {size:.0f}" for way, size in chooser.sizes.items())
    context.note(f"{rounds} neighbourhoods ({sizes})")
