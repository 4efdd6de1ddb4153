"""One run: candidates side by side, until the stop policy says that it is enough.

What is known is in the run state, the policy reads it, the pool starts workers and adds what they report to the state. Whatever
happens, the kind's initial plans (everything slow, say) are there to fall back on.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from stowplan.log import LOGGER
from stowplan.portfolio.kind import Candidate
from stowplan.portfolio.run_state import RunState
from stowplan.portfolio.stop_policy import LOADING, StopPolicy
from stowplan.portfolio.worker_pool import WorkerPool
from stowplan.result import CandidateReport, StopReason


class Run:
    """One run. Call :meth:`run` once.

    Parameters
    ----------
    state
        What is known; the run adds to it.
    candidates
        What to run, most useful first.
    """

    def __init__(self, state: RunState, candidates: Sequence[Candidate]):
        self.state = state
        self.reports: list[CandidateReport] = []
        self._policy = StopPolicy(state)
        self._pool = WorkerPool(state, self._policy, candidates)

    def run(self, starts: Mapping[str, Any]) -> StopReason:
        """Run until there is nothing to gain, to wait for, or no time left.

        Parameters
        ----------
        starts
            Plans at hand, by source.

        Returns
        -------
        StopReason
            Why the run ended; Ctrl-C is one of the reasons. ``state`` and ``reports`` have the rest.

        Raises
        ------
        Exception
            Whatever ``on_progress`` raises. No worker is left running.
        """
        state = self.state
        LOGGER.info(
            "run of %s %s: %s; limit %.3g s",
            state.kind.modules.title,
            state.problem.digest[:12],
            ", ".join(candidate.name for candidate in self._pool.at_work) or "no candidates",
            state.deadline.remaining,
        )
        try:
            reason = self._run(starts)
        except KeyboardInterrupt:
            reason = "cancelled"
        finally:
            self.reports = self._pool.close()
        found, bound = state.words(state.objective), state.words(state.bound)
        LOGGER.info("run ended by %s after %.3f s: objective %s, bound %s", reason, state.deadline.elapsed, found, bound)
        return reason

    @property
    def cut_short(self) -> bool:
        """Whether a candidate on which the plan may depend was not given the time for its work."""
        return not self._policy.is_decided(self._pool.unfinished, self._pool.ahead)

    def _run(self, starts: Mapping[str, Any]) -> StopReason:
        self._offer_starts(starts)
        if not self._pool.at_work:
            return self.state.closed() or "candidates_done"
        self._begin()
        return self._loop()

    def _offer_starts(self, starts: Mapping[str, Any]) -> None:
        """Take in what costs nothing."""
        self.state.offer_bound(self.state.kind.bound(self.state.problem), "floor")
        for number, (source, plan) in enumerate(starts.items()):
            self._offer(plan, source, number)

    def _begin(self) -> None:
        """Make the quick plan while the first workers load what they need, or before them where time is short."""
        state, policy, pool = self.state, self._policy, self._pool
        at_work = pool.at_work
        if state.deadline.was_cancelled or policy.may_stop(at_work, pool.ahead) is not None:
            return
        if policy.time_left(at_work) >= LOADING and not state.kind.is_quick_first(state.problem):
            pool.start_waiting()
        # In a deterministic run it would depend on the clock, and there is time enough for the others.
        if not state.options.deterministic and any(candidate.family == "heuristic" for candidate in at_work):
            self._offer_quick_plan()

    def _loop(self) -> StopReason:
        policy, pool = self._policy, self._pool
        while (reason := policy.may_stop(pool.at_work, pool.ahead)) is None:
            if policy.time_left(pool.at_work) <= 0:
                pool.take_messages(wait=False)
                return policy.at_limit(pool.unfinished)
            pool.start_waiting()
            if pool.is_idle:
                return policy.when_idle(pool.unfinished)
            pool.end_overdue()
            pool.take_messages()
        return reason

    def _offer(self, plan: Any, source: str, number: int) -> bool:
        """Offer a plan that no worker made; returns whether it is valid."""
        violations = self.state.offer_plan(plan, source, (-1, number))
        if violations is not None:
            self.state.warnings.append(f"the plan {source} failed verification and was left out: {violations}")
        return violations is None

    def _offer_quick_plan(self) -> None:
        """Make the kind's quick plan, in this process."""
        state = self.state
        if state.kind.quick_plan is None:
            return
        end = self._policy.quick_plan_end(self._pool.at_work)
        found = state.kind.quick_plan(
            state.problem, state.options, lambda: state.deadline.was_cancelled or state.deadline.elapsed >= end
        )
        if found is None:
            return
        source, plan = found
        state.families.setdefault(source, "heuristic")
        is_valid = self._offer(plan, source, len(state.sources))
        if is_valid and state.best is not None and state.best.source == source:
            self._pool.tell_plan()
