"""Runs candidates side by side in child processes, and takes in what they report.

A limit is a limit: solvers that do not stop are ended with their processes, verification included in the time. Whatever
happens, the kind's initial plans (everything slow, say) are there to fall back on.
"""

from __future__ import annotations

import os
import queue
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

import msgspec

from stowplan.errors import StowplanError
from stowplan.notes import cut
from stowplan.portfolio.kind import Candidate
from stowplan.portfolio.process import MAIL_SIZE, Letter, Mail, WorkerProcess
from stowplan.portfolio.standing import Standing
from stowplan.portfolio.worker import Incumbent, Job, Report
from stowplan.result import CandidateReport, StopReason

#: Seconds kept back for ending processes and assembling the result.
RESERVE = 0.1

#: Seconds, and part of the limit, by which workers stop before the runner does, so that their last plans arrive.
LAST_WORD = 0.3, 0.05

#: Seconds between two looks at the clock, at most.
_TICK = 0.2

#: Part of the limit, and seconds at most, that the quick plan may take; and seconds that it has at least, together with
#: verifying it and another: where the limit is nearly over when the run begins, there is still some plan.
QUICK = 0.15, 1.0
QUICK_AT_LEAST = 0.25

#: Seconds that a worker needs at least before it reports anything: where less is left, the quick plan comes before all workers.
_LOADING = 1.0

#: A report keeps so many remarks of one candidate, each of so many characters.
_NOTES, _NOTE_LENGTH = 10, 500

Outcome = Literal["finished", "stopped", "rejected", "failed", "skipped"]


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
    is_heard: bool = False
    """Whether it has reported, and of a heuristic whether it has found anything."""

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


