"""The process that runs one candidate: ``python -m stowplan.portfolio.worker``.

The job comes on standard input, then, whenever another candidate finds something, the incumbent; plans and bounds go out on
what was standard output (:mod:`stowplan.portfolio.messages`). Solvers may print: their output goes to standard error. When the
parent goes away, the process ends: the kernel sees to it on Linux, elsewhere the end of the input does.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys
import threading
import time
import traceback
from typing import Any, BinaryIO

import msgspec

from stowplan import kinds
from stowplan.models.hint import Hint
from stowplan.portfolio.kind import Candidate
from stowplan.portfolio.messages import Incumbent, Job, Report, read_message, write_message

#: A candidate that returns this close to its end (seconds) was stopped by time: solvers look at the clock now and then.
_CLOSE = 0.05

_PR_SET_PDEATHSIG = 1


class WorkerContext:
    """The candidate's view of the run; see :class:`stowplan.portfolio.context.Context`."""

    def __init__(self, job: Job, outgoing: BinaryIO):
        self.options = job.options
        self._kind = job.kind
        self.start_plan = None if job.start_plan is None else self._kind.decode_plan(job.start_plan)
        self._end = job.end
        self._outgoing = outgoing
        self._lock = threading.Lock()
        self._incumbent: tuple[Any, int | None] = (self.start_plan, job.start_bound)
        self._hints = tuple(map(Hint.decode, job.hints))

    def _send(self, report: Report) -> None:
        with self._lock:
            write_message(self._outgoing, report)

    def plan(self, plan: Any, source: str) -> None:
        """Report a plan."""
        self._send(Report("plan", source, plan=msgspec.json.encode(plan)))

    def bound(self, bound: int, source: str) -> None:
        """Report a bound."""
        self._send(Report("bound", source, bound=bound))

    def proven_infeasible(self, source: str, why: dict[str, Any] | None = None) -> None:
        """Report a proof that there is no plan."""
        self._send(Report("infeasible", source, why=why))

    def hint(self, hint: Hint) -> None:
        """Hand a hint on to the other candidates."""
        self._send(Report("hint", hint.source, hint=msgspec.json.encode(hint)))

    def note(self, text: str) -> None:
        """Report a remark."""
        self._send(Report("note", text=text))

    def incumbent(self) -> tuple[Any, int | None]:
        """Best plan and bound of all candidates."""
        return self._incumbent

    def hints(self) -> tuple[Hint, ...]:
        """All hints so far."""
        return self._hints

    def stop(self) -> bool:
        """Whether time is up."""
        return time.monotonic() >= self._end

    def remaining(self) -> float:
        """Seconds left."""
        return max(0.0, self._end - time.monotonic())

    def finish(self) -> None:
        """The last report of a candidate that returned."""
        self._send(Report("stopped" if self.remaining() < _CLOSE else "done"))

    def fail(self, text: str) -> None:
        """The last report of a candidate that raised."""
        self._send(Report("failed", text=text))

    def listen(self, incoming: BinaryIO) -> None:
        """Take in incumbents until the parent goes away; then end the process, whatever it is doing."""
        while (data := read_message(incoming)) is not None:
            if self.options.deterministic:
                continue
            message = msgspec.msgpack.decode(data, type=Incumbent)
            plan, bound = self._incumbent
            if message.plan is not None:
                plan = self._kind.decode_plan(message.plan)
            if message.hint is not None:
                self._hints = (*self._hints, Hint.decode(message.hint))
            self._incumbent = (plan, bound if message.bound is None else message.bound)
        os._exit(0)


def _end_with_parent(parent: int) -> None:
    """Have the kernel end this process when its parent ends, for candidates that let no other thread run."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:
            os._exit(0)


def main() -> None:
    """Run one job."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    for name in ("SIGTERM", "SIGHUP"):
        if hasattr(signal, name):
            # Schedulers signal every process of a job: it is for the parent to say when to end. What a worker starts is not to
            # inherit it, so that the signals are handled, not ignored.
            signal.signal(getattr(signal, name), lambda number, frame: None)
    incoming, outgoing = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.dup2(2, 1)
    data = read_message(incoming)
    if data is None:
        return
    job = msgspec.msgpack.decode(data, type=Job)
    _end_with_parent(job.parent)
    # It may have been registered by the parent's program.
    kinds.register(job.kind)
    context = WorkerContext(job, outgoing)
    threading.Thread(target=context.listen, args=(incoming,), daemon=True).start()
    try:
        problem = job.kind.decode_problem(job.problem)
        # Large ones take as much memory again.
        data, job.problem = b"", b""
        Candidate(**job.candidate).load()(problem, context)
    except BaseException as error:
        traceback.print_exc()
        context.fail(f"{type(error).__name__}: {error}")
    else:
        context.finish()
    # Threads of solvers may still be running; nothing here is worth waiting for.
    sys.stderr.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
