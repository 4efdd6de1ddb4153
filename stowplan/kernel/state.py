"""The state of a run: the best verified plan, the best bound, and the history of both.

Claims of candidates are checked where that is possible. Every plan is verified. A bound that exceeds the objective of a
verified plan is *refuted*, and is discarded. The *source* of a plan or a bound is the name under which the result lists it,
usually that of the candidate. *Evidence* for a bound is data from which a certificate can be made. A *tie-break* is a second
number, by which the verifier compares plans of equal objective; smaller is better.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

from stowplan.deadline import Deadline
from stowplan.kernel.context import Options
from stowplan.kernel.kind import Candidate, Kind, check
from stowplan.log import LOGGER, cut
from stowplan.models.hint import Hint
from stowplan.result import HistoryEntry, Progress, StopReason, is_within
from stowplan.verification import Verification

#: Of each source, this many reports of evidence are kept, so that there is another one if no proof follows from the best.
EVIDENCE_PER_SOURCE = 2


class Start(NamedTuple):
    """A plan from which the candidates of a run may start."""

    plan: Any
    checked: Verification[Any] | None = None
    """The verification of the plan, if it has been verified already."""


@dataclass(frozen=True)
class Best:
    """The incumbent, that is, the best verified plan so far."""

    plan: Any
    objective: int
    """In the unit of the kind."""
    source: str
    """Name of the candidate that found the plan, or the name under which it was given."""
    order: tuple[int, int]
    """(number of the worker, number of its plan): decides between equally good plans in deterministic runs, in which the order
    of arrival must not matter. The smaller is preferred."""
    check: Verification[Any]
    """The verification of the plan."""
    seconds: float = 0.0
    """When the plan was found, in seconds since the call."""


class Evidence(NamedTuple):
    """Evidence for a bound, as a candidate reported it."""

    data: bytes
    """The evidence, for the certificate maker of the kind."""
    bound: int | None
    """The largest bound that the candidate had reported before; None if it had reported none."""

    def rank(self, objective: int | None) -> tuple[bool, int]:
        """A sort key that is larger for better evidence. ``objective`` is that of the best plan, which no true bound exceeds;
        None if there is no plan."""
        if self.bound is None or (objective is not None and self.bound > objective):
            return False, 0
        return True, self.bound


PlansSnapshot = tuple[Best | None, dict[str, int], int]
"""The best plan, the objective of each source, and the length of the history, at some moment of a run."""


@dataclass
class RunState:
    """The state of a run and the rules by which it changes. ``options`` and ``deadline`` are those of the call."""

    kind: Kind[Any, Any]
    problem: Any
    options: Options
    deadline: Deadline
    on_progress: Callable[[Progress], None] | None = None
    """Called whenever the best plan or the bound improves."""
    baseline: str | None = None
    """Name of the baseline whose plan is preferred to others of the same objective; None if the caller named none."""
    on_plan: Callable[[Any, Verification[Any]], None] | None = None
    """Called with every valid plan, whether it is the best or not."""
    best: Best | None = None
    """The best plan; None if there is none yet."""
    bound: int | None = None
    """The largest of ``bounds``; None if there is none yet."""
    hints: list[Hint] = field(default_factory=list)
    """Checked hints for the problem: the caller's, then those of candidates."""
    guides: dict[str, None] = field(default_factory=dict)
    """Learned guides whose values candidates have used, in the order in which they were reported."""
    infeasible: bool = False
    """Whether it is proven that no plan exists."""
    infeasibility_details: dict[str, Any] = field(default_factory=dict)
    """Details of a proof that no plan exists."""
    sources: dict[str, int] = field(default_factory=dict)
    """Objective of the best verified plan of each source."""
    without_plan: set[str] = field(default_factory=set)
    """Names of the baselines for which no plan will come."""
    families: dict[str, str] = field(default_factory=dict)
    """Family of the candidate that each source belongs to. Plans that the caller gave have no entry."""
    bounds: dict[str, int] = field(default_factory=dict)
    """Best bound of each source, except for refuted ones."""
    history: list[HistoryEntry] = field(default_factory=list)
    """Improvements of the best plan and of the bound so far."""
    warnings: list[str] = field(default_factory=list)
    """Warnings for the result."""
    cut_short: bool = False
    """Whether a deterministic run had too little time for a step on which its plan depends."""
    numbers: Iterator[int] = field(default_factory=itertools.count)
    """Numbers for workers, in the order in which they start."""
    _evidence: dict[str, list[Evidence]] = field(default_factory=dict)
    """Evidence for the largest bounds of each source, at most EVIDENCE_PER_SOURCE reports."""
    _verify_times: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    """Seconds that it took to verify each of the latest plans."""
    _refuted: set[str] = field(default_factory=set)
    """Sources that reported a bound greater than the objective of a verified plan."""

    @property
    def plan(self) -> Any:
        """The best plan, or None."""
        return None if self.best is None else self.best.plan

    @property
    def objective(self) -> int | None:
        """The objective of the best plan, or None."""
        return None if self.best is None else self.best.objective

    @cached_property
    def granularity(self) -> int:
        """A number that divides all objectives of the problem (:attr:`Kind.granularity`), computed once per run."""
        return self.kind.granularity(self.problem)

    @property
    def verify_seconds(self) -> float:
        """The longest time in seconds that verifying one of the latest plans took. Only the last few plans count, so that one
        slow moment of the machine has no lasting effect."""
        return max(self._verify_times, default=0.0)

    @property
    def progress(self) -> Progress:
        """The current state for callbacks of the caller."""
        source = self.history[-1].source if self.history else ""
        improved = None if self.best is None else self.best.seconds
        return Progress(round(self.deadline.elapsed, 3), self.objective, self.bound, source, improved)

    def settled_reason(self) -> StopReason | None:
        """Why nothing more can be gained; None if a better result is still possible.

        The reasons are ``infeasible``, ``optimal``, ``gap_reached`` (the gap is as small as the caller asked for) and ``fits``
        (there is a valid plan, and the problem asks for any valid plan).
        """
        if self.infeasible:
            return "infeasible"
        if self.best is None:
            return None
        is_at_bound = self.bound is not None and self.best.objective <= self.bound
        if is_at_bound and self.best.check.is_tie_break_least:
            return "optimal"
        if self.kind.asks_for_any(self.problem):
            return "fits"
        is_close = not is_at_bound and is_within(self.options.gap, self.best.objective, self.bound)
        return "gap_reached" if is_close else None

    def is_awaited(self, candidate: Candidate) -> bool:
        """Whether a run with nothing left to gain still waits for this candidate."""
        # Only the plan of the named baseline shows that the result is no worse than it.
        if candidate.makes_baseline:
            return True
        # A proof may arrive before the plans of the baselines, without which no speedup can be computed. The run therefore
        # waits for the baselines that heuristics will report.
        reported = {*self.sources} | self.without_plan
        return candidate.family == "heuristic" and not self.kind.awaited(self.problem) <= reported

    def is_needless(self, candidate: Candidate) -> bool:
        """Whether nothing that this candidate may still find could improve the result: the run only waits for others."""
        return not self.options.deterministic and self.settled_reason() is not None and not self.is_awaited(candidate)

    # ------------------------------------------------------------------------------------------------------------ plans

    def offer_plan(
        self, plan: Any, source: str, order: tuple[int, int], checked: Verification[Any] | None = None
    ) -> str | None:
        """Verifies a plan and keeps it if it is the best. Returns its violations as text, or None if it is valid.

        Parameters
        ----------
        plan
            Any object: one that is not a plan of the kind is a violation.
        source
            Name of the candidate or the caller's name of the plan.
        order
            As in :attr:`Best.order`.
        checked
            The verification of the plan, if it has been verified already.
        """
        if checked is None:
            began = time.monotonic()
            checked = check(self.kind, self.problem, plan)
            self._verify_times.append(time.monotonic() - began)
        objective = checked.objective
        if not checked.ok or objective is None:
            violations = "; ".join(checked.lines[:3])
            LOGGER.info("plan of %s failed verification: %s", source, cut(violations))
            return violations
        self.sources[source] = min(objective, self.sources.get(source, objective))
        if self.on_plan is not None:
            self.on_plan(plan, checked)
        if self.best is None or self._is_better((objective, checked.tie_break), source, order, self.best):
            what = "first" if self.best is None else "better" if objective < self.best.objective else "preferred"
            LOGGER.info("%s plan %s by %s after %.3f s", what, self.words(objective), source, self.deadline.elapsed)
            finished = self.kind.finish(self.problem, plan, objective)
            self.best = Best(finished, objective, source, order, checked, self.deadline.elapsed)
            if self.infeasible:
                self.infeasible = False
                self.warnings.append(f"a candidate called the problem infeasible, but a plan of {source} is valid")
            if self.bound is not None and self.bound > objective:
                self._refute_bounds(objective)
            self._record(source)
        else:
            LOGGER.debug("plan %s by %s is no better", self.words(objective), source)
        return None

    def _is_better(self, values: tuple[int, int], source: str, order: tuple[int, int], best: Best) -> bool:
        """Whether a plan with these values (objective, tie-break) replaces the best one."""
        best_values = best.objective, best.check.tie_break
        if values != best_values:
            return values < best_values
        if source != best.source and self.baseline in (source, best.source):
            return source == self.baseline
        return self.options.deterministic and order < best.order

    def snapshot_plans(self) -> PlansSnapshot:
        """A snapshot of the plans for :meth:`restore_plans`."""
        return self.best, dict(self.sources), len(self.history)

    def restore_plans(self, snapshot: PlansSnapshot) -> None:
        """Restores the plans of a snapshot; bounds that were proven since are kept."""
        self.best, self.sources, entries = snapshot
        del self.history[entries:]

    # ----------------------------------------------------------------------------------------------------------- proofs

    def offer_bound(self, bound: int, source: str) -> None:
        """Records a lower bound of a source in the kind's unit, unless a verified plan refutes it.

        It is rounded up to the next multiple of the kind's granularity, because all objectives are multiples of it. No further
        bounds are accepted from a source that was refuted.
        """
        if source in self._refuted:
            return
        bound += -bound % self.granularity
        self.bounds[source] = max(bound, self.bounds.get(source, bound))
        if self.best is not None and bound > self.best.objective:
            self._refute_bounds(self.best.objective)
        elif self.bound is None or bound > self.bound:
            self.bound = bound
            self._record(source)
            LOGGER.info("bound %s by %s after %.3f s", self.words(bound), source, self.deadline.elapsed)

    def offer_evidence(self, data: bytes, source: str, bound: int | None) -> None:
        """Keeps evidence for a bound, unless there is enough of the same source for larger bounds.

        Parameters
        ----------
        data
            The evidence, for the certificate maker of the kind.
        source
            Name of the candidate that reported it.
        bound
            The largest bound that the candidate had reported before; None if it had reported none.
        """
        reports = self._evidence.setdefault(source, [])
        reports.append(Evidence(data, bound))
        # Of the reports with equal bounds, the latest is kept, because sorting is stable.
        reports.sort(key=lambda report: report.rank(None))
        del reports[:-EVIDENCE_PER_SOURCE]

    @property
    def evidence(self) -> list[bytes]:
        """The evidence of all candidates, in the order of the bounds that it supports, the largest last.

        Evidence for a bound that a plan refutes comes first. If bounds are equal, the names of the sources decide, because they
        do not depend on the load of the machine.
        """
        reports = [report for _, reports in sorted(self._evidence.items()) for report in reports]
        return [report.data for report in sorted(reports, key=lambda report: report.rank(self.objective))]

    def offer_infeasibility(self, source: str, infeasibility_details: dict[str, Any] | None = None) -> bool:
        """Records a proof that no plan exists, unless there is a plan. Returns whether the problem is considered infeasible.

        ``infeasibility_details`` go into the result. Of several proofs, the details of the first that has any are kept.
        """
        if self.best is None:
            self.infeasible = True
            self.infeasibility_details = self.infeasibility_details or infeasibility_details or {}
            LOGGER.info("proven infeasible by %s after %.3f s", source, self.deadline.elapsed)
        else:
            self.warnings.append(f"{source} called the problem infeasible, but a plan of {self.best.source} is valid")
        return self.infeasible

    def _refute_bounds(self, objective: int) -> None:
        """Discards the bounds of all sources that claimed more than the objective of a verified plan."""
        for source in [source for source, bound in self.bounds.items() if bound > objective]:
            warning = f"a bound of {source} was {self.bounds.pop(source)}, but there is a plan with {objective}: left out"
            self.warnings.append(warning)
            LOGGER.info(warning)
            self._refuted.add(source)
        self.bound = max(self.bounds.values(), default=None)

    def _record(self, source: str) -> None:
        """Adds an improvement to the history and calls ``on_progress``."""
        self.history.append(HistoryEntry(round(self.deadline.elapsed, 3), source, self.objective, self.bound))
        if self.on_progress is not None:
            self.on_progress(self.progress)

    def words(self, value: int | None) -> str:
        """An objective or bound as text."""
        return "none" if value is None else self.kind.unit_for(self.problem).write(value)
