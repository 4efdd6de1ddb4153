"""The PPO mapper beside its controls and baselines, at equal evaluations and equal seconds: docs/benchmarks-ppo.md.

``python benchmarks/ppo.py run GRAPHS --folder RUNS [--method ppo --seeds 3 ...]`` makes runs that are not there yet, each kept
in a file of its own; ``tables --folder RUNS [--page FILE]`` prints the tables, or writes them between the markers of the page;
``single`` judges roll-outs one by one, ``chart CURVE... --output FILE`` draws the reward over training. Several processes may
work on one folder.

Methods: ``reference`` (CP-SAT, the initiation interval proven or not), ``list``, ``random``, ``evolution``, ``uniform``
(roll-outs to any legal place), ``untrained`` (a network that was never trained), ``ppo`` (the policy that ships), ``NAME=FILE``
(any other policy). The last four have the same masks and decoding. Policies were trained on generated graphs.
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
from tables import table, write_into

from stowplan import files
from stowplan.frontends.dfg import kernels, lower
from stowplan.learned_guidance.modulo_scheduling.collection import read_collection
from stowplan.models.modulo_scheduling.bounds import find_obstacle, least_ii
from stowplan.models.modulo_scheduling.plan import decode_objective
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.portfolio.modulo_scheduling.body import Body
from stowplan.portfolio.modulo_scheduling.evolution import Evolution
from stowplan.portfolio.modulo_scheduling.search import Tally, list_scheduling, random_play

#: Methods beside the reference, in the order of tables.
METHODS = ("list", "random", "evolution", "uniform", "untrained", "ppo")

#: Mappings of each graph that single roll-outs are judged by.
ROLLOUTS = 8

#: Evaluations at which results are read off the same runs.
BUDGETS = (16, 64)

#: Processor seconds at which they are; a run goes on until it has had both.
SECONDS = (0.2,)

#: Seconds of the reference for a graph.
REFERENCE = 20.0

#: Methods that draw nothing.
_FIXED = ("reference", "list")


class Run(msgspec.Struct):
    """One method on one graph."""

    method: str
    suite: str
    graph: str
    digest: str
    instructions: int
    seed: int
    evaluations: int
    seconds: float
    """Of the processor."""
    progress: list[tuple[int, float, int]]
    """(evaluations, processor seconds, objective) of each plan better than all before."""
    bound: int = 0
    """Of the initiation interval."""

    def ii(self, evaluations: float = float("inf"), seconds: float = float("inf")) -> int | None:
        """Initiation interval after so much; None for no plan."""
        within = [value for at, when, value in self.progress if at <= evaluations and when <= seconds]
        return decode_objective(min(within))[0] if within else None


class _Clocked(Tally):
    """A tally that notes the processor's time of each improvement."""

    def watch(self) -> list[tuple[int, float, int]]:
        began = time.process_time()
        found: list[tuple[int, float, int]] = []
        self.on_better = lambda plan: found.append((self.evaluations, time.process_time() - began, plan.objective))
        return found


@cache
def _player(method: str) -> Any:
    import torch

    from stowplan.learned_guidance.modulo_scheduling.ppo.network import Network, Shape
    from stowplan.learned_guidance.modulo_scheduling.ppo.policy import Policy
    from stowplan.learned_guidance.modulo_scheduling.rollouts import Uniform
    from stowplan.portfolio.modulo_scheduling.learned import POLICY

    torch.set_num_threads(1)
    if method == "uniform":
        return Uniform()
    if method == "untrained":
        torch.manual_seed(0)
        return Policy(Network(Shape()))
    return Policy.load(POLICY.path if method == "ppo" else method.partition("=")[2])


