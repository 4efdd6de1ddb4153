"""A batch whose processes are killed, or never end: nothing is lost, and nobody stays behind."""

from __future__ import annotations

import contextlib
import functools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import stowplan
from stowplan.certificates.certificate import Certificate
from stowplan.errors import InputError, UsageError
from stowplan.frontends.read import read_plan
from stowplan.models.packing.verify import verify
from stowplan.portfolio.batch import run as batch_run
from stowplan.portfolio.batch.records import Record, Settings, read_records
from stowplan.portfolio.batch.run import run_batch
from stowplan.portfolio.batch.task import Item, find_inputs
from stowplan.portfolio.batch.workers import LocalWorkers, Lost
from tests.kernel.conftest import is_running
from tests.paths import EXAMPLES, ROOT
from tests.patience import FOREVER, HANG, wait_until
from tests.portfolio.batch import fakes

BUFFERS = "id,lower,upper,size\na,0,2,5\nb,1,3,4\n"
BRIEF = Settings(candidates=("heuristic",), time_limit=60)


def inputs(folder: Path, *names: str) -> list[Item]:
    (folder / "suite").mkdir(exist_ok=True)
    for name in names:
        (folder / "suite" / f"{name}.csv").write_text(BUFFERS)
    return find_inputs([folder / "suite"])


def do(monkeypatch: pytest.MonkeyPatch, function: str) -> list[LocalWorkers]:
    """Have local workers do something else; returns those that are made."""
    made: list[LocalWorkers] = []

    def make(most: int) -> LocalWorkers:
        made.append(LocalWorkers(most, getattr(fakes, function)))
        return made[-1]

    monkeypatch.setattr(batch_run, "LocalWorkers", make)
    return made


def run(items: list[Item], out: Path, **options: Any) -> dict[str, tuple[Record, bool]]:
    found = {}
    for item, record, was_finished in run_batch(items, out, options.pop("settings", BRIEF), **{"jobs": 2, **options}):
        assert item.name not in found
        found[item.name] = (record, was_finished)
    return found


def journal(out: Path) -> dict[str, Any]:
    lines = [json.loads(line) for line in (out / "results.jsonl").read_text().splitlines()]
    found = {line["name"]: line["record"] for line in lines}
    assert len(found) == len(lines)
    return found


def test_names_too_long_for_what_is_written_are_cut(tmp_path: Path) -> None:
    """Two inputs whose names agree in all that is left of them stay apart."""
    for end in ("a", "b"):
        (tmp_path / f"{'é' * 121}{end}.csv").write_text("id,lower,upper,size\nx,0,1,4\n")
    items = find_inputs([tmp_path])
    assert len({item.name for item in items}) == 2
    out = tmp_path / "out"
    found = run(items, out)
    assert [record.exit_code for record, _ in found.values()] == [0, 0]
    assert all(item.plan_path(out).is_file() and item.record_path(out).is_file() for item in items)
    assert [known for _, known in run(items, out).values()] == [True, True]


def test_certificates_stand_beside_the_plans(tmp_path: Path) -> None:
    items, out, settings = inputs(tmp_path, *"ab"), tmp_path / "out", Settings(certify=True, time_limit=5)
    run(items, out, settings=settings)
    for item in items:
        found = Certificate.load(item.proof_path(out))
        assert found.check(stowplan.read(item.path)).bound == found.bound
    items[0].proof_path(out).unlink()
    again = run(items, out, settings=settings)
    assert {name: known for name, (_, known) in again.items()} == {"a": False, "b": True}
    run(items, out)
    assert not any(item.proof_path(out).exists() for item in items)


@pytest.mark.slow
def test_side_by_side_comes_to_the_same_files(tmp_path: Path) -> None:
    items = inputs(tmp_path, *"abcd")
    settings = Settings(candidates=("heuristic",), deterministic=True)
    both = [run(items, tmp_path / str(jobs), jobs=jobs, settings=settings) for jobs in (1, 3)]
    assert both[0].keys() == both[1].keys() == {*"abcd"}
    for name in "abcd":
        plans = [(tmp_path / str(jobs) / f"{name}.plan.json").read_bytes() for jobs in (1, 3)]
        assert plans[0] == plans[1]
    for jobs in (1, 3):
        out = tmp_path / str(jobs)
        assert journal(out) == {name: json.loads((out / f"{name}.result.json").read_text()) for name in "abcd"}
        assert sorted(path.suffix for path in out.iterdir()) == [".json"] * 8 + [".jsonl"]
        again = run(items, out, jobs=4 - jobs, settings=settings)
        assert all(was_finished for _, was_finished in again.values())
        assert {name: record for name, (record, _) in again.items()} == read_records(out)
        assert len(journal(out)) == 4


