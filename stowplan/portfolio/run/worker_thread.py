"""Candidates in threads of the calling process: those whose loops are compiled, and what takes less time than a process does.

They report, hear of others and stop as in a process, but cannot be killed: only candidates that look at the clock often, and
take little memory, run here (:attr:`stowplan.portfolio.kind.Candidate.in_thread`). The caller's own thread stays free to meet
the limit and Ctrl-C.
"""

from __future__ import annotations

import atexit
import os
import threading
import time
import traceback
import weakref
from collections.abc import Callable
from typing import Any

from stowplan.portfolio.context import Report
from stowplan.portfolio.run.messages import Incumbent, Job, MessageQueue, Turn, WorkerContext

#: Seconds that a process waits for these threads when it ends: solvers do not bear the end of the interpreter.
JOIN_SECONDS = 2.0

#: Imports what a candidate does, ``(problem, context) -> None``.
Loader = Callable[[], Callable[[Any, Any], None]]


class ThreadAssignment(Turn):
    """A candidate's turn in a thread; see :class:`stowplan.portfolio.run.worker_process.Assignment`.

    Parameters
    ----------
    number, messages
        Of its turn.
    load
        Imports what the candidate does.
    problem, job
        What it is to do; the job's own problem is not looked at.
    """

    lost_job: Job | None = None

    def __init__(self, number: int, load: Loader, problem: Any, job: Job, messages: MessageQueue):
        super().__init__(number, messages)
        self._context = WorkerContext(job, self.post)
        self._thread = threading.Thread(target=self._run, args=(load, problem), daemon=True)
        _running.add(self)
        self._thread.start()

    def tell(self, incumbent: Incumbent) -> None:
        """Let the candidate know what others have found."""
        self._context.take(incumbent)

    def stop(self) -> None:
        """Ask the candidate to return; what it still reports goes nowhere."""
        self._is_unwanted.set()
        self._context.end_now()

    kill = stop

    def join(self, seconds: float) -> None:
        """Wait for its end."""
        self._thread.join(seconds)

    def cause_of_death(self) -> str:
        """Never asked for: a thread always has a last word."""
        return "its thread ended without a last word"

    def _run(self, load: Loader, problem: Any) -> None:
        try:
            load()(problem, self._context)
        except BaseException as error:
            if os.environ.get("STOWPLAN_DEBUG"):
                traceback.print_exc()
            self.post(Report("failed", text=f"{type(error).__name__}: {error}"))
        else:
            self.post(Report(self._context.last_word()))


_running: weakref.WeakSet[ThreadAssignment] = weakref.WeakSet()


def _end() -> None:
    running = list(_running)
    for assignment in running:
        assignment.stop()
    end = time.monotonic() + JOIN_SECONDS
    for assignment in running:
        assignment.join(max(0.0, end - time.monotonic()))


atexit.register(_end)
