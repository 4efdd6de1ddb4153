"""The plan cache: what is returned from it, what is not, and whatever may go wrong with it."""

from __future__ import annotations

import os
import signal
import sqlite3
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from stowplan.deadline import Deadline
from stowplan.errors import StowplanError, UsageError
from stowplan.kernel import plan_cache
from stowplan.kernel.plan_cache import PlanCache
from tests.kernel.conftest import SolveFakes
from tests.kernel.fakes import ALL_SLOW, OPTIMUM, ladder_plan, ladder_problem
from tests.paths import ROOT
from tests.patience import HANG, wait_until

PROVEN = ("solves", "proves")


@pytest.fixture
def calls(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[], int]:
    """How often ``says_where`` and others that say it were run."""
    path = tmp_path / "pids"
    monkeypatch.setenv("LADDER_PIDS", str(path))
    return lambda: len(path.read_text().split()) if path.exists() else 0


def entries(folder: Path) -> int:
    return PlanCache(folder).info().entries


def change(folder: Path, statement: str, *values: Any) -> None:
    with sqlite3.connect(folder / "plans.sqlite") as database:
        assert database.execute(statement, values).rowcount == 1
    database.close()


def test_a_second_call_runs_nothing(solve_fakes: SolveFakes, tmp_path: Path) -> None:
    first = solve_fakes(*PROVEN, cache=tmp_path / "a" / "b")
    told: list[Any] = []
    second = solve_fakes(*PROVEN, cache=tmp_path / "a" / "b", on_progress=told.append)
    assert "cached" not in first.details
    assert second.details["cached"] == {"seconds": first.seconds}
    assert (second.plan, second.objective, second.bound, second.status) == (first.plan, OPTIMUM, OPTIMUM, "optimal")
    assert [(each.objective, each.bound) for each in told] == [(OPTIMUM, OPTIMUM)]
    unlike = {"seconds", "details", "stopped"}  # The last is a sentence with the seconds.
    one, other = ({**each.to_dict()} for each in (first, second))
    assert {name: one[name] for name in one.keys() - unlike} == {name: other[name] for name in one.keys() - unlike}


