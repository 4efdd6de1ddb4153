"""No run against the clock ends early without a proof, with a clock of its own: nobody waits, and nothing is measured.

The candidates are those that each kind declares, with their shares. What they do is a matter of seconds alone here: some are
done after a while, others go on until they are closed.
"""

from __future__ import annotations

import importlib
import queue
from collections.abc import Callable, Iterator
from typing import Any

import pytest

import stowplan
from stowplan.deadline import Deadline
from stowplan.kernel.call import select_candidates
from stowplan.kernel.context import Options, Report
from stowplan.kernel.kind import kind_of
from stowplan.kernel.run import Run
from stowplan.kernel.state import RunState
from stowplan.kernel.workers.clock import LAST_REPORT, RESERVE
from stowplan.kernel.workers.messages import CandidateId, Job, RunUpdate, WorkerContext
from stowplan.kernel.workers.pool import LEAST_TURN, WorkerPool
from stowplan.kernel.workers.started import Started, Turn
from tests.kernel.conftest import OF_EACH_KIND
from tests.paths import EXAMPLES

#: Modules that read a clock in a run.
READERS = ("deadline", *(f"kernel.{name}" for name in ("run", "state", "workers.clock", "workers.messages", "workers.pool")))

#: Part of the limit that one tick of the clock is, and what a short candidate takes.
TICK, SHORT = 0.004, 0.005

#: Seconds of work that have no end.
ENDLESS = 1e9

LIMITS = (5.0, 300.0)


class World:
    """The clock, and what every candidate that is at work does by it."""

    def __init__(self, limit: float, work: Callable[[str], float]):
        self.now, self.limit, self.work = 1000.0, limit, work
        self.turns: list[FakeTurn] = []
        self.names: list[str] = []
        """Candidates in the order of their turns."""

    def monotonic(self) -> float:
        return self.now

    process_time = thread_time = monotonic

    def sleep(self, seconds: float) -> None:
        self.advance(seconds)

    def advance(self, seconds: float) -> None:
        end = self.now + seconds
        while self.now < end:
            self.now = min(end, self.now + TICK * self.limit)
            for turn in [turn for turn in self.turns if turn.is_done]:
                self.turns.remove(turn)
                turn.post(turn.context.last_report())

    def give_turn(self, pool: WorkerPool, worker: Started, job: Job, *, fresh: bool = False) -> None:
        worker.turn = FakeTurn(self, worker.number, job, pool._messages)
        self.names.append(job.candidate.name)
        self.turns.append(worker.turn)


class FakeTurn(Turn):
    """A candidate that is done after so many seconds of work, or stops when it is told to."""

    def __init__(self, world: World, number: int, job: Job, messages: Any):
        super().__init__(number, messages)
        self._world, self._done = world, world.now + world.work(job.candidate.name)
        self.context = WorkerContext(job, self.post)

    @property
    def is_done(self) -> bool:
        return self.context.closed() or self._world.now >= self._done

    def send_update(self, message: RunUpdate) -> None:
        self.context.apply(message)


class FakeQueue(queue.SimpleQueue[Any]):
    """What waits for a message lets the clock go on."""

    world: World

    def __init__(self, size: int = 0):
        super().__init__()

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        end = self.world.now + (timeout or 0.0)
        while self.empty() and self.world.now < end:
            self.world.advance(min(end - self.world.now, TICK * self.world.limit))
        return super().get(block=False)

    def put(self, item: Any, block: bool = True, timeout: float | None = None) -> None:
        super().put(item)


#: Runs a problem: (problem, options, seconds of work by the name of a candidate) to world, seconds, reason and outcomes.
Simulate = Callable[[Any, Options, Callable[[str], float]], tuple[World, float, str, dict[str, str]]]


@pytest.fixture
def simulate(monkeypatch: pytest.MonkeyPatch) -> Simulate:
    def run(problem: Any, options: Options, work: Callable[[str], float]) -> tuple[World, float, str, dict[str, str]]:
        world = World(options.time_limit, work)
        for name in READERS:
            monkeypatch.setattr(importlib.import_module(f"stowplan.{name}"), "time", world)
        monkeypatch.setattr(FakeQueue, "world", world, raising=False)
        monkeypatch.setattr("stowplan.kernel.workers.pool.queue.Queue", FakeQueue)
        monkeypatch.setattr(WorkerPool, "_give_turn", lambda *given, **others: world.give_turn(*given, **others))
        kind = kind_of(problem)
        state = RunState(kind, problem, options, Deadline(options.time_limit))
        ran = Run(state, select_candidates(kind.candidates(problem, options), options), options, state.deadline)
        reason = ran.run({})
        return world, state.deadline.elapsed, reason, {report.name: report.outcome for report in ran.reports}

    return run


