"""What a guide is worth to the search of memory mapping: objectives at parts of a budget of processor time.

    python benchmarks/guidance.py --seconds 10 --seeds 0,1,2 --json-out guidance.json

Each module of ../shared/corpus/tpu_v4 (or $STOWPLAN_SHARED/corpus/tpu_v4) that is named is searched with

* no guide;
* the relaxation's values shuffled among the accesses (the control);
* the relaxation's values, from the moment at which a second worker would have solved it;
* the values of the best plan that one of these searches, or an earlier call with the same ``--plans``, has found: from the
  start.

Results are kept in the JSON file as they come: a run that was interrupted goes on where it was.

The candidate ``search`` runs alone in a process, with the clock of its processor time in place of the wall's, so that the load
of the machine does not matter: what two workers do on a machine at leisure, without large-neighbourhood search. Loading and
compiled code count. Gaps are to the best bound known (``--bounds``: what ``memory_mapping.py --json-out`` wrote; else the
relaxation's).
"""

from __future__ import annotations

import argparse
import json
import os
import random
import statistics
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec

import stowplan
from stowplan.models.hint import Hint
from stowplan.models.memory_mapping.hint import of_plan
from stowplan.models.memory_mapping.milp.guide import relaxation_hint
from stowplan.models.memory_mapping.milp.solve import Effort
from stowplan.models.memory_mapping.plan import Plan
from stowplan.models.memory_mapping.problem import Problem
from stowplan.models.memory_mapping.verify import verify
from stowplan.portfolio.context import Options
from stowplan.portfolio.memory_mapping import candidates

from tables import table  # isort: skip - stands beside this file

SHARED = Path(os.environ.get("STOWPLAN_SHARED", Path(__file__).resolve().parents[2] / "shared"))

HARD = "resnet101_train_b16,resnet50_train_b32,wavenet_inf_b32,nmt_attn_train_b32,gpt2s_train_b2_s512,gpt2m_train_b1_s512"

GUIDES = ("relaxation", "none", "shuffled", "plan")

#: Parts of the budget at which objectives are noted.
PARTS = (0.1, 1 / 3, 1.0)

#: Processor seconds that a worker of the exact side takes before it begins.
LOADING = 0.6


class Clocked:
    """A context with the processor's clock; the hint is there from a moment on."""

    start_plan = None

    def __init__(self, problem: Problem, options: Options, hint: Hint | None, after: float):
        self.options = options
        self._problem, self._hint, self._after = problem, hint, after
        self.best: Plan | None = None
        self.history: list[tuple[float, int]] = []

    def plan(self, plan: Plan, source: str) -> None:
        found = verify(self._problem, plan)
        assert found.ok, found.violations[:3]
        if self.best is None or plan.objective_ps < self.best.objective_ps:
            self.best = plan
            self.history.append((time.process_time(), plan.objective_ps))

    def bound(self, bound: int, source: str) -> None:
        pass

    def note(self, text: str) -> None:
        pass

    def incumbent(self) -> tuple[Any, int | None]:
        return None, None

    def hints(self) -> tuple[Hint, ...]:
        return () if self._hint is None or time.process_time() < self._after else (self._hint,)

    def stop(self) -> bool:
        return time.process_time() >= self.options.time_limit

    def remaining(self) -> float:
        return max(0.0, self.options.time_limit - time.process_time())


def shuffled(hint: Hint, seed: int) -> Hint:
    """The same values at other accesses, the pairs of an access together."""
    order = list(range(len(hint.values["fast"])))
    random.Random(seed).shuffle(order)
    values = {name: tuple(values[place] for place in order) for name, values in hint.values.items()}
    return msgspec.structs.replace(hint, values=values)


def child(arguments: argparse.Namespace) -> None:
    """One search, in this process; prints its history, and saves its plan where it is asked to."""
    problem = Problem.load(arguments.child)
    hint = None if arguments.hint is None else Hint.load(arguments.hint)
    options = Options(time_limit=arguments.seconds, seed=arguments.seed, candidates=("heuristic",))
    # Reading the problem and the hint is not part of a worker's start.
    context = Clocked(problem, options, hint, arguments.after)
    candidates.time = SimpleNamespace(monotonic=time.process_time)  # type: ignore[assignment]
    candidates.search(problem, context)
    if arguments.plan_out is not None and context.best is not None:
        context.best.save(arguments.plan_out)
    print(json.dumps(context.history))