def test_what_was_killed_between_record_and_line_gets_its_line(tmp_path: Path) -> None:
    items, out = inputs(tmp_path, *"ab"), tmp_path / "out"
    run(items, out)
    whole = journal(out)
    (out / "results.jsonl").write_text("")
    assert all(was_finished for _, was_finished in run(items, out).values())
    assert journal(out) == whole


def test_an_input_that_has_changed_is_solved_again_and_has_one_line(tmp_path: Path) -> None:
    items, out = inputs(tmp_path, *"ab"), tmp_path / "out"
    run(items, out)
    items[0].path.write_text(BUFFERS + "c,0,3,7\n")
    again = run(items, out)
    assert [again[name][1] for name in "ab"] == [False, True]
    assert journal(out)["a"]["result"]["objective"] == 16


def test_a_journal_elsewhere(tmp_path: Path) -> None:
    out = tmp_path / "out"
    run(inputs(tmp_path, *"ab"), out, journal=tmp_path / "lines.jsonl")
    assert {json.loads(line)["name"] for line in (tmp_path / "lines.jsonl").read_text().splitlines()} == {*"ab"}
    assert not (out / "results.jsonl").exists()


@pytest.mark.slow
@pytest.mark.parametrize("function", ["is_killed_once", "is_killed_at_its_word"])
def test_a_worker_that_is_killed_costs_its_input_another_try(
    function: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    do(monkeypatch, function)
    found = run(inputs(tmp_path, *"abcde"), tmp_path / "out")
    assert sorted(found) == [*"abcde"]
    assert all(record.exit_code == 0 for record, _ in found.values())
    assert sorted(journal(tmp_path / "out")) == [*"abcde"]


def test_poison_fails_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    do(monkeypatch, "is_killed_by_poison")
    found = run(inputs(tmp_path, "a", "b", "poison", "x", "y"), tmp_path / "out")
    assert {name: record.exit_code for name, (record, _) in found.items()} == {"a": 0, "b": 0, "poison": 70, "x": 0, "y": 0}
    why = "its process was ended by signal SIGKILL, as the kernel does where memory runs out, in each of 3 tries"
    assert (found["poison"][0].error, journal(tmp_path / "out")["poison"]["error"]) == (why, why)
    assert Record.load(tmp_path / "out" / "poison.result.json").error == why


def test_one_that_exits_says_with_what(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    do(monkeypatch, "exits")
    found = run(inputs(tmp_path, "a"), tmp_path / "out")
    assert found["a"][0].error == "its process ended without a last word, with exit status 5, in each of 3 tries"


def test_processes_are_kept_and_those_killed_while_they_wait_cost_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made = do(monkeypatch, "answers")
    items, pids = inputs(tmp_path, *"abcd"), []
    for _, record, _ in run_batch(items, tmp_path / "out", BRIEF, jobs=2):
        assert record.result is not None
        pids.append(record.result["pid"])
        if len(pids) == 2:
            for pid in made[0].pids:
                os.kill(pid, signal.SIGKILL)
            wait_until(lambda: not any(map(is_running, made[0].pids)))
    # The third may have been answered before its process was killed; the last was not asked for then.
    assert pids[-1] not in pids[:2]
    assert not any(map(is_running, pids))


def test_two_batches_into_one_folder_are_refused(tmp_path: Path) -> None:
    items, out = inputs(tmp_path, *"ab"), tmp_path / "out"
    first = run_batch(items, out, BRIEF)
    next(first)
    with pytest.raises(InputError, match=rf"out: found another batch \(process {os.getpid()}\) at work on it, expected one"):
        run(items, out)
    first.close()
    assert len(run(items, out)) == 2


#: Runs a batch whose workers do something else.
PARENT = """
import functools, sys
from stowplan.cli import main
from stowplan.portfolio.batch import run
from stowplan.portfolio.batch.workers import LocalWorkers, Lost
from tests.portfolio.batch import fakes
run.LAST_SECONDS = float(sys.argv.pop(1))
run.LocalWorkers = functools.partial(LocalWorkers, work=getattr(fakes, sys.argv[1]))
main(["batch", "--jobs", "2", *sys.argv[2:]])
"""


@contextlib.contextmanager
def at_work(
    folder: Path, function: str, *arguments: object, lines: int, last: float = batch_run.LAST_SECONDS
) -> Iterator[subprocess.Popen[str]]:
    """A batch in a process group of its own, whose workers have said so often that they are at work."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LADDER_PIDS": str(folder / "pids")}
    command = [sys.executable, "-c", PARENT, str(last), function, *map(str, arguments), "-o", str(folder / "out")]
    with subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True, start_new_session=True) as process:
        try:
            wait_until(lambda: len(pids_of(folder)) == lines or process.poll() is not None)
            yield process
        finally:
            process.kill()


@pytest.fixture
def parent(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[subprocess.Popen[str]]:
    """A batch of which two inputs are at work, with a candidate each; nothing ends. Its parameter is :data:`LAST_SECONDS`."""
    inputs(tmp_path, *"abc")
    last = getattr(request, "param", batch_run.LAST_SECONDS)
    with at_work(tmp_path, "never_ends", tmp_path / "suite", lines=4, last=last) as process:
        yield process


def pids_of(folder: Path) -> list[int]:
    path = folder / "pids"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def test_no_orphans_when_the_parent_is_killed(parent: subprocess.Popen[str], tmp_path: Path) -> None:
    pids = pids_of(tmp_path)
    assert all(map(is_running, pids))
    parent.kill()
    wait_until(lambda: not any(map(is_running, pids)))
    parent.wait()
    # The lock has gone with its holder, too.
    assert len(run(inputs(tmp_path, *"abc"), tmp_path / "out")) == 3


@pytest.mark.parametrize(
    ("parent", "again"), [(batch_run.LAST_SECONDS, False), (FOREVER, True)], indirect=["parent"], ids=["once", "again"]
)
def test_an_interrupt_ends_all(parent: subprocess.Popen[str], tmp_path: Path, again: bool) -> None:
    """What returns no plan ends after a while; at once after a second one."""
    pids = pids_of(tmp_path)
    os.killpg(parent.pid, signal.SIGINT)
    if again:
        # One that comes before the first has been handled is the same.
        wait_until(lambda: len(pids_of(tmp_path)) == len(pids) + 2)
        os.killpg(parent.pid, signal.SIGINT)
    out, err = parent.communicate(timeout=HANG)
    assert (parent.returncode, out, err) == (130, "0 of 3 solved, 3 not done\n", "stowplan: interrupted\n")
    wait_until(lambda: not any(map(is_running, pids)))
    assert not (tmp_path / "out" / ".batch.lock").exists()


def check_cut_short(folder: Path, outcome: tuple[str, str], code: int, *names: str) -> None:
    """These have verified plans, and records that say that they are interrupted."""
    out = folder / "out"
    assert code == 130, outcome
    assert outcome[1].splitlines()[-1] == "stowplan: interrupted"
    assert {*journal(out)} == {*names}
    assert {path.name for path in out.iterdir()} == {
        "results.jsonl",
        *(f"{name}.{what}.json" for name in names for what in ("plan", "result")),
    }
    for name, record in read_records(out).items():
        assert (record.exit_code, record.result and record.result["stop_reason"]) == (130, "cancelled"), name
        assert f"{name} " in outcome[0]
    assert outcome[0].count("interrupted") == len(names)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_what_is_interrupted_keeps_its_plan(tmp_path: Path, number: signal.Signals) -> None:
    rng, lines = random.Random(0), ["id,lower,upper,size"]
    for at in range(60):
        begin = rng.randrange(40)
        lines.append(f"{at},{begin},{begin + rng.randrange(1, 20)},{rng.randrange(1, 1000)}")
    for item in inputs(tmp_path, *"abc"):
        item.path.write_text("\n".join(lines) + "\n")
    with at_work(tmp_path, "solves_after_the_cancel", tmp_path / "suite", lines=2) as process:
        os.killpg(process.pid, number)
        outcome = process.communicate(timeout=HANG)
        code = process.returncode
    check_cut_short(tmp_path, outcome, code - 13 * (number == signal.SIGTERM), "a", "b")
    assert outcome[0].splitlines()[-1] == "0 of 3 solved, 1 not done"
    for name in "ab":
        problem, plan = stowplan.read(tmp_path / "suite" / f"{name}.csv"), tmp_path / "out" / f"{name}.plan.json"
        assert verify(problem, read_plan(plan)).ok


@pytest.mark.slow
def test_a_search_that_is_interrupted_keeps_its_plan(tmp_path: Path) -> None:
    (tmp_path / "suite").mkdir()
    for name in ("one", "two"):
        shutil.copy(EXAMPLES / "alexnet_train_b32.hlo.txt.gz", tmp_path / "suite" / f"{name}.hlo.txt.gz")
    options = ("--target", "tpu-v4", "--time-limit", 600, "--candidates", "exact")
    with at_work(tmp_path, "solves_in_earnest", tmp_path / "suite", *options, lines=2) as process:
        os.killpg(process.pid, signal.SIGINT)
        outcome = process.communicate(timeout=HANG)
    check_cut_short(tmp_path, outcome, process.returncode, "one", "two")


def test_a_worker_ends_with_its_pipe(tmp_path: Path) -> None:
    """Which is how it learns of its parent's end where the kernel does not tell it."""
    (item,) = inputs(tmp_path, "a")
    workers = LocalWorkers(1, fakes.never_ends)
    os.environ["LADDER_PIDS"] = str(tmp_path / "pids")
    try:
        workers.start(0, batch_run._make_task(item, Path(), tmp_path, BRIEF, (), True))
        wait_until(lambda: len(pids_of(tmp_path)) == 2)
        (process,) = workers._busy
        assert process._process.stdin is not None
        process._process.stdin.close()
        wait_until(lambda: not any(map(is_running, pids_of(tmp_path))))
        assert workers.take(HANG) == (0, Lost("its process ended without a last word, with exit status 0"))
    finally:
        workers.close()
        del os.environ["LADDER_PIDS"]


def test_a_system_without_room_for_processes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*arguments: Any, **options: Any) -> Any:
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(subprocess, "Popen", fail)
    found = run(inputs(tmp_path, *"abc"), tmp_path / "out")
    words = "its process could not be started: no more processes, in each of 3 tries"
    assert [record.error for record, _ in found.values()] == [words] * 3


def test_a_process_that_holds_much_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    do(monkeypatch, "answers")
    monkeypatch.setattr("stowplan.portfolio.batch.workers.MAX_REUSE_MEMORY", 1)
    found = run(inputs(tmp_path, *"abc"), tmp_path / "out")
    assert len({record.result["pid"] for record, _ in found.values() if record.result}) == 3


@pytest.mark.parametrize("jobs", [-1, 1.5, True])
def test_jobs_are_a_whole_number(jobs: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"^found .* jobs, expected at least 0, a whole number"):
        run([], tmp_path / "out", jobs=jobs)
    assert not (tmp_path / "out").exists()


def test_as_many_jobs_as_cores_allow(monkeypatch: pytest.MonkeyPatch) -> None:
    joblib = pytest.importorskip("joblib")
    for cores, expected in ((1, 1), (5, 2), (64, 32)):
        monkeypatch.setattr(joblib, "cpu_count", functools.partial(int, cores))
        assert batch_run._limit_jobs(0, None, Settings(workers=2), None)[0] == expected


@pytest.mark.parametrize(("jobs", "budget", "limit", "expected"), [(3, 900, None, (3, 100)), (8, 900, 100, (3, 100))])
def test_so_many_jobs_as_a_memory_budget_holds(jobs: int, budget: int, limit: int | None, expected: tuple[int, int]) -> None:
    """Two workers, and the process that they belong to, are a job."""
    most, settings = batch_run._limit_jobs(jobs, budget, Settings(workers=2, memory_limit=limit), None)
    assert (most, settings.memory_limit) == expected


def test_a_budget_that_holds_no_job(tmp_path: Path) -> None:
    words = "^found a memory budget of 1 MiB, expected at least 3 MiB: the memory limit of 1 MiB for each of 2 workers and the"
    with pytest.raises(UsageError, match=words):
        run([], tmp_path, memory_budget=1 << 20, settings=Settings(memory_limit=1 << 20))
    with pytest.raises(UsageError, match="found a memory budget of 5 bytes"):
        run([], tmp_path, memory_budget=5, jobs=2)
    with pytest.raises(UsageError, match="a memory budget is for this machine"):
        run([], tmp_path, memory_budget=1 << 30, scheduler="tcp://127.0.0.1:1")