class Race:
    """One run. Call :meth:`run` once.

    Parameters
    ----------
    standing
        What is known; the run adds to it.
    """

    def __init__(self, standing: Standing):
        self.standing = standing
        self.reports: list[CandidateReport] = []
        self._kind, self._options, self._deadline = standing.kind, standing.options, standing.deadline
        self._workers: list[Worker] = []
        self._waiting: list[Candidate] = []
        self._mail: Mail = queue.Queue(MAIL_SIZE)
        self._rejected: set[str] = set()
        self._problem = b""
        self._start_plan: bytes | None = None
        """What candidates of a deterministic run start from."""
        self._crowd, self._is_crowded = 1.0, False

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
        self.standing.offer_bound(self._kind.bound(self.standing.problem), "floor")
        for number, (source, plan) in enumerate(starts.items()):
            violations = self.standing.offer_plan(plan, source, (-1, number))
            if violations is not None:
                self.standing.warnings.append(f"the plan {source} failed verification and was left out: {violations}")
        if not self._waiting:
            return self.standing.closed() or "candidates_done"
        self._problem = msgspec.json.encode(self.standing.problem)
        self._start_plan = None if self.standing.best is None else msgspec.json.encode(self.standing.best.plan)
        self._crowd = sum(candidate.share for candidate in self._waiting) / self._options.workers
        self._is_crowded = len(self._waiting) > self._options.workers
        if self._options.deterministic:
            # What makes plans must come to its end; what proves may use the time that is left.
            self._waiting.sort(key=lambda candidate: candidate.proves_only)
        if not self._is_over():
            # In a deterministic run it would depend on the clock, and there is time enough for the others.
            is_wanted = not self._options.deterministic and any(each.family == "heuristic" for each in self._waiting)
            if self._time_left() >= _LOADING:
                # Workers load what they need meanwhile.
                self._start_next()
            if is_wanted:
                self._offer_quick_plan()
        while True:
            if (reason := self.standing.closed()) is not None and self._may_stop(reason):
                return reason
            if self._time_left() <= 0:
                self._read_mail(last=True)
                return self.standing.closed() or self._out_of_time()
            self._start_next()
            if not self._busy() and not self._next_may_start():
                return self.standing.closed() or self._all_done()
            self._end_overdue()
            self._read_mail()

    def _is_over(self) -> bool:
        reason = self.standing.closed()
        return self._deadline.was_cancelled or (reason is not None and self._may_stop(reason))

    def _offer_quick_plan(self) -> None:
        """Make the kind's quick plan, in this process."""
        make = self._kind.quick_plan
        if make is None:
            return
        part, most = QUICK
        least = max(0.0, QUICK_AT_LEAST - 2 * self.standing.verify_seconds)
        until = self._deadline.elapsed + max(least, min(part * self._options.time_limit, most, self._time_left()))
        found = make(
            self.standing.problem,
            self._options,
            lambda: self._deadline.was_cancelled or self._deadline.elapsed >= until,
        )
        if found is None:
            return
        source, plan = found
        violations = self.standing.offer_plan(plan, source, (-1, len(self.standing.sources)))
        if violations is not None:
            self.standing.warnings.append(f"the plan {source} failed verification and was left out: {violations}")
        elif self.standing.best is not None and self.standing.best.source == source:
            self._tell_others(None, Incumbent(plan=msgspec.json.encode(self.standing.plan)))

    def _may_stop(self, reason: StopReason) -> bool:
        if reason == "infeasible":
            return True
        at_work = self._at_work()
        # A deterministic run lets all that make plans finish: which proof comes first is a matter of load.
        if self._options.deterministic:
            return all(candidate.proves_only for candidate in at_work)
        # A proof may come before the baselines: speedups are over something, so wait for those that heuristics will bring.
        missing = any(source not in self.standing.sources for source in self._kind.baseline_sources)
        return not (missing and any(candidate.family == "heuristic" for candidate in at_work))

    def _out_of_time(self) -> StopReason:
        if self._deadline.was_cancelled:
            return "cancelled"
        return "work_limit" if self._options.deterministic and not self.cut_short else "time_limit"

    @property
    def cut_short(self) -> bool:
        """Whether a candidate that makes plans was not given the time for its work."""
        stopped = [worker.candidate for worker in self._workers if worker.outcome == "stopped"]
        return not all(candidate.proves_only for candidate in (*stopped, *self._waiting))

    def _all_done(self) -> StopReason:
        if self._waiting or any(worker.outcome == "stopped" for worker in self._workers):
            return self._out_of_time()
        return "work_limit" if self._options.deterministic else "candidates_done"

    def _busy(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.ended is None]

    def _at_work(self) -> list[Candidate]:
        return [*self._waiting, *(worker.candidate for worker in self._busy())]

    def _clock(self, proves_only: bool) -> float:
        """Seconds until the last word of a candidate must have been taken in."""
        remaining = self._deadline.remaining
        if self._options.deterministic and proves_only:
            remaining = min(remaining, self._options.time_limit - self._deadline.elapsed)
        return remaining - RESERVE - 1.5 * self.standing.verify_seconds

    def _time_left(self) -> float:
        """Seconds until the run must end."""
        return self._clock(proves_only=all(candidate.proves_only for candidate in self._at_work()))

    def _last_word(self) -> float:
        """Seconds for a worker to write its last plan and for it to arrive."""
        seconds, part = LAST_WORD
        return min(seconds, part * self._options.time_limit) + self.standing.verify_seconds

    def _worker_seconds(self, candidate: Candidate) -> float:
        """Seconds that a candidate may still work."""
        return self._clock(candidate.proves_only) - self._last_word()

    def _next_may_start(self) -> bool:
        return bool(self._waiting) and self._worker_seconds(self._waiting[0]) > 0

    # --------------------------------------------------------------------------------------------------------- workers

    def _start_next(self) -> None:
        """Start candidates while there are places for them."""
        while len(self._busy()) < self._options.workers and self._next_may_start():
            candidate = self._waiting.pop(0)
            # Those who make way for others get their share; the last ones all the time that is left.
            makes_way = self._is_crowded and self._waiting
            self._start(candidate, candidate.share / max(1.0, self._crowd) if makes_way else 1.0)

    def _start(self, candidate: Candidate, share: float) -> None:
        seconds = self._worker_seconds(candidate)
        if self._options.deterministic:
            # Its share of the clock would depend on the load; it has a limit of work.
            start_plan, start_bound = self._start_plan, None
        else:
            seconds = min(seconds, share * self._options.time_limit)
            start_plan = None if self.standing.best is None else msgspec.json.encode(self.standing.best.plan)
            start_bound = self.standing.bound
        job = Job(
            kind=self._kind.modules,
            candidate=asdict(candidate),
            options=self._options,
            problem=self._problem,
            end=time.monotonic() + seconds,
            parent=os.getpid(),
            start_plan=start_plan,
            start_bound=start_bound,
        )
        now = self._deadline.elapsed
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
            if self._deadline.elapsed > worker.until + self._last_word() and worker.process is not None:
                worker.process.kill()
                worker.ended = self._deadline.elapsed

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
                worker.is_heard = True
                # Only the latest plan of a source is worth the time; but which one that is, is a matter of load.
                if self._options.deterministic or report is latest[number, report.source]:
                    self._take_plan(worker, report.plan, report.source)
            else:
                self._take_report(worker, report)

    def _take_end(self, worker: Worker) -> None:
        """The process is gone; before its last word or after it."""
        if worker.ended is None:
            worker.ended = self._deadline.elapsed
            worker.outcome = "failed"
            if worker.process is not None:
                worker.note(worker.process.cause_of_death())

    def _take_plan(self, worker: Worker, data: bytes, source: str) -> None:
        if self._deadline.remaining < RESERVE + self.standing.verify_seconds:
            return
        before = self.standing.best
        try:
            violations = self.standing.offer_plan(self._kind.decode_plan(data), source, (worker.number, worker.plans))
        except StowplanError as error:
            violations = str(error)
        if violations is not None:
            worker.outcome = "rejected"
            worker.note(violations)
            if source not in self._rejected:
                self._rejected.add(source)
                self.standing.warnings.append(f"a plan of {source} failed verification and was left out: {violations}")
            return
        if worker.objective is None or self.standing.sources[source] < worker.objective:
            worker.objective = self.standing.sources[source]
        if self.standing.best is not before:
            self._tell_others(worker, Incumbent(plan=msgspec.json.encode(self.standing.plan)))

    def _take_report(self, worker: Worker, report: Report) -> None:
        # Solvers may work to the end and find nothing better; a heuristic that found nothing has not come to its first plan.
        worker.is_heard = worker.is_heard or report.what != "stopped" or worker.candidate.family != "heuristic"
        if report.what == "bound" and report.bound is not None:
            before = self.standing.bound
            self.standing.offer_bound(report.bound, report.source)
            worker.bound = report.bound if worker.bound is None else max(worker.bound, report.bound)
            if self.standing.bound != before:
                self._tell_others(worker, Incumbent(bound=self.standing.bound))
        elif report.what == "infeasible":
            if not self.standing.offer_infeasibility(report.source, report.why):
                worker.outcome = "rejected"
        elif report.what == "note":
            worker.note(report.text)
        elif worker.ended is None:
            worker.ended = self._deadline.elapsed
            if report.what not in ("done", "stopped"):
                worker.outcome = "failed"
                worker.note(report.text)
            elif report.what == "done" and worker.outcome == "stopped":
                worker.outcome = "finished"

    def _tell_others(self, finder: Worker | None, message: Incumbent) -> None:
        if not self._options.deterministic:
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
            if worker.bound is not None and self.standing.best is not None and worker.bound > self.standing.best.objective:
                worker.note(f"claimed a bound of {worker.bound}")
                worker.bound, worker.outcome = None, "rejected"
        self.reports = [worker.report(self._deadline.elapsed) for worker in self._workers]
        self._warn_of_failures()
        if self.standing.closed() is None:
            self._warn_of_the_unheard()
        note = "no time was left for it" if self.standing.closed() is None else "was not needed"
        for candidate in self._waiting:
            self.reports.append(CandidateReport(candidate.name, None, None, 0.0, "skipped", note))

    def _warn_of_failures(self) -> None:
        """Name those that failed, with the last thing that is known of them."""
        for worker in self._workers:
            if worker.outcome == "failed":
                reason = worker.notes[-1] if worker.notes else "for no known reason"
                self.standing.warnings.append(cut(f"the candidate {worker.candidate.name} failed: {reason}"))

    def _warn_of_the_unheard(self) -> None:
        """Name those of which nothing came: what is best of the others says nothing of them."""
        unheard = [worker.candidate for worker in self._workers if worker.outcome == "stopped" and not worker.is_heard]
        unheard += self._waiting
        # A deterministic run does all the work for its plan; proofs have what time is left.
        names = [each.name for each in unheard if not (self._options.deterministic and each.proves_only)]
        if names:
            when = "before the run was cancelled" if self._deadline.was_cancelled else "within the limit"
            self.standing.warnings.append(f"{', '.join(names)}: no report {when}")