def searched(problem: Path, hint: Path | None, after: float, seconds: float, seed: int, plan: Path | None = None) -> list[Any]:
    """The history of a search in a process of its own: processor seconds and objectives."""
    command = [sys.executable, __file__, "--child", str(problem), "--seconds", str(seconds), "--seed", str(seed)]
    command += [] if hint is None else ["--hint", str(hint), "--after", str(after)]
    command += [] if plan is None else ["--plan-out", str(plan)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    found: list[Any] = json.loads(done.stdout)
    return found


def objective_at(history: list[Any], moment: float, otherwise: int) -> int:
    """The best objective until a moment."""
    return min((objective for seconds, objective in history if seconds <= moment), default=otherwise)


class Module:
    """A module, its relaxation, and where its files are."""

    def __init__(self, path: Path, folder: Path, bound: int | None):
        folder.mkdir(parents=True, exist_ok=True)
        name = path.name.removesuffix(".hlo.txt.gz")
        self.problem = stowplan.read(path, target="tpu-v4")
        kinds = ("problem", "relaxation", "shuffled", "best", "found", "plan")
        self.at = {kind: folder / f"{name}.{kind}.json" for kind in kinds}
        self.problem.save(self.at["problem"])
        began = time.process_time()
        hint, proven = relaxation_hint(self.problem, Effort(end=time.monotonic() + 600.0))
        self.seconds = time.process_time() - began
        assert hint is not None
        self.hint = hint
        hint.save(self.at["relaxation"])
        self.bound = max(proven, bound or 0)

    def gaps(self, guide: str, seconds: float, seed: int) -> list[float]:
        """Gaps (%) of one search at each part of its budget; its plan is kept where it is the best so far."""
        at = self.at
        if guide == "shuffled":
            shuffled(self.hint, seed).save(at["shuffled"])
        elif guide == "plan":
            of_plan(self.problem, Plan.load(at["best"])).save(at["plan"])
        given = None if guide == "none" else at[guide]
        after = 0.0 if guide == "plan" else LOADING + self.seconds
        history = searched(at["problem"], given, after, seconds, seed, at["found"])
        found = Plan.load(at["found"])
        if not at["best"].exists() or found.objective_ps < Plan.load(at["best"]).objective_ps:
            found.save(at["best"])
        values = [objective_at(history, part * seconds, self.problem.all_slow_ps) for part in PARTS]
        return [100 * (1 - self.bound / value) for value in values]


def line(name: str, row: dict[str, Any], guides: list[str]) -> list[str]:
    """A row of the table: means over the seeds, at each part of the budget."""
    cells = [name, f"{row['uses']:,}", f"{row['relaxation_seconds']:.2f}"]
    for guide in guides:
        gaps = zip(*row["gaps"][guide].values(), strict=True)
        cells.append(" / ".join(f"{statistics.fmean(each):.2f}" for each in gaps))
    return cells


def main() -> None:
    """Measure, print a row a module, and keep everything."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", default=HARD, help="names, separated by commas")
    parser.add_argument("--seconds", type=float, default=10.0, help="processor time of the search")
    parser.add_argument("--seeds", default="0")
    parser.add_argument("--guides", default=",".join(GUIDES))
    parser.add_argument("--plans", type=Path, default=Path("out/guidance-plans"), help="where plans and hints are kept")
    parser.add_argument("--bounds", type=Path, help="results with better bounds than the relaxation's")
    parser.add_argument("--json-out", type=Path)
    for name, kind in (("--child", Path), ("--hint", Path), ("--plan-out", Path)):
        parser.add_argument(name, type=kind, help=argparse.SUPPRESS)
    parser.add_argument("--after", type=float, default=0.0, help=argparse.SUPPRESS)
    parser.add_argument("--seed", type=int, default=0, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.child is not None:
        child(arguments)
        return
    bounds = {} if arguments.bounds is None else json.loads(arguments.bounds.read_bytes())
    modules, guides = arguments.modules.split(","), arguments.guides.split(",")
    kept = arguments.json_out
    rows: dict[str, Any] = json.loads(kept.read_bytes()) if kept is not None and kept.exists() else {}
    opened: dict[str, Module] = {}
    # A guide at a time: what the best plan is, is known at the end.
    for guide, name in ((guide, name) for guide in guides for name in modules):
        seeds = [seed for seed in arguments.seeds.split(",") if seed not in rows.get(name, {}).get("gaps", {}).get(guide, {})]
        if not seeds:
            continue
        if name not in opened:
            path = SHARED / "corpus" / "tpu_v4" / f"{name}.hlo.txt.gz"
            opened[name] = Module(path, arguments.plans, bounds.get(name, {}).get("bound"))
        module = opened[name]
        row = rows.setdefault(name, {"uses": module.problem.use_count, "relaxation_seconds": module.seconds, "gaps": {}})
        for seed in seeds:
            row["gaps"].setdefault(guide, {})[seed] = module.gaps(guide, arguments.seconds, int(seed))
            if kept is not None:
                kept.write_text(json.dumps(rows, indent=1))
    head = ["module", "uses", "relaxation s", *guides]
    print(table([line(name, rows[name], guides) for name in modules], head))


if __name__ == "__main__":
    main()
