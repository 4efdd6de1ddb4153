"""What a guide is worth to the search of memory mapping: objectives at parts of a budget of processor time.

    python -m benchmarks.guidance.guides --seconds 10 --seeds 0,1,2 --json-out guidance.json

Each module of ../shared/corpus/tpu_v4 or tpu_v4_large (or below $STOWPLAN_SHARED) that is named is searched with

* ``none``: no guide;
* ``relaxation``: the relaxation's values, from the moment at which a second worker would have solved it;
* ``shuffled``: these values shuffled among the accesses (the control);
* ``learned``: the learned guide and no relaxation; ``both``: the relaxation after it, as the portfolio does;
* ``shuffled_learned``: the learned guide's values shuffled;
* ``untrained``: the same network with random weights;
* ``filled``: no learning at all: gaps are kept where those that save as much or more for their room and time leave room;
* ``plan``: what the best plan known serves and keeps, from the start: the ceiling of what any policy could say;
* ``placed``: that with the plan's places, as a hint of a plan has them.

The best plan known is that of these searches and of earlier calls with the same ``--plans``; with ``--plan-seconds``, first
that of a full run of two workers, proven to be the best or not (which is printed).

``{family}`` in a file's name stands for the family of the module (``data.py``): guides that were trained without it.
Those in ``guides/`` beside this file were, one for each family of the hard modules.
Results are kept in the JSON file as they come: a run that was interrupted goes on where it was.

The candidate ``search`` runs alone in a process, with the clock of its processor time in place of the wall's
(``search.py``), so that the load of the machine does not matter: what two workers do on a machine at leisure, without
large-neighbourhood search. Loading the package, compiled code and the guide's own time count (not the loading of
scikit-learn). Gaps are to the best bound known (``--bounds``: what ``memory_mapping.py --json-out`` wrote; else the
relaxation's).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

import stowplan
from benchmarks.guidance.data import SHARED, family
from benchmarks.guidance.tables import ends, summary, worth
from benchmarks.lib.memory_mapping.guide_file import save
from stowplan.learned_guidance.memory_mapping.guide.guide import Weights, filled_hint, learned_hint, load, shapes
from stowplan.models.hint import Hint
from stowplan.models.memory_mapping.hint import PLACE, of_plan
from stowplan.models.memory_mapping.milp.hint import relaxation_hint
from stowplan.models.memory_mapping.milp.solve import Effort
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.memory_mapping.learned import GUIDE

HARD = "resnet101_train_b16,resnet50_train_b32,wavenet_inf_b32,nmt_attn_train_b32,gpt2s_train_b2_s512,gpt2m_train_b1_s512"

#: Networks that were trained without the family of the module.
WITHOUT_FAMILY = str(Path(__file__).parent / "without_family" / "{family}.npz")

#: Guides that say what the best plan does: known at the end only.
CEILINGS = ("plan", "placed")

#: Processor seconds that a worker of the exact side takes before it begins.
LOADING = 0.6


def guide_file(given: str, name: str) -> Path:
    """The file of a guide for a module: ``given`` with the module's family in it."""
    return Path(given.format(family=family(name)))


def shuffled(hint: Hint, seed: int) -> Hint:
    """The same values at other decisions, those of one decision together, and no plan."""
    order = list(range(len(next(iter(hint.values.values())))))
    random.Random(seed).shuffle(order)
    values = {name: tuple(values[place] for place in order) for name, values in hint.values.items()}
    trust = tuple(hint.confidence[place] for place in order) if hint.confidence else ()
    return msgspec.structs.replace(hint, values=values, confidence=trust, plan=None)


def untrained(path: Path, weights: Weights, seed: int) -> None:
    """Write a network of random weights, as training begins with, for the same statistics of features."""
    rng = np.random.default_rng(seed)
    made = dict(weights)
    for name, shape in shapes().items():
        if name.endswith(".weight"):
            made[name] = (rng.normal(size=shape) * (1.5 / shape[0]) ** 0.5).astype(np.float32)
        elif name.endswith(".bias"):
            made[name] = np.zeros(shape, np.float32)
    save(path, made)


