"""What the portfolio costs the candidate that wins in it: ``python -m benchmarks.calls.overhead [INSTANCE[=TARGET] ...]``.

For each instance the portfolio runs for its limit; then the candidate that made the best plan runs by itself, in this process,
for the same time, without a run around it: it gets the options of the run and its simplest plan, but no plans, bounds or hints
of others. A row says when either had the portfolio's final objective: by the wall clock since the call, and by the processor
time that the winner's process had spent on it. *Lost* is what the winner is later in the portfolio, in per cent of the limit;
where it never comes there by itself, nothing is lost, and the others have helped. *Core* is the part of a core that it had
until then. The last column sets objectives beside each other: whether the winner by itself had, after 95 % of the limit, a
better plan than the portfolio at its end; that is where the portfolio costs more than 5 %. Instances that are closed within a
tenth of the limit say little, and are marked.

The machine must be at leisure: with fewer free cores than workers, candidates take time from each other. Both runs come after a
brief one of each, so that what is loaded once does not count.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import stowplan
from benchmarks.lib.alone import Alone
from benchmarks.lib.places import EXAMPLES
from benchmarks.lib.processor import seconds_of
from stowplan.kernel import run as portfolio_run
from stowplan.kernel.context import Options
from stowplan.kernel.kind import check, kind_of
from stowplan.kernel.workers.messages import Job
from stowplan.kernel.workers.pool import WorkerPool
from stowplan.kernel.workers.process import ProcessTurn
from stowplan.kernel.workers.started import Started
from stowplan.result import Progress, Result

#: Instances of several kinds, with their targets: those of the examples that are not closed at once.
INSTANCES = (
    "alexnet_train_b32.hlo.txt.gz=tpu-v4",
    "gpt_decode_loop_b8.hlo.txt.gz=tpu-v4",
    "resnet101.layers.json=nnp-i",
    "bert_base_s128.layers.json=nnp-i",
    "cells.graph.json=",
    "banks.json=",
    "fir.dfg.json=se",
)

#: Part of the limit that the portfolio may cost.
TARGET = 0.05

#: Seconds of the brief runs before.
BRIEF = 3.0


class Point(NamedTuple):
    """A better plan: seconds since the call, processor time of whoever made it, objective."""

    wall: float
    processor: float
    objective: int


class Recording(WorkerPool):
    """The pool of the latest run, so that its workers' processes can be looked at."""

    latest: WorkerPool

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        # A warm process has spent some before.
        self._spent_before: dict[int, float] = {}
        Recording.latest = self

    def _give_turn(self, worker: Started, job: Job, *, fresh: bool = False) -> None:
        super()._give_turn(worker, job, fresh=fresh)
        self._spent_before[worker.number] = self._spent(worker)

    def processor_seconds(self) -> dict[str, float]:
        """Of each candidate since it was started; a thread's is that of this process."""
        return {
            worker.candidate.name: self._spent(worker) - self._spent_before.get(number, 0.0)
            for number, worker in self._workers.items()
        }

    def _spent(self, worker: Started) -> float:
        if isinstance(worker.turn, ProcessTurn):
            return seconds_of(worker.turn.pid)
        return time.process_time()


class Bare(Alone):
    """A candidate by itself: what it finds and when, the time of verifying left out."""

    def __init__(self, problem: Any, options: Options, start: Any):
        self._verifying = [0.0, 0.0]
        self._began = time.perf_counter(), time.process_time()
        super().__init__(problem, options, start=start, clock=lambda: time.perf_counter() - self._verifying[0])
        self.points: list[Point] = []

    def plan(self, plan: Any, source: str) -> None:
        """Keep it where it is better."""
        wall, processor = time.perf_counter(), time.process_time()
        found = check(self._kind, self._problem, plan)
        assert found.ok, found.violations[:3]
        assert found.objective is not None
        if not self.points or found.objective < self.points[-1].objective:
            self.best = self._kind.finish(self._problem, plan, found.objective)
            spent = wall - self._began[0] - self._verifying[0], processor - self._began[1] - self._verifying[1]
            self.points.append(Point(*spent, found.objective))
        self._verifying[0] += time.perf_counter() - wall
        self._verifying[1] += time.process_time() - processor


def portfolio(problem: Any, seconds: float, options: dict[str, Any]) -> tuple[Result, list[tuple[float, dict[str, float]]]]:
    """A run's result, and the processor time of all its candidates by wall clock, at each better plan or bound."""
    samples: list[tuple[float, dict[str, float]]] = []
    began = time.perf_counter()

    def sample(progress: Progress) -> None:
        latest = getattr(Recording, "latest", None)
        samples.append((time.perf_counter() - began, {} if latest is None else latest.processor_seconds()))

    portfolio_run.WorkerPool = Recording  # type: ignore[misc]
    try:
        return stowplan.solve(problem, time_limit=seconds, on_progress=sample, **options), samples
    finally:
        portfolio_run.WorkerPool = WorkerPool  # type: ignore[misc]


