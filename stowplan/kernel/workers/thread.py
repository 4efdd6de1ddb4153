"""Candidates in threads of the calling process, for which starting a process would take too long, or whose loops are compiled.

They report, receive updates and stop like candidates in processes, but cannot be killed. Only candidates that check often
whether to stop, and that take little memory, run in threads (:attr:`stowplan.kernel.kind.Candidate.in_thread`). The caller's
own thread stays free to watch the time limit and Ctrl-C.
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

from stowplan.kernel.context import Report
from stowplan.kernel.kind import Function
from stowplan.kernel.workers.messages import Job, RunUpdate, WorkerContext
from stowplan.kernel.workers.started import MessageQueue, Turn

#: Seconds that a process waits for these threads at exit, because solvers crash if the interpreter ends while they run.
JOIN_SECONDS = 2.0


class ThreadTurn(Turn):
    """A candidate's turn in a thread. ``load`` imports its function, which is called with ``problem``; the encoded problem of
    the job is not used."""

    def __init__(self, number: int, load: Callable[[], Function], problem: Any, job: Job, messages: MessageQueue):
        super().__init__(number, messages)
        self._context = WorkerContext(job, self.post)
        self.thread = threading.Thread(target=self._run, args=(load, problem), daemon=True)
        _running.add(self)
        self.thread.start()

    def send_update(self, message: RunUpdate) -> None:
        """Sends an update to the candidate."""
        self._context.apply(message)

    def _run(self, load: Callable[[], Function], problem: Any) -> None:
        """Runs the candidate and posts its last report."""
        try:
            load()(problem, self._context)
        except BaseException as error:
            if os.environ.get("STOWPLAN_DEBUG"):
                traceback.print_exc()
            self.post(Report.failure(error))
        else:
            self.post(self._context.last_word())


_running: weakref.WeakSet[ThreadTurn] = weakref.WeakSet()


def _end() -> None:
    """At exit, asks all candidates in threads to return and waits for them."""
    running = list(_running)
    for turn in running:
        turn.stop()
    end = time.monotonic() + JOIN_SECONDS
    for turn in running:
        turn.thread.join(max(0.0, end - time.monotonic()))


atexit.register(_end)
