"""The worker's side: its messages, and its end when its parent ends, is interrupted, or is a plain script."""

from __future__ import annotations

import io
import json
import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from stowplan.child_process import read_message, write_encoded
from stowplan.kernel.context import Options, Report, ReportType
from stowplan.kernel.workers.messages import CandidateId, Job, RunUpdate, WorkerContext
from stowplan.kernel.workers.worker import Worker
from tests.kernel.conftest import is_running
from tests.kernel.fakes import ALL_SLOW, ladder_plan, ladder_problem
from tests.paths import ROOT
from tests.patience import HANG, wait_until

# ---------------------------------------------------------------------------------------------------------- messages

TYPES = st.sampled_from(get_args(ReportType))


@pytest.mark.slow
@given(st.lists(st.builds(Report, TYPES, st.text(), st.binary(), st.integers(0, 2**63), st.text())))
def test_messages_come_back_as_they_went(reports: list[Report]) -> None:
    stream = io.BytesIO()
    for report in reports:
        write_encoded(stream, msgspec.msgpack.encode(report))
    stream.seek(0)
    back = [msgspec.msgpack.decode(data, type=Report) for data in iter(lambda: read_message(stream), None)]
    assert back == reports


def test_a_message_of_an_unknown_type_is_an_error() -> None:
    with pytest.raises(ValueError, match="Invalid enum value 'gossip'"):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"what": "gossip"}), type=Report)


def test_a_message_cut_short_is_the_end() -> None:
    stream = io.BytesIO()
    write_encoded(stream, msgspec.msgpack.encode(Report("note", text="a remark")))
    for length in range(len(stream.getvalue())):
        assert read_message(io.BytesIO(stream.getvalue()[:length])) is None


def test_a_length_beyond_reason_is_an_error() -> None:
    with pytest.raises(ValueError, match="found a message of"):
        read_message(io.BytesIO(b"\xff" * 16))


# ----------------------------------------------------------------------------------------------------------- context


def job(seconds: float, deterministic: bool = False) -> Job:
    return Job(
        candidate=CandidateId.of("memory_mapping", "search"),
        options=Options(deterministic=deterministic),
        problem=b"",
        end=time.monotonic() + seconds,
        start_plan=msgspec.json.encode(ladder_plan(ladder_problem(), 1)),
        start_bound=7,
    )


def context(seconds: float) -> WorkerContext:
    return WorkerContext(job(seconds), lambda report: None)


def test_a_candidate_out_of_time_was_stopped() -> None:
    ample = context(1000.0)
    assert not ample.closed()
    assert 0 < ample.remaining() <= 1000
    assert ample.last_report().what == "done"
    late = context(-1.0)
    assert late.closed()
    assert late.remaining() == 0
    assert late.last_report().what == "stopped"


def test_the_end_of_the_run_is_the_end_of_the_time() -> None:
    ample = context(1000.0)
    ample.apply(RunUpdate(is_over=True))
    assert (ample.closed(), ample.remaining(), ample.last_report().what) == (True, 0, "stopped")


@pytest.mark.parametrize("deterministic", [False, True])
def test_incumbents_reach_the_candidate_unless_deterministic(deterministic: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    stream = io.BytesIO()
    better = ladder_plan(ladder_problem(), 2)
    # What comes before the job was for another.
    for message in (
        RunUpdate(bound=9),
        job(1000.0, deterministic),
        RunUpdate(bound=8),
        RunUpdate(plan=msgspec.json.encode(better)),
    ):
        write_encoded(stream, msgspec.msgpack.encode(message))
    stream.seek(0)
    ended: list[int] = []
    monkeypatch.setattr(os, "_exit", ended.append)
    worker = Worker(stream, io.BytesIO())
    worker.listen()
    found = worker._context
    assert found is not None
    assert found.incumbent() == ((found.start_plan, 7) if deterministic else (better, 8))
    assert ended == [0]  # the end of the input is the end of the process


# ---------------------------------------------------------------------------------------------------------- processes

#: Runs ``solve`` on the ladder with fake candidates, says on standard error when a plan comes, and prints the result.
PARENT = """
import importlib, json, sys
from tests.kernel.fakes import fake_kind, ladder_problem
module = importlib.import_module("stowplan.kernel.solve")
fakes = fake_kind(*sys.argv[1:])
module.kind_of = lambda problem: fakes
tell = lambda now: print(now.source, file=sys.stderr, flush=True)
result = module.solve(ladder_problem(), time_limit=1200, on_progress=tell)
print(json.dumps(result.to_dict()))
"""


@pytest.fixture
def parent(tmp_path: Path) -> Iterator[subprocess.Popen[str]]:
    """A process that solves and whose candidates never stop; a plan of each has come."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "LADDER_PIDS": str(tmp_path / "pids")}
    command = [sys.executable, "-c", PARENT, "sleeps", "holds_the_lock"]
    with subprocess.Popen(command, env=environment, stdout=-1, stderr=-1, text=True) as process:
        assert process.stderr is not None
        # Both find the same plan, so that only the first is told of.
        assert any(line.strip() in ("sleeps", "holds_the_lock") for line in process.stderr)
        wait_until(lambda: len(_pids(tmp_path)) == 2)
        yield process
        process.kill()


def _pids(folder: Path) -> list[int]:
    path = folder / "pids"
    return [int(line) for line in path.read_text().splitlines()] if path.exists() else []


def _await_end(pids: list[int]) -> None:
    wait_until(lambda: not any(is_running(pid) for pid in pids))


def test_interrupted_returns_the_best_so_far(parent: subprocess.Popen[str], tmp_path: Path) -> None:
    parent.send_signal(signal.SIGINT)
    output, _ = parent.communicate(timeout=HANG)
    result = json.loads(output)
    assert (result["stop_reason"], result["status"], result["verified"]) == ("cancelled", "feasible", True)
    assert result["objective"] == ALL_SLOW - 9
    assert parent.returncode == 0
    _await_end(_pids(tmp_path))


def test_no_orphans_when_the_parent_is_killed(parent: subprocess.Popen[str], tmp_path: Path) -> None:
    pids = _pids(tmp_path)
    assert all(is_running(pid) for pid in pids)
    parent.kill()
    _await_end(pids)


def test_a_script_needs_no_main_guard_and_its_folder_does_no_harm(tmp_path: Path) -> None:
    """Neither does the script run again in a worker, nor do modules in the current folder get in the way of ours."""
    script = tmp_path / "script" / "run.py"
    script.parent.mkdir()
    script.write_text("import sys; print('once'); sys.argv[1:] = ['solves', 'proves']\n" + textwrap.dedent(PARENT))
    folder = tmp_path / "current"
    folder.mkdir()
    for name in ("msgspec", "numpy", "stowplan", "queue"):
        (folder / f"{name}.py").write_text("raise SystemExit('a module of the current folder was imported')")
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, text=True, timeout=HANG, check=True
    )
    once, result = done.stdout.splitlines()
    assert once == "once"
    assert json.loads(result)["status"] == "optimal"
