"""One run: candidates side by side, until the stop policy says that it is enough; and the result of it.

What is known is in the run state, the policy reads it, the pool starts workers and adds what they report to the state. Whatever
happens, the kind's initial plans (everything slow, say) are there to fall back on.
"""

from __future__ import annotations

import itertools
import platform
import time
from collections.abc import Iterable, Mapping, Sequence
from functools import cache as cached
from importlib import metadata
from typing import Any

import msgspec

from stowplan.compiled.library import trouble
from stowplan.log import LOGGER, bounded, cut
from stowplan.models.hint import Hint
from stowplan.portfolio.arguments import Call, left_out
from stowplan.portfolio.kind import Candidate
from stowplan.portfolio.run.state import RunState
from stowplan.portfolio.run.stop_policy import StopPolicy
from stowplan.portfolio.run.worker_pool import WorkerPool
from stowplan.result import CandidateReport, Provenance, Result, Status, StopReason
from stowplan.version import VERSION

#: Work of the first stage of a deterministic run, how many times as much the next one does, and which part of all the work the
#: last but one has at most.
FIRST_STAGE, STAGE_GROWTH, STAGE_PART = 1 / 16, 8, 1 / 4

#: Part of the limit that first bounds may take of the processor.
FIRST_BOUNDS = 0.1


def stages(work: float) -> list[float]:
    """Work of each stage of a deterministic run, the last with all of it; a stage's work has that one and those before it."""
    ladder = (FIRST_STAGE * STAGE_GROWTH**step for step in itertools.count())
    return [*itertools.takewhile(lambda stage: stage <= STAGE_PART * work, ladder), work]


