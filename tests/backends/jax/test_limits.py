"""When the search for a policy stops: with previews and a clock that are made up, and without jax."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import stowplan.deadline
from stowplan.backends.fallback import MemoryLimitError
from stowplan.backends.jax import search as searching
from stowplan.backends.jax.check import _difference
from stowplan.backends.jax.graph import Graph, Node, recomputed
from stowplan.backends.jax.policy import Policy
from stowplan.backends.jax.report import FitReport
from stowplan.backends.jax.search import PolicySearch
from stowplan.backends.xla.store import Record
from stowplan.deadline import Deadline, read_within
from stowplan.errors import TimeLimitError
from stowplan.hardware.targets import load_target

MIB = 1 << 20

#: Four times eight values of 1 MiB, each read by the backward pass: every other one is a matrix product, 2 ms, or takes 0.1 ms.
GRAPH = Graph(
    4,
    tuple(
        Node(
            2e-3 if place % 2 == 0 else 1e-4,
            (place - 1,) if place else (),
            f"scan0.{place}",
            MIB,
            ("dots", "dots_no_batch") if place % 2 == 0 else (),
        )
        for place in range(8)
    ),
    tuple((place, MIB) for place in range(8)),
)

#: Bytes beside those that are saved: the peak of making everything again.
BESIDE = 64 * MIB


class Clock:
    """A clock that only goes when somebody works."""

    def __init__(self) -> None:
        self.now = 0.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    made = Clock()
    monkeypatch.setattr(stowplan.deadline, "time", made)
    return made


class Compiler:
    """Previews and compiles of so many seconds; one that the deadline ends takes what is left."""

    def __init__(self, clock: Clock, deadline: Deadline, preview: float, full: float):
        self._clock, self.deadline, self._preview, self._full = clock, deadline, preview, full
        self.previews_made = self.compiles = self.resident_bytes = 0
        self.processor_seconds, self.slowness = 0.0, 1.0
        self.records: dict[Policy, Record] = {}
        self.interrupted_at = -1
        """Number of the preview or compile during which Ctrl-C is pressed."""

    def within(self, run: Callable[[], Any]) -> Any:
        return read_within(self.deadline.seconds, run, self.deadline.began)

    def stored(self, training: Any, policy: Policy) -> Record | None:
        return self.records.get(policy)

    def make(self, training: Any, policy: Policy) -> Record:
        self._work(self._preview)
        self.previews_made += 1
        self.resident_bytes = 1 << 30
        return record(policy)

    def compiled(self, training: Any, policy: Policy) -> tuple[int, int]:
        self._work(self._full)
        self.compiles += 1
        return 1000 - self.compiles, 0

    def _work(self, seconds: float) -> None:
        if self.previews_made + self.compiles == self.interrupted_at:
            raise KeyboardInterrupt
        left = self.deadline.remaining
        self._clock.now += min(seconds, left)
        if seconds > left:
            raise TimeLimitError("the time was over before XLA had finished")
        self.processor_seconds += seconds / self.slowness


def record(policy: Policy) -> Record:
    names = {*GRAPH.named(policy.kind), *policy.names}
    size = GRAPH.needed_bytes if policy.kind == "as_it_is" else recomputed([GRAPH], names).bytes
    return Record(
        options={}, versions={}, topology="", workload="", processor_seconds=0, seconds=0, hbm_bytes=BESIDE + int(1.1 * size)
    )


class Case:
    """A search, its compiler and its clock."""

    def __init__(self, clock: Clock, time_limit: float | None, preview: float, full: float = 0.0, **options: Any):
        given = {"hbm": 80 * MIB, "previews": 8, "compiles": 0} | options
        training: Any = SimpleNamespace(
            name="loss", graphs=[GRAPH], target=load_target("tpu-v5e"), has_own_checkpoints=False, own_names=(), identity=""
        )
        self.deadline = Deadline(time_limit)
        self.compiler: Any = Compiler(clock, self.deadline, preview, full)
        self.lines: list[str] = []
        compiler: Any = self.compiler
        self.search = PolicySearch(
            training,
            compiler,
            given["hbm"],
            given["previews"],
            given["compiles"],
            self.lines.append,
        )

    def run(self) -> FitReport:
        self.search.run()
        return self.search.report()


@pytest.mark.parametrize("compiles", [0, 6])
@pytest.mark.parametrize("preview", [1.0, 30.0, 45.0])
def test_the_limit_holds_and_the_best_plan_of_it_is_returned(clock: Clock, preview: float, compiles: int) -> None:
    whole = Case(clock, None, preview, 3 * preview, compiles=compiles)
    whole.run()
    for limit in (0.5 * preview, 1.5 * preview, 3.2 * preview, 6 * preview, 12 * preview, 24 * preview):
        case = Case(clock, limit, preview, 3 * preview, compiles=compiles)
        if limit < preview:
            with pytest.raises(TimeLimitError):
                case.run()
            continue
        report = case.run()
        assert case.deadline.elapsed <= limit
        assert report.chosen.hbm_bytes <= 80 * MIB
        seen = [each for each in report.candidates if 0 < each.hbm_bytes <= 80 * MIB]
        if not any(each.cycles for each in seen):
            assert report.chosen.recomputed_seconds == min(each.recomputed_seconds for each in seen)
        is_whole = (len(report.candidates), report.compiles) == (len(whole.search.candidates), whole.compiler.compiles)
        if report.stop_reason != "time_limit":
            assert is_whole
        assert ("stopped at the time limit" in report.summary()) == (report.stop_reason == "time_limit")


@pytest.mark.parametrize("hbm", [80, 60, 10])
def test_no_plan_in_time_is_no_verdict(clock: Clock, hbm: int) -> None:
    # Of 60 MiB one preview ends, and is above; nothing says that others would be.
    for limit in (30.0, 50.0):
        case = Case(clock, limit, 40.0, hbm=hbm * MIB)
        if hbm == 80 and limit == 50:
            assert case.run().stop_reason == "time_limit"
            continue
        with pytest.raises(
            TimeLimitError, match=f"the time was over after {limit} s, before a policy within {hbm} MiB"
        ) as error:
            case.run()
        text = str(error.value)
        assert error.value.exit_code == 3
        assert "infeasible" not in text
        assert "\n" not in text
        assert ("least peak so far is 64 MiB" in text) == (limit == 50)
    with pytest.raises(MemoryLimitError, match="found no policy within"):
        Case(clock, None, 40.0, hbm=10 * MIB).run()


def test_a_preview_that_cannot_end_in_what_is_left_is_not_begun(clock: Clock) -> None:
    case = Case(clock, 100.0, 40.0)
    report = case.run()
    assert (case.compiler.previews_made, case.deadline.elapsed) == (2, 80.0)
    assert report.preview_seconds == 40.0
    # It was the last, and kept away from the limit.
    assert report.chosen.policy.is_planned
    # Without a policy within the limit there is nothing to lose.
    late = Case(clock, 100.0, 40.0, hbm=60 * MIB)
    with pytest.raises(TimeLimitError):
        late.run()
    assert late.deadline.elapsed == 100.0


def test_previews_that_gain_less_than_they_take_are_left_out(clock: Clock) -> None:
    cheap, dear, dearest = (Case(clock, None, seconds, hbm=90 * MIB) for seconds in (1.0, 60.0, 10_000.0))
    reports = [case.run() for case in (cheap, dear, dearest)]
    assert [report.stop_reason for report in reports] == ["finished", "no_gain", "no_gain"]
    assert cheap.compiler.previews_made > dear.compiler.previews_made > dearest.compiler.previews_made == 1
    # What was left out is modelled to be slower than what was found.
    assert reports[0].chosen.policy == reports[1].chosen.policy
    left_out = {each.policy for each in reports[0].candidates} - {each.policy for each in reports[1].candidates}
    modelled = {each.policy: each.recomputed_seconds for each in reports[0].candidates}
    assert min(modelled[policy] for policy in left_out) > reports[1].chosen.recomputed_seconds
    assert "than its gain is worth" in reports[1].summary()


def test_a_busy_machine_leaves_out_no_more(clock: Clock) -> None:
    idle, busy = (Case(clock, None, seconds, seconds, compiles=6, hbm=90 * MIB) for seconds in (5.0, 500.0))
    busy.compiler.slowness = 100.0
    one, other = idle.run(), busy.run()
    assert (one.candidates, one.stop_reason) == (other.candidates, other.stop_reason)


def test_compiles_that_gain_less_than_they_take_are_left_out(clock: Clock) -> None:
    cheap, dear = (Case(clock, None, 1.0, seconds, compiles=6) for seconds in (9.0, 200.0))
    assert [case.run().stop_reason for case in (cheap, dear)] == ["finished", "no_gain"]
    assert cheap.compiler.compiles > dear.compiler.compiles > 1
    assert any("policies are within the limit" in note for note in dear.search.notes)


def test_one_compile_alone_decides_nothing(clock: Clock) -> None:
    case = Case(clock, None, 1.0, 1.0, hbm=200 * MIB, compiles=1)
    report = case.run()
    assert case.compiler.compiles == 1
    assert report.chosen.policy.kind == "as_it_is"
    assert not report.chosen.cycles


def test_without_memory_for_another_preview_there_is_none(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "available", lambda: 1e6)
    case = Case(clock, None, 1.0)
    assert case.run().stop_reason == "memory"
    assert case.compiler.previews_made == 1


@pytest.mark.parametrize("by_event", [False, True])
def test_an_interrupted_search_returns_its_best(clock: Clock, by_event: bool) -> None:
    whole = Case(clock, None, 1.0, 1.0, compiles=6)
    whole.run()
    most = whole.compiler.previews_made + whole.compiler.compiles
    for number in range(most):
        case = Case(clock, None, 1.0, 1.0, compiles=6)
        if by_event:
            told = itertools.count()

            def tell(line: str, case: Case = case, told: Any = told, number: int = number) -> None:
                # A line before each, and one after.
                if next(told) == 2 * number:
                    case.deadline.cancelled.set()

            case.search._say = tell
        else:
            case.compiler.interrupted_at = number
        if number == 0:
            with pytest.raises(TimeLimitError if by_event else KeyboardInterrupt):
                case.run()
            continue
        report = case.run()
        assert report.stop_reason == "cancelled"
        assert case.compiler.previews_made + case.compiler.compiles == number
        assert report.chosen.hbm_bytes <= 80 * MIB


def test_kept_previews_take_no_time(clock: Clock) -> None:
    first = Case(clock, None, 40.0)
    first.run()
    second = Case(clock, 0.2, 40.0)
    second.compiler.records = {each.policy: record(each.policy) for each in first.search.candidates}
    report = second.run()
    assert second.compiler.previews_made == 0
    assert report.chosen.policy == first.search.report().chosen.policy


def test_progress_has_the_best_so_far(clock: Clock) -> None:
    case = Case(clock, None, 40.0, 60.0, compiles=6)
    report = case.run()
    assert case.lines[0] == "[   0.0 s] everything_again: preview; none within 80 MiB so far"
    assert case.lines[1] == "[  40.0 s] everything_again: 64 MiB of 80 MiB; best so far everything_again, 64 MiB"
    assert ": preview, some 40 s; best so far" in case.lines[2]
    assert any(": full compile, some 40 s or more; best so far" in line for line in case.lines)
    assert f"best so far {report.chosen.policy.kind}" in case.lines[-1]


def test_the_least_peak_within_the_time(clock: Clock) -> None:
    case = Case(clock, 90.0, 40.0)
    assert case.search.least() == Policy("everything_again")
    assert case.compiler.previews_made == 2
    with pytest.raises(TimeLimitError):
        Case(clock, 30.0, 40.0).search.least()


def test_a_number_that_becomes_nan_or_infinite_is_a_difference() -> None:
    nan, inf = math.nan, math.inf
    for found, expected, difference in (
        ([0.0, 2.0], [0.0, 2.0], 0.0),
        ([0.0, 3.0], [0.0, 2.0], 0.5),
        ([nan, 3.0], [nan, 2.0], 0.5),
        ([inf, -inf, 3.0], [inf, -inf, 2.0], 0.5),
        ([nan, 2.0], [0.0, 2.0], inf),
        ([0.0, 2.0], [nan, 2.0], inf),
        ([inf, 2.0], [1.0, 2.0], inf),
        ([inf, 2.0], [-inf, 2.0], inf),
        ([nan], [inf], inf),
        ([], [], 0.0),
        (3.0, 2.0, 0.5),
        (nan, 2.0, inf),
    ):
        assert _difference([np.array(found, "float32")], [np.array(expected, "float32")]) == difference, (found, expected)
