"""Runs candidates side by side in child processes, verifies what they find and keeps the best.

A limit is a limit: solvers that do not stop are ended with their processes, verification included in the time. Whatever
happens, the kind's initial plans (everything slow, say) are there to fall back on.
"""

from __future__ import annotations

import contextlib
import os
import queue
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, BinaryIO, Literal, cast

import msgspec

from stowplan.deadline import Deadline
from stowplan.portfolio.compiled import INTERPRET
from stowplan.portfolio.context import Options
from stowplan.portfolio.registry import Candidate, Kind
from stowplan.portfolio.worker import Incumbent, Job, Report, read_message, write_message
from stowplan.result import CandidateReport, HistoryEntry, StopReason

#: Seconds kept back for ending processes and assembling the result.
RESERVE = 0.1

Outcome = Literal["finished", "stopped", "rejected", "failed", "skipped"]


@dataclass
class Progress:
    """What is known at a moment; given to ``on_progress``."""

    seconds: float
    objective: int | None
    bound: int | None
    source: str


@dataclass
class Worker:
    """A candidate's process, as the parent sees it."""

    candidate: Candidate
    process: subprocess.Popen[bytes]
    began: float
    objective: int | None = None
    bound: int | None = None
    outcome: Outcome = "stopped"
    notes: list[str] = field(default_factory=list)
    ended: float | None = None
    outbox: queue.SimpleQueue[Job | Incumbent] = field(default_factory=queue.SimpleQueue)

    def send(self) -> None:
        """Send what is put into the outbox, in a thread of its own: a worker deep in a solver may be slow to read."""
        with contextlib.suppress(OSError, ValueError):
            while True:
                write_message(cast(BinaryIO, self.process.stdin), self.outbox.get())


