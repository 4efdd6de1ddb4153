"""What workers of a batch do in place of solving: they import these by name."""

from __future__ import annotations

import importlib
import os
import signal
import threading
from pathlib import Path
from typing import Any

from stowplan import files
from stowplan.kernel.solve import solve
from stowplan.portfolio.batch.records import Record
from stowplan.portfolio.batch.task import Outcome, Task, solve_task
from stowplan.result import Progress, Result
from tests.kernel.fakes import fake_kind, ladder_problem
from tests.patience import HANG


def outcome(task: Task, **result: object) -> Outcome:
    """A record of an input that was solved."""
    values = {"plan": None, "provenance": {"problem_digest": "1"}, **result}
    return Outcome(files.encode(Record(input=task.input, settings=task.settings, exit_code=0, result=values)))


def answers(task: Task, cancel: threading.Event) -> Outcome:
    """At once."""
    return outcome(task, pid=os.getpid())


def ends_when_cancelled(task: Task, cancel: threading.Event) -> Outcome:
    """And says when it begins."""
    Path(task.input).with_suffix(".seen").touch()
    assert cancel.wait(HANG)
    return answers(task, cancel)


def is_killed_by_poison(task: Task, cancel: threading.Event) -> Outcome:
    """Every time."""
    if Path(task.input).stem == "poison":
        os.kill(os.getpid(), signal.SIGKILL)
    return answers(task, cancel)


def is_killed_once(task: Task, cancel: threading.Event) -> Outcome:
    """In the first try of each input."""
    seen = Path(task.input).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return answers(task, cancel)


def is_killed_at_its_word(task: Task, cancel: threading.Event) -> Outcome:
    """In the first try, with half of its outcome written."""
    seen = Path(task.input).with_suffix(".seen")
    if not seen.exists():
        seen.touch()
        pipe = next(number for number in range(3, 20) if _is_pipe_to_parent(number))
        os.write(pipe, (1000).to_bytes(8, "little") + b"half")
        os.kill(os.getpid(), signal.SIGKILL)
    return answers(task, cancel)


def _is_pipe_to_parent(number: int) -> bool:
    try:
        return "pipe:" in os.readlink(f"/proc/self/fd/{number}") and os.get_blocking(number) and _is_writable(number)
    except OSError:
        return False


def _is_writable(number: int) -> bool:
    import fcntl

    return bool(fcntl.fcntl(number, fcntl.F_GETFL) & os.O_WRONLY)


def exits(task: Task, cancel: threading.Event) -> Outcome:
    """Every time."""
    os._exit(5)


def _says_when(task: Task, cancel: threading.Event, solve: str) -> Outcome:
    """Solves in earnest, by a function of this module that says so by a line in LADDER_PIDS."""
    module = importlib.import_module("stowplan.portfolio.batch.task")
    module.solve = globals()[solve]  # type: ignore[attr-defined]
    return solve_task(task, cancel)


def _say() -> None:
    with open(os.environ["LADDER_PIDS"], "a") as stream:
        stream.write(f"{os.getpid()}\n")


def _after_the_cancel(problem: Any, *, cancel: threading.Event, **options: Any) -> Result:
    _say()
    assert cancel.wait(HANG)
    return solve(problem, cancel=cancel, **options)


def _with_a_plan(problem: Any, **options: Any) -> Result:
    is_first = iter([True])

    def tell(progress: Progress) -> None:
        if progress.objective is not None and next(is_first, False):
            _say()

    return solve(problem, on_progress=tell, **options)


def solves_after_the_cancel(task: Task, cancel: threading.Event) -> Outcome:
    """So that there are the plans that cost nothing."""
    return _says_when(task, cancel, "_after_the_cancel")


def solves_in_earnest(task: Task, cancel: threading.Event) -> Outcome:
    """And says when there is a plan."""
    return _says_when(task, cancel, "_with_a_plan")


def never_ends(task: Task, cancel: threading.Event) -> Outcome:
    """Solves with a candidate that does not stop, and lets a test find all processes of it (LADDER_PIDS) and the cancel."""
    _say()
    threading.Thread(target=lambda: cancel.wait() and _say(), daemon=True).start()
    module = importlib.import_module("stowplan.kernel.solve")
    fakes = fake_kind("sleeps")
    module.kind_of = lambda problem: fakes  # type: ignore[attr-defined]
    module.solve(ladder_problem(), time_limit=1200)
    return answers(task, cancel)
