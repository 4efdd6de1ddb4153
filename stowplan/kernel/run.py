"""One run: candidates side by side, until a criterion says that it is enough.

What is known is in the run state, criteria read it, the pool starts workers and adds what they report to the state. Whatever
happens, the kind's initial plans (everything slow, say) are there to fall back on.
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
from stowplan.kernel.state import RunState, Start
from stowplan.kernel.workers.clock import Clock
from stowplan.kernel.workers.pool import WorkerPool
from stowplan.log import LOGGER
from stowplan.result import CandidateReport, StopReason

#: Work of the first stage of a deterministic run, how many times as much the next one does, and which part of all the work the
#: last but one has at most.
FIRST_STAGE, STAGE_GROWTH, STAGE_PART = 1 / 16, 8, 1 / 4

#: Part of the limit that first bounds may take of the processor.
FIRST_BOUNDS = 0.1


def stages(work: float) -> list[float]:
    """Work of each stage of a deterministic run, the last with all of it; a stage's work has that one and those before it."""
    ladder = (FIRST_STAGE * STAGE_GROWTH**step for step in itertools.count())
    return [*itertools.takewhile(lambda stage: stage <= STAGE_PART * work, ladder), work]


def stages_of(options: Options, candidates: Sequence[Candidate]) -> list[tuple[Options, Sequence[Candidate]]]:
    """Options and candidates of each stage of a run: heuristics alone but for the last. Against the clock there is one."""
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
    """One run of candidates, most useful first; it adds what it finds to ``state``. Call :meth:`run` once.

    A deterministic one has stages, of heuristics alone but for the last, each from the best plan of those before: what is then
    proven ends at once. Where time is up, the plan is that of the last stage that was done, for when a candidate is stopped is
    a matter of load.

    ``options`` and ``deadline`` are the run's, which may be shorter than the call's, and ``criterion`` is the caller's.
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
        self._reason = criteria.first_of(criteria.proven, criteria.asked(criterion), criteria.out_of_time, criteria.idle)
        self._first_bounds, self._bounding = iter(state.kind.first_bounds(state.problem)), 0.0
        self._stages = stages_of(options, candidates)
        self._pool = WorkerPool(state, self._clock, *self._stages.pop(0))

    def run(self, starts: Mapping[str, Start]) -> StopReason:
        """Run from plans at hand, by source, until there is nothing to gain or to wait for, or no time left.

        Returns why the run ended; Ctrl-C is one of the reasons. ``state`` and ``reports`` have the rest. Raises whatever
        ``on_progress`` or the caller's criterion raises. No worker is left running.
        """
        state, reason = self.state, None
        LOGGER.info(
            "run of %s %s: %s; limit %.3g s",
            state.kind.title,
            state.problem.digest[:12],
            ", ".join(candidate.name for candidate in self._pool.at_work) or "no candidates",
            self._deadline.remaining,
        )
        try:
            reason = self._run(starts)
        except KeyboardInterrupt:
            reason = "cancelled"
        finally:
            self._close_pool(reason)
        known = state.words(state.objective), state.words(state.bound)
        LOGGER.info("run ended by %s after %.3f s: objective %s, bound %s", reason, self._deadline.elapsed, *known)
        return reason

    @property
    def was_cut(self) -> bool:
        """Whether a deterministic run was ended before all work was done on which its plan may depend."""
        pool = self._pool
        is_whole = criteria.is_decided(self.state, pool.unfinished, pool.ahead) and not pool.has_dropped
        return self._options.deterministic and not is_whole

    def _run(self, starts: Mapping[str, Start]) -> StopReason:
        state, is_deterministic = self.state, self._options.deterministic
        # Verifying the simplest plan may take longer than they need for a better one; a given plan is worth the time.
        at_work = self._pool.at_work
        if not is_deterministic and at_work and at_work[0].in_thread and len(starts) <= 1:
            self._pool.start_waiting()
        self._offer_starts(starts)
        if not at_work:
            return state.closed() or "candidates_done"
        # Later ones would come with the load of the machine.
        while is_deterministic and self._offer_first_bound():
            pass
        done: dict[str, Any] = {}
        known = state.plans_known()
        while (reason := self._stage()) == "work_limit" and self._stages:
            stage = self._pool.options
            done = {"work_limit": stage.work_limit, "candidates": [*stage.candidates]}
            known = state.plans_known()
            self._close_pool(reason)
            self._pool = WorkerPool(state, self._clock, *self._stages.pop(0))
        if reason != "cancelled" and self.was_cut:
            self.reproducing_options = done
            # Without any, one that another run may not find is better than none.
            if known[0] is not None:
                state.forget_later_plans(known)
            return state.closed() or "time_limit"
        return reason

    def _stage(self) -> StopReason:
        """The candidates of a stage, side by side; of a run against the clock, all of them."""
        pool = self._pool
        while (reason := self._reason(pool)) is None:
            pool.start_waiting()
            pool.end_overdue()
            self._hear()
        if reason in criteria.OPEN:
            # What is known comes first: an optimum found at the last moment is one.
            pool.take_messages(wait=False)
            reason = self.state.closed() or self._reason(pool) or reason
        return reason

    def _hear(self) -> None:
        """Take in what candidates report; while there is nothing, prove bounds here."""
        pool = self._pool
        if self._clock.waits_for_last(pool.at_work):
            time.sleep(max(0.0, self._clock.time_left(pool.at_work)))
        elif pool.has_news or not self._offer_first_bound():
            pool.take_messages()

    def _close_pool(self, reason: StopReason | None) -> None:
        """End the workers of a stage, and add what they found to the reports of the turns and stages before."""
        merged: dict[str, CandidateReport] = {}
        for report in (*self.reports, *self._pool.close(reason)):
            before = merged.get(report.name)
            merged[report.name] = report if before is None else _together(before, report)
        self.reports = [*merged.values()]

    def _offer_starts(self, starts: Mapping[str, Start]) -> None:
        """Take in what costs nothing."""
        self.state.offer_bound(self.state.kind.bound(self.state.problem), "floor")
        for number, (source, start) in enumerate(starts.items()):
            violations = self.state.offer_plan(start.plan, source, (-1, number), start.checked)
            if violations is not None:
                self.state.warnings.append(f"the plan {source} failed verification and was left out: {violations}")

    def _offer_first_bound(self) -> bool:
        """Take in the next bound that the kind proves in this process, where there is one, and time for it."""
        began, options = time.thread_time(), self._options
        is_over = not options.deterministic and self._bounding >= FIRST_BOUNDS * options.time_limit
        bound = None
        try:
            bound = None if is_over else next(self._first_bounds, None)
        except Exception as error:  # what is wrong with a bound must not cost the plans
            self.state.warnings.append(f"the first bounds failed: {type(error).__name__}: {error}")
        self._bounding += time.thread_time() - began
        if bound is not None:
            self.state.offer_bound(bound, "prices")
        return bound is not None


def _together(first: CandidateReport, last: CandidateReport) -> CandidateReport:
    """Two turns of a candidate as one."""
    objective = min((each.objective for each in (first, last) if each.objective is not None), default=None)
    bound = max((each.bound for each in (first, last) if each.bound is not None), default=None)
    seconds = round(first.seconds + last.seconds, 3)
    return msgspec.structs.replace(last, objective=objective, bound=bound, seconds=seconds)