def play(method: str, problem: Problem, seed: int, evaluations: int) -> tuple[_Clocked, list[tuple[int, float, int]]]:
    """A method within a budget."""
    tally = _Clocked(Body(problem))
    player = None if method in ("list", "random", "evolution") else _player(method)
    found, began = tally.watch(), time.process_time()

    def over() -> bool:
        return tally.evaluations >= evaluations and time.process_time() - began >= SECONDS[-1]

    if method == "list":
        list_scheduling(tally, seed, over)
    elif method == "random":
        random_play(tally, seed, 1 << 40, over)
    elif method == "evolution":
        run = Evolution(tally, seed)
        while not over():
            run.generation(over)
    else:
        from stowplan.portfolio.modulo_scheduling.rollouts import RollOuts

        rolls = RollOuts(tally, player, seed)
        while not over():
            rolls.step(tally.body.least_ii, lambda: False)
    return tally, found


def refer(problem: Problem) -> tuple[int, list[tuple[int, float, int]]]:
    """Bound of the initiation interval, and plans, of the exact search."""
    from stowplan.models.modulo_scheduling import cpsat

    began, bounds, found = time.process_time(), [least_ii(problem)], []

    def take(plan: Any) -> None:
        found.append((0, time.process_time() - began, plan.objective))

    cpsat.solve(
        problem,
        time_limit=REFERENCE,
        workers=1,
        on_plan=take,
        on_bound=lambda bound: bounds.append(decode_objective(bound)[0]),
        should_stop=lambda: bool(found) and decode_objective(min(each[2] for each in found))[0] <= max(bounds),
    )
    return max(bounds), found


def graphs(folder: Path, most: int) -> Iterable[tuple[str, str, Problem]]:
    """(suite, name, problem) of the suites and of the paper's kernels."""
    for kernel in (kernels.vector_add(), kernels.multiply_add(), kernels.distance()):
        yield "kernels", kernel.name, lower(kernel)
    for suite, problems in read_collection(folder).at_most(most).suites.items():
        for problem in problems:
            if find_obstacle(problem) is None:
                yield suite, problem.name, problem


def make(arguments: argparse.Namespace) -> None:
    """All runs that are not there yet."""
    arguments.folder.mkdir(exist_ok=True)
    methods = arguments.method or ["reference", *METHODS]
    known = {each[2].digest: each for each in graphs(arguments.graphs, arguments.most)}
    # In no order of size or suite, so that a part of the runs is a fair part.
    for suite, name, problem in sorted(known.values(), key=lambda each: each[2].digest):
        for method in methods:
            label = method.partition("=")[0]
            for seed in range(1 if label in _FIXED else arguments.seeds):
                file = arguments.folder / f"{label}-{problem.digest[:12]}-{seed}-{arguments.evaluations}.json"
                if file.exists():
                    continue
                began = time.process_time()
                if method == "reference":
                    bound, progress = refer(problem)
                    evaluations = 0
                else:
                    tally, progress = play(method, problem, seed, arguments.evaluations)
                    bound, evaluations = 0, tally.evaluations
                seconds = time.process_time() - began
                count = len(problem.instructions)
                run = Run(label, suite, name, problem.digest, count, seed, evaluations, seconds, progress, bound)
                files.write_atomic(file, msgspec.json.encode(run))
                print(label, suite, name, count, seed, run.ii(), f"{seconds:.1f} s", flush=True)


def load(folder: Path) -> list[Run]:
    """All runs of a folder."""
    return [msgspec.json.decode(path.read_bytes(), type=Run) for path in sorted(folder.glob("*.json"))]


def proven(runs: Sequence[Run]) -> dict[str, int]:
    """Least initiation interval by digest, where it is proven."""
    return {run.digest: run.bound for run in runs if run.method == "reference" and run.ii() == run.bound}


