"""Runs candidates, that is, methods that look for plans or bounds, in threads of the calling process.

This is for small problems, for which starting a process would take too long, and for candidates whose loops are compiled and do
not block other threads. Candidates in threads report, receive updates and stop like candidates in processes, but they cannot be
killed. So only candidates that check often whether to stop, and that take little memory, run in threads
(:attr:`stowplan.kernel.kind.Candidate.in_thread`). The caller's own thread stays free to watch the time limit and Ctrl-C.
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

#: At exit, the process waits this many seconds for its threads to end, because solvers crash if the interpreter ends before
#: them.
JOIN_SECONDS = 2.0


class ThreadTurn(Turn):
    """One execution of a candidate (a *turn*) in a thread, which starts at once.

    ``load`` imports and returns the candidate's function, which is called with ``problem``. The job also contains the problem
    in encoded form, for processes; it is not used here.
    """

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
        """Runs the candidate and posts its last report, which says how it ended."""
        try:
            load()(problem, self._context)
        except BaseException as error:
            if os.environ.get("STOWPLAN_DEBUG"):
                traceback.print_exc()
            self.post(Report.failure(error))
        else:
            self.post(self._context.last_report())


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
