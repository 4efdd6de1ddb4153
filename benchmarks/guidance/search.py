"""One search of memory mapping on the clock of its process, for ``guides.py``.

    python -m benchmarks.guidance.search problem.json --hint hint.json --after 1.2 --seconds 3 --seed 1

Prints the seconds and objectives of the plans that it found, as JSON. What a worker loads is on the clock from the start of the
process; reading the problem and the hint, which a worker is sent, and verifying plans, which its parent does, are not.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from pathlib import Path
from types import SimpleNamespace

from benchmarks.lib.alone import Alone
from stowplan.kernel.context import Options
from stowplan.models.hint import Hint
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.memory_mapping import candidates, guided
from stowplan.portfolio.memory_mapping.learned import GUIDE


class Clocked(Alone):
    """The search alone, on the processor's clock with ``spent`` seconds on it; the hint is there ``after`` so many of them."""

    def __init__(self, problem: Problem, options: Options, hint: Hint | None, after: float, spent: float):
        self._began = time.process_time() - spent
        super().__init__(problem, options, hints=() if hint is None else (hint,), clock=self.clock)
        # What is spent already is part of the limit.
        self._end = options.time_limit
        self._after = after
        self.history: list[tuple[float, int]] = []

    def clock(self) -> float:
        return time.process_time() - self._began

    def plan(self, plan: Plan, source: str) -> None:
        at, before = time.process_time(), self.best
        super().plan(plan, source)
        # Verifying is the parent's work.
        self._began += time.process_time() - at
        if self.best is not before:
            self.history.append((self.clock(), plan.objective))

    def note(self, text: str) -> None:
        print(text, file=sys.stderr)

    def hints(self) -> tuple[Hint, ...]:
        return super().hints() if self.clock() >= self._after else ()


def main() -> None:
    """Search, print the history, and save the plan where it is asked to."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("problem", type=Path)
    parser.add_argument("--seconds", type=float, default=10.0, help="processor time, loading included")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hint", type=Path)
    parser.add_argument("--after", type=float, default=0.0, help="seconds after which the hint is there")
    parser.add_argument("--spent", type=float, default=0.0, help="seconds that the hint took, to count with the search's")
    parser.add_argument("--plan-out", type=Path)
    arguments = parser.parse_args()
    loaded = time.process_time()
    problem = Problem.load(arguments.problem)
    hint = None if arguments.hint is None else Hint.load(arguments.hint)
    families = ("heuristic", "learned") if os.environ.get(GUIDE.variable) else ("heuristic",)
    options = Options(time_limit=arguments.seconds, seed=arguments.seed, candidates=families)
    context = Clocked(problem, options, hint, arguments.after, loaded + arguments.spent)
    # No hint but the one that is given, or the learned guide's.
    guided.filled_hint = lambda problem, context: None  # type: ignore[assignment]
    guided.time = candidates.time = SimpleNamespace(monotonic=context.clock)  # type: ignore[assignment]
    candidates.search(problem, context)
    if arguments.plan_out is not None and context.best is not None:
        context.best.save(arguments.plan_out)
    print(json.dumps(context.history))


if __name__ == "__main__":
    main()