class Run:
    """One run. Call :meth:`run` once.

    A deterministic one has stages, of heuristics alone but for the last, each from the best plan of those before: what is then
    proven ends at once. Where time is up, the plan is that of the last stage that was done, for when a candidate is stopped is
    a matter of load.

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
        self.whole: dict[str, Any] | None = None
        """Options that make the plan again, where time was up before all work was done; empty where nothing was."""
        self._first_bounds, self._bounding = iter(state.kind.first_bounds(state.problem)), 0.0
        self._policy = StopPolicy(state)
        self._candidates, self._options = candidates, state.options
        self._stages = stages(state.options.extent) if state.options.deterministic else []
        if not any(each.family == "heuristic" for each in candidates):
            del self._stages[:-1]
        self._pool = self._next_pool(0)

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
            state.kind.title,
            state.problem.digest[:12],
            ", ".join(candidate.name for candidate in self._pool.at_work) or "no candidates",
            state.deadline.remaining,
        )
        try:
            reason = self._run(starts)
        except KeyboardInterrupt:
            reason = "cancelled"
        finally:
            self._close_pool()
        found, bound = state.words(state.objective), state.words(state.bound)
        LOGGER.info("run ended by %s after %.3f s: objective %s, bound %s", reason, state.deadline.elapsed, found, bound)
        return reason

    @property
    def cut_short(self) -> bool:
        """Whether a candidate on which the plan may depend was not given the time for its work."""
        return self._pool.has_dropped or not self._policy.is_decided(self._pool.unfinished, self._pool.ahead)

    def _run(self, starts: Mapping[str, Any]) -> StopReason:
        state, pool = self.state, self._pool
        # Verifying the simplest plan may take longer than they need for a better one; a given plan is worth the time.
        if not state.options.deterministic and pool.is_next_ready and len(starts) <= 1:
            pool.start_waiting()
        self._offer_starts(starts)
        if not pool.at_work:
            return state.closed() or "candidates_done"
        # Later ones would come with the load of the machine.
        while state.options.deterministic and self._offer_first_bound():
            pass
        done, known = {}, state.plans_known()
        while (reason := self._loop()) == "work_limit" and self._stages:
            options = state.options
            done, known = {"work_limit": options.work_limit, "candidates": [*options.candidates]}, state.plans_known()
            self._close_pool()
            self._pool = self._next_pool(self._pool.started)
        if state.options.deterministic and reason != "cancelled" and self.cut_short:
            self.whole = done
            # Without any, one that another run may not find is better than none.
            if known[0] is not None:
                state.forget_later_plans(known)
            return state.closed() or "time_limit"
        return reason

    def _next_pool(self, started: int) -> WorkerPool:
        """The candidates of the next stage."""
        chosen = self._candidates
        if self._stages:
            self.state.options = msgspec.structs.replace(self._options, work_limit=self._stages.pop(0))
        if self._stages:
            chosen = [each for each in chosen if each.family == "heuristic" or each.makes_baseline]
            names = (each.name for each in chosen if not each.makes_baseline)
            self.state.options = msgspec.structs.replace(self.state.options, candidates=(*names,))
        return WorkerPool(self.state, self._policy, chosen, started)

    def _close_pool(self) -> None:
        """End the workers of a stage, and add what they found to the reports of those before."""
        earlier = {each.name: each for each in self.reports}
        for report in self._pool.close():
            objectives = earlier.get(report.name, report).objective, report.objective
            least = min((each for each in objectives if each is not None), default=None)
            earlier[report.name] = msgspec.structs.replace(report, objective=least)
        self.reports = [*earlier.values()]

    def _offer_starts(self, starts: Mapping[str, Any]) -> None:
        """Take in what costs nothing."""
        self.state.offer_bound(self.state.kind.bound(self.state.problem), "floor")
        for number, (source, plan) in enumerate(starts.items()):
            violations = self.state.offer_plan(plan, source, (-1, number))
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
            if policy.waits_for_last(pool.at_work):
                time.sleep(max(0.0, policy.time_left(pool.at_work)))
            elif pool.has_news or not self._offer_first_bound():
                pool.take_messages()
        return reason


_VERSIONED = ("ortools", "highspy", "numpy")
_VERSIONED_WITH_POLICY = (*_VERSIONED, "torch")


def result_of(run: Run, call: Call, stop_reason: StopReason) -> Result:
    """The result of a call whose run is over."""
    known = run.state
    checkpoint, training = _checkpoint(run, call.candidates)
    if without_code := trouble(f"stowplan.portfolio.{known.kind.name}"):
        known.warnings.append(f"heuristics ran interpreted, many times slower: {without_code}")
    if not call.warnings:
        _warn_where_missing(known, run.reports)
    baseline = known.baseline or known.kind.baseline
    status: Status
    if known.infeasible:
        status = "infeasible"
    elif known.objective is None:
        status = "no_plan"
    else:
        status = "optimal" if known.bound is not None and known.objective <= known.bound else "feasible"
    was_cut = known.options.deterministic and run.cut_short
    if was_cut:
        again = " and ".join(f"{name}={value}" for name, value in (run.whole or {}).items() if call.keeper is None)
        again = f"; this plan is that of {again}" if again else ""
        known.warnings.append(f"a deterministic run was ended before its work was done: another run may differ{again}")
    identity = known.kind.identity(known.problem)
    return Result(
        kind=known.kind.name,
        plan=known.plan,
        objective=known.objective,
        bound=known.bound,
        status=status,
        stop_reason=stop_reason,
        verified=known.objective is not None,
        baseline_name=baseline,
        baseline=known.sources.get(baseline),
        baselines={name: known.sources[name] for name in call.baselines if name in known.sources},
        history=tuple(known.history),
        candidates=tuple(run.reports),
        provenance=Provenance(
            candidate="" if known.best is None else known.best.source,
            seed=known.options.seed,
            deterministic=known.options.deterministic,
            versions=versions(with_policy=checkpoint is not None),
            program=identity["program"],
            target=identity["target"],
            cost_model=identity["cost_model"],
            problem_digest=identity["digest"],
            options={
                "time_limit": known.options.time_limit,
                "candidates": list(call.options.candidates),
                "workers": known.options.workers,
                "gap": known.options.gap,
            }
            | ({"work_limit": call.options.extent} | (run.whole or {}) if known.options.deterministic else {})
            | ({} if known.baseline is None else {"baseline": known.baseline})
            | ({} if known.options.memory_limit is None else {"memory_limit": known.options.memory_limit})
            | ({} if call.hint is None else {"hint": call.hint.source if isinstance(call.hint, Hint) else "plan"}),
            checkpoint=checkpoint,
            checkpoint_training=training,
            guides=(*known.guides,),
            family="" if known.best is None else known.families.get(known.best.source, "given"),
        ),
        seconds=round(known.deadline.elapsed, 3),
        unit=known.kind.unit,
        highlights=known.kind.highlights,
        # What every heuristic and model reached, not only the best.
        details=(known.why if known.infeasible else {})
        | known.kind.facts(known.problem, known.plan)
        | ({} if known.infeasible else known.kind.proven(known.problem, known.objective, known.bound))
        | {"sources": dict(known.sources)},
        warnings=(*bounded(known.kind.notes(known.problem)), *dict.fromkeys(known.warnings)),
        cut_short=was_cut or known.cut_short,
    )


def _warn_where_missing(state: RunState, reports: Sequence[CandidateReport]) -> None:
    """Say in one line that the baseline that was named has no plan, and that the result is compared with nothing."""
    name = state.baseline
    if name is None or name in state.sources or state.infeasible:
        return
    maker = next((each for each in reports if each.name == name), None)
    if maker is None:
        why = "it has no valid plan for this problem"
    elif maker.outcome in ("stopped", "skipped"):
        why = "it was not done within the limit"
    else:
        why = cut(maker.note) or "it has no valid plan for this problem"
    state.warnings.append(left_out(name, why))


def _checkpoint(run: Run, chosen: Iterable[Candidate]) -> tuple[str | None, str]:
    """Hash of the policy that took part, and how it was trained: others may have gone on from its plans."""
    ran = {report.name for report in run.reports if report.outcome != "skipped"}
    took_part = (each for each in chosen if each.checkpoint and each.name in ran)
    return next(((each.checkpoint, each.training) for each in took_part), (None, ""))


def versions(*, with_policy: bool) -> dict[str, str]:
    """Versions that plans depend on, by package; with a policy, torch's too. What is not installed is left out."""
    return dict(_versions(_VERSIONED_WITH_POLICY if with_policy else _VERSIONED))


@cached
def _versions(packages: tuple[str, ...]) -> dict[str, str]:
    found = {"python": platform.python_version(), "stowplan": VERSION}
    for name in packages:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
