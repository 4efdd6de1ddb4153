"""The process that runs candidates, one after the other: ``python -m stowplan.kernel.workers.worker PARENT``.

Jobs come on standard input, and, whenever another candidate finds something, the incumbent; plans and bounds go out on what was
standard output (:mod:`stowplan.kernel.workers.messages`). Solvers may print: their output goes to standard error. When the
parent goes away, the process ends: the kernel sees to it on Linux, elsewhere the end of the input does.

A worker takes another job only where the last one has left nothing behind: no error, no process, no thread, no change of folder
or environment, and not too much memory. Else it ends.
"""

from __future__ import annotations

import os
import queue
import sys
import threading
import traceback
from typing import BinaryIO

import msgspec

from stowplan import kinds
from stowplan.child_process import (
    MAX_REUSE_MEMORY,
    become_child,
    collect_garbage_seldom,
    light_imports,
    read_message,
    write_encoded,
)
from stowplan.kernel.context import Report
from stowplan.kernel.workers.messages import Job, Load, ToWorker, WorkerContext
from stowplan.process_memory import prefer_to_end, resident

#: Seconds that a worker waits for a job before it ends.
IDLE_SECONDS = 600.0

#: Where memory runs out, a candidate is what can be done without.
OOM_SCORE = 500


class Worker:
    """One process: what comes in from the parent, what goes out to it, and the job at hand."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO):
        self._incoming, self._outgoing = incoming, outgoing
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Job | Load] = queue.SimpleQueue()
        self._context: WorkerContext | None = None
        self._environment = _environment()

    def send(self, report: Report) -> None:
        """Report to the parent."""
        with self._lock:
            write_encoded(self._outgoing, msgspec.msgpack.encode(report))

    def listen(self) -> None:
        """Take in what the parent says until it goes away; then end the process, whatever it is doing."""
        while (data := read_message(self._incoming)) is not None:
            self.hear(msgspec.msgpack.decode(data, type=ToWorker))
        os._exit(0)

    def hear(self, message: ToWorker) -> None:
        """Take in one message. Those for a job come after it, and what comes between jobs was for the one before."""
        if isinstance(message, Job | Load):
            # It may have been registered by the parent's program.
            if message.candidate.place is not None:
                kinds.register(message.candidate.kind, message.candidate.place)
            if isinstance(message, Job):
                try:
                    self._context = WorkerContext(message, self.send)
                except Exception as error:
                    self.send(Report.failure(error))
                    return
            self._jobs.put(message)
        elif self._context is not None:
            self._context.take(message)

    def work(self) -> None:
        """Do jobs while there are any to come."""
        threading.Thread(target=self.listen, daemon=True).start()
        while True:
            try:
                message = self._jobs.get(timeout=IDLE_SECONDS)
            except queue.Empty:
                return
            if isinstance(message, Load):
                _load(message)
            elif not self._do(message):
                return

    def _do(self, job: Job) -> bool:
        """Run a candidate; returns whether this process takes another job."""
        context = self._context
        assert context is not None
        threads = threading.active_count()
        try:
            problem = kinds.by_name(job.candidate.kind).problem.decode(job.problem)
            # Large ones take as much memory again.
            job.problem = b""
            function = job.candidate.load()
            self.send(Report("started"))
            if not context.closed():
                function(problem, context)
        except BaseException as error:
            traceback.print_exc()
            self.send(Report.failure(error))
            return False
        del problem
        waits = threading.active_count() == threads and not _has_children() and _environment() == self._environment
        waits = waits and resident(os.getpid()) <= MAX_REUSE_MEMORY
        self._context = None
        self.send(context.last_word(waits))
        return waits


def _load(ahead: Load) -> None:
    """Import what a candidate needs; what goes wrong goes wrong again with the job, and is told then."""
    try:
        ahead.candidate.load()
    except BaseException:
        traceback.print_exc()


def _environment() -> tuple[str, dict[str, str]]:
    return os.getcwd(), dict(os.environ)


def _has_children() -> bool:
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def main() -> None:
    """Run jobs until the parent has no more."""
    incoming, outgoing = become_child(int(sys.argv[1]))
    prefer_to_end(OOM_SCORE)
    collect_garbage_seldom()
    light_imports()
    Worker(incoming, outgoing).work()
    # Threads of solvers may still be running; nothing here is worth waiting for.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
