"""Programs for the learned guide of memory mapping to learn from, and what relaxations and searches say of them.

    python -m benchmarks.guidance.data out/guide-data --seconds 300 --processes 2 --plan-seconds 4

Programs are modules of ../shared/corpus/tpu_v4 (or $STOWPLAN_SHARED/corpus/tpu_v4) with other capacities, windows of them, and
generated ones. Each is a *recipe*, a line of text that makes it again, and a file of labels: the values of the linear
relaxation, then those of a plan that ruin and recreate found from there. A call goes on where an earlier one ended.
"""

from __future__ import annotations

import argparse
import multiprocessing
import sys
import time
import zlib
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from msgspec import structs
from numpy.typing import NDArray

import stowplan
from benchmarks.lib.memory_mapping.synthetic import FORMS, synthetic
from benchmarks.lib.places import SHARED
from stowplan.learned_guidance.memory_mapping.game.programs import excerpt, peak_live_bytes, with_capacity, with_copy_times
from stowplan.learned_guidance.memory_mapping.guide.program import Program, program
from stowplan.models.memory_mapping.hint import of_plan
from stowplan.models.memory_mapping.problem import Problem

#: Capacities of whole modules, over the target's.
CAPACITIES = (1.0, 0.5, 0.25, 2.0, 0.7, 0.35, 1.4)

#: Uses of a window, and moves of a generated program.
WINDOW_USES, MOVES = (200, 5000), (200, 6000)

#: Processor seconds that a relaxation may take.
LP_SECONDS = 12.0

#: Families of programs: what begins like this is one.
FAMILIES = {
    "resnet": ("resnet",),
    "wavenet": ("wavenet", "parallel_wavenet"),
    "nmt": ("nmt",),
    "gpt2": ("gpt2",),
}


def family(module: str) -> str:
    """The family of a module; its own name where it has none, "" of a generated program."""
    return next((name for name, begins in FAMILIES.items() if module.startswith(begins)), module.split(".")[0])


def modules() -> list[str]:
    """Names of the modules of the corpus, the small ones first."""
    found = sorted((SHARED / "corpus" / "tpu_v4").glob("*.hlo.txt.gz"), key=lambda path: path.stat().st_size)
    return [path.name.removesuffix(".hlo.txt.gz") for path in found]


@lru_cache(maxsize=32)
def module(name: str, target: str = "tpu-v4") -> Problem:
    """A module of the corpus."""
    problem: Problem = stowplan.read(SHARED / "corpus" / "tpu_v4" / f"{name}.hlo.txt.gz", target=target)
    return problem


