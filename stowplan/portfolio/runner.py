"""Runs candidates side by side in child processes, verifies what they find and keeps the best.

A limit is a limit: solvers that do not stop are ended with their processes, verification included in the time. Whatever
happens, the kind's initial plans (everything slow, say) are there to fall back on. Nothing a candidate says is taken on
trust that can be checked: plans are verified, and a bound that a verified plan undercuts is no bound.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import msgspec

from stowplan.deadline import Deadline
from stowplan.errors import StowplanError
from stowplan.portfolio.context import Options
from stowplan.portfolio.process import MAIL_SIZE, Letter, Mail, WorkerProcess
from stowplan.portfolio.registry import Candidate, Check, Kind
from stowplan.portfolio.worker import Incumbent, Job, Report
from stowplan.result import CandidateReport, HistoryEntry, StopReason

#: Seconds kept back for ending processes and assembling the result.
RESERVE = 0.1

#: Seconds, and part of the limit, by which workers stop before the runner does, so that their last plans arrive.
LAST_WORD = 0.3, 0.05

#: Seconds between two looks at the clock, at most.
_TICK = 0.2

#: A report keeps so many remarks of one candidate, each of so many characters.
_NOTES, _NOTE_LENGTH = 10, 500

Outcome = Literal["finished", "stopped", "rejected", "failed", "skipped"]


@dataclass
class Progress:
    """What is known at a moment; given to ``on_progress``."""

    seconds: float
    objective: int | None
    bound: int | None
    source: str


@dataclass(frozen=True)
class Best:
    """The incumbent."""

    plan: Any
    objective: int
    source: str
    order: tuple[int, int]
    """(number of the worker, number of its plan): decides between equals where the order of arrival must not."""


@dataclass
class Worker:
    """What is known of one candidate that was started."""

    number: int
    candidate: Candidate
    began: float
    until: float
    """When it is to stop; like all times here in seconds since the start of the run."""
    process: WorkerProcess | None = None
    objective: int | None = None
    bound: int | None = None
    outcome: Outcome = "stopped"
    plans: int = 0
    notes: list[str] = field(default_factory=list)
    ended: float | None = None

    def note(self, text: str) -> None:
        """Keep a remark for the report."""
        if len(self.notes) < _NOTES:
            self.notes.append(text[:_NOTE_LENGTH])

    def report(self, now: float) -> CandidateReport:
        """For the result."""
        ended = now if self.ended is None else self.ended
        return CandidateReport(
            name=self.candidate.name,
            objective=self.objective,
            bound=self.bound,
            seconds=round(ended - self.began, 3),
            outcome=self.outcome,
            note="; ".join(self.notes),
        )


@dataclass
class Race:
    """The state of one run. Call :meth:`run` once."""

    kind: Kind
    problem: Any
    options: Options
    deadline: Deadline
    on_progress: Callable[[Progress], None] | None = None
    best: Best | None = None
    bound: int | None = None
    """Best of ``bounds``."""
    infeasible: bool = False
    sources: dict[str, int] = field(default_factory=dict)
    """Best verified objective of each source."""
    bounds: dict[str, int] = field(default_factory=dict)
    """Best bound of each source that nothing speaks against."""
    history: list[HistoryEntry] = field(default_factory=list)
    reports: list[CandidateReport] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    _refuted: set[str] = field(default_factory=set)
    _rejected: set[str] = field(default_factory=set)
    _workers: list[Worker] = field(default_factory=list)
    _waiting: list[Candidate] = field(default_factory=list)
    _mail: Mail = field(default_factory=lambda: queue.Queue(MAIL_SIZE))
    _verify_seconds: float = 0.0
    _start_plan: bytes | None = None
    """What candidates of a deterministic run start from."""

    @property
    def plan(self) -> Any:
        """The best plan, None where there is none."""
        return None if self.best is None else self.best.plan

    @property
    def objective(self) -> int | None:
        """Its objective."""
        return None if self.best is None else self.best.objective

    # ------------------------------------------------------------------------------------------------------- incumbents

    def offer_bound(self, bound: int, source: str) -> None:
        """Take a bound in, unless a plan shows that it is none."""
        if source in self._refuted:
            return
        self.bounds[source] = max(bound, self.bounds.get(source, bound))
        if self.best is not None and bound > self.best.objective:
            self._refute_bounds(self.best.objective)
        elif self.bound is None or bound > self.bound:
            self.bound = bound
            self._record(source)

    def offer_plan(self, plan: Any, source: str, order: tuple[int, int]) -> str | None:
        """Verify a plan and keep it if it is the best; returns what is wrong with it, None where nothing is."""
        check = self._verify(plan)
        if not check.ok or check.objective is None:
            return "; ".join(check.violations[:3])
        objective = check.objective
        self.sources[source] = min(objective, self.sources.get(source, objective))
        if self.best is None or self._is_better(objective, order, self.best):
            self.best = Best(self.kind.finish(self.problem, plan, objective), objective, source, order)
            if self.infeasible:
                self.infeasible = False
                self.warnings.append(f"a candidate called the problem infeasible, but a plan of {source} is valid")
            if self.bound is not None and self.bound > objective:
                self._refute_bounds(objective)
            self._record(source)
        return None

    def _verify(self, plan: Any) -> Check:
        began = time.monotonic()
        try:
            return self.kind.verify(self.problem, plan)
        except Exception as error:  # a plan that the verifier stumbles over must not cost the plans at hand
            return Check(False, None, (f"the verifier failed: {type(error).__name__}: {error}",))
        finally:
            self._verify_seconds = max(self._verify_seconds, time.monotonic() - began)

    def _is_better(self, objective: int, order: tuple[int, int], best: Best) -> bool:
        if self.options.deterministic and objective == best.objective:
            return order < best.order
        return objective < best.objective

    def _refute_bounds(self, objective: int) -> None:
        """Forget everything said by those whose bounds a verified plan undercuts."""
        for source in [source for source, bound in self.bounds.items() if bound > objective]:
            self.warnings.append(
                f"a bound of {source} was {self.bounds.pop(source)}, but there is a plan with {objective}: left out"
            )
            self._refuted.add(source)
        self.bound = max(self.bounds.values(), default=None)

    def _record(self, source: str) -> None:
        entry = HistoryEntry(round(self.deadline.elapsed, 3), source, self.objective, self.bound)
        self.history.append(entry)
        if self.on_progress is not None:
            self.on_progress(Progress(entry.seconds, self.objective, self.bound, source))

    def _closed(self) -> StopReason | None:
        """Why nothing more can be gained, if so."""
        if self.infeasible:
            return "infeasible"
        if self.best is None or self.bound is None:
            return None
        if self.best.objective <= self.bound:
            return "optimal"
        if self.best.objective - self.bound <= self.options.gap * self.best.objective:
            return "gap_reached"
        return None

    # ------------------------------------------------------------------------------------------------------------- run

    def run(self, starts: Mapping[str, Any], candidates: Sequence[Candidate]) -> StopReason:
        """Race the candidates, most useful first; ``starts`` are plans at hand, by source."""
        self._waiting = list(candidates)
        try:
            return self._race(starts)
        except KeyboardInterrupt:
            return "cancelled"
        finally:
            self._end_workers()

    def _race(self, starts: Mapping[str, Any]) -> StopReason:
        self.offer_bound(self.kind.bound(self.problem), "floor")
        for number, (source, plan) in enumerate(starts.items()):
            violations = self.offer_plan(plan, source, (-1, number))
            if violations is not None:
                self.warnings.append(f"the plan {source} failed verification and was left out: {violations}")
        if not self._waiting:
            return self._closed() or "candidates_done"
        data = msgspec.json.encode(self.problem)
        self._start_plan = None if self.best is None else msgspec.json.encode(self.best.plan)
        crowd = sum(candidate.share for candidate in self._waiting) / self.options.workers
        crowded = len(self._waiting) > self.options.workers
        while True:
            if (reason := self._closed()) is not None and self._may_stop(reason):
                return reason
            if self._time_left() <= 0:
                self._read_mail(last=True)
                return self._closed() or self._out_of_time()
            while self._waiting and len(self._busy()) < self.options.workers and self._worker_seconds() > 0:
                candidate = self._waiting.pop(0)
                # Those who make way for others get their share; the last ones all the time that is left.
                share = candidate.share / max(1.0, crowd) if crowded and self._waiting else 1.0
                self._start(candidate, data, share)
            if not self._busy() and (not self._waiting or self._worker_seconds() <= 0):
                return self._closed() or self._all_done()
            self._end_overdue()
            self._read_mail()

    def _may_stop(self, reason: StopReason) -> bool:
        if reason == "infeasible":
            return True
        at_work = [*self._waiting, *(worker.candidate for worker in self._busy())]
        # A deterministic run lets every candidate finish: which proof comes first is a matter of load.
        if self.options.deterministic:
            return not at_work
        # A proof may come before the baselines: speedups are over something, so wait for those that heuristics will bring.
        missing = any(source not in self.sources for source in self.kind.baseline_sources)
        return not (missing and any(candidate.family == "heuristic" for candidate in at_work))

    def _out_of_time(self) -> StopReason:
        return "cancelled" if self.deadline.was_cancelled else "time_limit"

    def _all_done(self) -> StopReason:
        if self._waiting or any(worker.outcome == "stopped" for worker in self._workers):
            return self._out_of_time()
        return "work_limit" if self.options.deterministic else "candidates_done"

    def _busy(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.ended is None]

    def _time_left(self) -> float:
        """Seconds until the last plan must have been verified."""
        return self.deadline.remaining - RESERVE - 1.5 * self._verify_seconds

    def _last_word(self) -> float:
        """Seconds for a worker to write its last plan and for it to arrive."""
        seconds, part = LAST_WORD
        return min(seconds, part * self.options.time_limit) + self._verify_seconds

    def _worker_seconds(self) -> float:
        """Seconds that a worker may still work."""
        return self._time_left() - self._last_word()

    # --------------------------------------------------------------------------------------------------------- workers

    def _start(self, candidate: Candidate, problem: bytes, share: float) -> None:
        seconds = self._worker_seconds()
        if self.options.deterministic:
            # Its share of the clock would depend on the load; it has a limit of work.
            start_plan, start_bound = self._start_plan, None
        else:
            seconds = min(seconds, share * self.options.time_limit)
            start_plan = None if self.best is None else msgspec.json.encode(self.best.plan)
            start_bound = self.bound
        job = Job(
            kind=self.kind.name,
            candidate=asdict(candidate),
            options=self.options,
            problem=problem,
            end=time.monotonic() + seconds,
            parent=os.getpid(),
            start_plan=start_plan,
            start_bound=start_bound,
        )
        now = self.deadline.elapsed
        worker = Worker(len(self._workers), candidate, now, now + seconds)
        try:
            worker.process = WorkerProcess(worker.number, job, self._mail, interpret=candidate.interpret)
        except OSError as error:
            worker.ended, worker.outcome = now, "failed"
            worker.note(f"could not be started: {error}")
        self._workers.append(worker)

    def _end_overdue(self) -> None:
        """End workers that have not stopped in time while others wait for their place."""
        for worker in self._busy() if self._waiting else ():
            if self.deadline.elapsed > worker.until + self._last_word() and worker.process is not None:
                worker.process.kill()
                worker.ended = self.deadline.elapsed

    def _read_mail(self, last: bool = False) -> None:
        """Handle the letters there are; wait a little where there are none."""
        letters: list[Letter] = []
        try:
            letters.append(self._mail.get(timeout=0.0 if last else max(0.001, min(_TICK, self._time_left()))))
            # No more than fit in: candidates may write faster than this reads.
            while len(letters) < MAIL_SIZE:
                letters.append(self._mail.get_nowait())
        except queue.Empty:
            pass
        latest = {(number, report.source): report for number, report in letters if report and report.what == "plan"}
        for number, report in letters:
            worker = self._workers[number]
            if report is None:
                self._take_end(worker)
            elif report.what == "plan" and report.plan is not None:
                worker.plans += 1
                # Only the latest plan of a source is worth the time; but which one that is, is a matter of load.
                if self.options.deterministic or report is latest[number, report.source]:
                    self._take_plan(worker, report.plan, report.source)
            else:
                self._take_report(worker, report)

    def _take_end(self, worker: Worker) -> None:
        """The process is gone; before its last word or after it."""
        if worker.ended is None:
            worker.ended = self.deadline.elapsed
            worker.outcome = "failed"
            if worker.process is not None:
                worker.note(worker.process.cause_of_death())

    def _take_plan(self, worker: Worker, data: bytes, source: str) -> None:
        if self.deadline.remaining < RESERVE + self._verify_seconds:
            return
        before = self.best
        try:
            violations = self.offer_plan(self.kind.decode_plan(data), source, (worker.number, worker.plans))
        except StowplanError as error:
            violations = str(error)
        if violations is not None:
            worker.outcome = "rejected"
            worker.note(violations)
            if source not in self._rejected:
                self._rejected.add(source)
                self.warnings.append(f"a plan of {source} failed verification and was left out: {violations}")
            return
        if worker.objective is None or self.sources[source] < worker.objective:
            worker.objective = self.sources[source]
        if self.best is not before:
            self._tell_others(worker, Incumbent(plan=msgspec.json.encode(self.plan)))

    def _take_report(self, worker: Worker, report: Report) -> None:
        if report.what == "bound" and report.bound is not None:
            before = self.bound
            self.offer_bound(report.bound, report.source)
            worker.bound = report.bound if worker.bound is None else max(worker.bound, report.bound)
            if self.bound != before and report.source not in self._refuted:
                self._tell_others(worker, Incumbent(bound=self.bound))
        elif report.what == "infeasible":
            if self.best is None:
                self.infeasible = True
            else:
                worker.outcome = "rejected"
                self.warnings.append(
                    f"{report.source} called the problem infeasible, but a plan of {self.best.source} is valid"
                )
        elif report.what == "note":
            worker.note(report.text)
        elif worker.ended is None:
            worker.ended = self.deadline.elapsed
            if report.what not in ("done", "stopped"):
                worker.outcome = "failed"
                worker.note(report.text)
            elif report.what == "done" and worker.outcome == "stopped":
                worker.outcome = "finished"

    def _tell_others(self, finder: Worker, message: Incumbent) -> None:
        if not self.options.deterministic:
            for worker in self._busy():
                if worker is not finder and worker.process is not None:
                    worker.process.tell(message)

    def _end_workers(self) -> None:
        processes = [worker.process for worker in self._workers if worker.process is not None]
        for process in processes:
            process.kill()
        for process in processes:
            process.close()
        for worker in self._workers:
            if worker.bound is not None and self.best is not None and worker.bound > self.best.objective:
                worker.note(f"claimed a bound of {worker.bound}")
                worker.bound, worker.outcome = None, "rejected"
        self.reports = [worker.report(self.deadline.elapsed) for worker in self._workers]
        note = "no time was left for it" if self._closed() is None else "was not needed"
        for candidate in self._waiting:
            self.reports.append(CandidateReport(candidate.name, None, None, 0.0, "skipped", note))
