"""Deadlines: time that runs out, a cancel that reaches everyone, parts of what is left."""

from __future__ import annotations

import math
import subprocess
import sys
import threading
import time

import pytest

from stowplan import deadline
from stowplan.deadline import Deadline
from tests.patience import HANG


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """The moment it is; set ``clock[0]``."""
    now = [100.0]
    monkeypatch.setattr(deadline.time, "monotonic", lambda: now[0])
    return now


def test_time_runs_out(clock: list[float]) -> None:
    limit = Deadline(5)
    should_stop = limit.stopper()
    assert (limit.elapsed, limit.remaining, limit.expired, should_stop()) == (0, 5, False, False)
    clock[0] += 4.5
    assert (limit.elapsed, limit.remaining, limit.expired, should_stop()) == (4.5, 0.5, False, False)
    clock[0] += 0.5
    assert (limit.remaining, limit.expired, should_stop()) == (0, True, True)
    clock[0] += 10
    assert (limit.elapsed, limit.remaining) == (15, 0)
    assert not limit.was_cancelled


@pytest.mark.parametrize("seconds", [None, math.inf])
def test_no_limit(clock: list[float], seconds: float | None) -> None:
    limit = Deadline(seconds)
    clock[0] += 1e9
    assert limit.remaining == math.inf
    assert not limit.expired
    assert limit.within(3).remaining == 3


def test_no_time_at_all_is_expired_at_once() -> None:
    assert Deadline(0).expired
    assert Deadline(-1).remaining == 0


def test_a_part_is_no_longer_than_the_whole(clock: list[float]) -> None:
    whole = Deadline(10)
    clock[0] += 6
    assert whole.within(3).remaining == 3
    assert whole.within(8).remaining == pytest.approx(4)
    clock[0] += 5
    assert whole.within(8).expired


def test_a_cancel_reaches_those_made_from_it(clock: list[float]) -> None:
    event = threading.Event()
    whole = Deadline(10, event)
    part = whole.within(5)
    event.set()
    for each in (whole, part, whole.within(2)):
        assert each.expired
        assert each.was_cancelled
        assert each.remaining == 0


def test_an_event_of_the_caller_cancels_from_another_thread() -> None:
    event = threading.Event()
    limit = Deadline(60, event)
    assert not limit.expired
    thread = threading.Thread(target=event.set)
    thread.start()
    thread.join()
    assert limit.was_cancelled
    assert limit.expired


def test_it_counts_real_seconds() -> None:
    limit = Deadline(0.05)
    time.sleep(0.06)
    assert limit.expired


def test_a_process_began_before_it_imported_anything() -> None:
    script = "import time; time.sleep(0.3); from stowplan import deadline; print(deadline._IMPORTED - deadline.process_began())"
    done = subprocess.run([sys.executable, "-c", script], text=True, capture_output=True, timeout=HANG, check=True)
    assert float(done.stdout) >= 0.25 or sys.platform != "linux"


def test_where_the_system_does_not_say_when_or_it_was_long_ago(monkeypatch: pytest.MonkeyPatch) -> None:
    assert deadline._IMPORTED - deadline.process_began() <= 30
    for broken in ({"sysconf": lambda name: 10**-9}, {"sysconf": lambda name: 10**9}):
        monkeypatch.setattr(deadline.os, "sysconf", broken["sysconf"])
        assert deadline.process_began() == deadline._IMPORTED
    monkeypatch.delattr(deadline.time, "CLOCK_BOOTTIME", raising=False)
    assert deadline.process_began() == deadline._IMPORTED
