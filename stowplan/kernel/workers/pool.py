"""The worker pool: starts the candidates of a run while workers are free, collects their reports and stops them.

Whatever a candidate does, its worker ends with the run: processes of solvers that do not stop are killed.
"""

from __future__ import annotations

import queue
import time
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import assert_never

import msgspec

from stowplan.errors import StowplanError
from stowplan.kernel.context import MAX_SEED, Options, Report
from stowplan.kernel.kind import Candidate
from stowplan.kernel.state import RunState
from stowplan.kernel.workers.clock import Clock
from stowplan.kernel.workers.messages import CandidateId, Job, RunUpdate
from stowplan.kernel.workers.process import ProcessTurn
from stowplan.kernel.workers.started import QUEUE_SIZE, MessageQueue, Started, Turn, WorkerMessage
from stowplan.kernel.workers.thread import ThreadTurn
from stowplan.kernel.workers.warm import workers
from stowplan.log import LOGGER, cut
from stowplan.models import hint as hints
from stowplan.result import CandidateReport, Outcome, StopReason

#: Maximum number of seconds between two checks of the clock.
_TICK = 0.2

#: A candidate gets another turn only if at least this part of the time limit is left for it.
LEAST_TURN = 0.01

#: Difference between the seeds of two turns of a candidate; it is larger than the number of random streams of one seed.
SEED_STRIDE = 1_000