def tables(arguments: argparse.Namespace) -> None:
    """Print tables, or write them into the page."""
    runs = load(arguments.folder)
    least = proven(runs)
    judged = [run for run in runs if run.digest in least and run.suite != "kernels" and run.instructions <= arguments.most]
    found = {run.method for run in judged} - {"reference"}
    methods = [name for name in METHODS if name in found] + sorted(found - {*METHODS})
    # Graphs that every method has run on.
    shared = set.intersection(*({run.digest for run in judged if run.method == name} for name in found))
    judged = [run for run in judged if run.digest in shared]
    texts = {
        "ppo evaluations": by_budget(judged, methods, least, "evaluations", BUDGETS),
        "ppo seconds": by_budget(judged, methods, least, "seconds", SECONDS),
        "ppo suites": by_suite(judged, methods, least),
        "ppo kernels": by_kernel(runs, methods),
    }
    print(f"{len(shared)} graphs")
    if arguments.page:
        write_into(arguments.page, {name: text + "\n" for name, text in texts.items()})
    else:
        print("\n\n".join(f"{name}\n{text}" for name, text in texts.items()))


def shares(runs: Sequence[Run], least: dict[str, int], **limit: float) -> tuple[float, float, float]:
    """Parts of the runs with a plan, within 1 of the proven interval, and at it."""
    gaps = [None if (ii := run.ii(**limit)) is None else ii - least[run.digest] for run in runs]
    count = max(1, len(gaps))
    valid = sum(gap is not None for gap in gaps)
    return (valid / count, sum(gap in (0, 1) for gap in gaps) / count, sum(gap == 0 for gap in gaps) / count)


def spread(runs: Sequence[Run], least: dict[str, int], **limit: float) -> list[str]:
    """The three shares in percent, mean over seeds and their range."""
    seeds = sorted({run.seed for run in runs})
    each = [shares([run for run in runs if run.seed == seed], least, **limit) for seed in seeds]
    cells = []
    for values in zip(*each, strict=True):
        low, high = 100 * min(values), 100 * max(values)
        mean = f"{100 * statistics.fmean(values):.0f} %"
        cells.append(mean if high - low < 0.5 else f"{mean} ({low:.0f} to {high:.0f})")
    return cells


def by_budget(runs: Sequence[Run], methods: Sequence[str], least: dict[str, int], what: str, budgets: Sequence[float]) -> str:
    """Rows of methods and budgets."""
    rows = []
    for budget in budgets:
        for method in methods:
            own = [run for run in runs if run.method == method]
            if own:
                rows.append([budget, method, *spread(own, least, **{what: budget})])
    return table(rows, [what, "method", "a plan", "within 1 of the proven II", "at the proven II"])


def by_suite(runs: Sequence[Run], methods: Sequence[str], least: dict[str, int]) -> str:
    """Rows of suites: within 1 of the proven interval, and at it, at the largest budget."""
    rows = []
    for suite in sorted({run.suite for run in runs}):
        row: list[object] = [suite, len({run.digest for run in runs if run.suite == suite})]
        for method in methods:
            own = [run for run in runs if (run.method, run.suite) == (method, suite)]
            _, near, best = shares(own, least, evaluations=BUDGETS[-1])
            row.append(f"{100 * near:.0f} / {100 * best:.0f}")
        rows.append(row)
    return table(rows, ["suite", "graphs", *methods])


def by_kernel(runs: Sequence[Run], methods: Sequence[str]) -> str:
    """II and latency of the paper's kernels, the worst of the seeds, and the proven optimum of the interval."""
    rows = []
    for graph in ("vector_add", "multiply_add", "distance"):
        own = [run for run in runs if (run.suite, run.graph) == ("kernels", graph)]
        row: list[object] = [graph]
        for method in ("reference", *methods):
            values = [min(value for *_, value in run.progress) for run in own if run.method == method and run.progress]
            row.append("{} / {}".format(*decode_objective(max(values))) if values else "")
        rows.append(row)
    return table(rows, ["kernel", "reference", *methods])


