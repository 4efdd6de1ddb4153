"""What guesses are worth to the exact models of memory mapping: fixing, branching order, local branching.

    python benchmarks/exact_guesses.py complete --seconds 8 --windows 2
    python benchmarks/exact_guesses.py milp --seconds 6

``complete``: the complete CP-SAT model of windows of modules with a part of their memory, each from the best plan that
follows the linear relaxation: as it is; first restricted by the relaxation's values, as ``cpsat.solve(guess=)`` does;
restricted by the same values at other accesses (the control); branching as the values say. All have the same time; printed is
by how many % the plan gets better. ``milp``: the MILP around that plan, by local branching and by fixing; printed are gaps (%)
to the relaxation's bound of the plans that follow the relaxation, and then what the MILP would change.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterator

import numpy as np

from stowplan.learned_guidance.memory_mapping.game.variants import peak_live_bytes, window, with_capacity
from stowplan.models import cpsat_runner
from stowplan.models.hint import Hint
from stowplan.models.memory_mapping.accesses import access_sequences
from stowplan.models.memory_mapping.cpsat.guess import Guess, branch
from stowplan.models.memory_mapping.cpsat.model import MemoryMappingModel, size_estimate
from stowplan.models.memory_mapping.cpsat.solve import WITHOUT_PROBING, solve
from stowplan.models.memory_mapping.milp.around import guess_around
from stowplan.models.memory_mapping.milp.guide import of_values
from stowplan.models.memory_mapping.milp.matrix import formulate
from stowplan.models.memory_mapping.milp.model import RelaxationModel
from stowplan.models.memory_mapping.milp.solve import Effort, RelaxationSearch
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.memory_mapping import arrays
from stowplan.portfolio.memory_mapping.convert import export_plan
from stowplan.portfolio.memory_mapping.guided import best_guided

from guidance import HARD, shuffled  # isort: skip - stands beside this file
from mmap_guide_data import module  # isort: skip - stands beside this file
from tables import table  # isort: skip - stands beside this file

#: Uses of a window, parts of what is live at most that its memory holds, and literals of its model at most.
USES, PARTS, LITERALS = (150, 350), (0.2, 0.6), 60_000

#: Plans this close to the bound have nothing to gain.
CLOSE = 5e-4

WAYS = ("none", "restricted", "shuffled", "branching")


def relaxed(problem: Problem) -> tuple[RelaxationSearch, Hint | None]:
    """The linear relaxation, solved, and the hint that it gives."""
    search = RelaxationSearch(RelaxationModel(problem), Effort(time.monotonic() + 120.0))
    search.linear()
    return search, None if search.solution is None else of_values(search.model, search.solution)


def followed(problem: Problem, hint: Hint) -> Plan:
    """The best plan that follows a hint."""
    data = arrays.build(problem)
    return export_plan(problem, data, best_guided(data, hint, lambda: False))


def windows(name: str, count: int) -> Iterator[Problem]:
    """Windows of a module, always the same."""
    whole = module(name)
    ends = np.cumsum([len(step.uses) for step in whole.steps])
    for number in range(count):
        rng = np.random.default_rng([77, number, len(name)])
        wanted = int(rng.integers(*USES))
        start = int(rng.integers(0, max(1, ends[-1] - wanted)))
        first, last = (int(np.searchsorted(ends, each)) for each in (start, start + wanted - 1))
        part = window(whole, first, last + 1)
        size = int(peak_live_bytes(part) * rng.uniform(*PARTS))
        part = with_capacity(part, max(part.alignment, size // part.alignment * part.alignment))
        if size_estimate(access_sequences(part)) <= LITERALS:
            yield part


def improved(problem: Problem, plan: Plan, bound: int, hint: Hint, way: str, seconds: float, seed: int) -> float:
    """By how many % the complete model improves a plan."""
    if way == "branching":
        model = MemoryMappingModel(problem, offsets=False, lower_bound_ps=bound)
        model.add_hint(plan)
        parameters = WITHOUT_PROBING | branch(model.model, Guess(model.variables.sequences, hint).said(model.variables))
        run = cpsat_runner.run(model.model, time_limit=seconds, seed=seed, parameters=parameters)
        found = model.extract(run.value) if run.is_found else None
    else:
        guess = {"none": None, "restricted": hint, "shuffled": shuffled(hint, seed)}[way]
        found = solve(problem, time_limit=seconds, seed=seed, hint=plan, guess=guess, lower_bound_ps=bound).plan
    return 0.0 if found is None else max(0.0, 100 * (1 - found.objective_ps / plan.objective_ps))


def complete(arguments: argparse.Namespace) -> None:
    """CP-SAT's complete model: % better, a row a window."""
    rows: list[list[str]] = []
    gains: list[list[float]] = []
    for name in arguments.modules.split(","):
        for number, problem in enumerate(windows(name, arguments.windows)):
            search, hint = relaxed(problem)
            if hint is None:
                continue
            plan = followed(problem, hint)
            if plan.objective_ps <= (1 + CLOSE) * search.bound:
                continue
            gains.append([improved(problem, plan, search.bound, hint, way, arguments.seconds, arguments.seed) for way in WAYS])
            gap = 100 * (1 - search.bound / plan.objective_ps)
            rows.append([name, str(problem.use_count), f"{gap:.2f}", *(f"{gain:.3f}" for gain in gains[-1])])
            print(f"{name} {number}: {' | '.join(rows[-1][1:])}", flush=True)
    rows.append(["*mean*", "", "", *(f"{statistics.fmean(each):.3f}" for each in zip(*gains, strict=True))])
    print(table(rows, ("window of", "uses", "gap %", *(f"{way}, % better" for way in WAYS))))


def milp(arguments: argparse.Namespace) -> None:
    """The MILP around a plan: gaps of the plans that follow it."""
    radii = (20, 100, 400)
    rows = []
    for name in arguments.modules.split(","):
        problem = module(name)
        search, hint = relaxed(problem)
        assert hint is not None
        assert search.solution is not None
        plan = followed(problem, hint)
        formulation = formulate(search.model, [*search.windows.found], names=False)
        cells = [f"{100 * (1 - search.bound / plan.objective_ps):.2f}"]
        for radius in (None, *radii):
            began = time.process_time()
            relaxation = search.solution if radius is None else None
            guess = guess_around(formulation, plan, relaxed=relaxation, radius=radius, time_limit=arguments.seconds)
            spent = time.process_time() - began
            gap = "–" if guess is None else f"{100 * (1 - search.bound / followed(problem, guess).objective_ps):.2f}"
            cells.append(f"{gap} ({spent:.1f} s)")
        rows.append([name, *cells])
        print(" | ".join(rows[-1]), flush=True)
    print(table(rows, ("module", "relaxation", "fixed", *(f"{radius} decisions" for radius in radii))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    kinds = parser.add_subparsers(dest="what", required=True)
    for name, modules in (("complete", "resnet50_train_b32,unet_train_b4,gnn_train_n1024"), ("milp", HARD)):
        each = kinds.add_parser(name)
        each.add_argument("--modules", default=modules)
        each.add_argument("--seconds", type=float, default=8.0)
        each.add_argument("--seed", type=int, default=0)
    kinds.choices["complete"].add_argument("--windows", type=int, default=2, help="of each module")
    arguments = parser.parse_args()
    (complete if arguments.what == "complete" else milp)(arguments)


if __name__ == "__main__":
    main()