def recipes(windows: int, synthetics: int) -> Iterator[str]:
    """All programs to learn from: kinds mixed, so that a part of the list has some of each."""
    names = modules()
    lists = [
        [f"module {name} {factor}" for factor in CAPACITIES for name in names],
        # The small modules stand first in the list, and have little to show.
        [f"window {name} {number}" for number in range(windows) for name in names[(number % 3) * len(names) // 4 :]],
        [f"synthetic {number}" for number in range(synthetics)],
    ]

    keyed = [((index + 0.5) / len(each), recipe) for each in lists for index, recipe in enumerate(each)]

    return iter(recipe for _, recipe in sorted(keyed))


def made(recipe: str) -> Problem:
    """The program of a recipe; always the same."""
    kind, name, *rest = recipe.split()
    rng = np.random.default_rng(zlib.crc32(recipe.encode()))
    if kind == "module":
        problem = module(name)
        return with_capacity(problem, _aligned(problem, float(rest[0]) * problem.capacity))
    if kind == "synthetic":
        moves = int(np.exp(rng.uniform(*np.log(MOVES))))
        made = synthetic(rng, moves=moves, form=FORMS[(0, 1, 1, 2)[int(rng.integers(4))]])
        return structs.replace(made, max_preloads=int(rng.integers(2)))
    whole = module(name)
    ends = np.cumsum([len(step.uses) for step in whole.steps])
    wanted = min(int(np.exp(rng.uniform(*np.log(WINDOW_USES)))), int(ends[-1]))
    start = int(rng.integers(0, ends[-1] - wanted + 1))
    first, last = (int(np.searchsorted(ends, each)) for each in (start, start + wanted - 1))
    problem = excerpt(whole, first, last + 1)
    most = min(peak_live_bytes(problem), 2.5 * whole.capacity)
    if rng.random() < 0.75:
        problem = with_capacity(problem, _aligned(problem, most * rng.uniform(0.15, 0.95)))
    if rng.random() < 0.4:
        problem = with_copy_times(problem, float(np.exp(rng.uniform(np.log(0.5), np.log(2.0)))))
    return problem


def _aligned(problem: Problem, size: float) -> int:
    return max(problem.alignment, int(size) // problem.alignment * problem.alignment)


def path_of(folder: Path, recipe: str) -> Path:
    """Where the labels of a recipe are."""
    return folder / (recipe.replace(" ", "_") + ".npz")


def prepared(folder: Path, recipe: str) -> Path:
    """Where the arrays of a program are kept."""
    return folder / "programs" / path_of(folder, recipe).name


def keep_program(problem: Problem, recipe: str, folder: Path) -> None:
    """Keep a program as arrays."""
    at = prepared(folder, recipe)
    at.parent.mkdir(exist_ok=True)
    temporary = at.with_suffix(".tmp")
    with temporary.open("wb") as file:
        np.savez(file, **program(problem)._asdict())
    temporary.replace(at)


def read_program(path: Path) -> Program:
    """The arrays of a program."""
    with np.load(path) as found:
        values = {name: found[name] for name in Program._fields}
    return Program(**values | {"capacity": float(values["capacity"]), "stalls": bool(values["stalls"])})


def relaxed(recipe: str, folder: Path) -> None:
    """Label a program with the values of its relaxation."""
    from stowplan.models.memory_mapping.milp.hint import relaxation_hint
    from stowplan.models.memory_mapping.milp.solve import Effort

    problem = made(recipe)
    if problem.all_slow_ps - problem.floor_ps < 0.01 * problem.all_slow_ps:
        return
    began = time.process_time()
    hint, bound = relaxation_hint(problem, Effort(end=time.monotonic() + LP_SECONDS))
    if hint is None:
        return
    keep_program(problem, recipe, folder)
    fast, keep = (_bytes(hint.values[name]) for name in ("fast", "keep"))
    facts = np.array([problem.use_count, bound, problem.all_slow_ps, problem.floor_ps], np.int64)
    _write(path_of(folder, recipe), recipe=recipe, fast=fast, keep=keep, facts=facts, seconds=time.process_time() - began)


def planned(recipe: str, folder: Path, seconds: float) -> None:
    """Label a program that has its relaxation's values with a plan's too: ruin and recreate from a guided plan."""
    from benchmarks.lib.memory_mapping.constructions import best_guided
    from stowplan.models.memory_mapping.hint import hint
    from stowplan.portfolio.memory_mapping import arrays, heuristics
    from stowplan.portfolio.memory_mapping.candidates import PARAMS
    from stowplan.portfolio.memory_mapping.convert import export_best
    from stowplan.portfolio.memory_mapping.search import new_search, ruin_and_recreate

    path = path_of(folder, recipe)
    with np.load(path) as found:
        known = dict(found)
    if "plan" in known:
        return
    problem = made(recipe)
    data = arrays.build(problem)
    given = hint(problem, known["fast"] / 255, known["keep"] / 255)
    state = best_guided(data, given, lambda: False)
    for _, built in heuristics.constructive(data):
        other, _ = heuristics.run(built, lambda: False)
        if other.totals[0].total < state.totals[0].total:
            state = other
    search = new_search(data, state, heuristics.densities(data, 1), 0)
    started = int(search.status[0].best)
    began = time.process_time()
    while (part := (time.process_time() - began) / seconds) < 1:
        ruin_and_recreate(data, state, search, 20, PARAMS.loss * (started - problem.floor_ps) * (1.0 - part) ** 2)
    plan = export_best(problem, data, search)
    values = of_plan(problem, plan).values
    bits = np.packbits(np.array([values["fast"], values["keep"]], np.bool_))
    _write(path, **known, plan=bits, objectives=np.array([started, plan.objective], np.int64))


def _bytes(values: Any) -> NDArray[np.uint8]:
    return np.round(255 * np.asarray(values)).astype(np.uint8)


def _write(path: Path, **values: Any) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("wb") as file:
        np.savez_compressed(file, **values)
    temporary.replace(path)


def work(part: int, arguments: argparse.Namespace) -> None:
    """One process: every ``processes``-th recipe."""
    end = time.monotonic() + arguments.seconds
    relaxing = time.monotonic() + (arguments.seconds if not arguments.plan_seconds else arguments.relaxing)
    mine = list(recipes(arguments.windows, arguments.synthetic))[part :: arguments.processes]
    for stage, until in (("relaxed", relaxing), ("planned", end)):
        for recipe in mine:
            if time.monotonic() >= until:
                break
            path = path_of(arguments.folder, recipe)
            try:
                if stage == "relaxed" and not path.exists():
                    relaxed(recipe, arguments.folder)
                elif stage == "planned" and path.exists() and arguments.plan_seconds:
                    planned(recipe, arguments.folder, arguments.plan_seconds)
            except Exception as error:  # one bad program does not end the run
                print(f"{recipe}: {type(error).__name__}: {error}", file=sys.stderr, flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--seconds", type=float, default=600.0, help="of all")
    parser.add_argument("--relaxing", type=float, default=300.0, help="of these, for relaxations; the rest for plans")
    parser.add_argument(
        "--plan-seconds", type=float, default=4.0, help="processor seconds of the search for a plan; 0 for none"
    )
    parser.add_argument("--windows", type=int, default=30, help="of each module")
    parser.add_argument("--synthetic", type=int, default=600)
    arguments = parser.parse_args()
    arguments.folder.mkdir(parents=True, exist_ok=True)
    parts = [multiprocessing.Process(target=work, args=(part, arguments)) for part in range(arguments.processes)]
    for each in parts:
        each.start()
    for each in parts:
        each.join()
    done = list(arguments.folder.glob("*.npz"))
    print(f"{len(done)} programs", file=sys.stderr)


if __name__ == "__main__":
    main()