def single(arguments: argparse.Namespace) -> None:
    """How often mappings come to their end at once, without copies of others: what a policy knows, and decoding does not."""
    import numpy as np

    from stowplan.learned_guidance.modulo_scheduling.ppo.decode import particles
    from stowplan.learned_guidance.modulo_scheduling.state import Body as Mapped

    least = proven(load(arguments.folder))
    found = [each[2] for each in graphs(arguments.graphs, arguments.most) if each[0] != "kernels" and each[2].digest in least]
    bodies = [(Mapped(problem), least[problem.digest]) for problem in {each.digest: each for each in found}.values()]
    rows = []
    for method in arguments.method:
        player, chance, row = _player(method), np.random.default_rng(0), [method.partition("=")[0]]
        if method == "uniform":
            row += ["", ""]
        else:
            done = np.zeros(len(bodies), bool)
            for more in (0, 1):
                mappings = [particles(body, ii + more, 1)[0] for body, ii in bodies]
                done |= [each.current < 0 for each in player.place(mappings, chance, temperature=0.0)]
                row.append(f"{100 * done.mean():.0f} %")
        mappings = [each for body, ii in bodies for each in particles(body, ii, ROLLOUTS)]
        done = np.array([each.current < 0 for each in player.place(mappings, chance)]).reshape(-1, ROLLOUTS)
        row += [f"{100 * done.mean():.1f} %", f"{100 * done.any(axis=1).mean():.0f} %"]
        copied = [player.place(particles(body, ii, ROLLOUTS), chance, resample=True) for body, ii in bodies]
        row.append(f"{100 * np.mean([any(each.current < 0 for each in group) for group in copied]):.0f} %")
        print(row, flush=True)
        rows.append(row)
    drawn = f"any of {ROLLOUTS} drawn"
    text = table(rows, ["policy", "likeliest", "likeliest, or at one more", "drawn", drawn, f"{drawn}, with copies"])
    print(f"{len(bodies)} graphs")
    if arguments.page:
        write_into(arguments.page, {"ppo single": text + "\n"})
    else:
        print(text)


def chart(arguments: argparse.Namespace) -> None:
    """Reward over training, a run that goes on from another behind it."""
    import csv

    from matplotlib.figure import Figure

    steps, rewards, complete, before = [], [], [], 0
    for curve in arguments.curves:
        with curve.open() as stream:
            rows = [row for row in csv.DictReader(stream) if row["mean_reward"]]
        steps += [before + int(row["steps"]) for row in rows]
        rewards += [float(row["mean_reward"]) for row in rows]
        complete += [float(row["success"]) for row in rows]
        before = steps[-1]
    figure = Figure(figsize=(7, 3), layout="constrained")
    left, right = figure.subplots(1, 2)
    for axes, values, title in ((left, rewards, "mean reward"), (right, complete, "mappings completed")):
        axes.plot(steps, values, linewidth=0.5, alpha=0.4, color="C0")
        wide = [statistics.fmean(values[max(0, at - 7) : at + 8]) for at in range(len(values))]
        axes.plot(steps, wide, color="C0")
        axes.set_xlabel("placements")
        axes.set_title(title)
    figure.savefig(arguments.output, dpi=110)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parts = parser.add_subparsers(required=True)
    run = parts.add_parser("run")
    run.add_argument("graphs", type=Path, help="folder of suites")
    run.add_argument("--method", action="append", help="again and again; all where there is none")
    run.add_argument("--seeds", type=int, default=3)
    run.add_argument("--evaluations", type=int, default=BUDGETS[-1])
    run.set_defaults(function=make)
    show = parts.add_parser("tables")
    show.add_argument("--page", type=Path)
    show.set_defaults(function=tables)
    alone = parts.add_parser("single")
    alone.add_argument("graphs", type=Path, help="folder of suites")
    alone.add_argument("--method", action="append", required=True, help="uniform, untrained, ppo, NAME=FILE; again and again")
    alone.add_argument("--page", type=Path)
    alone.set_defaults(function=single)
    draw = parts.add_parser("chart")
    draw.add_argument("curves", type=Path, nargs="+")
    draw.add_argument("--output", type=Path, required=True)
    draw.set_defaults(function=chart)
    for each in (run, show, alone):
        each.add_argument("--folder", type=Path, required=True)
        each.add_argument("--most", type=int, default=40, help="instructions of a graph, at most")
    arguments = parser.parse_args()
    arguments.function(arguments)


if __name__ == "__main__":
    main()