def filled(problem: Problem) -> tuple[Hint, float]:
    """The hint that learns nothing, and the processor seconds that it took."""
    began = time.process_time()
    hint = filled_hint(problem)
    return hint, time.process_time() - began


class Module:
    """A module, its relaxation, and where its files are."""

    def __init__(self, name: str, arguments: argparse.Namespace, bound: int | None):
        self.name, self._folder, self._seconds = name, arguments.plans, arguments.seconds
        self._folder.mkdir(parents=True, exist_ok=True)
        places = (SHARED / "corpus" / folder / f"{name}.hlo.txt.gz" for folder in ("tpu_v4", "tpu_v4_large"))
        self.problem = stowplan.read(next(path for path in places if path.exists()), target="tpu-v4")
        self.best, self._lock = self._folder / f"{name}.best.json", threading.Lock()
        self._at = self._folder / f"{name}.problem.json"
        self.problem.save(self._at)
        self._network = None if arguments.networks is None else guide_file(arguments.networks, name)
        began = time.process_time()
        hint, proven = relaxation_hint(self.problem, Effort(end=time.monotonic() + 600.0))
        self.seconds = time.process_time() - began
        assert hint is not None
        self._relaxation = hint
        self.bound = max(proven, bound or 0)
        if arguments.plan_seconds:
            self._solve(arguments.plan_seconds)
        learned_hint(self.problem, self._network)  # loads it
        began = time.process_time()
        self._learned = learned_hint(self.problem, self._network)
        self.learned_seconds = time.process_time() - began

    def _solve(self, seconds: float) -> None:
        """Have the best plan that a full run finds as the best plan known, and its bound, where it is better."""
        known = Plan.load(self.best) if self.best.exists() else None
        result = stowplan.solve(self.problem, time_limit=seconds, workers=2, hint=known)
        self.bound = max(self.bound, result.bound or 0)
        if result.plan is not None:
            result.plan.save(self.best)
            gap = 1 - self.bound / result.plan.objective
            print(f"{self.name}: best plan known {result.plan.objective} ps, {gap:.3%} above the bound", file=sys.stderr)

    def history(self, guide: str, seed: int) -> list[Any]:
        """Processor seconds and objectives of one search, in a process of its own; its plan is kept where it is the best."""
        at = self._folder / f"{self.name}.{guide}.{seed}"
        plan, given = at.with_suffix(f".{seed}.found.json"), at.with_suffix(f".{seed}.hint.json")
        hint, after, spent, network = None, 0.0, 0.0, None
        if guide in ("relaxation", "shuffled", "both"):
            hint, after = self._relaxation, LOADING + self.seconds
        if guide in ("learned", "both"):
            network = self._network
        if guide == "shuffled_learned":
            hint, spent = self._learned, self.learned_seconds
        if guide == "filled":
            hint, spent = filled(self.problem)
        if guide == "untrained":
            network = at.with_suffix(f".{seed}.npz")
            untrained(network, load(self._network), seed)
        if guide in CEILINGS:
            hint = of_plan(self.problem, Plan.load(self.best))
            values = {name: each for name, each in hint.values.items() if guide == "placed" or name != PLACE}
            hint = msgspec.structs.replace(hint, values=values, plan=None)
        if guide.startswith("shuffled"):
            assert hint is not None
            hint = shuffled(hint, seed)
        command = [
            sys.executable,
            "-m",
            "benchmarks.guidance.search",
            str(self._at),
            "--seconds",
            str(self._seconds),
            "--seed",
            str(seed),
        ]
        command += ["--plan-out", str(plan), "--spent", str(spent)]
        if hint is not None:
            hint.save(given)
            command += ["--hint", str(given), "--after", str(after)]
        environment = {name: value for name, value in os.environ.items() if name != GUIDE.variable}
        # What is on the clock is one thread's.
        environment |= {"OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
        environment |= {} if network is None else {GUIDE.variable: str(network)}
        done = subprocess.run(command, capture_output=True, text=True, check=True, env=environment)
        found = Plan.load(plan)
        with self._lock:
            if not self.best.exists() or found.objective < Plan.load(self.best).objective:
                found.save(self.best)
        for each in (plan, given):
            each.unlink(missing_ok=True)
        history: list[Any] = json.loads(done.stdout)
        return history


def main() -> None:
    """Measure, keep everything, and print the tables."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", default=HARD, help="names, separated by commas")
    parser.add_argument("--seconds", type=float, default=10.0, help="processor time of the search")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--guides", default="relaxation,none,shuffled,learned,both")
    parser.add_argument("--networks", default=WITHOUT_FAMILY, help="files of weights, with {family} (default: %(default)s)")
    parser.add_argument("--processes", type=int, default=1, help="searches side by side")
    parser.add_argument("--until", type=float, default=float("inf"), help="begin no search after so many seconds")
    parser.add_argument("--plans", type=Path, default=Path("out/guidance-plans"), help="where plans and hints are kept")
    parser.add_argument("--bounds", type=Path, help="results with better bounds than the relaxation's")
    parser.add_argument("--json-out", type=Path)
    parser.add_argument("--plan-seconds", type=float, help="first look for the best plan, by a full run of so many seconds")
    parser.add_argument("--only-tables", action="store_true", help="of what --json-out has")
    arguments = parser.parse_args()
    kept = arguments.json_out
    rows: dict[str, Any] = json.loads(kept.read_bytes()) if kept is not None and kept.exists() else {}
    if not arguments.only_tables:
        for name in arguments.modules.split(","):
            if arguments.networks and not (path := guide_file(arguments.networks, name)).is_file():
                parser.error(f"{name}: there is no guide {path}; name another by --networks")
        measure(arguments, rows)
    names = [name for name in arguments.modules.split(",") if name in rows]
    for each in (summary, ends, worth):
        print(each({name: rows[name] for name in names}, arguments.guides.split(",")) + "\n")


def measure(arguments: argparse.Namespace, rows: dict[str, Any]) -> None:
    """Run all searches that there are no results of."""
    end = time.monotonic() + arguments.until
    bounds = {} if arguments.bounds is None else json.loads(arguments.bounds.read_bytes())
    kept, lock = arguments.json_out, threading.Lock()
    names = arguments.modules.split(",")
    wanted = [
        (guide, name, seed) for seed in arguments.seeds.split(",") for guide in arguments.guides.split(",") for name in names
    ]
    wanted = [(g, n, s) for g, n, s in wanted if s not in rows.get(n, {}).get("histories", {}).get(g, {})]
    opened: dict[str, Module] = {}
    for name in {name: None for _, name, _ in wanted}:
        opened[name] = module = Module(name, arguments, bounds.get(name, {}).get("bound"))
        facts = {"uses": module.problem.use_count, "relaxation_seconds": module.seconds, "bound": module.bound}
        facts |= {"all_slow": module.problem.all_slow_ps, "learned_seconds": module.learned_seconds}
        rows[name] = rows.get(name, {}) | facts | {"seconds": arguments.seconds}

    def run(task: tuple[str, str, str]) -> None:
        guide, name, seed = task
        if time.monotonic() > end:
            return
        history = opened[name].history(guide, int(seed))
        with lock:
            rows[name].setdefault("histories", {}).setdefault(guide, {})[seed] = history
            if kept is not None:
                kept.write_text(json.dumps(rows))

    with ThreadPoolExecutor(arguments.processes) as pool:
        # What the best plan is, is known at the end.
        for last in (False, True):
            for _ in pool.map(run, [task for task in wanted if (task[0] in CEILINGS) is last]):
                pass


if __name__ == "__main__":
    main()
