"""Runs of methods on loop bodies, a file for each: what ``paper.py`` makes tables of.

A file's name has the digest of the problem in it (graph, machine, rules), so that runs of other machines and limits on delays
lie side by side in one folder.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import msgspec
import numpy as np

from benchmarks.lib.modulo_scheduling import kernels
from benchmarks.lib.modulo_scheduling.collection import read_collection
from benchmarks.lib.modulo_scheduling.equal_work import HEURISTICS
from benchmarks.lib.runs import save
from stowplan.frontends.dfg import lower
from stowplan.hardware.se import load_machine
from stowplan.learned_guidance.modulo_scheduling.body import Body as Mapped
from stowplan.learned_guidance.modulo_scheduling.state import Mapping
from stowplan.models.modulo_scheduling.bounds import critical_path, find_obstacle, least_ii
from stowplan.models.modulo_scheduling.plan import decode_objective, encode_objective
from stowplan.models.modulo_scheduling.problem import Problem, Rules
from stowplan.portfolio.modulo_scheduling.body import Body
from stowplan.portfolio.modulo_scheduling.search import Tally, list_scheduling

#: Methods beside the reference, in the order of tables.
METHODS = ("list", "random", "evolution", "uniform", "untrained", "ppo")

#: Those without a player; and those that are run only if they are named.
_HEURISTICS, NAMED = ("list", "random", "evolution", "search"), ("search",)

#: Methods that draw nothing.
FIXED = ("reference", "list")

#: Evaluations at which results are read off the runs.
BUDGETS = (64,)

#: Processor seconds at which they are; a run goes on until it has had both.
SECONDS = (0.2,)

#: Mappings of each graph that single roll-outs are judged by; and of a batch where the latency is first.
ROLLOUTS = 8

#: Intervals, from the least upwards, that are tried in turn where the latency is first.
INTERVALS = 8

#: (evaluations, processor seconds, objective) of each plan better than all before.
Progress = list[tuple[int, float, int]]


@dataclass(frozen=True)
class Setting:
    """What graphs are mapped to, by which rules, what counts first, and what may be spent."""

    machine: str = "se"
    """Name or file."""
    max_delay: int | None = None
    least: int = 0
    """Only graphs of more instructions."""
    most: int = 40
    """Only graphs of no more."""
    first: str = "ii"
    evaluations: int = BUDGETS[-1]
    seconds: float = 0.0
    """Of the processor, instead of evaluations; 0 for none."""
    repair: bool = False
    """Whether half of the batches of roll-outs begin with what was placed before, as those of the portfolio do."""
    only: tuple[str, ...] = ()
    """Names of graphs; empty for all."""

    @property
    def budget(self) -> str:
        """What the names of files end in."""
        spent = f"{self.seconds:g}s" if self.seconds else str(self.evaluations)
        return spent + "-repair" * self.repair + "-latency" * (self.first == "latency")

    def graphs(self, folder: Path) -> Iterable[tuple[str, str, Problem]]:
        """(suite, name, problem) of the suites, but those that bounds say cannot be mapped."""
        for suite, problems in read_collection(folder, self.machine, rules=Rules(max_delay=self.max_delay)).suites.items():
            for problem in problems:
                fits = self.least < len(problem.instructions) <= self.most and (not self.only or problem.name in self.only)
                if fits and find_obstacle(problem) is None:
                    yield suite, problem.name, problem

    def covers(self, run: Run) -> bool:
        """Whether a run was made so."""
        return (
            run.machine == load_machine(self.machine).name
            and run.max_delay == self.max_delay
            and self.least < run.instructions <= self.most
            and (not self.only or run.graph in self.only)
            and (run.method == "reference" or (run.first, run.repair, run.limit) == (self.first, self.repair, self.seconds))
        )


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
    progress: Progress
    """Objectives have the interval before the latency, or where ``first`` is the latency behind it."""
    bound: int = 0
    """Of the initiation interval."""
    machine: str = "se"
    max_delay: int | None = None
    first: str = "ii"
    repair: bool = False
    limit: float = 0.0
    """Processor seconds that it had; 0 where it had evaluations."""
    least: int = 0
    """Interval that bounds leave at least."""
    path: int = 0
    """Critical path, in clocks."""
    infeasible: bool = False
    """Whether the reference proved that there is no mapping."""

    @property
    def name(self) -> str:
        """Of the method; policies ``NAME@SEED`` of one training have one name."""
        return self.method.partition("@")[0]

    @property
    def repetition(self) -> tuple[str, int]:
        """Seed of the training, where there are several, and of the run."""
        return self.method.partition("@")[2], self.seed

    def best(self, evaluations: float = float("inf"), seconds: float = float("inf")) -> tuple[int, int] | None:
        """Initiation interval and latency after so much; None for no plan."""
        seconds = min(seconds, self.limit or seconds)
        within = [value for at, when, value in self.progress if at <= evaluations and when <= seconds]
        if not within:
            return None
        one, other = decode_objective(min(within))
        return (one, other) if self.first == "ii" else (other, one)

    def ii(self, evaluations: float = float("inf"), seconds: float = float("inf")) -> int | None:
        """Initiation interval after so much; None for no plan."""
        found = self.best(evaluations, seconds)
        return None if found is None else found[0]


def particles(body: Mapped, ii: int, count: int) -> list[Mapping]:
    """So many empty mappings of one problem at one interval."""
    first = Mapping(body, ii)
    return [first, *(first.copy() for _ in range(count - 1))]


@cache
def player_of(method: str) -> Any:
    """Who plays ``uniform``, ``untrained``, ``ppo`` or ``NAME=FILE``."""
    import torch

    from stowplan.learned_guidance.modulo_scheduling.ppo.config import PpoConfig
    from stowplan.learned_guidance.modulo_scheduling.ppo.network import Network
    from stowplan.learned_guidance.modulo_scheduling.ppo.policy import Policy
    from stowplan.learned_guidance.modulo_scheduling.state import Uniform
    from stowplan.portfolio.modulo_scheduling.learned import POLICY

    torch.set_num_threads(1)
    if method == "uniform":
        return Uniform()
    if method == "untrained":
        torch.manual_seed(0)
        return Policy(Network(PpoConfig(layers=3)))
    return Policy.load(POLICY.path if method == "ppo" else method.partition("=")[2])


@cache
def _warm_up() -> None:
    """Load what runs would otherwise be charged for."""
    import stowplan.learned_guidance.modulo_scheduling.ppo.trainer  # noqa: F401
    from stowplan.portfolio.modulo_scheduling.tempering import Tempering

    Tempering(Body(lower(kernels.distance())), 2, (0,)).search(1, lambda: False, lambda moves: None)


def play(method: str, problem: Problem, seed: int, setting: Setting) -> tuple[int, Progress]:
    """A method within a budget: evaluations, and plans."""
    _warm_up()
    player = None if method in _HEURISTICS else player_of(method)
    if setting.first == "latency":
        return _sweep(method, player, problem, seed, setting.evaluations)
    found: Progress = []
    began = time.process_time()
    tally = Tally(Body(problem))
    tally.on_better = lambda plan: found.append((tally.evaluations, time.process_time() - began, plan.objective))

    def over() -> bool:
        spent = time.process_time() - began
        if setting.seconds:
            return spent >= setting.seconds
        return tally.evaluations >= setting.evaluations and spent >= SECONDS[-1]

    if method == "list":
        list_scheduling(tally, seed, over)
    elif method in HEURISTICS:
        HEURISTICS[method](tally, seed, 1 << 40, over)
    else:
        from stowplan.portfolio.modulo_scheduling.rollouts import RollOuts

        rolls = RollOuts(tally, player, seed, repair=setting.repair)
        while not over():
            rolls.step(tally.body.least_ii, over if setting.seconds else lambda: False)
    return tally.evaluations, found


def _sweep(method: str, player: Any, problem: Problem, seed: int, evaluations: int) -> tuple[int, Progress]:
    """The least latency: batches of roll-outs at the least intervals in turn; of list scheduling, one schedule at each."""
    body, mapped, began = Body(problem), Mapped(problem), time.process_time()
    chance, found, spent = np.random.default_rng(seed), Progress(), 0
    intervals = body.iis[:INTERVALS]
    while intervals and spent < evaluations:
        for ii in intervals:
            if player is None:
                body.iis = (ii,)
                tally = Tally(body)
                list_scheduling(tally, seed, lambda: False)
                plans = [] if tally.best is None else [tally.best]
                spent += tally.evaluations
            else:
                group = particles(mapped, ii, ROLLOUTS)
                done = player.place(group, chance, resample=True)
                plans = [each.plan(list_scheduled=True) for each in done if each.current < 0]
                spent += len(group)
            for plan in plans:
                value = encode_objective(plan.makespan, plan.ii)
                if not found or value < found[-1][2]:
                    found.append((spent, time.process_time() - began, value))
        if player is None:
            break
    return spent, found


def refer(problem: Problem, seconds: float) -> tuple[int, Progress, bool]:
    """Bound of the initiation interval, plans, and whether there are none, of the exact search."""
    from stowplan.models.modulo_scheduling import cpsat

    began, bounds = time.process_time(), [least_ii(problem)]
    found: Progress = []
    outcome = cpsat.solve(
        problem,
        time_limit=seconds,
        workers=1,
        on_plan=lambda plan: found.append((0, time.process_time() - began, plan.objective)),
        on_bound=lambda bound: bounds.append(decode_objective(bound)[0]),
        should_stop=lambda: bool(found) and decode_objective(min(each[2] for each in found))[0] <= max(bounds),
    )
    return max(bounds), found, outcome.status == "infeasible"


def make(
    graphs: Path, folder: Path, setting: Setting, methods: Sequence[str], seeds: int, count: int, reference: float
) -> None:
    """All runs of a setting that are not there yet, of so many graphs of the suites; 0: of all."""
    folder.mkdir(parents=True, exist_ok=True)
    known = {each[2].digest: each for each in setting.graphs(graphs)}
    # In no order of size or suite, so that a part of the runs is a fair part.
    chosen = sorted(known.values(), key=lambda each: each[2].digest)
    for suite, name, problem in chosen[: count or None]:
        for method in methods:
            label = method.partition("=")[0]
            for seed in range(1 if label in FIXED else seeds):
                # A reference is the same whatever is spent beside it.
                budget = str(setting.evaluations) if method == "reference" else setting.budget
                file = folder / f"{label}-{problem.digest[:12]}-{seed}-{budget}.json"
                if file.exists():
                    continue
                began = time.process_time()
                bound = evaluations = 0
                infeasible = False
                if method == "reference":
                    bound, progress, infeasible = refer(problem, reference)
                else:
                    evaluations, progress = play(method, problem, seed, setting)
                run = Run(
                    method=label,
                    suite=suite,
                    graph=name,
                    digest=problem.digest,
                    instructions=len(problem.instructions),
                    seed=seed,
                    evaluations=evaluations,
                    seconds=time.process_time() - began,
                    progress=progress,
                    bound=bound,
                    machine=problem.machine.name,
                    max_delay=setting.max_delay,
                    first="ii" if method == "reference" else setting.first,
                    repair=method != "reference" and setting.repair,
                    limit=0.0 if method == "reference" else setting.seconds,
                    least=min(Body(problem).iis, default=least_ii(problem)),
                    path=critical_path(problem),
                    infeasible=infeasible,
                )
                save(file, run)
                print(label, suite, name, run.instructions, seed, run.ii(), f"{run.seconds:.1f} s", flush=True)


def load(folder: Path) -> list[Run]:
    """All runs of a folder."""
    return [msgspec.json.decode(path.read_bytes(), type=Run) for path in sorted(folder.glob("*.json"))]


def proven(runs: Sequence[Run]) -> dict[str, int]:
    """Least initiation interval by digest, where it is proven."""
    return {run.digest: run.bound for run in runs if run.method == "reference" and run.ii() == run.bound}
