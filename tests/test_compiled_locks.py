"""Processes that need the same machine code at the same time: one compiles it and the others wait, but not forever."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from stowplan.compiled import build, library
from stowplan.files import try_lock
from tests.paths import ROOT
from tests.patience import FOREVER, wait_until

#: Builds ``made_up`` in a folder by a stand-in for the compiler, which writes a line to ``built`` when it begins, and ends when
#: the file ``go`` is there.
PROCESS = """
import logging, subprocess, sys, time
from pathlib import Path
from types import SimpleNamespace
folder = Path(sys.argv[1])
logging.basicConfig(format="%(message)s", stream=sys.stdout, level=logging.INFO, force=True)
logging.getLogger("stowplan").setLevel(logging.INFO)
from stowplan.compiled import library
library.SHIPPED = folder / "shipped"
library.file_name = lambda package, level: f"{package}.so"
library.find_spec = lambda name: True
def run(command, **options):
    with open(folder / "built", "a") as stream:
        stream.write("built\\n")
    while not (folder / "go").exists():
        time.sleep(0.01)
    (Path(command[command.index("--to") + 1]) / "made_up.so").write_bytes(b"")
    return subprocess.CompletedProcess(command, 0, "", "")
library.subprocess = SimpleNamespace(run=run, DEVNULL=subprocess.DEVNULL)
print("found", library._build("made_up"), flush=True)
"""


def start(folder: Path, output: Path) -> subprocess.Popen[bytes]:
    """A process that builds ``made_up`` in the folder."""
    environment = {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        library.FOLDER_VARIABLE: str(folder / "cache"),
        "PYTHONUNBUFFERED": "1",
    }
    with output.open("wb") as stream:
        return subprocess.Popen([sys.executable, "-c", PROCESS, str(folder)], env=environment, stdout=stream, stderr=stream)


def built(folder: Path) -> int:
    """How often ``made_up`` was built."""
    return (folder / "built").read_text().count("built") if (folder / "built").exists() else 0


@pytest.fixture
def fake_build(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> list[list[str]]:
    """Commands that built ``made_up`` in ``tmp_path``, without a compiler."""
    commands: list[list[str]] = []

    def run(command: list[str], **options: Any) -> Any:
        commands.append(command)
        (tmp_path / "made_up.so").write_bytes(b"")
        return subprocess.CompletedProcess(command, 0, "", "")

    monkeypatch.setattr(library, "SHIPPED", tmp_path)
    for module in (library, build):
        monkeypatch.setattr(module, "file_name", lambda package, level: f"{package}.so")
        monkeypatch.setattr(module, "find_spec", lambda name: True)
        monkeypatch.setattr(module, "subprocess", SimpleNamespace(run=run, DEVNULL=subprocess.DEVNULL))
    return commands


def test_one_process_compiles_and_the_other_waits(tmp_path: Path) -> None:
    outputs = [tmp_path / "first.txt", tmp_path / "second.txt"]
    first = start(tmp_path, outputs[0])
    wait_until(lambda: built(tmp_path) == 1 or first.poll() is not None)
    second = start(tmp_path, outputs[1])
    waits = "waiting for another process that compiles made_up, for at most 300 s"
    wait_until(lambda: waits in outputs[1].read_text() or second.poll() is not None)
    (tmp_path / "go").touch()
    codes = [process.wait(FOREVER) for process in (first, second)]
    assert codes == [0, 0], [output.read_text() for output in outputs]
    assert built(tmp_path) == 1
    assert waits in outputs[1].read_text()
    for output in outputs:
        assert output.read_text().splitlines()[-1] == f"found {tmp_path / 'cache' / 'made_up.so'}"
    assert [path.name for path in (tmp_path / "cache").iterdir()] == ["made_up.so"]


def test_a_process_that_is_killed_leaves_the_lock_to_the_next(tmp_path: Path) -> None:
    first = start(tmp_path, tmp_path / "first.txt")
    wait_until(lambda: built(tmp_path) == 1 or first.poll() is not None)
    first.kill()
    first.wait(FOREVER)
    assert (tmp_path / "cache" / "made_up.lock").exists()
    (tmp_path / "go").touch()
    assert start(tmp_path, tmp_path / "second.txt").wait(FOREVER) == 0
    assert built(tmp_path) == 2
    assert "waiting" not in (tmp_path / "second.txt").read_text()


def test_a_process_that_hangs_is_not_waited_for_forever(
    tmp_path: Path, fake_build: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(library, "LOCK_SECONDS", 0.1)
    held = try_lock(tmp_path / "made_up.lock")
    assert held is not None
    assert library._build("made_up") == tmp_path / "made_up.so"
    assert len(fake_build) == 1
    # The lock is still the other process's.
    assert try_lock(tmp_path / "made_up.lock") is None
    os.close(held)


def test_a_folder_without_locks_is_built_in_nevertheless(
    tmp_path: Path, fake_build: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(path: Path) -> int:
        raise OSError(37, "No locks available")

    monkeypatch.setattr(library, "try_lock", refuse)
    assert library._build("made_up") == tmp_path / "made_up.so"
    assert len(fake_build) == 1


def test_the_next_folder_is_taken_for_one_that_can_only_be_read(
    tmp_path: Path, fake_build: list[list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    # The superuser may write everywhere, so that only a pretence works for all who run the tests.
    read_only = tmp_path / "installed"
    read_only.mkdir()
    monkeypatch.setattr(library, "SHIPPED", read_only)
    monkeypatch.setenv(library.FOLDER_VARIABLE, str(tmp_path / "cache"))
    monkeypatch.setattr(os, "access", lambda path, mode: Path(path) != read_only)
    assert library._build("made_up") == tmp_path / "cache" / "made_up.so"
    assert not any(read_only.iterdir())
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert library._build("made_up") is None
    assert library._warnings.pop().endswith("and no folder for it can be written to")


def test_the_command_that_compiles_takes_the_same_locks(tmp_path: Path, fake_build: list[list[str]], capsys: Any) -> None:
    """What another process has built while the command waited is not built again."""
    (tmp_path / "made_up.so").write_bytes(b"")
    assert build._build_all(["made_up"], tmp_path, ("any",), 1, is_locked=False) == 0
    assert not fake_build
    assert capsys.readouterr().err == "[1/1] made_up: compiled by another process\n"
    (tmp_path / "made_up.so").unlink()
    held = try_lock(tmp_path / "made_up.lock")
    assert held is not None
    # The process that calls the command with the lock does not wait for itself.
    assert build._build_all(["made_up"], tmp_path, ("any",), 1, is_locked=True) == 0
    assert len(fake_build) == 1
    os.close(held)