def bare(problem: Any, winner: str, seconds: float, options: dict[str, Any]) -> Bare:
    """The candidate by itself."""
    kind = kind_of(problem)
    said = Options(time_limit=seconds, **options)
    # By its name too: a learned one may be had only so.
    named = Options(**{**options, "time_limit": seconds, "candidates": (*said.candidates, winner)})
    candidate = next(each for each in kind.candidates(problem, named) if each.name == winner)
    plans = {name: (plan, check(kind, problem, plan).objective) for name, plan in kind.initial(problem).items()}
    start = min(plans.values(), key=lambda each: (each[1] is None, each[1]), default=(None, None))[0]
    function = kind.function(candidate.name)
    context = Bare(problem, said, start)
    function(problem, context)
    return context


def first_at(points: list[Point], objective: int) -> Point | None:
    """The first plan that is as good."""
    return next((point for point in points if point.objective <= objective), None)


def row(path: str, target: str, seconds: float, options: dict[str, Any]) -> list[str]:
    """One line of the table."""
    problem = stowplan.read(path, target=target or None)
    kind = kind_of(problem)
    portfolio(problem, min(BRIEF, seconds), options)
    result, samples = portfolio(problem, seconds, options)
    name = Path(path).name.partition(".")[0]
    head = [name, kind.name.replace("_", " ")]
    winner = next((each.name for each in result.candidates if each.objective == result.objective), None)
    if winner is None or result.objective is None:
        return [*head, f"{result.provenance.candidate or 'none'}: no candidate", *[""] * 8]
    reached = next(entry.seconds for entry in result.history if entry.objective == result.objective)
    # The first sample at or after that moment.
    at, used = next(((wall, each) for wall, each in samples if wall >= reached - 0.01), samples[-1])
    processor = used.get(winner, 0.0)
    bare(problem, winner, min(BRIEF, seconds), options)
    by_itself = bare(problem, winner, seconds, options)
    found = first_at(by_itself.points, result.objective)
    early = [each.objective for each in by_itself.points if each.wall <= (1 - TARGET) * seconds]
    is_costly = bool(early) and early[-1] < result.objective
    best = by_itself.points[-1].objective if by_itself.points else None
    return [
        *head,
        winner + (" (closed early)" if result.seconds < seconds / 10 else ""),
        result.unit.write(result.objective, 6),
        "none" if best is None else result.unit.write(best, 6),
        f"{reached:.1f} / {processor:.1f}",
        "never" if found is None else f"{found.wall:.1f} / {found.processor:.1f}",
        "none" if found is None else f"{100 * (reached - found.wall) / seconds:+.1f} %",
        "none" if found is None else f"{100 * (processor - found.processor) / seconds:+.1f} %",
        f"{processor / at:.2f}" if at else "",
        "yes" if is_costly else "no",
    ]


COLUMNS = (
    "instance", "kind", "winner", "portfolio", "by itself", "portfolio has it after (s wall / CPU)", "by itself after (s)",
    "lost, wall", "lost, CPU", "core", "better by itself at 95 %",
)  # fmt: skip


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(
        description=(__doc__ or "").partition("\n\n")[2], formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("instances", nargs="*", default=INSTANCES, metavar="FILE=TARGET", help="examples by name")
    parser.add_argument("--time-limit", type=float, default=30.0, help="seconds of each of the two runs")
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--candidates", default="heuristic,learned,exact", help="of the portfolio")
    arguments = parser.parse_args()
    options = {"workers": arguments.workers, "candidates": tuple(arguments.candidates.split(","))}
    print(f"| {' | '.join(COLUMNS)} |\n|---|---|---|{'--:|' * (len(COLUMNS) - 3)}", flush=True)
    costly = total = 0
    for each in arguments.instances:
        name, _, target = each.partition("=")
        path = name if os.path.exists(name) else str(EXAMPLES / name)
        cells = row(path, target, arguments.time_limit, options)
        print(f"| {' | '.join(cells)} |", flush=True)
        total += cells[-1] != ""
        costly += cells[-1] == "yes"
    load, cores = os.getloadavg()[0], os.cpu_count()
    print(f"\nthe portfolio costs more than {TARGET:.0%} on {costly} of {total}; load {load:.1f} on {cores} cores")


if __name__ == "__main__":
    main()
