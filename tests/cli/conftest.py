"""The command line, called in process; a real plan to play with."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import stowplan
from stowplan.cli import main
from tests.paths import EXAMPLES
from tests.patience import HANG

ALEXNET = EXAMPLES / "alexnet_inf_b1.hlo.txt.gz"
#: Ends after a moment and compiles nothing.
BRIEF = ("--candidates", "relaxation", "--time-limit", "0.3")
#: The same for a process, whose start is a part of the time.
BRIEF_PROCESS = ("--candidates", "relaxation", "--time-limit", "8")


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Commands of a moment read their input, whatever else the machine does."""
    monkeypatch.setattr("stowplan.deadline.MIN_READING_SECONDS", HANG)


class Outcome(NamedTuple):
    """What a command came to."""

    code: int
    out: str
    err: str


Cli = Callable[..., Outcome]


@pytest.fixture
def cli(capsys: pytest.CaptureFixture[str]) -> Cli:
    """Runs ``stowplan`` with the given arguments in this process."""

    def run(*arguments: object) -> Outcome:
        capsys.readouterr()
        with pytest.raises(SystemExit) as caught:
            main([str(argument) for argument in arguments])
        captured = capsys.readouterr()
        assert isinstance(caught.value.code, int)
        return Outcome(caught.value.code, captured.out, captured.err)

    return run


def run_process(*arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs ``stowplan`` in a process of its own."""
    command = [sys.executable, "-c", "from stowplan.cli import main; main()", *map(str, arguments)]
    return subprocess.run(command, text=True, timeout=HANG, check=False, **options)


def error_line(outcome: Outcome, code: int = 2) -> str:
    """The one line an error may have."""
    assert outcome.code == code, outcome
    assert outcome.out == "", outcome
    lines = outcome.err.splitlines()
    assert len(lines) == 1, outcome.err
    assert lines[0].startswith("stowplan: "), outcome.err
    return lines[0]


@pytest.fixture
def unchanged(tmp_path: Path) -> Iterator[None]:
    """Checks that a test leaves in ``tmp_path`` what was there when ``remember`` was called, and nothing else."""
    yield
    left = [path.name for path in tmp_path.rglob("*") if path.name.endswith(".tmp") or path.name == "out.json"]
    assert not left, left


class Solved(NamedTuple):
    """AlexNet on the teaching target, solved to optimality."""

    problem: Any
    plan: Any
    problem_file: Path
    plan_file: Path


@pytest.fixture(scope="session")
def solved(tmp_path_factory: pytest.TempPathFactory) -> Solved:
    """Problem and plan, as objects and as files; not to be written to."""
    folder = tmp_path_factory.mktemp("solved")
    problem = stowplan.read(ALEXNET, target="teaching")
    result = stowplan.solve(problem, candidates="exact", time_limit=60, deterministic=True)
    assert result.status == "optimal"
    problem.save(folder / "problem.json")
    result.plan.save(folder / "plan.json")
    return Solved(problem, result.plan, folder / "problem.json", folder / "plan.json")