@dataclass
class Race:
    """The state of one run. Call :meth:`run` once."""

    kind: Kind
    problem: Any
    options: Options
    deadline: Deadline
    on_progress: Callable[[Progress], None] | None = None
    plan: Any = None
    objective: int | None = None
    source: str = ""
    bound: int | None = None
    infeasible: bool = False
    sources: dict[str, int] = field(default_factory=dict)
    """Best verified objective of each source."""
    history: list[HistoryEntry] = field(default_factory=list)
    reports: list[CandidateReport] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _rank: dict[str, int] = field(default_factory=dict)
    _workers: dict[int, Worker] = field(default_factory=dict)
    _mail: queue.SimpleQueue[tuple[int, Report | None]] = field(default_factory=queue.SimpleQueue)
    _verify_seconds: float = 0.0

    # ------------------------------------------------------------------------------------------------------- incumbents

    def offer_bound(self, bound: int, source: str) -> None:
        """Take a proven bound in."""
        if self.bound is None or bound > self.bound:
            self.bound = bound
            self._record(source)

    def offer_plan(self, plan: Any, source: str) -> str | None:
        """Verify a plan and keep it if it is the best; returns the violations, None where there are none."""
        began = time.monotonic()
        check = self.kind.verify(self.problem, plan)
        self._verify_seconds = max(self._verify_seconds, time.monotonic() - began)
        if not check.ok or check.objective is None:
            found = "; ".join(check.violations[:3])
            self.warnings.append(f"a plan of {source} failed verification and was left out: {found}")
            return found
        objective = check.objective
        self.sources[source] = min(objective, self.sources.get(source, objective))
        rank = self._rank.setdefault(source, len(self._rank))
        better = self.objective is None or objective < self.objective
        # Where equal plans race, the order of arrival must not decide.
        tie = self.options.deterministic and objective == self.objective and rank < self._rank[self.source]
        if better or tie:
            self.plan, self.objective, self.source = self.kind.finish(self.problem, plan, objective), objective, source
            self._record(source)
        return None

    def _record(self, source: str) -> None:
        entry = HistoryEntry(round(self.deadline.elapsed, 3), source, self.objective, self.bound)
        self.history.append(entry)
        if self.on_progress is not None:
            self.on_progress(Progress(entry.seconds, self.objective, self.bound, source))

    def _closed(self) -> StopReason | None:
        """Why nothing more can be gained, if so."""
        if self.infeasible:
            return "infeasible"
        if self.objective is None or self.bound is None:
            return None
        if self.objective <= self.bound:
            return "optimal"
        if self.objective - self.bound <= self.options.gap * self.objective:
            return "gap_reached"
        return None

    # ------------------------------------------------------------------------------------------------------------- run

    def run(self, starts: Mapping[str, Any], candidates: Sequence[Candidate]) -> StopReason:
        """Race the candidates; ``starts`` are plans at hand, by source, the first of them to be kept in any case."""
        for name in (*starts, *self.kind.baseline_sources):
            self._rank.setdefault(name, len(self._rank))
        try:
            return self._race(starts, candidates)
        except KeyboardInterrupt:
            return "cancelled"
        finally:
            self._end_workers()

    def _race(self, starts: Mapping[str, Any], candidates: Sequence[Candidate]) -> StopReason:
        self.offer_bound(self.kind.bound(self.problem), "floor")
        for source, plan in starts.items():
            self.offer_plan(plan, source)
        waiting = list(candidates)
        data = msgspec.json.encode(self.problem) if waiting else b""
        crowded = len(waiting) > self.options.workers
        while True:
            reason = self._closed()
            # A deterministic run lets every candidate finish: which proof comes first is a matter of load.
            if reason is not None and not (self.options.deterministic and reason != "infeasible" and (waiting or self._busy())):
                return reason
            while waiting and len(self._busy()) < self.options.workers and self._time_left() > 0:
                self._start(waiting.pop(0), data, crowded and bool(waiting))
            if not self._busy() and not waiting:
                return "candidates_done"
            if self._time_left() <= 0:
                self._drain(last=True)
                return self._closed() or ("cancelled" if self.deadline.was_cancelled else "time_limit")
            self._drain()

    def _busy(self) -> list[Worker]:
        return [worker for worker in self._workers.values() if worker.ended is None]

    def _time_left(self) -> float:
        return self.deadline.remaining - RESERVE - 1.5 * self._verify_seconds

    def _start(self, candidate: Candidate, problem: bytes, shared: bool) -> None:
        environment = dict(os.environ)
        # One thread a process: the processes are what runs in parallel.
        for name in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS", "NUMBA_NUM_THREADS"):
            environment.setdefault(name, "1")
        if candidate.interpret:
            environment[INTERPRET] = "1"
        process = subprocess.Popen(
            [sys.executable, "-m", "stowplan.portfolio.worker"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=None if os.environ.get("STOWPLAN_DEBUG") else subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
        )
        seconds = self._time_left()
        if shared:
            seconds = min(seconds, candidate.share * self.options.time_limit)
        start = None if self.plan is None else msgspec.json.encode(self.plan)
        number = len(self._workers)
        worker = self._workers[number] = Worker(candidate, process, self.deadline.elapsed)
        job = Job(self.kind.name, asdict(candidate), self.options, problem, seconds, start)
        worker.outbox.put(job)
        threading.Thread(target=worker.send, daemon=True).start()
        threading.Thread(target=self._receive, args=(number, process), daemon=True).start()

    def _receive(self, number: int, process: subprocess.Popen[bytes]) -> None:
        """Put what a worker says into the mail, in a thread of its own."""
        with contextlib.suppress(OSError, ValueError):
            while (data := read_message(cast(BinaryIO, process.stdout))) is not None:
                self._mail.put((number, msgspec.msgpack.decode(data, type=Report)))
        self._mail.put((number, None))

    def _drain(self, last: bool = False) -> None:
        """Handle the mail there is; wait a little for it where there is none."""
        letters: list[tuple[int, Report | None]] = []
        try:
            letters.append(self._mail.get(timeout=0.0 if last else max(0.001, min(0.2, self._time_left()))))
            while True:
                letters.append(self._mail.get_nowait())
        except queue.Empty:
            pass
        # Only the latest plan of a source is worth verifying.
        latest = {(number, report.source): report for number, report in letters if report and report.what == "plan"}
        for number, report in letters:
            if last and self.deadline.remaining < RESERVE + self._verify_seconds and report and report.what == "plan":
                continue
            self._handle(self._workers[number], report, latest.get((number, report.source)) if report else None)

    def _handle(self, worker: Worker, report: Report | None, latest: Report | None) -> None:
        if report is None:
            if worker.ended is None:
                worker.ended = self.deadline.elapsed
                if worker.outcome == "stopped":
                    worker.outcome = "failed"
                    worker.notes.append("its process ended without a word")
        elif report.what == "plan" and report.plan is not None:
            if report is latest:
                self._take_plan(worker, report.plan, report.source)
        elif report.what == "bound" and report.bound is not None:
            if worker.bound is None or report.bound > worker.bound:
                worker.bound = report.bound
            before = self.bound
            self.offer_bound(report.bound, report.source)
            if self.bound != before:
                self._tell_others(worker, Incumbent(bound=self.bound))
        elif report.what == "infeasible":
            self.infeasible = True
        elif report.what == "note":
            worker.notes.append(report.text)
        else:
            worker.ended = self.deadline.elapsed
            if report.what == "failed":
                worker.outcome = "failed"
                worker.notes.append(report.text)
            elif worker.outcome == "stopped":
                worker.outcome = "finished"

    def _take_plan(self, worker: Worker, data: bytes, source: str) -> None:
        before = self.objective
        violations = self.offer_plan(self.kind.decode_plan(data), source)
        if violations is not None:
            worker.outcome = "rejected"
            worker.notes.append(violations)
            return
        if worker.objective is None or self.sources[source] < worker.objective:
            worker.objective = self.sources[source]
        if self.objective != before:
            self._tell_others(worker, Incumbent(plan=msgspec.json.encode(self.plan)))

    def _tell_others(self, finder: Worker, message: Incumbent) -> None:
        if not self.options.deterministic:
            for worker in self._busy():
                if worker is not finder:
                    worker.outbox.put(message)

    def _end_workers(self) -> None:
        for worker in self._workers.values():
            if worker.process.poll() is None:
                worker.process.kill()
        for worker in self._workers.values():
            worker.process.wait()
            ended = self.deadline.elapsed if worker.ended is None else worker.ended
            self.reports.append(
                CandidateReport(
                    name=worker.candidate.name,
                    objective=worker.objective,
                    bound=worker.bound,
                    seconds=round(ended - worker.began, 3),
                    outcome=worker.outcome,
                    note="; ".join(worker.notes),
                )
            )
