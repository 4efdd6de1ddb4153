"""The worker process, which runs one candidate after another: ``python -m stowplan.kernel.workers.worker PARENT``.

A *candidate* is a method that looks for plans or bounds of a problem, and a *job* is one candidate to run on one problem.
PARENT is the process ID of the parent. The parent writes jobs to the worker's standard input. While a job runs, it also writes
updates, for example when another candidate has found a better plan or bound. Between jobs it may send a request to import the
candidate that the next job will probably run (``Load``). Plans and bounds of the candidate are written to the original standard
output (:mod:`stowplan.kernel.workers.messages`); text that solvers print goes to standard error. The process ends when its
parent does: Linux kills it, and on other systems it ends at the end of its input.

A worker accepts another job only if the last one left nothing behind: no error, no child process, no thread, no change of the
working directory or environment, and not too much memory. Otherwise it ends.
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

#: If the system runs out of memory, it should kill a candidate rather than the calling process.
OOM_SCORE = 500


class Worker:
    """A worker process: its connection to the parent, and its current job."""

    def __init__(self, incoming: BinaryIO, outgoing: BinaryIO):
        self._incoming, self._outgoing = incoming, outgoing
        self._lock = threading.Lock()
        self._jobs: queue.SimpleQueue[Job | Load] = queue.SimpleQueue()
        self._context: WorkerContext | None = None
        self._environment = _environment()

    def send(self, report: Report) -> None:
        """Sends a report to the parent."""
        with self._lock:
            write_encoded(self._outgoing, msgspec.msgpack.encode(report))

    def listen(self) -> None:
        """Reads messages until the parent closes the pipe, then ends the process at once."""
        while (data := read_message(self._incoming)) is not None:
            self.handle(msgspec.msgpack.decode(data, type=ToWorker))
        os._exit(0)

    def handle(self, message: ToWorker) -> None:
        """Handles one message of the parent. It may arrive while a candidate runs in the main thread.

        Updates are for the job that was sent last. An update that comes after the end of its job changes nothing. If a job
        cannot be prepared, the error is reported to the parent, and the job is not run.
        """
        if isinstance(message, Job | Load):
            # The kind of problem may be one that the parent's program has registered. This process then does not know it yet.
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
            self._context.apply(message)

    def work(self) -> None:
        """Runs jobs until none has come for :data:`IDLE_SECONDS`, or a job leaves something behind."""
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
        """Runs a candidate; returns whether this process can take another job.

        If the problem cannot be decoded or the candidate fails, the error is reported to the parent, and the process takes no
        further job.
        """
        context = self._context
        assert context is not None
        threads = threading.active_count()
        try:
            problem = kinds.by_name(job.candidate.kind).problem.decode(job.problem)
            # Frees the encoded problem, which may be large.
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
        is_reusable = threading.active_count() == threads and not _has_children() and _environment() == self._environment
        is_reusable = is_reusable and resident(os.getpid()) <= MAX_REUSE_MEMORY
        self._context = None
        self.send(context.last_report(is_reusable))
        return is_reusable


def _load(request: Load) -> None:
    """Imports a candidate. An error is ignored, because it will occur again with the job and be reported then."""
    try:
        request.candidate.load()
    except BaseException:
        traceback.print_exc()


def _environment() -> tuple[str, dict[str, str]]:
    """The working directory and the environment variables."""
    return os.getcwd(), dict(os.environ)


def _has_children() -> bool:
    """Whether this process has a child process."""
    try:
        os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def main() -> None:
    """Runs jobs as :meth:`Worker.work` does, then ends the process."""
    incoming, outgoing = become_child(int(sys.argv[1]))
    prefer_to_end(OOM_SCORE)
    collect_garbage_seldom()
    light_imports()
    Worker(incoming, outgoing).work()
    # Ends at once, without waiting for threads of solvers that may still be running.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
