"""A Dask cluster on this machine: the same results, and nothing lost with its workers."""

from __future__ import annotations

import builtins
import importlib.util
import json
import os
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from stowplan.errors import InputError, MissingDependencyError, UsageError
from stowplan.portfolio.batch import workers as batch_cluster
from stowplan.portfolio.batch.records import Settings
from stowplan.portfolio.batch.run import run_batch
from tests.cli.conftest import Cli, cli, error_line
from tests.paths import ROOT
from tests.patience import wait_until
from tests.portfolio.batch import fakes
from tests.portfolio.batch.test_run import inputs, journal, run

__all__ = ["cli"]

needs_dask = pytest.mark.skipif(importlib.util.find_spec("distributed") is None, reason="needs Dask: pip install '.[cluster]'")

#: Two workers of one thread, of which one may end under a task; until the input ends.
CLUSTER = """
import sys
import dask
from distributed import LocalCluster
if __name__ == "__main__":
    dask.config.set({"distributed.scheduler.allowed-failures": 1})
    with LocalCluster(n_workers=2, threads_per_worker=1, host="127.0.0.1", dashboard_address=None) as cluster:
        print(cluster.scheduler_address, flush=True)
        sys.stdin.read()
"""


@pytest.fixture(scope="module")
def address(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """Of a scheduler; its workers run in another folder."""
    folder = tmp_path_factory.mktemp("cluster")
    script = folder / "cluster.py"
    script.write_text(CLUSTER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, str(script)]
    with subprocess.Popen(command, env=environment, cwd=folder, text=True, stdin=-1, stdout=-1, stderr=-3) as process:
        assert process.stdout is not None
        yield process.stdout.readline().strip()


@needs_dask
@pytest.mark.slow
def test_results_are_those_of_one_machine(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cli: Cli) -> None:
    inputs(tmp_path, *"abcd")
    (tmp_path / "suite" / "broken.csv").write_text("id,lower\n")
    monkeypatch.chdir(tmp_path)
    options = ("--candidates", "heuristic", "--deterministic", "--json")
    here, there = (
        cli("batch", "suite", "-o", out, *options, *more) for out, more in (("here", ()), ("there", ("--scheduler", address)))
    )
    assert here.code == there.code == 2
    for ours, theirs in zip(json.loads(here.out), json.loads(there.out), strict=True):
        assert (ours["name"], ours["record"]["input"]) == (theirs["name"], theirs["record"]["input"])
        if ours["name"] != "broken":
            plans = [(tmp_path / out / f"{ours['name']}.plan.json").read_bytes() for out in ("here", "there")]
            assert plans[0] == plans[1]
    assert sorted(journal(tmp_path / "there")) == ["a", "b", "broken", "c", "d"]
    # And what was solved there is finished here.
    again = cli("batch", "suite", "-o", "there", *options)
    assert again.err.count("finished before") == 4


@needs_dask
@pytest.mark.slow
def test_a_worker_that_is_killed_costs_its_tasks_another_try(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(batch_cluster, "solve_task", fakes.is_killed_once)
    found = run(inputs(tmp_path, *"abc"), tmp_path / "out", jobs=None, scheduler=address)
    assert {name: record.exit_code for name, (record, _) in found.items()} == dict.fromkeys("abc", 0)
    assert sorted(journal(tmp_path / "out")) == [*"abc"]


@needs_dask
@pytest.mark.slow
def test_a_cancel_reaches_what_is_at_work(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_cluster, "solve_task", fakes.ends_when_cancelled)
    items, cancel = inputs(tmp_path, *"abc"), threading.Event()

    def press() -> None:
        wait_until(lambda: len(list((tmp_path / "suite").glob("*.seen"))) == 2)
        cancel.set()

    threading.Thread(target=press, daemon=True).start()
    found = run(items, tmp_path / "out", jobs=None, scheduler=address, cancel=cancel)
    assert sorted(found) == ["a", "b"]
    assert sorted(journal(tmp_path / "out")) == ["a", "b"]


@needs_dask
@pytest.mark.slow
def test_poison_fails_alone(address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_cluster, "solve_task", fakes.is_killed_by_poison)
    found = run(inputs(tmp_path, "a", "b", "poison", "x", "y"), tmp_path / "out", jobs=None, scheduler=address)
    assert {name: record.exit_code for name, (record, _) in found.items()} == {"a": 0, "b": 0, "poison": 70, "x": 0, "y": 0}
    assert found["poison"][0].error == "all workers that took it ended before it did, in each of 2 tries"


@needs_dask
@pytest.mark.slow
def test_a_scheduler_that_goes_away_is_an_error_and_what_is_done_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    monkeypatch.setattr(batch_cluster, "solve_task", fakes.answers)
    script = tmp_path_factory.mktemp("cluster") / "cluster.py"
    script.write_text(CLUSTER)
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "DASK_DISTRIBUTED__COMM__TIMEOUTS__CONNECT": "2s"}
    with subprocess.Popen(
        [sys.executable, str(script)], env=environment, text=True, stdin=-1, stdout=-1, stderr=-3, start_new_session=True
    ) as process:
        assert process.stdout is not None
        items = inputs(tmp_path, *"abcde")
        batch = run_batch(items, tmp_path / "out", Settings(), jobs=1, scheduler=process.stdout.readline().strip())
        next(batch)
        os.killpg(process.pid, 9)
        with pytest.raises(InputError, match="the Dask scheduler has gone away; the same command goes on"):
            list(batch)
    assert len(journal(tmp_path / "out")) >= 1


@needs_dask
def test_no_scheduler_is_an_error_of_one_line(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batch_cluster, "CONNECT_SECONDS", 0.2)
    inputs(tmp_path, "a")
    line = error_line(cli("batch", tmp_path / "suite", "-o", tmp_path / "out", "--scheduler", "tcp://127.0.0.1:1"))
    assert "tcp://127.0.0.1:1: found no Dask scheduler that answers there: " in line
    assert not (tmp_path / "out").exists()


@needs_dask
@pytest.mark.parametrize("address", ["here", "tcp://here", "file:///tmp:1"])
def test_what_is_no_address(address: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=f"^found the scheduler '{address}', expected an address such as tcp://host:8786$"):
        run([], tmp_path / "out", scheduler=address)


def test_without_dask_it_says_what_to_install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def fail(name: str, *rest: Any, **more: Any) -> Any:
        if name == "distributed":
            raise ImportError(name)
        return real(name, *rest, **more)

    monkeypatch.setattr(builtins, "__import__", fail)
    with pytest.raises(MissingDependencyError, match=r"a Dask scheduler needs Dask: pip install '\.\[cluster\]'") as found:
        run([], tmp_path / "out", scheduler="tcp://127.0.0.1:1")
    assert found.value.exit_code == 2
