"""Worker processes that outlive a run: they wait for the next candidate or the next call, and are replaced if something goes
wrong.

A worker needs half a second or more for its imports, while small problems are solved in milliseconds. A process waits for
another job only if it reports that the last job left nothing behind (:mod:`stowplan.kernel.workers.worker`). Processes that do
not stop when they are asked to are killed. All end with this process, however it ends.
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

#: Environment variable; if it is 0, every job gets a new process.
KEEP_VARIABLE = "STOWPLAN_KEEP_WORKERS"

#: Seconds that a run waits at its limit for candidates to return; and seconds after which candidates that have not returned are
#: killed.
STOP_SECONDS, LINGER_SECONDS = 0.1, 2.0

#: A variable that pytest changes for every test. Workers ignore it; otherwise no test could reuse the workers of another.
_PYTEST_VARIABLE = "PYTEST_CURRENT_TEST"


class ProcessSettings(NamedTuple):
    """The settings that a process was started with. A call in another folder or environment needs processes with other
    settings."""

    executable: str
    """Path of the Python interpreter."""
    folder: str
    """Working directory."""
    environment: dict[str, str]
    """Environment variables."""


class WarmWorkers:
    """The worker processes of this process that wait for jobs. Several threads may use it at the same time."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._settings: dict[WorkerProcess, ProcessSettings] = {}
        self._waiting: set[WorkerProcess] = set()
        self._max_waiting = 1
        self._close_count = 0
        self._run_count = 0
        self._keeps_processes = True
        self._requests: queue.SimpleQueue[tuple[Future[WorkerProcess], ProcessSettings]] = queue.SimpleQueue()
        self._starter: threading.Thread | None = None

    def begin_run(self, workers: int) -> None:
        """Records that a run with this many workers begins. From now on, up to one process more than this is kept waiting."""
        with self._lock:
            self._run_count += 1
            self._max_waiting = max(self._max_waiting, workers + 1)
            self._keeps_processes = os.environ.get(KEEP_VARIABLE) != "0"

    def get(self, candidate: CandidateId, *, fresh: bool = False, most_bytes: int | None = None) -> WorkerProcess:
        """Returns a process that waits for a job: if possible one that has run this candidate before, otherwise another or a
        new one.

        Parameters
        ----------
        candidate
            The candidate to run.
        fresh
            Whether the process must be new.
        most_bytes
            Limit on the resident size, in bytes, of a process that is returned; None if there is none. A new process is
            returned whatever it uses.

        Raises
        ------
        OSError
            The system cannot start another process.
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
        """Whether a process is waiting that has run this candidate before."""
        with self._lock:
            return any(process.has_run and candidate in process.candidates for process in self._fitting())

    def prepare(self, *candidates: CandidateId) -> None:
        """Starts a process that imports these candidates for a run that will follow. It does nothing if processes are not kept
        (:data:`KEEP_VARIABLE`) or if the system cannot start one."""
        if os.environ.get(KEEP_VARIABLE) == "0":
            return
        with contextlib.suppress(OSError):
            process = self._start()
            for candidate in candidates:
                process.load(candidate)
            process.has_waited = True
            self._keep(process)

    def finish(self, turns: Iterable[ProcessTurn], *, at_limit: bool, are_awaited: bool = False) -> None:
        """Ends the turns of a run. Processes that stop are kept. The others are killed after a while and, if further calls are
        likely, replaced by new ones.

        A process that is still importing, or that checks seldom whether to stop, has :data:`LINGER_SECONDS` and is kept for the
        next call if it stops within them: starting a new one would take as long.

        Parameters
        ----------
        turns
            The turns in processes.
        at_limit
            Whether the run ended at its limit, so that candidates should return within :data:`STOP_SECONDS`, which this call
            waits.
        are_awaited
            Whether to wait that long in any case, so that a call that follows at once finds the processes waiting.
        """
        current = [turn for turn in turns if turn.is_current]
        for turn in current:
            turn.stop()
        end = time.monotonic() + STOP_SECONDS
        for turn in current:
            if (at_limit or are_awaited) and self._keeps_processes:
                turn.is_over.wait(max(0.0, end - time.monotonic()))
        lingering = [turn for turn in current if self._keeps_processes and not turn.is_over.is_set()]
        self._end([turn for turn in current if turn not in lingering], self._close_count)
        if lingering:
            timer = threading.Timer(LINGER_SECONDS, self._end, (lingering, self._close_count))
            timer.daemon = True
            timer.start()
        self._trim()

    def _end(self, turns: list[ProcessTurn], closes: int) -> None:
        """Kills the processes that still run these turns, and replaces them unless all workers were closed in the meantime.

        The new processes import what the old ones had imported. They are started only if this process has called ``solve``
        before.
        """
        gone = [turn.process for turn in turns if turn.is_current]
        self._drop(gone)
        if closes == self._close_count and self._run_count > 1 and self._keeps_processes:
            for process in gone:
                self.prepare(*process.candidates)

    def close(self) -> None:
        """Kills all waiting processes, so that later runs get new ones. Processes that run a candidate are left alone."""
        with self._lock:
            every, self._waiting = self._waiting, set()
            self._close_count += 1
        self._drop(every)

    def end(self) -> None:
        """Kills all workers when this process ends."""
        with self._lock:
            self._keeps_processes = False
            every = list(self._settings)
        for process in every:
            process.kill()

    def _fitting(self) -> list[WorkerProcess]:
        """Waiting processes that are equivalent to new ones. The caller holds the lock."""
        start = _current_settings()
        return [process for process in self._waiting if self._settings[process] == start and process.is_alive]

    def _drop(self, processes: Collection[WorkerProcess]) -> None:
        """Kills processes and forgets them."""
        for process in processes:
            process.kill()
        for process in processes:
            process.close()
            with self._lock:
                self._settings.pop(process, None)
                self._waiting.discard(process)

    def _keep(self, process: WorkerProcess) -> None:
        """Makes a process wait for another job, or kills it if enough are waiting."""
        with self._lock:
            if self._keeps_processes and process in self._settings and len(self._waiting) < self._max_waiting:
                self._waiting.add(process)
            else:
                process.kill()

    def _trim(self) -> None:
        """Ends superfluous processes. Dead processes are ended first, then processes that a call like the last one could not
        use."""
        with self._lock:
            fit = self._fitting()
            remaining = [*fit, *(process for process in self._waiting if process not in fit and process.is_alive)][
                : self._max_waiting
            ]
            ended = [process for process in self._waiting if process not in remaining]
            ended += [process for process in self._settings if process.turn is None and not process.is_alive]
            self._waiting = {*remaining}
        self._drop({*ended})

    # A worker is killed when the thread that started it ends (PR_SET_PDEATHSIG), so one permanent thread starts all of them.

    def _start(self) -> WorkerProcess:
        """Starts a process."""
        future: Future[WorkerProcess] = Future()
        start = _current_settings()
        with self._lock:
            if self._starter is None:
                self._starter = threading.Thread(target=self._serve, daemon=True)
                self._starter.start()
        self._requests.put((future, start))
        process = future.result()
        with self._lock:
            self._settings[process] = start
        return process

    def _serve(self) -> None:
        """Body of the thread that starts processes."""
        while True:
            future, start = self._requests.get()
            try:
                future.set_result(WorkerProcess(start.environment, self._keep))
            except BaseException as error:
                future.set_exception(error)


def _current_settings() -> ProcessSettings:
    """The settings of a process that is started now."""
    # Numerical libraries use one thread in each process, because the processes run in parallel.
    environment = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1") | child_environment()
    environment.pop(_PYTEST_VARIABLE, None)
    return ProcessSettings(sys.executable, os.getcwd(), environment)


_workers = WarmWorkers()


def workers() -> WarmWorkers:
    """The worker processes of this process."""
    return _workers


def _forget() -> None:
    """In a forked child, forgets the workers, which belong to the parent."""
    global _workers
    _workers = WarmWorkers()


atexit.register(lambda: _workers.end())
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forget)
