"""Workers that outlive a run: started once, kept for the next candidate and the next call, replaced when they misbehave.

What a worker imports takes half a second and more, what small problems take is milliseconds. A process goes back to waiting
only where it says itself that its last job has left nothing behind (:mod:`stowplan.kernel.workers.worker`); those that do not
stop when they are told to are killed. All end with this process, however it ends.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import queue
import sys
import threading
import time
from collections.abc import Collection, Iterable
from concurrent.futures import Future
from typing import NamedTuple

from stowplan.child_process import child_environment
from stowplan.kernel.workers.messages import CandidateId
from stowplan.kernel.workers.process import ProcessTurn, WorkerProcess
from stowplan.process_memory import resident

#: Set to 0 to start every worker anew, and keep none.
KEEP = "STOWPLAN_KEEP_WORKERS"

#: Seconds that a run waits at its limit for candidates to return by themselves, and that they have then; then they are killed.
STOP_SECONDS, LINGER_SECONDS = 0.1, 2.0

#: Set and changed while a test process runs, and of no matter to a worker: it would make every warm one another's.
_PASSING = "PYTEST_CURRENT_TEST"


class Start(NamedTuple):
    """What a process is started with; another call may start with something else."""

    executable: str
    folder: str
    environment: dict[str, str]


class WarmWorkers:
    """The workers of this process that wait for jobs. Threads may use it side by side."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._made: dict[WorkerProcess, Start] = {}
        self._waiting: set[WorkerProcess] = set()
        self._most = 1
        self._closes = 0
        self._runs = 0
        self._keeps = True
        self._requests: queue.SimpleQueue[tuple[Future[WorkerProcess], Start]] = queue.SimpleQueue()
        self._starter: threading.Thread | None = None

    def begin_run(self, workers: int) -> None:
        """A run of so many workers begins: so many are kept."""
        with self._lock:
            self._runs += 1
            self._most = max(self._most, workers + 1)
            self._keeps = os.environ.get(KEEP) != "0"

    def get(self, candidate: CandidateId, *, fresh: bool = False, most_bytes: int | None = None) -> WorkerProcess:
        """A process that waits for a job: one that has run this candidate before, or another, or a new one.

        Unless it is new, as it must be where ``fresh``, it holds no more than ``most_bytes`` of memory. Raises OSError where
        the system has no room for another process.
        """
        with self._lock:
            fit = [] if fresh else self._fitting()
            if most_bytes is not None:
                fit = [process for process in fit if resident(process.pid) <= most_bytes]
            if fit:
                best = max(fit, key=lambda process: candidate in process.candidates)
                self._waiting.remove(best)
                return best
        return self._start()

    def is_ready(self, candidate: CandidateId) -> bool:
        """Whether a process waits that has run this candidate before, and would be given for it now."""
        with self._lock:
            return any(process.has_run and candidate in process.candidates for process in self._fitting())

    def prepare(self, *candidates: CandidateId) -> None:
        """Start a process that loads what these candidates need, for a run that is to come; none where none are kept."""
        if os.environ.get(KEEP) == "0":
            return
        with contextlib.suppress(OSError):
            process = self._start()
            for candidate in candidates:
                process.load(candidate)
            process.was_kept = True
            self._keep(process)

    def finish(self, turns: Iterable[ProcessTurn], *, at_limit: bool, are_awaited: bool = False) -> None:
        """End of a run: those that stop are kept, the others killed in a while and, where calls are likely, replaced.

        Those that should have returned by now, ``at_limit``, have :data:`STOP_SECONDS` more. Where a run ends sooner, only
        those that ``are_awaited`` have: a call that comes at once then has them, and starts no others. Those that still import
        what they need, or look at the clock seldom, have :data:`LINGER_SECONDS` for that, and are there for the next call: to
        load everything anew takes as long.
        """
        current = [turn for turn in turns if turn.is_current]
        for turn in current:
            turn.stop()
        end = time.monotonic() + STOP_SECONDS
        for turn in current:
            if (at_limit or are_awaited) and self._keeps:
                turn.is_over.wait(max(0.0, end - time.monotonic()))
        lingering = [turn for turn in current if self._keeps and not turn.is_over.is_set()]
        self._end([turn for turn in current if turn not in lingering], self._closes)
        if lingering:
            timer = threading.Timer(LINGER_SECONDS, self._end, (lingering, self._closes))
            timer.daemon = True
            timer.start()
        self._trim()

    def _end(self, turns: list[ProcessTurn], closes: int) -> None:
        """Kill processes that are still these candidates'; where they were not all closed since, others take their place.

        Those load what these had, where this process calls again and again.
        """
        gone = [turn.process for turn in turns if turn.is_current]
        self._drop(gone)
        if closes == self._closes and self._runs > 1 and self._keeps:
            for process in gone:
                self.prepare(*process.candidates)

    def close(self) -> None:
        """End all workers that wait; those of later runs are new."""
        with self._lock:
            every, self._waiting = self._waiting, set()
            self._closes += 1
        self._drop(every)

    def end(self) -> None:
        """This process ends."""
        with self._lock:
            self._keeps = False
            every = list(self._made)
        for process in every:
            process.kill()

    def _fitting(self) -> list[WorkerProcess]:
        """Those that wait and are as a new one would be. The lock is held."""
        start = _start_of()
        return [process for process in self._waiting if self._made[process] == start and process.is_alive]

    def _drop(self, processes: Collection[WorkerProcess]) -> None:
        for process in processes:
            process.kill()
        for process in processes:
            process.close()
            with self._lock:
                self._made.pop(process, None)
                self._waiting.discard(process)

    def _keep(self, process: WorkerProcess) -> None:
        """A process waits."""
        with self._lock:
            if self._keeps and process in self._made and len(self._waiting) < self._most:
                self._waiting.add(process)
            else:
                process.kill()

    def _trim(self) -> None:
        """End those that are too many; first those that have ended, and those that no call like the last could use."""
        with self._lock:
            fit = self._fitting()
            kept = [*fit, *(process for process in self._waiting if process not in fit and process.is_alive)][: self._most]
            ended = [process for process in self._waiting if process not in kept]
            ended += [process for process in self._made if process.turn is None and not process.is_alive]
            self._waiting = {*kept}
        self._drop({*ended})

    # A process ends with the thread that has started it (PR_SET_PDEATHSIG): so that is one that lasts.

    def _start(self) -> WorkerProcess:
        future: Future[WorkerProcess] = Future()
        start = _start_of()
        with self._lock:
            if self._starter is None:
                self._starter = threading.Thread(target=self._serve, daemon=True)
                self._starter.start()
        self._requests.put((future, start))
        process = future.result()
        with self._lock:
            self._made[process] = start
        return process

    def _serve(self) -> None:
        while True:
            future, start = self._requests.get()
            try:
                future.set_result(WorkerProcess(start.environment, self._keep))
            except BaseException as error:
                future.set_exception(error)


def _start_of() -> Start:
    """Of a process that is started now."""
    # One thread a process: the processes are what runs in parallel.
    environment = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1") | child_environment()
    environment.pop(_PASSING, None)
    return Start(sys.executable, os.getcwd(), environment)


_own = WarmWorkers()


def workers() -> WarmWorkers:
    """Those of this process."""
    return _own


def _forget() -> None:
    """In a child that was forked: the workers are its parent's."""
    global _own
    _own = WarmWorkers()


atexit.register(lambda: _own.end())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