class WorkerPool:
    """The candidates of a run, or of one stage of a deterministic run (:func:`stowplan.kernel.run.stages`), and their workers.

    Parameters
    ----------
    state
        State of the run, to which reports of workers are added.
    clock
        The clock of the run, which says when candidates start and how long they may work.
    options
        Options that candidates get.
    candidates
        The candidates to run, most useful first.
    """

    def __init__(self, state: RunState, clock: Clock, options: Options, candidates: Sequence[Candidate]):
        self.has_dropped = False
        """Whether a plan was dropped because there was no time to verify it."""
        self.state, self.clock, self.options = state, clock, options
        # In a deterministic run, candidates that make plans must finish, so they start first; those that only prove bounds use
        # the time that is left.
        self._waiting = sorted(candidates, key=lambda candidate: options.deterministic and candidate.proves_only)
        self._workers: dict[int, Started] = {}
        """Workers by number."""
        self._messages: MessageQueue = queue.Queue(QUEUE_SIZE)
        self._rejected: set[str] = set()
        workers().begin_run(self.options.workers)

    @property
    def running_or_waiting(self) -> list[Candidate]:
        """Candidates that are running or waiting to start."""
        return [*self._waiting, *(worker.candidate for worker in self._busy())]

    @property
    def unfinished(self) -> list[Candidate]:
        """Candidates that have not finished their work, at the end of a run."""
        return [*self._waiting, *(worker.candidate for worker in self._unfinished())]

    @property
    def could_win_ties(self) -> list[Candidate]:
        """Running or stopped candidates whose plans would be preferred to an equally good best plan: those that started before
        the candidate that found it (:attr:`Best.order`)."""
        best = self.state.best
        return [worker.candidate for worker in self._unfinished() if best is None or worker.number < best.order[0]]

    @property
    def is_idle(self) -> bool:
        """Whether no candidate is running and none can start."""
        return not self._busy() and not self._next_may_start()

    @property
    def has_messages(self) -> bool:
        """Whether there is a report that has not been read yet."""
        return not self._messages.empty()

    def _unfinished(self) -> list[Started]:
        """The last turns of candidates that are still running or were stopped by a limit."""
        last = {worker.candidate.name: worker for worker in self._workers.values()}
        return [worker for worker in last.values() if worker.ended is None or worker.outcome == "stopped"]

    def _busy(self) -> list[Started]:
        """Turns that are not over."""
        return [worker for worker in self._workers.values() if worker.ended is None]

    # ----------------------------------------------------------------------------------------------------------- start

    def start_waiting(self) -> None:
        """Starts candidates while workers are free, and extends the time of running ones if no time is set aside for others."""
        while len(self._busy()) < self.options.workers and self._next_may_start():
            if self.clock.would_disturb(self._waiting[0], self._busy()):
                break
            candidate = self._waiting.pop(0)
            if not (candidate.makes_baseline and candidate.name in self.state.sources):
                self._start(candidate)
        extended = () if self.options.deterministic or self.clock.needs_shares(self._waiting) else self._busy()
        for worker in extended:
            until = self.clock.deadline.elapsed + self.clock.worker_seconds(worker.candidate)
            if until > worker.until + _TICK:
                worker.until, end = until, self.clock.deadline.began + until
                worker.turn.send_update(RunUpdate(closed=self.state.is_needless(worker.candidate), end=end))

    def _next_may_start(self) -> bool:
        """Whether a candidate is waiting and there is time for it."""
        return bool(self._waiting) and self.clock.worker_seconds(self._waiting[0]) > 0

    def _start(self, candidate: Candidate) -> None:
        """Starts a candidate."""
        is_deterministic = self.options.deterministic
        # Encoding a large problem takes a moment, which must not count as time of the candidate.
        problem = b"" if candidate.in_thread else self._problem
        start_plan = self._first_plan if is_deterministic else self._best_plan()
        seconds, began = self.clock.worker_seconds(candidate, self._waiting), time.monotonic()
        # With the seed of its earlier turn, the candidate would only find the same again.
        turn = sum(worker.candidate.name == candidate.name for worker in self._workers.values())
        job = Job(
            candidate=CandidateId.of(self.state.kind.name, candidate.name),
            options=msgspec.structs.replace(self.options, seed=(self.options.seed + turn * SEED_STRIDE) % MAX_SEED),
            problem=problem,
            end=began + seconds,
            start_plan=start_plan,
            start_bound=None if is_deterministic else self.state.bound,
            # In a deterministic run candidates exchange no hints.
            hints=tuple(map(msgspec.json.encode, self.state.hints)),
            closed=self.state.is_needless(candidate),
            latest=began + self.clock.worker_seconds(candidate),
        )
        now = self.clock.deadline.elapsed
        number = next(self.state.numbers)
        worker = self._workers[number] = Started(number, candidate, Turn(number, self._messages), now, now + seconds)
        where = "thread" if candidate.in_thread else "process"
        LOGGER.debug("candidate %s started in a %s after %.3f s, for %.3g s", candidate.name, where, now, seconds)
        self._give_turn(worker, job)

    def _give_turn(self, worker: Started, job: Job, *, fresh: bool = False) -> None:
        """Gives a candidate a thread or a process. The process is one that waits for a job or, with ``fresh``, a new one."""
        if worker.candidate.in_thread:
            load = partial(self.state.kind.function, worker.candidate.name)
            worker.turn = ThreadTurn(worker.number, load, self.state.problem, job, self._messages)
            return
        limit = self.options.memory_limit
        try:
            # Memory that a process still uses from earlier jobs counts towards the limit, so it must not be much.
            process = workers().get(job.candidate, fresh=fresh, most_bytes=None if limit is None else limit // 2)
        except OSError as error:
            self._end(worker, "failed", f"could not be started: {error}")
            return
        worker.turn = turn = process.assign(worker.number, job, self._messages)
        if limit is not None:
            # Imported here because most runs have no memory limit.
            from stowplan.memory_watch import watch

            watch.add(turn, limit)

    @cached_property
    def _problem(self) -> bytes:
        """The encoded problem."""
        return msgspec.json.encode(self.state.problem)

    @cached_property
    def _first_plan(self) -> bytes | None:
        """The best plan when the first worker started, from which all workers of a deterministic run start."""
        return self._best_plan()

    def _best_plan(self) -> bytes | None:
        """The encoded best plan, or None."""
        return None if self.state.best is None else msgspec.json.encode(self.state.best.plan)

    # ---------------------------------------------------------------------------------------------------------- report

    def _send_to_others(self, finder: Started, message: RunUpdate) -> None:
        """Sends the finding of one worker to all others, unless the run is deterministic."""
        if not self.options.deterministic:
            for worker in self._busy():
                if worker is not finder:
                    is_needless = self.state.is_needless(worker.candidate)
                    worker.turn.send_update(msgspec.structs.replace(message, closed=is_needless))

    def handle_messages(self, wait: bool = True) -> None:
        """Reads the reports of workers. If there are none and ``wait`` is set, it waits up to :data:`_TICK` seconds for one.
        Errors that the caller's ``on_progress`` raises are passed on."""
        messages: list[WorkerMessage] = []
        try:
            timeout = max(0.001, min(_TICK, self.clock.time_left(self.running_or_waiting))) if wait and self._busy() else 0.0
            messages.append(self._messages.get(timeout=timeout))
            # At most one full queue is read at a time, because candidates may report faster than this loop reads.
            while len(messages) < QUEUE_SIZE:
                messages.append(self._messages.get_nowait())
        except queue.Empty:
            pass
        latest = {(number, report.source): report for number, report in messages if report and report.what == "plan"}
        for number, report in messages:
            worker = self._workers[number]
            if report is None:
                self._handle_end(worker)
            else:
                self._handle_report(worker, report, is_latest_plan=report is latest.get((number, report.source)))

    def _handle_end(self, worker: Started) -> None:
        """Handles the message that a process has ended, which comes after its last report or instead of it."""
        if worker.ended is not None:
            return
        if worker.turn.unstarted_job is not None:
            # The process had been waiting since an earlier run, and was killed in the meantime.
            self._give_turn(worker, worker.turn.unstarted_job, fresh=True)
        else:
            # A signal that cancels the run may also reach its workers, and one that has just started does not handle it yet.
            self._end(worker, "stopped" if self.clock.deadline.was_cancelled else "failed", worker.turn.cause_of_death())

    def _end(self, worker: Started, outcome: Outcome, why: str = "") -> None:
        """Records that a candidate's turn is over; ``why`` is the cause of a failure."""
        worker.ended, worker.outcome = self.clock.deadline.elapsed, outcome
        name, seconds = worker.candidate.name, worker.ended - worker.began
        if why:
            worker.note(why)
        if outcome == "failed":
            LOGGER.info("candidate %s failed after %.3f s: %s", name, seconds, cut(why) or "for no known reason")
        else:
            LOGGER.debug("candidate %s %s after %.3f s", name, outcome, seconds)
        seconds_left = 0.0 if self.options.deterministic else self.clock.worker_seconds(worker.candidate)
        if outcome == "stopped" and seconds_left > LEAST_TURN * self.options.time_limit:
            # The candidate was stopped at the end of its share. If others end early, it gets another turn.
            self._waiting.append(replace(worker.candidate, turn="reserve"))

    def _handle_report(self, worker: Started, report: Report, is_latest_plan: bool) -> None:
        """Handles a report. ``is_latest_plan`` says whether it is the latest plan of its source that has arrived."""
        # A solver may use all its time and find nothing better, but a heuristic that was stopped without a report did not even
        # reach its first plan.
        worker.has_reported = worker.has_reported or report.what != "stopped" or worker.candidate.family != "heuristic"
        match report.what:
            case "started":
                pass  # The turn of a process handles this message and does not pass it on.
            case "plan":
                self._handle_plan(worker, report.data, report.source, is_latest_plan)
            case "no_plan":
                self.state.without_plan.add(report.source)
            case "bound":
                self._handle_bound(worker, report.bound, report.source)
            case "evidence":
                self.state.offer_evidence(report.data, worker.candidate.name, worker.bound)
            case "infeasible":
                self._handle_infeasibility(worker, report)
            case "hint":
                self._handle_hint(worker, report.data)
            case "follows":
                self.state.guides |= {report.text: None}
            case "note":
                worker.note(report.text)
            case "done" | "stopped" | "failed":
                self._handle_last_report(worker, report)
            case _:
                assert_never(report.what)

    def _handle_plan(self, worker: Started, data: bytes, source: str, is_latest: bool) -> None:
        """Verifies a plan that a worker reported, and sends it to the others if it is the best."""
        worker.plans += 1
        # Only the latest plan of each source is verified. In a deterministic run all are, because which one is the latest
        # depends on the load of the machine.
        if not (is_latest or self.options.deterministic):
            return
        if not self.clock.may_verify():
            self.has_dropped = True
            return
        before = self.state.best
        self.state.families.setdefault(source, worker.candidate.family)
        try:
            violations = self.state.offer_plan(self.state.kind.plan.decode(data), source, (worker.number, worker.plans))
        except StowplanError as error:
            violations = str(error)
        if violations is not None:
            worker.outcome = "rejected"
            worker.note(violations)
            self.state.without_plan.add(source)
            if source not in self._rejected:
                self._rejected.add(source)
                self.state.warnings.append(f"a plan of {source} failed verification and was left out: {violations}")
            return
        if worker.objective is None or self.state.sources[source] < worker.objective:
            worker.objective = self.state.sources[source]
        if self.state.best is not before:
            self._send_to_others(worker, RunUpdate(plan=self._best_plan()))

    def _handle_bound(self, worker: Started, bound: int, source: str) -> None:
        """Records a lower bound, and sends it to the others if it is the best."""
        before = self.state.bound
        self.state.offer_bound(bound, source)
        worker.bound = bound if worker.bound is None else max(worker.bound, bound)
        if self.state.bound != before:
            self._send_to_others(worker, RunUpdate(bound=self.state.bound))

    def _handle_infeasibility(self, worker: Started, report: Report) -> None:
        """Records a proof that no plan exists; a worker whose proof a verified plan refutes is rejected."""
        if not self.state.offer_infeasibility(report.source, report.why):
            worker.outcome = "rejected"

    def _handle_last_report(self, worker: Started, report: Report) -> None:
        """Handles the last report of a worker, unless its turn is over already, for example because it was killed."""
        if worker.ended is not None:
            return
        if report.what == "failed":
            self._end(worker, "failed", report.text)
        else:
            is_finished = report.what == "done" and worker.outcome == "stopped"
            self._end(worker, "finished" if is_finished else worker.outcome)

    def _handle_hint(self, worker: Started, data: bytes) -> None:
        """Checks a hint and sends it to the other candidates; in a deterministic run, whose result must not depend on when it
        arrives, it is not sent."""
        try:
            hint = hints.Hint.decode(data)
            hints.check_hint(self.state.problem, hint, self.state.kind.extras().hints)
        except StowplanError as error:
            worker.outcome = "rejected"
            worker.note(f"gave a hint that is none: {error}")
            return
        if not self.options.deterministic:
            self.state.hints.append(hint)
            self._send_to_others(worker, RunUpdate(hint=data))

    # ------------------------------------------------------------------------------------------------------------- end

    def end_overdue(self) -> None:
        """Kills workers that have not stopped in time, if other candidates wait for a free worker."""
        for worker in self._busy() if self._waiting else ():
            if self.clock.deadline.elapsed > worker.until + self.clock.last_report_seconds():
                worker.turn.kill()
                self._end(worker, worker.outcome)

    def close(self, reason: StopReason | None) -> list[CandidateReport]:
        """Stops all workers, adds warnings about those that failed or never reported, and returns the reports for the result.

        The reports are of the candidates in the order in which they started, one for each turn, followed by those that did not
        start.

        Parameters
        ----------
        reason
            Why the run ends; None after an error.
        """
        is_early = self.state.settled_reason() is not None and not self.clock.deadline.was_cancelled
        turns = [worker.turn for worker in self._workers.values()]
        for turn in turns:
            if isinstance(turn, ThreadTurn):
                turn.stop()
        # Deterministic runs of small problems often end by a proof while most candidates work, and the next call follows at
        # once.
        processes = [turn for turn in turns if isinstance(turn, ProcessTurn)]
        workers().finish(processes, at_limit=not is_early, are_awaited=self.options.deterministic)
        for worker in self._workers.values():
            if worker.bound is not None and self.state.best is not None and worker.bound > self.state.best.objective:
                worker.note(f"claimed a bound of {worker.bound}")
                worker.bound, worker.outcome = None, "rejected"
            if worker.ended is None:
                LOGGER.debug("candidate %s stopped with the run", worker.candidate.name)
            if worker.outcome == "failed":
                why = worker.notes[-1] if worker.notes else "for no known reason"
                self.state.warnings.append(cut(f"the candidate {worker.candidate.name} failed: {why}"))
        used_its_time = self.state.settled_reason() is None and reason != "criterion"
        if used_its_time:
            self._warn_of_silent_candidates()
        note = "no time was left for it" if used_its_time else "was not needed"
        started = {worker.candidate.name for worker in self._workers.values()}
        without = (candidate for candidate in self._waiting if candidate.name not in started)
        skipped = (CandidateReport(candidate.name, None, None, 0.0, "skipped", note, candidate.family) for candidate in without)
        return [*(worker.report(self.clock.deadline.elapsed) for worker in self._workers.values()), *skipped]

    def _warn_of_silent_candidates(self) -> None:
        """Adds a warning that names the candidates that reported nothing, because the result does not show what they could have
        found."""
        stopped = [worker.candidate for worker in self._workers.values() if worker.outcome == "stopped"] + self._waiting
        reported = {worker.candidate.name for worker in self._workers.values() if worker.has_reported}
        # In a deterministic run, candidates that only prove bounds get whatever time is left, so their silence is no reason for
        # a warning. A missing baseline has a warning of its own.
        expected = [each for each in stopped if not (each.makes_baseline or (self.options.deterministic and each.proves_only))]
        names = [name for name in dict.fromkeys(candidate.name for candidate in expected) if name not in reported]
        if names:
            when = "before the run was cancelled" if self.clock.deadline.was_cancelled else "within the limit"
            self.state.warnings.append(f"{', '.join(names)}: no report {when}")
