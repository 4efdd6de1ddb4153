"""A run: candidates, the methods that look for plans and bounds, work at the same time until a criterion ends the run.

The run state holds their findings, and criteria read it. The worker pool starts candidates and adds their reports to the state.
The kind's initial plans (such as keeping everything in slow memory) are offered first, so that there is a plan whatever
happens.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from stowplan import stop
from stowplan.deadline import Deadline
from stowplan.kernel import criteria
from stowplan.kernel.context import Options
from stowplan.kernel.kind import Candidate
from stowplan.kernel.state import PlansSnapshot, RunState, Start
from stowplan.kernel.workers.clock import Clock
from stowplan.kernel.workers.pool import WorkerPool
from stowplan.log import LOGGER
from stowplan.result import CandidateReport, StopReason

#: The stages of a deterministic run. The first has FIRST_STAGE seconds of work, and each later one STAGE_GROWTH times as much
#: as the one before. Stages before the last have at most the part STAGE_PART of all the work.
FIRST_STAGE, STAGE_GROWTH, STAGE_PART = 1 / 16, 8, 1 / 4

#: Part of the time limit that the *first bounds* may take, measured in CPU time of the calling thread. They are cheap bounds
#: that this process proves while it waits for reports of candidates (:attr:`~stowplan.kernel.kind.Kind.first_bounds`).
FIRST_BOUNDS = 0.1


def stages(work: float) -> list[float]:
    """The work of each stage of a deterministic run, in seconds of an idle machine. The last stage has the whole work."""
    ladder = (FIRST_STAGE * STAGE_GROWTH**step for step in itertools.count())
    return [*itertools.takewhile(lambda stage: stage <= STAGE_PART * work, ladder), work]


def stages_of(options: Options, candidates: Sequence[Candidate]) -> list[tuple[Options, Sequence[Candidate]]]:
    """Options and candidates of each stage of a run. All stages but the last have only heuristics and makers of baselines. A
    run against the clock has one stage."""
    if not options.deterministic:
        return [(options, candidates)]
    early = [candidate for candidate in candidates if candidate.family in ("heuristic", "baseline")]
    names = tuple(candidate.name for candidate in early if not candidate.makes_baseline)
    *works, all_work = stages(options.extent) if names else [options.extent]
    early_options = (msgspec.structs.replace(options, work_limit=work, candidates=names) for work in works)
    return [
        *((options, early) for options in early_options),
        (msgspec.structs.replace(options, work_limit=all_work), candidates),
    ]


class Run:
    """Runs candidates and adds their findings to ``state``. Call :meth:`run` once.

    A deterministic run has *stages*, parts with more and more work. All stages but the last run only heuristics, and each
    starts from the best plan of the stages before it. A proof ends the run at once. If time runs out, the result is the plan of
    the last complete stage, because the moment at which a candidate is stopped depends on the load of the machine.

    Parameters
    ----------
    state
        State of the run.
    candidates
        The candidates of the call, most useful first.
    options, deadline
        Limits of the run, which may be shorter than those of the call.
    criterion
        The caller's criterion for stopping.
    """

    def __init__(
        self,
        state: RunState,
        candidates: Sequence[Candidate],
        options: Options,
        deadline: Deadline,
        criterion: stop.Criterion | None = None,
    ):
        self.state = state
        self.reports: list[CandidateReport] = []
        self.reproducing_options: dict[str, Any] | None = None
        """Options that reproduce the plan if time ran out before all work was done; empty if no stage was finished."""
        self._options, self._deadline = options, deadline
        self._clock = Clock(state, options, deadline, candidates)
        self._stop_reason = criteria.first_of(
            criteria.settled, criteria.user_criterion(criterion), criteria.out_of_time, criteria.idle
        )
        self._first_bounds, self._bounding_seconds = iter(state.kind.first_bounds(state.problem)), 0.0
        self._stages = stages_of(options, candidates)
        self._pool = WorkerPool(state, self._clock, *self._stages.pop(0))

    def run(self, starts: Mapping[str, Start]) -> StopReason:
        """Runs until a criterion ends the run, and returns the reason.

        Ctrl-C gives the reason ``cancelled``. The findings are in ``state`` and ``reports``. Errors that ``on_progress`` or the
        caller's criterion raises are passed on. No worker is left running in any case.

        Parameters
        ----------
        starts
            Plans to start from, by source.
        """
        state, reason = self.state, None
        LOGGER.info(
            "run of %s %s: %s; limit %.3g s",
            state.kind.title,
            state.problem.digest[:12],
            ", ".join(candidate.name for candidate in self._pool.running_or_waiting) or "no candidates",
            self._deadline.remaining,
        )
        try:
            reason = self._run(starts)
        except KeyboardInterrupt:
            reason = "cancelled"
        finally:
            self._close_pool(reason)
        texts = state.words(state.objective), state.words(state.bound)
        LOGGER.info("run ended by %s after %.3f s: objective %s, bound %s", reason, self._deadline.elapsed, *texts)
        return reason

    @property
    def is_truncated(self) -> bool:
        """Whether a deterministic run was ended too early: some work on which its plan may depend was not complete."""
        pool = self._pool
        is_whole = criteria.is_decided(self.state, pool.unfinished, pool.could_win_ties) and not pool.has_dropped
        return self._options.deterministic and not is_whole

    def _run(self, starts: Mapping[str, Start]) -> StopReason:
        """Runs all stages."""
        state, is_deterministic = self.state, self._options.deterministic
        candidates = self._pool.running_or_waiting
        if self._starts_before_verification(candidates, starts):
            self._pool.start_waiting()
        self._offer_starts(starts)
        if not candidates:
            return state.settled_reason() or "candidates_done"
        # All first bounds are proven now. Otherwise the moment at which they arrive would depend on the load of the machine.
        while is_deterministic and self._offer_first_bound():
            pass
        completed_options: dict[str, Any] = {}
        snapshot = state.snapshot_plans()
        while (reason := self._stage()) == "work_limit" and self._stages:
            stage = self._pool.options
            completed_options = {"work_limit": stage.work_limit, "candidates": [*stage.candidates]}
            snapshot = state.snapshot_plans()
            self._close_pool(reason)
            self._pool = WorkerPool(state, self._clock, *self._stages.pop(0))
        if reason != "cancelled" and self.is_truncated:
            return self._return_to_completed_stage(completed_options, snapshot)
        return reason

    def _starts_before_verification(self, candidates: Sequence[Candidate], starts: Mapping[str, Start]) -> bool:
        """Whether the candidates start before the plans to start from are verified.

        Candidates in threads do so, because some find a better plan in less time than the verification of the kind's initial
        plan takes. Plans that the caller gave are verified first.
        """
        return not self._options.deterministic and bool(candidates) and candidates[0].in_thread and len(starts) <= 1

    def _return_to_completed_stage(self, completed_options: dict[str, Any], snapshot: PlansSnapshot) -> StopReason:
        """Ends a truncated run with the plans of its last complete stage, and returns why the run ended.

        Parameters
        ----------
        completed_options
            Options that reproduce the plans of that stage; empty if no stage was completed.
        snapshot
            The plans at the end of that stage.
        """
        self.reproducing_options = completed_options
        # If no stage was completed with a plan, the plan of an incomplete stage is kept: it may not be found again, but is
        # better than none.
        if snapshot[0] is not None:
            self.state.restore_plans(snapshot)
        return self.state.settled_reason() or "time_limit"

    def _stage(self) -> StopReason:
        """Runs the candidates of one stage until a criterion holds, and returns the reason."""
        pool = self._pool
        while (reason := self._stop_reason(pool)) is None:
            pool.start_waiting()
            pool.end_overdue()
            self._handle_messages()
        if reason in criteria.LIMIT_REASONS:
            # Messages that have arrived are read first: they may contain a proof that the plan is optimal.
            pool.handle_messages(wait=False)
            reason = self.state.settled_reason() or self._stop_reason(pool) or reason
        return reason

    def _handle_messages(self) -> None:
        """Reads the reports of candidates; while there are none, proves first bounds in this process."""
        pool = self._pool
        if self._clock.waits_for_last(pool.running_or_waiting):
            time.sleep(max(0.0, self._clock.time_left(pool.running_or_waiting)))
        elif pool.has_messages or not self._offer_first_bound():
            pool.handle_messages()

    def _close_pool(self, reason: StopReason | None) -> None:
        """Ends the workers of a stage, and merges their reports with the reports of earlier turns and stages. (A *turn* is one
        execution of a candidate.)"""
        merged: dict[str, CandidateReport] = {}
        for report in (*self.reports, *self._pool.close(reason)):
            before = merged.get(report.name)
            merged[report.name] = report if before is None else _merged_reports(before, report)
        self.reports = [*merged.values()]

    def _offer_starts(self, starts: Mapping[str, Start]) -> None:
        """Offers the kind's bound that takes almost no time, and the plans to start from."""
        self.state.offer_bound(self.state.kind.bound(self.state.problem), "floor")
        for number, (source, start) in enumerate(starts.items()):
            violations = self.state.offer_plan(start.plan, source, (-1, number), start.checked)
            if violations is not None:
                self.state.warnings.append(f"the plan {source} failed verification and was left out: {violations}")

    def _offer_first_bound(self) -> bool:
        """Offers the next of the kind's first bounds; returns False if there is none or no time for it."""
        began, options = time.thread_time(), self._options
        is_over = not options.deterministic and self._bounding_seconds >= FIRST_BOUNDS * options.time_limit
        bound = None
        try:
            bound = None if is_over else next(self._first_bounds, None)
        except Exception as error:  # an error in a bound must not end a run that has plans
            self.state.warnings.append(f"the first bounds failed: {type(error).__name__}: {error}")
        self._bounding_seconds += time.thread_time() - began
        if bound is not None:
            self.state.offer_bound(bound, "prices")
        return bound is not None


def _merged_reports(first: CandidateReport, last: CandidateReport) -> CandidateReport:
    """Merges the reports of two turns of a candidate."""
    objective = min((each.objective for each in (first, last) if each.objective is not None), default=None)
    bound = max((each.bound for each in (first, last) if each.bound is not None), default=None)
    seconds = round(first.seconds + last.seconds, 3)
    return msgspec.structs.replace(last, objective=objective, bound=bound, seconds=seconds)
