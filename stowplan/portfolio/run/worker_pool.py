"""The workers of a run: candidates are started while there is room, heard, and ended.

Whatever a candidate does, its worker ends with the run: solvers that do not stop are ended with their processes.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Literal

import msgspec

from stowplan.errors import StowplanError
from stowplan.log import LOGGER, cut
from stowplan.models import hint as hints
from stowplan.portfolio.kind import Candidate
from stowplan.portfolio.run.messages import QUEUE_SIZE, CandidateId, Incumbent, Job, MessageQueue, Report, WorkerMessage
from stowplan.portfolio.run.process_memory import watch
from stowplan.portfolio.run.state import RunState
from stowplan.portfolio.run.stop_policy import StopPolicy
from stowplan.portfolio.run.warm_workers import workers
from stowplan.portfolio.run.worker_process import Assignment
from stowplan.portfolio.run.worker_thread import ThreadAssignment
from stowplan.result import CandidateReport

#: Seconds between two looks at the clock, at most.
_TICK = 0.2

#: Part of the limit that the baseline may take where nothing runs beside it.
BASELINE_SHARE = 0.5

#: Seconds of this process's processors, since the start of a run, for which a candidate in a thread is alone: most are done by
#: then, with all that they import. Where others keep the processors busy, at most so many seconds, and that part of the limit,
#: but so many in any case.
ALONE_SECONDS, ALONE_AT_MOST, ALONE_PART, ALONE_AT_LEAST = 0.4, 1.5, 0.1, 0.25

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
    process: Assignment | ThreadAssignment | None = None
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
            family=self.candidate.family,
        )


class WorkerPool:
    """The candidates of a run and their workers.

    Parameters
    ----------
    state
        What is known; what workers report is added to it.
    policy
        Says how long workers may work.
    candidates
        Most useful first.
    before
        Workers of earlier stages of the run, whose plans go first where they are as good.
    """

    def __init__(self, state: RunState, policy: StopPolicy, candidates: Sequence[Candidate], before: int = 0):
        self._before = before
        self.has_dropped = False
        """Whether there was no time to verify some plan."""
        self._state, self._policy = state, policy
        self._kind, self._options, self._deadline = state.kind, state.options, state.deadline
        self._waiting = list(candidates)
        if self._options.deterministic:
            # What makes plans must come to its end; what proves may use the time that is left.
            self._waiting.sort(key=lambda candidate: candidate.proves_only)
        self._workers: list[Worker] = []
        self._messages: MessageQueue = queue.Queue(QUEUE_SIZE)
        self._rejected: set[str] = set()
        sharing = [each for each in candidates if not (each.makes_baseline or each.is_presolver or each.takes_over)]
        self._crowd = sum(candidate.share for candidate in sharing) / self._options.workers
        self._is_crowded = len(sharing) > self._options.workers
        self._used = time.process_time()
        workers().begin_run(self._options.workers)

    @property
    def at_work(self) -> list[Candidate]:
        """Candidates that are running or wait for their turn."""
        return [*self._waiting, *(worker.candidate for worker in self._busy())]

    @property
    def unfinished(self) -> list[Candidate]:
        """Candidates that did not come to the end of their work, at the end of a run."""
        return [*self._waiting, *(worker.candidate for worker in self._unfinished())]

    @property
    def ahead(self) -> list[Candidate]:
        """Those of :attr:`unfinished` whose plans go before the best where they are as good (:attr:`Best.order`)."""
        best = self._state.best
        return [worker.candidate for worker in self._unfinished() if best is None or worker.number < best.order[0]]

    @property
    def started(self) -> int:
        """Workers so far, those of earlier stages included."""
        return self._before + len(self._workers)

    @property
    def is_idle(self) -> bool:
        """Whether no candidate runs and none may start."""
        return not self._busy() and not self._next_may_start()

    @property
    def is_next_ready(self) -> bool:
        """Whether the next candidate begins at once: in a thread."""
        return bool(self._waiting) and self._waiting[0].in_thread

    @property
    def has_news(self) -> bool:
        """Whether a worker has reported something that was not taken yet."""
        return not self._messages.empty()

    def _unfinished(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.ended is None or worker.outcome == "stopped"]

    def _busy(self) -> list[Worker]:
        return [worker for worker in self._workers if worker.ended is None]

    # ----------------------------------------------------------------------------------------------------------- start

    def start_waiting(self) -> None:
        """Start candidates while there are places for them."""
        while len(self._busy()) < self._options.workers and self._next_may_start() and not self._next_would_disturb():
            candidate = self._waiting.pop(0)
            if candidate.makes_baseline and candidate.name in self._state.sources:
                continue
            # Those who make way for others get their share; the last ones all the time that is left.
            leaves_time = self._is_crowded and not all(each.takes_over for each in self._waiting)
            share = candidate.share / (1.0 if candidate.is_presolver else max(1.0, self._crowd)) if leaves_time else 1.0
            if candidate.makes_baseline:
                share = BASELINE_SHARE if self._options.workers == 1 else 1.0
            self._start(candidate, share)

    def _next_would_disturb(self) -> bool:
        """Whether a thread is at work that may soon be done, or has no plan yet: what is not there yet would take its time."""
        following, threads = self._waiting[0], [worker for worker in self._busy() if worker.candidate.in_thread]
        if following.in_thread and any(worker.candidate.is_presolver for worker in threads):
            # A presolver builds models in the interpreter, which two threads have only in turn.
            return True
        most = max(ALONE_AT_LEAST, min(ALONE_AT_MOST, ALONE_PART * self._options.time_limit))
        is_late = time.process_time() - self._used >= ALONE_SECONDS or self._deadline.elapsed >= most
        if self._options.deterministic or is_late:
            return False
        is_there = workers().is_ready(CandidateId.of(self._kind.name, following.name))
        return any(not (worker.candidate.is_long and (is_there or worker.is_heard)) for worker in threads)

    def _next_may_start(self) -> bool:
        return bool(self._waiting) and self._policy.worker_seconds(self._waiting[0]) > 0

    def _start(self, candidate: Candidate, share: float) -> None:
        is_deterministic = self._options.deterministic
        # Large ones take a moment to encode: before the clock is read.
        problem = b"" if candidate.in_thread else self._problem
        start_plan = self._first_plan if is_deterministic else self._best_plan()
        seconds = self._policy.worker_seconds(candidate)
        if not is_deterministic:
            # In a deterministic run its share of the clock would depend on the load; it has a limit of work there.
            seconds = min(seconds, share * self._options.time_limit)
        job = Job(
            candidate=CandidateId.of(self._kind.name, candidate.name),
            options=self._options,
            problem=problem,
            end=time.monotonic() + seconds,
            start_plan=start_plan,
            start_bound=None if is_deterministic else self._state.bound,
            hints=self._hints,
            closed=self._policy.is_needless(candidate),
        )
        now = self._deadline.elapsed
        worker = Worker(self.started, candidate, now, now + seconds)
        self._workers.append(worker)
        where = "thread" if candidate.in_thread else "process"
        LOGGER.debug("candidate %s started in a %s after %.3f s, for %.3g s", candidate.name, where, now, seconds)
        self._assign(worker, job)

    def _assign(self, worker: Worker, job: Job, *, fresh: bool = False) -> None:
        """Give a candidate a thread, or a process: one that waits, or a new one."""
        if worker.candidate.in_thread:
            load = partial(self._kind.function, worker.candidate.name)
            worker.process = ThreadAssignment(worker.number, load, self._state.problem, job, self._messages)
            return
        limit = self._options.memory_limit
        # What it holds from earlier jobs counts, so that it must not be much.
        most = None if limit is None else limit // 2
        try:
            process = workers().get(job.candidate, fresh=fresh, most_bytes=most)
        except OSError as error:
            self._end(worker, "failed", f"could not be started: {error}")
            return
        worker.process = process.assign(worker.number, job, self._messages)
        if limit is not None:
            watch.add(worker.process, limit)

    @cached_property
    def _problem(self) -> bytes:
        return msgspec.json.encode(self._state.problem)

    @cached_property
    def _first_plan(self) -> bytes | None:
        """What the first worker started from: all start from it in a deterministic run."""
        return self._best_plan()

    @property
    def _hints(self) -> tuple[bytes, ...]:
        """All hints so far; of candidates there are none in a deterministic run."""
        return tuple(map(msgspec.json.encode, self._state.hints))

    def _best_plan(self) -> bytes | None:
        return None if self._state.best is None else msgspec.json.encode(self._state.best.plan)

    # ---------------------------------------------------------------------------------------------------------- report

    def tell_plan(self, finder: Worker | None = None) -> None:
        """Tell workers of the incumbent, but not the one that found it."""
        self._tell_others(finder, Incumbent(plan=self._best_plan()))

    def _tell_others(self, finder: Worker | None, message: Incumbent) -> None:
        if not self._options.deterministic:
            for worker in self._busy():
                if worker is not finder and worker.process is not None:
                    is_needless = self._policy.is_needless(worker.candidate)
                    worker.process.tell(msgspec.structs.replace(message, closed=is_needless))

    def take_messages(self, wait: bool = True) -> None:
        """Take in what workers have reported.

        Parameters
        ----------
        wait
            Whether to wait a little where there is nothing yet.
        """
        messages: list[WorkerMessage] = []
        try:
            timeout = max(0.001, min(_TICK, self._policy.time_left(self.at_work))) if wait else 0.0
            messages.append(self._messages.get(timeout=timeout))
            # No more than fit in: candidates may write faster than this reads.
            while len(messages) < QUEUE_SIZE:
                messages.append(self._messages.get_nowait())
        except queue.Empty:
            pass
        latest = {(number, report.source): report for number, report in messages if report and report.what == "plan"}
        for number, report in messages:
            worker = self._workers[number - self._before]
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
        """The process is gone; before its last report or after it."""
        lost = None if worker.process is None else worker.process.lost_job
        if worker.ended is None and lost is not None:
            # It had waited since an earlier run, and somebody has ended it in the meantime.
            self._assign(worker, lost, fresh=True)
        elif worker.ended is None:
            # Who ends a run may signal its workers, too, and one that has just begun does not withstand that yet.
            outcome: Outcome = "stopped" if self._deadline.was_cancelled else "failed"
            self._end(worker, outcome, "" if worker.process is None else worker.process.cause_of_death())

    def _end(self, worker: Worker, outcome: Outcome, why: str = "") -> None:
        """Note that a candidate has come to its end; of one that failed, why."""
        worker.ended, worker.outcome = self._deadline.elapsed, outcome
        name, seconds = worker.candidate.name, worker.ended - worker.began
        if why:
            worker.note(why)
        if outcome == "failed":
            LOGGER.info("candidate %s failed after %.3f s: %s", name, seconds, cut(why) or "for no known reason")
        else:
            LOGGER.debug("candidate %s %s after %.3f s", name, outcome, seconds)

    def _take_plan(self, worker: Worker, data: bytes, source: str) -> None:
        if not self._policy.may_verify():
            self.has_dropped = True
            return
        before = self._state.best
        self._state.families.setdefault(source, worker.candidate.family)
        try:
            violations = self._state.offer_plan(self._kind.plan.decode(data), source, (worker.number, worker.plans))
        except StowplanError as error:
            violations = str(error)
        if violations is not None:
            worker.outcome = "rejected"
            worker.note(violations)
            self._state.without_plan.add(source)
            if source not in self._rejected:
                self._rejected.add(source)
                self._state.warnings.append(f"a plan of {source} failed verification and was left out: {violations}")
            return
        if worker.objective is None or self._state.sources[source] < worker.objective:
            worker.objective = self._state.sources[source]
        if self._state.best is not before:
            self.tell_plan(worker)

    def _take_report(self, worker: Worker, report: Report) -> None:
        # Solvers may work to the end and find nothing better; a heuristic that found nothing has not come to its first plan.
        worker.is_heard = worker.is_heard or report.what != "stopped" or worker.candidate.family != "heuristic"
        if report.what == "bound" and report.bound is not None:
            before = self._state.bound
            self._state.offer_bound(report.bound, report.source)
            worker.bound = report.bound if worker.bound is None else max(worker.bound, report.bound)
            if self._state.bound != before:
                self._tell_others(worker, Incumbent(bound=self._state.bound))
        elif report.what == "no_plan":
            self._state.without_plan.add(report.source)
        elif report.what == "evidence":
            self._state.evidence.append(report.evidence or b"")
        elif report.what == "infeasible":
            if not self._state.offer_infeasibility(report.source, report.why):
                worker.outcome = "rejected"
        elif report.what == "hint" and report.hint is not None:
            self._take_hint(worker, report.hint)
        elif report.what == "follows":
            self._state.guides |= {report.text: None}
        elif report.what == "note":
            worker.note(report.text)
        elif worker.ended is None:
            if report.what not in ("done", "stopped"):
                self._end(worker, "failed", report.text)
            else:
                is_finished = report.what == "done" and worker.outcome == "stopped"
                self._end(worker, "finished" if is_finished else worker.outcome)

    def _take_hint(self, worker: Worker, data: bytes) -> None:
        """Hand a hint on; in a deterministic run nobody is told, for when it comes is a matter of load."""
        try:
            hint = hints.Hint.decode(data)
            hints.check(self._state.problem, hint, self._kind.extras().hints)
        except StowplanError as error:
            worker.outcome = "rejected"
            worker.note(f"gave a hint that is none: {error}")
            return
        if not self._options.deterministic:
            self._state.hints.append(hint)
            self._tell_others(worker, Incumbent(hint=data))

    # ------------------------------------------------------------------------------------------------------------- end

    def end_overdue(self) -> None:
        """End workers that have not stopped in time while others wait for their place."""
        for worker in self._busy() if self._waiting else ():
            if self._deadline.elapsed > worker.until + self._policy.last_report_seconds() and worker.process is not None:
                worker.process.kill()
                self._end(worker, worker.outcome)

    def close(self) -> list[CandidateReport]:
        """End all workers, and warn of those that failed or were never heard of.

        Returns
        -------
        list of CandidateReport
            Of the candidates in the order in which they started, then of those that did not.
        """
        is_early = self._state.closed() is not None and not self._deadline.was_cancelled
        every = [worker.process for worker in self._workers if worker.process is not None]
        for each in every:
            if isinstance(each, ThreadAssignment):
                each.stop()
        # Deterministic runs of small problems end by a proof with most candidates at work, and come one after the other.
        processes = [each for each in every if isinstance(each, Assignment)]
        workers().finish(processes, at_limit=not is_early, are_awaited=self._options.deterministic)
        for worker in self._workers:
            if worker.bound is not None and self._state.best is not None and worker.bound > self._state.best.objective:
                worker.note(f"claimed a bound of {worker.bound}")
                worker.bound, worker.outcome = None, "rejected"
        reports = [worker.report(self._deadline.elapsed) for worker in self._workers]
        for worker in self._busy():
            LOGGER.debug("candidate %s stopped with the run", worker.candidate.name)
        self._warn_of_failures()
        if self._state.closed() is None:
            self._warn_of_the_unheard()
        note = "no time was left for it" if self._state.closed() is None else "was not needed"
        skipped = (CandidateReport(each.name, None, None, 0.0, "skipped", note, each.family) for each in self._waiting)
        return [*reports, *skipped]

    def _warn_of_failures(self) -> None:
        """Name those that failed, with the last thing that is known of them."""
        for worker in self._workers:
            if worker.outcome == "failed":
                reason = worker.notes[-1] if worker.notes else "for no known reason"
                self._state.warnings.append(cut(f"the candidate {worker.candidate.name} failed: {reason}"))

    def _warn_of_the_unheard(self) -> None:
        """Name those of which nothing came: what is best of the others says nothing of them."""
        unheard = [worker.candidate for worker in self._workers if worker.outcome == "stopped" and not worker.is_heard]
        unheard += self._waiting
        # A deterministic run does all the work for its plan; proofs have what time is left.
        # Of the baseline there is a warning of its own.
        silent = [each for each in unheard if not (self._options.deterministic and each.proves_only)]
        names = [each.name for each in silent if not each.makes_baseline]
        if names:
            when = "before the run was cancelled" if self._deadline.was_cancelled else "within the limit"
            self._state.warnings.append(f"{', '.join(names)}: no report {when}")
