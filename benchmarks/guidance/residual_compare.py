"""Insertion as a game against the learned guide's plan and ruin and recreate, at equal processor time.

python -m benchmarks.guidance.residual_compare save FOLDER --part testing --capacities 0.25,0.35     # needs ../shared
python -m benchmarks.guidance.residual_compare run FOLDER NETWORKS OUT.jsonl --processes 2 --seconds 600
python -m benchmarks.guidance.residual_compare table OUT.jsonl
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import time
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.lib.memory_mapping.constructions import best_guided, quick_insertion
from benchmarks.lib.memory_mapping.residual import (
    ACTIONS,
    BEST,
    DENSE,
    DENSER,
    LAST,
    LATER,
    OUT,
    THOROUGH,
    Network,
)
from benchmarks.lib.memory_mapping.residual_labels import SHAPES, network
from benchmarks.lib.memory_mapping.residual_play import Climb, Program, evenly
from stowplan.models.memory_mapping.problem import Problem
from stowplan.portfolio.memory_mapping import heuristics
from stowplan.portfolio.memory_mapping.arrays import Data, build
from stowplan.portfolio.memory_mapping.search import new_search, ruin_and_recreate
from stowplan.portfolio.memory_mapping.state import State

#: As ``candidates.LOSS``.
LOSS = 2e-3

#: Thresholds of the first games of a policy, then heats of drawn ones.
THRESHOLDS, HEATS = (0.1, 0.05, 0.2, 0.4, 0.0), (0.02, 0.05, 0.1)

#: Part of the time in which a policy plays before the search goes on.
PLAYED = 0.25

WITHOUT = Path(__file__).parent / "without_family"


def save(arguments: argparse.Namespace) -> None:
    from benchmarks.lib.memory_mapping import scarce

    arguments.folder.mkdir(parents=True, exist_ok=True)
    for capacity in arguments.capacities.split(","):
        for name in scarce.modules(arguments.part):
            problem = scarce.made(f"{name} {capacity}")
            problem.save(arguments.folder / f"{name.partition('/')[2]} {capacity}.json")


@lru_cache(maxsize=4)
def opened(path: Path) -> tuple[Problem, Data]:
    problem = Problem.load(path)
    return problem, build(problem)


@lru_cache(maxsize=8)
def policy(path: Path) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    with np.load(path) as found:
        return found["vector"].astype(np.float64), found["mean"], found["scale"]


def untrained(seed: int, mean: np.ndarray, scale: np.ndarray) -> np.ndarray:
    rng = np.random.default_rng(seed)
    parts = [
        (rng.normal(size=shape) * (1.5 / shape[0]) ** 0.5 if len(shape) == 2 else np.zeros(shape)).reshape(-1)
        for shape in SHAPES
    ]
    return np.concatenate(parts)


class Run:
    """One method on one program: the best objective, and when each came."""

    def __init__(self, path: Path, networks: Path, seconds: float, seed: int):
        self.path, self.networks, self.seconds, self.seed = path, networks, seconds, seed
        self.problem, self.data = opened(path)
        self.floor = self.problem.floor_ps
        self.history: list[tuple[float, int]] = []
        self.facts: dict[str, Any] = {}
        self.began = time.process_time()

    def spent(self) -> float:
        return time.process_time() - self.began

    def note(self, total: int) -> bool:
        if not self.history or total < self.history[-1][1]:
            self.history.append((self.spent(), int(total)))
            return True
        return False

    def insertions(self, orders: tuple[int, ...] = (1, 3, 0, 2)) -> State:
        best: State | None = None
        for by in orders:
            state = quick_insertion(self.data, by)
            self.note(int(state.totals[0].total))
            if best is None or state.totals[0].total < best.totals[0].total:
                best = state
        assert best is not None
        return best

    def thorough(self) -> State:
        state, _ = heuristics.run(heuristics.best_insertion(self.data, 1), lambda: False)
        self.note(int(state.totals[0].total))
        return state

    def guided(self) -> State:
        from benchmarks.guidance.data import family
        from stowplan.learned_guidance.memory_mapping.guide import guide

        file = WITHOUT / f"{family(self.path.stem.split()[0])}.npz"
        file = file if file.exists() else guide.SHIPPED
        guide.load(file)
        self.began = time.process_time()
        state = best_guided(self.data, guide.learned_hint(self.problem, file), lambda: False)
        self.note(int(state.totals[0].total))
        return state

    def search(self, state: State, density: Any = None) -> None:
        """Ruin and recreate to the end of the time, as the portfolio does."""
        density = heuristics.densities(self.data, 1) if density is None else density
        search = new_search(self.data, state, density, self.seed)
        status = search.status[0]
        started, begin = int(status.best), self.spent()
        left, rounds = max(1e-3, self.seconds - begin), 1
        while (part := (self.spent() - begin) / left) < 1:
            at = time.process_time()
            ruin_and_recreate(self.data, state, search, rounds, LOSS * (started - self.floor) * (1.0 - part) ** 2)
            self.note(int(status.best))
            rounds = max(1, rounds // 2) if time.process_time() - at > 0.01 else rounds + 1
        self.facts["rounds"] = int(status.rounds)

    def nets(self, name: str) -> tuple[list[Network], list[Network]]:
        """Networks to play by, likeliest games first; and those to draw from."""
        vector, mean, scale = policy(self.networks / ("evolved.npz" if name == "evolved" else "expert.npz"))
        if name == "untrained":
            vector = untrained(self.seed, mean, scale)
        thresholds = (0.0, 0.05, -0.05, 0.1, 0.2) if name == "evolved" else THRESHOLDS
        return [network(vector, mean, scale, each) for each in thresholds], [network(vector, mean, scale, thresholds[0])]

    def played(self, name: str, until: float, most: int = 1 << 30) -> tuple[Program, np.ndarray, np.ndarray]:
        """Games of a policy until a time: the program in the best one's order, its actions, and what the network said first."""
        programs = {1: Program(self.data)}
        first, drawn = self.nets(name)
        program = programs[1]
        best = np.zeros(program.count, np.int64)
        self.note(program.total(best))
        said, count = {}, 0
        likeliest = [(by, net) for net in first for by in (1, 0, 3, 2)]
        while self.spent() < until and count < most:
            net, heat, by = drawn[0], HEATS[count % len(HEATS)], (1, 0, 3, 2)[count % 4]
            if count < len(likeliest):
                (by, net), heat = likeliest[count], 0.0
            if by not in programs:
                programs[by] = Program(self.data, by)
            of = programs[by]
            total = of.played(net, seed=self.seed * 1000 + count, heat=heat)
            game = of.here.game
            if by not in said:
                said[by] = np.where(np.isnan(game.rows[:, :1]), -1.0, game.scores)
            if self.note(total):
                program, best = of, game.chosen.copy()
            count += 1
        by = next(by for by, each in programs.items() if each is program)
        self.facts |= {"games": count, "by": by, "actions": np.bincount(best, minlength=ACTIONS).tolist()}
        return program, best, said.get(by, np.full((program.count, ACTIONS), -1.0))

    def climbed(self, program: Program, actions: np.ndarray, where: Any, what: Any) -> None:
        climb = Climb(program, actions, where, what, 2.0, self.seed)
        self.note(climb.best)
        count = 1
        while self.spent() < self.seconds:
            at = time.process_time()
            climb.tries(count)
            self.note(climb.best)
            count = max(1, count // 2) if time.process_time() - at > 0.01 else count + 1
        self.facts["tried"] = climb.tried

    def state_of(self, program: Program, actions: np.ndarray) -> State:
        program.total(actions)
        return program.here.state


def insertion(run: Run) -> None:
    run.insertions((1,))


def insertion4(run: Run) -> None:
    run.insertions()


def thorough(run: Run) -> None:
    run.thorough()


def guide(run: Run) -> None:
    run.guided()


def rr(run: Run) -> None:
    run.search(run.insertions())


def thorough_rr(run: Run) -> None:
    states = [run.thorough(), run.insertions((3, 0, 2))]
    run.search(min(states, key=lambda each: int(each.totals[0].total)))


def dense_rr(run: Run) -> None:
    """Insertion over dense gaps alone in each order, then the search: nothing learned."""
    best, kept = 1 << 62, None
    for by in (1, 0, 3, 2):
        program = Program(run.data, by)
        total = program.total(np.full(program.count, DENSE))
        run.note(total)
        if total < best:
            best, kept = total, program.here.state
    states = [kept, run.insertions()]
    run.search(min(states, key=lambda each: int(each.totals[0].total)))


def guide_rr(run: Run) -> None:
    states = [run.guided(), run.insertions()]
    run.search(min(states, key=lambda each: int(each.totals[0].total)))


def first(run: Run, name: str) -> None:
    """One game."""
    run.played(name, 1e9, 1)


def four(run: Run, name: str) -> None:
    """One game for each order."""
    run.played(name, 1e9, 4)


def twenty(run: Run, name: str) -> None:
    """And for each threshold."""
    run.played(name, 1e9, 20)


def same(run: Run, action: int) -> None:
    """The same action for all tensors, in each order."""
    for by in (1, 0, 3, 2):
        program = Program(run.data, by)
        run.note(program.total(np.full(program.count, action)))


def filled(run: Run) -> None:
    """Memory filled by density as a hint, which learns nothing."""
    from stowplan.learned_guidance.memory_mapping.guide.guide import filled_hint

    run.note(int(best_guided(run.data, filled_hint(run.problem), lambda: False).totals[0].total))


def games(run: Run, name: str) -> None:
    run.played(name, run.seconds)


def proposals(said: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Odds of changes from what a network said."""
    others = said[:, 1:]
    where = 0.02 + 1 / (1 + np.exp(-np.clip((others.max(axis=1) - 0.05) / 0.1, -20, 20)))
    what = np.zeros_like(said)
    what[:, 1:] = np.exp(np.clip((others - others.max(axis=1, keepdims=True)) / 0.1, -20, 0)) + 0.03
    return where, what


def games_climb(run: Run, name: str) -> None:
    program, best, said = run.played(name, PLAYED * run.seconds)
    run.climbed(program, best, *proposals(said))


def games_rr(run: Run, name: str) -> None:
    program, best, _ = run.played(name, PLAYED * run.seconds, 20)
    states = [run.state_of(program, best), run.insertions((3, 0, 2))]
    run.search(min(states, key=lambda each: int(each.totals[0].total)))


def games_rr_hint(run: Run, name: str) -> None:
    """The values too: tensors that the policy postpones or leaves out come later in the search."""
    program, best, said = run.played(name, PLAYED * run.seconds, 20)
    density = heuristics.densities(run.data, 1)
    worse = np.clip(said[:, [LATER, LAST, OUT]].max(axis=1), -0.3, 0.3)
    density[program.table.order] *= np.exp(-3.0 * worse)
    states = [run.state_of(program, best), run.insertions((3, 0, 2))]
    run.search(min(states, key=lambda each: int(each.totals[0].total)), density)


def uniform(run: Run) -> None:
    """(1+1) search over actions drawn evenly."""
    program = Program(run.data)
    run.climbed(program, np.zeros(program.count, np.int64), *evenly(program, [DENSE, DENSER, THOROUGH, LATER, LAST, OUT]))


def drawn(run: Run) -> None:
    """Games with a few actions drawn evenly, each from insertion's: what a policy of no knowledge does."""
    program = Program(run.data)
    rng = np.random.default_rng(run.seed)
    zero = np.zeros(program.count, np.int64)
    run.note(program.total(zero))
    while run.spent() < run.seconds:
        actions = np.where(
            rng.random(program.count) < rng.choice([0.01, 0.03, 0.1]), rng.integers(1, ACTIONS, program.count), BEST
        )
        run.note(program.total(actions))


CONSTANT = {"dense": DENSE, "denser": DENSER, "thorough4": THOROUGH}
METHODS: dict[str, Any] = {
    each.__name__: each
    for each in (insertion, insertion4, thorough, guide, filled, rr, thorough_rr, dense_rr, guide_rr, uniform, drawn)
}
PLAYS = {each.__name__: each for each in (first, four, twenty, games, games_climb, games_rr, games_rr_hint)}


def one(task: tuple[Path, Path, str, float, int]) -> dict[str, Any]:
    path, networks, method, seconds, seed = task
    run = Run(path, networks, seconds, seed)
    name, _, of = method.partition(":")
    if name in CONSTANT:
        same(run, CONSTANT[name])
    elif of:
        PLAYS[name](run, of)
    else:
        METHODS[name](run)
    return {
        "case": path.stem,
        "method": method,
        "seconds": seconds,
        "seed": seed,
        "best": run.history[-1][1],
        "history": run.history[-200:],
        "spent": run.spent(),
        "slow": run.problem.all_slow_ps,
        "uses": run.problem.use_count,
        **run.facts,
    }


def tasks(folder: Path, networks: Path) -> list[tuple[Path, Path, str, float, int]]:
    """What is to be run, the most important first."""
    paths = sorted(folder.glob("*.json"), key=lambda path: -path.stat().st_size)
    nets = ["expert"] + (["evolved"] if (networks / "evolved.npz").exists() else [])
    found: list[tuple[str, float, int]] = [(name, 0.0, 0) for name in ("insertion", "guide", "filled", *CONSTANT)]
    found += [(f"{name}:{net}", 0.0, 0) for name in ("first", "four", "twenty") for net in nets]
    timed = [f"{name}:{net}" for net in nets for name in ("games", "games_climb", "games_rr")]
    found += [(name, 1.0, 0) for name in ["rr", "dense_rr", *timed, "uniform", "games:untrained"]]
    found += [(name, 1.0, seed) for seed in (1, 2) for name in timed]
    found += [(name, 1.0, seed) for seed in (1, 2) for name in ("dense_rr", "rr", "guide_rr", "uniform", "games:untrained")]
    found += [(name, seconds, 0) for seconds in (0.1, 0.3) for name in timed]
    found += [(f"games_rr:{net}", 10.0, 0) for net in reversed(nets)]
    found += [
        ("games_rr_hint:expert", 1.0, 0),
        ("games_rr_hint:expert", 10.0, 0),
        ("uniform", 10.0, 0),
        ("games_climb:expert", 10.0, 0),
    ]
    found += [("guide_rr", 1.0, 0), ("rr", 10.0, 0), ("guide_rr", 10.0, 0)]
    return [(path, networks, *each) for each in found for path in paths]


def warm(path: Path, networks: Path) -> None:
    """Compile everything."""
    methods = ["thorough", "guide_rr", "uniform"]
    for method in methods + (["games_rr_hint:expert"] if (networks / "expert.npz").exists() else []):
        one((path, networks, method, 0.5, 0))


def run(arguments: argparse.Namespace) -> None:
    end = time.monotonic() + arguments.seconds
    done = set()
    if arguments.output.exists():
        rows = [json.loads(line) for line in arguments.output.read_text().splitlines()]
        done = {(row["case"], row["method"], row["seconds"], row["seed"]) for row in rows}
    todo = [each for each in tasks(arguments.folder, arguments.networks) if (each[0].stem, *each[2:]) not in done]
    if arguments.methods:
        todo = [each for each in todo if each[2] in arguments.methods.split(",")]
    if not todo:
        return
    warm(todo[-1][0], arguments.networks)
    with multiprocessing.get_context("fork").Pool(arguments.processes) as pool, arguments.output.open("a") as file:
        for row in pool.imap_unordered(one, todo):
            file.write(json.dumps(row) + "\n")
            file.flush()
            if time.monotonic() > end:
                pool.terminate()
                break


def table(arguments: argparse.Namespace) -> None:
    """Mean gaps to the best plans of all files, and what is closed of insertion's; bootstrap over modules and seeds."""
    lines = [json.loads(line) for path in arguments.files for line in path.read_text().splitlines()]
    best: dict[str, int] = {}
    for row in lines:
        best[row["case"]] = min(best.get(row["case"], row["best"]), row["best"])
    gaps: dict[tuple[str, float], dict[str, list[float]]] = {}
    for row in lines:
        of = gaps.setdefault((row["method"], row["seconds"]), {})
        of.setdefault(row["case"], []).append(100 * (row["best"] / best[row["case"]] - 1))
    begun = gaps["insertion", 0.0]
    modules = sorted({case.split()[0] for case in best})
    rng = np.random.default_rng(0)
    print("| method | s | seeds | gap % | closed % |\n|---|--:|--:|--:|--:|")
    for (method, seconds), found in sorted(gaps.items()):
        if len(found) < len(best):
            continue

        def closed(names: Any, found: dict[str, list[float]] = found) -> float:
            cases = [case for name in names for case in best if case.split()[0] == name]
            means = [np.mean(rng.choice(found[case], len(found[case]))) for case in cases]
            return float(100 * (1 - np.mean(means) / np.mean([begun[case][0] for case in cases])))

        draws = [closed(rng.choice(modules, len(modules))) for _ in range(1000)]
        low, high = np.percentile(draws, [2.5, 97.5])
        gap = np.mean([np.mean(each) for each in found.values()])
        share = 100 * (1 - gap / np.mean([each[0] for each in begun.values()]))
        seeds = max(len(each) for each in found.values())
        print(f"| {method} | {seconds:g} | {seeds} | {gap:.2f} | {share:.0f} ({low:.0f} to {high:.0f}) |")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one_ = commands.add_parser("save")
    one_.add_argument("folder", type=Path)
    one_.add_argument("--part", default="testing")
    one_.add_argument("--capacities", default="0.25,0.35")
    one_.set_defaults(run=save)
    two = commands.add_parser("run")
    two.add_argument("folder", type=Path)
    two.add_argument("networks", type=Path)
    two.add_argument("output", type=Path)
    two.add_argument("--processes", type=int, default=1)
    two.add_argument("--seconds", type=float, default=600.0, help="begin nothing after so many")
    two.add_argument("--methods", default="")
    two.set_defaults(run=run)
    three = commands.add_parser("warm")
    three.add_argument("folder", type=Path)
    three.add_argument("networks", type=Path)
    three.set_defaults(
        run=lambda given: warm(min(given.folder.glob("*.json"), key=lambda path: path.stat().st_size), given.networks)
    )
    four_ = commands.add_parser("table")
    four_.add_argument("files", type=Path, nargs="+")
    four_.set_defaults(run=table)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
