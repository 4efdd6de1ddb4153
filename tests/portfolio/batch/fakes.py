"""What workers of a batch do in place of solving: they import these by name."""

from __future__ import annotations

import importlib
import os
import signal
from pathlib import Path

from stowplan import files
from stowplan.portfolio.batch.records import Record
from stowplan.portfolio.batch.task import Outcome, Task
from tests.portfolio.fakes import fake_kind, ladder_problem


def outcome(task: Task, **result: object) -> Outcome:
    """A record of an input that was solved."""
    values = {"plan": None, "provenance": {"problem_digest": "1"}, **result}
    return Outcome(files.encode(Record(input=task.input, settings=task.settings, exit_code=0, result=values)))


def answers(task: Task) -> Outcome:
    """At once."""
    return outcome(task, pid=os.getpid())


def is_killed_by_poison(task: Task) -> Outcome:
    """Every time."""
    if Path(task.input).stem == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    return answers(task)


def is_killed_once(task: Task) -> Outcome:
    """In the first try of each input."""
    seen = Path(task.input).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return answers(task)


def is_killed_at_its_word(task: Task) -> Outcome:
    """In the first try, with half of its outcome written."""
    seen = Path(task.input).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        pipe = next(number for number in range(3, 20) if _is_pipe_to_parent(number))
        os.write(pipe, (1000).to_bytes(8, "little") + b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    return answers(task)


def _is_pipe_to_parent(number: int) -> bool:
    try:
        return "pipe:" in os.readlink(f"/proc/self/fd/{number}") and os.get_blocking(number) and _is_writable(number)
    except OSError:
        return False


def _is_writable(number: int) -> bool:
    import fcntl

    return bool(fcntl.fcntl(number, fcntl.F_GETFL) & os.O_WRONLY)


def exits(task: Task) -> Outcome:
    """Every time."""
    os._exit(5)


def never_ends(task: Task) -> Outcome:
    """Solves with a candidate that does not stop, and lets a test find all processes of it (LADDER_PIDS)."""
    with open(os.environ["LADDER_PIDS"], "a") as stream:
        stream.write(f"{os.getpid()}\n")
    module = importlib.import_module("stowplan.portfolio.solve")
    fakes = fake_kind("sleeps")
    module.kind_of = lambda problem: fakes  # type: ignore[attr-defined]
    module.solve(ladder_problem(), time_limit=1200)
    return answers(task)