def test_without_a_folder_nothing_is_kept(solve_fakes: SolveFakes, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The variable is for the command line: a library does what it is told."""
    monkeypatch.setenv("STOWPLAN_CACHE", str(tmp_path))
    solve_fakes(*PROVEN)
    assert not (tmp_path / "plans.sqlite").exists()
    with pytest.raises(UsageError, match="found the cache 3, expected a folder"):
        solve_fakes(*PROVEN, cache=3)


def test_what_is_proven_is_for_every_limit(solve_fakes: SolveFakes, tmp_path: Path) -> None:
    solve_fakes(*PROVEN, cache=tmp_path, time_limit=HANG)
    assert "cached" in solve_fakes(*PROVEN, cache=tmp_path, time_limit=2 * HANG).details
    assert "cached" in solve_fakes(*PROVEN, cache=tmp_path, time_limit=1.0).details


@pytest.mark.slow
def test_what_had_its_limit_is_not_for_a_longer_one(solve_fakes: SolveFakes, tmp_path: Path, calls: Callable[[], int]) -> None:
    """And neither is what its candidates have given up on."""
    for name in ("works_in_vain", "says_where"):
        before = calls()
        solve_fakes(name, cache=tmp_path, time_limit=3.0)
        assert "cached" in solve_fakes(name, cache=tmp_path, time_limit=2.9).details
        assert calls() == before + 1
        longer = solve_fakes(name, cache=tmp_path, time_limit=3.1)
        assert "cached" not in longer.details
        # It takes the place of the other.
        assert "cached" in solve_fakes(name, cache=tmp_path, time_limit=3.1).details
        assert calls() == before + 2


def test_a_limit_that_reading_has_cut_is_the_same_limit(solve_fakes: SolveFakes, tmp_path: Path) -> None:
    cache = PlanCache(tmp_path, time_limit=10.0)
    solve_fakes("improves", cache=cache, time_limit=9.1)
    assert "cached" in solve_fakes("improves", cache=cache, time_limit=9.7).details


@pytest.mark.parametrize("limit", ["work_limit", "time_limit"])
def test_deterministic_results_are_for_their_own_work(solve_fakes: SolveFakes, tmp_path: Path, limit: str) -> None:
    """With another limit there may be another plan; that of time sizes the work where no other does."""
    given: dict[str, Any] = {"work_limit": None, "deterministic": True, "cache": tmp_path}
    for value in (0.2, 0.1, 0.3):
        assert "cached" not in solve_fakes(*PROVEN, **{**given, limit: value}).details
        assert "cached" in solve_fakes(*PROVEN, **{**given, limit: value}).details


def test_any_other_question_has_an_answer_of_its_own(solve_fakes: SolveFakes, tmp_path: Path) -> None:
    mine, others = (ladder_plan(ladder_problem(), rungs) for rungs in (1, 2))
    options: list[dict[str, Any]] = [
        {}, {"seed": 1}, {"gap": 0.01}, {"workers": 1}, {"plans": {"a": mine}}, {"plans": {"b": mine}},
        {"plans": {"a": others}}, {"hint": mine}, {"hint": others}, {"baseline": "all_slow"}, {"candidates": ["solves"]},
        {"candidates": ["proves", "solves"]},
    ]  # fmt: skip
    for each in options:
        assert "cached" not in solve_fakes(*PROVEN, cache=tmp_path, **each).details, each
    assert entries(tmp_path) == len(options)


def test_another_problem_of_the_same_digest(tmp_path: Path) -> None:
    """A packing's digest leaves its capacity out, for plans are the same with any."""
    import stowplan
    from stowplan.models.packing.problem import Buffer, Problem

    buffers = tuple(Buffer(id=name, lower=0, upper=1, size=8) for name in "ab")
    for capacity, status in ((16, "optimal"), (8, "infeasible"), (None, "optimal")):
        problem = Problem(buffers=buffers, capacity=capacity)
        for again in (False, True):
            result = stowplan.solve(problem, candidates="canonical", cache=tmp_path)
            assert (result.status, "cached" in result.details) == (status, again)
            assert result.details["capacity"] == capacity


@pytest.mark.parametrize("name", ["raises", "exits"])
def test_nothing_is_kept_where_a_candidate_failed(solve_fakes: SolveFakes, tmp_path: Path, name: str) -> None:
    solve_fakes(name, cache=tmp_path)
    assert entries(tmp_path) == 0


def test_nothing_is_kept_of_a_cancelled_run(solve_fakes: SolveFakes, tmp_path: Path) -> None:
    cancel = threading.Event()
    cancel.set()
    assert solve_fakes("improves", cache=tmp_path, cancel=cancel).stop_reason == "cancelled"
    assert entries(tmp_path) == 0


# --------------------------------------------------------------------------------------------------- what may go wrong


def check_computed_again(solve_fakes: SolveFakes, folder: Path, warning: str) -> None:
    again = solve_fakes(*PROVEN, cache=folder)
    assert "cached" not in again.details
    assert (again.objective, again.status, again.verified) == (OPTIMUM, "optimal", True)
    assert [each for each in again.warnings if warning in each]
    healed = solve_fakes(*PROVEN, cache=folder)
    assert ("cached" in healed.details, healed.warnings) == (True, ())


@pytest.mark.parametrize("column", ["result", "plan", "digest"])
def test_a_damaged_entry_is_computed_again(solve_fakes: SolveFakes, tmp_path: Path, column: str) -> None:
    solve_fakes(*PROVEN, cache=tmp_path)
    change(tmp_path, f"UPDATE results SET {column} = substr({column}, 1, 20)")
    check_computed_again(solve_fakes, tmp_path, "was damaged")


@pytest.mark.parametrize("column", ["time_limit", "result", "digest", "used"])
def test_an_entry_of_other_types_is_computed_again(solve_fakes: SolveFakes, tmp_path: Path, column: str) -> None:
    solve_fakes(*PROVEN, cache=tmp_path)
    change(tmp_path, f"UPDATE results SET {column} = {'x' if column in ('time_limit', 'used') else ''}'00'")
    check_computed_again(solve_fakes, tmp_path, "an entry has values of other types")


def test_a_wrong_plan_is_found_by_the_verifier(solve_fakes: SolveFakes, tmp_path: Path) -> None:
    """Its checksum is right, but it does not fit, or is not as good as the entry says."""
    for rungs in (4, 1):
        solve_fakes(*PROVEN, cache=tmp_path)
        with sqlite3.connect(tmp_path / "plans.sqlite") as database:
            ((data,),) = database.execute("SELECT result FROM results").fetchall()
            plan = msgspec.json.encode(ladder_plan(ladder_problem(), rungs))
            database.execute("UPDATE results SET plan = ?, digest = ?", (plan, plan_cache._digest(data, plan)))
        database.close()
        check_computed_again(solve_fakes, tmp_path, "was damaged")


def test_a_file_that_is_no_database_is_replaced(solve_fakes: SolveFakes, tmp_path: Path) -> None:
    (tmp_path / "plans.sqlite").write_bytes(b"something else" * 1000)
    check_computed_again(solve_fakes, tmp_path, "file is not a database")


def damage_schema(folder: Path) -> None:
    """A statement of the schema that is no UTF-8: SQLite's messages are then no text either."""
    path = folder / "plans.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    database.close()
    content = path.read_bytes()
    assert b"CREATE TABLE results" in content
    path.write_bytes(content.replace(b"CREATE TABLE results", b"CREATE TABL\xff results"))


def test_a_schema_that_is_no_text_is_replaced(solve_fakes: SolveFakes, tmp_path: Path) -> None:
    solve_fakes(*PROVEN, cache=tmp_path)
    damage_schema(tmp_path)
    check_computed_again(solve_fakes, tmp_path, "cannot be used")


def test_looking_at_a_schema_that_is_no_text(solve_fakes: SolveFakes, tmp_path: Path) -> None:
    solve_fakes(*PROVEN, cache=tmp_path)
    damage_schema(tmp_path)
    with pytest.raises(StowplanError, match="cannot be used"):
        PlanCache(tmp_path).info()
    with pytest.raises(StowplanError, match="cannot be used"):
        PlanCache(tmp_path).clear()


def test_a_folder_that_cannot_be_is_told_of(solve_fakes: SolveFakes, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    result = solve_fakes(*PROVEN, cache=tmp_path / "file" / "folder")
    assert (result.objective, result.status) == (OPTIMUM, "optimal")
    assert [each for each in result.warnings if "cannot be used" in each]
    (tmp_path / "folder" / "plans.sqlite").mkdir(parents=True)
    with pytest.raises(StowplanError, match="unable to open database file"):
        PlanCache(tmp_path / "folder").info()


def test_a_folder_is_not_made_by_looking(tmp_path: Path) -> None:
    cache = PlanCache(tmp_path / "none")
    assert (cache.info().entries, cache.clear()) == (0, 0)
    assert not (tmp_path / "none").exists()


def test_a_use_is_not_written_again_at_once(solve_fakes: SolveFakes, tmp_path: Path) -> None:
    """A hit reads alone, but for one in ten seconds."""
    solve_fakes(*PROVEN, cache=tmp_path)
    file = tmp_path / "plans.sqlite"
    for is_old in (False, True):
        database = sqlite3.connect(file)
        if is_old:
            database.execute("UPDATE results SET used = used - ?", (2 * plan_cache.USE_INTERVAL_NS,))
            database.commit()
        (before,) = database.execute("SELECT used FROM results").fetchone()
        assert "cached" in solve_fakes(*PROVEN, cache=tmp_path).details
        (after,) = database.execute("SELECT used FROM results").fetchone()
        database.close()
        assert (after > before) == is_old


def test_those_not_used_for_longest_go_first(solve_fakes: SolveFakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plan_cache, "USE_INTERVAL_NS", 0)
    solve_fakes(*PROVEN, cache=tmp_path)
    size = PlanCache(tmp_path).info().bytes
    cache = PlanCache(tmp_path, most_bytes=3 * size + size // 2)
    for seed in (1, 2, 0, 3):
        # The first one is used again before the last one comes.
        solve_fakes(*PROVEN, cache=cache, seed=seed)
    assert cache.info().entries == 3
    assert ["cached" in solve_fakes(*PROVEN, cache=cache, seed=seed).details for seed in (0, 2, 3, 1)] == [True] * 3 + [False]
    solve_fakes(*PROVEN, cache=PlanCache(tmp_path, most_bytes=size // 2), seed=9)
    assert cache.info().entries == 3
    assert (cache.clear(), cache.info().entries) == (3, 0)


#: Solves with a cache; what comes before the call is the first argument.
CHILD = """
import importlib, sys
from tests.kernel.fakes import fake_kind, ladder_problem
module = importlib.import_module("stowplan.kernel.solve")
fakes = fake_kind(*sys.argv[4:])
module.kind_of = lambda problem: fakes
exec(sys.argv[1])
result = module.solve(ladder_problem(), time_limit=float(sys.argv[3]), cache=sys.argv[2])
print(result.objective, result.status, "cached" in result.details, *result.warnings)
"""


def child(folder: Path, *names: str, first: str = "", limit: float = HANG) -> subprocess.Popen[str]:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", CHILD, first, str(folder), str(limit), *names]
    return subprocess.Popen(command, env=environment, stdout=-1, text=True)


def test_two_processes_compute_once(tmp_path: Path, calls: Callable[[], int]) -> None:
    both = [child(tmp_path / "cache", "takes_a_while") for _ in range(2)]
    said = sorted(process.communicate(timeout=HANG)[0].split()[2] for process in both)
    assert said == ["False", "True"]
    assert calls() == 1
    assert [path.name for path in (tmp_path / "cache").iterdir() if path.suffix == ".lock"] == []


def test_a_killed_owner_leaves_the_turn_to_others(tmp_path: Path, calls: Callable[[], int]) -> None:
    owner = child(tmp_path / "cache", "takes_a_while")
    wait_until(calls)
    other = child(tmp_path / "cache", "takes_a_while")
    owner.send_signal(signal.SIGSTOP)
    time.sleep(0.3)
    owner.kill()
    owner.communicate()
    assert other.communicate(timeout=HANG)[0].split() == [str(OPTIMUM), "optimal", "False"]
    assert entries(tmp_path / "cache") == 1


def test_nobody_is_waited_for_beyond_the_limit(solve_fakes: SolveFakes, tmp_path: Path) -> None:
    """Whoever has the turn says when it will be done at the latest."""
    cache = PlanCache(tmp_path)
    solve_fakes(*PROVEN, cache=tmp_path)
    with sqlite3.connect(tmp_path / "plans.sqlite") as database:
        ((key,),) = database.execute("SELECT key FROM results").fetchall()
    database.close()
    cache.clear()
    with cache.turn(key, Deadline(1000.0)) as waited:
        assert not waited
        result = solve_fakes(*PROVEN, cache=tmp_path, time_limit=100.0)
    assert ("cached" in result.details, result.status) == (False, "optimal")


def test_a_killed_writer_leaves_what_was_there(solve_fakes: SolveFakes, tmp_path: Path) -> None:
    solve_fakes(*PROVEN, cache=tmp_path)
    script = """
import os, signal, sqlite3, sys
database = sqlite3.connect(sys.argv[1], isolation_level=None)
database.execute("PRAGMA cache_size = 5")
database.execute("BEGIN IMMEDIATE")
database.execute("INSERT INTO results SELECT 'x' || key, 1, zeroblob(1000000), plan, digest, bytes, used FROM results")
os.kill(os.getpid(), signal.SIGKILL)
"""
    done = subprocess.run([sys.executable, "-c", script, str(tmp_path / "plans.sqlite")], check=False)
    assert done.returncode == -signal.SIGKILL
    again = solve_fakes(*PROVEN, cache=tmp_path)
    assert ("cached" in again.details, again.warnings) == (True, ())
    assert entries(tmp_path) == 1


def test_a_full_disk_costs_nothing(tmp_path: Path) -> None:
    """No file may grow: what is written fails, as on a full disk."""
    first = "import resource; resource.setrlimit(resource.RLIMIT_FSIZE, (2000, 2000))"
    words = child(tmp_path / "cache", *PROVEN, first=first).communicate(timeout=HANG)[0]
    assert words.startswith(f"{OPTIMUM} optimal False the plan cache ")
    assert "cannot be used" in words
    words = child(tmp_path / "cache", *PROVEN).communicate(timeout=HANG)[0]
    assert words.startswith(f"{OPTIMUM} optimal False")
    assert child(tmp_path / "cache", *PROVEN).communicate(timeout=HANG)[0].split() == [str(OPTIMUM), "optimal", "True"]


def test_all_slow_is_an_answer_too(solve_fakes: SolveFakes, tmp_path: Path) -> None:
    solve_fakes("does_nothing", cache=tmp_path)
    again = solve_fakes("does_nothing", cache=tmp_path)
    assert (again.objective, again.stop_reason, "cached" in again.details) == (ALL_SLOW, "candidates_done", True)


def test_another_guide_is_another_question(solve_fakes: SolveFakes, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Files that variables name are known by what is in them."""
    guide = tmp_path / "guide"
    for text, is_kept in (("one", False), ("one", True), ("another", False)):
        guide.write_text(text)
        monkeypatch.setenv("STOWPLAN_GUIDE", str(guide))
        assert ("cached" in solve_fakes(*PROVEN, cache=tmp_path / "cache").details) == is_kept
    monkeypatch.setenv("STOWPLAN_KEEP_WORKERS", "0")
    assert "cached" in solve_fakes(*PROVEN, cache=tmp_path / "cache").details