def least(limit: float) -> float:
    """Seconds that a run has at least, where what is kept back for the last reports is taken from its limit."""
    kept = sum(min(most, part * limit) for most, part in (("", 0), RESERVE, LAST_REPORT) if part)
    return limit - kept - (LEAST_TURN + 2 * TICK) * limit


def problem_of(kind: str) -> Any:
    file, target = OF_EACH_KIND[kind]
    return stowplan.read(EXAMPLES / file, target=target)


def every(problem: Any, options: Options) -> Iterator[str]:
    yield from (each.name for each in select_candidates(kind_of(problem).candidates(problem, options), options))


@pytest.mark.parametrize("limit", LIMITS)
@pytest.mark.parametrize("kind", OF_EACH_KIND)
def test_a_run_without_a_proof_has_its_whole_limit(simulate: Simulate, kind: str, limit: float) -> None:
    """Whichever candidate is the one that still has something to do, and however many places there are."""
    problem = problem_of(kind)
    for workers in (1, 2):
        options = Options(time_limit=limit, workers=workers)
        names = [*every(problem, options)]
        for busy in ({*names}, *({name} for name in names)):
            _, seconds, reason, outcomes = simulate(
                problem, options, lambda name, busy=busy: ENDLESS if name in busy else SHORT * limit
            )
            assert least(limit) <= seconds <= limit, (workers, busy)
            assert reason == "time_limit"
            assert {outcome for name, outcome in outcomes.items() if name in busy} <= {"stopped", "skipped"}


@pytest.mark.parametrize("kind", OF_EACH_KIND)
def test_a_run_whose_candidates_are_all_done_says_so(simulate: Simulate, kind: str) -> None:
    problem, options = problem_of(kind), Options(time_limit=100.0)
    _, seconds, reason, outcomes = simulate(problem, options, lambda name: 1.0)
    assert (reason, {*outcomes.values()}) == ("candidates_done", {"finished"})
    assert seconds < 20


def test_a_share_is_extended_where_nobody_needs_the_rest(simulate: Simulate) -> None:
    """Rather than over, and followed by another turn, which would begin anew."""
    problem = problem_of("rematerialization")
    world, seconds, _, _ = simulate(problem, Options(time_limit=300.0), lambda name: 1.0 if name == "cuts" else ENDLESS)
    assert world.names == ["cuts", "search", "stages", "cpsat", "search"][: len(world.names)]
    assert world.names.count("stages") == 1
    assert seconds >= least(300.0)


def test_every_turn_has_a_seed_of_its_own(simulate: Simulate, monkeypatch: pytest.MonkeyPatch) -> None:
    seeds: dict[str, list[int]] = {}
    made = FakeTurn.__init__

    def note(turn: FakeTurn, world: World, number: int, job: Job, messages: Any) -> None:
        seeds.setdefault(job.candidate.name, []).append(job.options.seed)
        made(turn, world, number, job, messages)

    monkeypatch.setattr(FakeTurn, "__init__", note)
    problem = problem_of("rematerialization")
    simulate(problem, Options(time_limit=40.0, seed=7), lambda name: ENDLESS if name in ("search", "stages") else 0.1)
    assert all(first == 7 for first, *_ in seeds.values())
    assert max(map(len, seeds.values())) > 1
    assert all(len({*each}) == len(each) for each in seeds.values())


def context(world: World, **given: Any) -> WorkerContext:
    return WorkerContext(
        Job(CandidateId.of("packing", "search"), Options(), b"", world.now + 10.0, latest=world.now + 30.0, **given),
        lambda report: None,
    )


@pytest.fixture
def world(monkeypatch: pytest.MonkeyPatch) -> World:
    world = World(100.0, lambda name: 0.0)
    monkeypatch.setattr("stowplan.kernel.workers.messages.time", world)
    return world


def test_an_end_may_be_moved_before_it_has_come(world: World) -> None:
    told = context(world)
    assert (told.remaining(), told.longest()) == (10.0, 30.0)
    told.apply(RunUpdate(end=world.now + 30.0))
    assert (told.remaining(), told.longest(), told.closed()) == (30.0, 30.0, False)
    late = context(world)
    world.advance(10.0)
    late.apply(RunUpdate(end=world.now + 20.0))
    assert (late.closed(), late.last_report()) == (True, Report("stopped"))


def test_one_that_ends_where_its_share_was_to_end_is_not_done(world: World) -> None:
    """It has given a solver what was left then, and the news of more time came later."""
    asked, never_asked = context(world), context(world)
    asked.remaining()
    for each in (asked, never_asked):
        each.apply(RunUpdate(end=world.now + 30.0))
    world.advance(10.0)
    assert (asked.last_report().what, never_asked.last_report().what) == ("stopped", "done")
