"""Candidates in threads of the calling process: those whose loops are compiled, and what takes less time than a process does.

They report, hear of others and stop as in a process, but cannot be killed: only candidates that look at the clock often, and
take little memory, run here (:attr:`stowplan.kernel.kind.Candidate.in_thread`). The caller's own thread stays free to meet
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

from stowplan.kernel.context import Report
from stowplan.kernel.kind import Function
from stowplan.kernel.workers.messages import Job, News, WorkerContext
from stowplan.kernel.workers.started import MessageQueue, Turn

#: Seconds that a process waits for these threads when it ends: solvers do not bear the end of the interpreter.
JOIN_SECONDS = 2.0


class ThreadTurn(Turn):
    """A candidate's turn in a thread; ``load`` imports what it does with ``problem``. The job's own is not looked at."""

    def __init__(self, number: int, load: Callable[[], Function], problem: Any, job: Job, messages: MessageQueue):
        super().__init__(number, messages)
        self._context = WorkerContext(job, self.post)
        self.thread = threading.Thread(target=self._run, args=(load, problem), daemon=True)
        _running.add(self)
        self.thread.start()

    def tell(self, message: News) -> None:
        """Let the candidate know something."""
        self._context.take(message)

    def _run(self, load: Callable[[], Function], problem: Any) -> None:
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
    running = list(_running)
    for turn in running:
        turn.stop()
    end = time.monotonic() + JOIN_SECONDS
    for turn in running:
        turn.thread.join(max(0.0, end - time.monotonic()))


atexit.register(_end)
