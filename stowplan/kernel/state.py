"""What is known at a moment of a run: the best verified plan, the best bound, and how they came about.

Nothing a candidate says is taken on trust that can be checked: plans are verified, and a bound that a verified plan undercuts
is no bound.
"""

from __future__ import annotations

import itertools
import time
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from stowplan.deadline import Deadline
from stowplan.kernel.context import Options
from stowplan.kernel.kind import Candidate, Kind, check
from stowplan.log import LOGGER, cut
from stowplan.models.hint import Hint
from stowplan.result import HistoryEntry, Progress, StopReason, is_within
from stowplan.verification import Verification


class Start(NamedTuple):
    """A plan to start from."""

    plan: Any
    checked: Verification[Any] | None = None
    """What the verifier said of it; None where it has not been asked."""


@dataclass(frozen=True)
class Best:
    """The incumbent."""

    plan: Any
    objective: int
    source: str
    order: tuple[int, int]
    """(number of the worker, number of its plan): decides between equals where the order of arrival must not."""
    check: Verification[Any]
    """What the verifier said of it."""
    seconds: float = 0.0
    """When it came, since the call."""


@dataclass
class RunState:
    """What is known of a run, and the rules by which it changes. ``options`` and ``deadline`` are those of the call."""

    kind: Kind[Any, Any]
    problem: Any
    options: Options
    deadline: Deadline
    on_progress: Callable[[Progress], None] | None = None
    baseline: str | None = None
    """Source whose plan is kept where others are as good and no better."""
    on_plan: Callable[[Any, Verification[Any]], None] | None = None
    """Called with every valid plan, the best or not."""
    best: Best | None = None
    bound: int | None = None
    """Best of ``bounds``."""
    hints: list[Hint] = field(default_factory=list)
    """Hints for the problem, checked: the caller's, then those of candidates."""
    guides: dict[str, None] = field(default_factory=dict)
    """Learned guides whose values candidates took up, the first come first."""
    evidence: deque[bytes] = field(default_factory=lambda: deque(maxlen=2))
    """What candidates last said that bounds rest on."""
    infeasible: bool = False
    why: dict[str, Any] = field(default_factory=dict)
    """Details of a proof that there is no plan."""
    sources: dict[str, int] = field(default_factory=dict)
    """Best verified objective of each source."""
    without_plan: set[str] = field(default_factory=set)
    """Baselines that have none, as far as is known."""
    families: dict[str, str] = field(default_factory=dict)
    """Family of the candidate that each source belongs to; a source without one was at hand."""
    bounds: dict[str, int] = field(default_factory=dict)
    """Best bound of each source that nothing speaks against."""
    history: list[HistoryEntry] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    cut_short: bool = False
    """Whether a deterministic run lacked time for something on which its plan depends."""
    numbers: Iterator[int] = field(default_factory=itertools.count)
    """Of workers, in the order in which they start."""
    _verified: deque[float] = field(default_factory=lambda: deque(maxlen=5))
    """Seconds that verifying the latest plans took."""
    _refuted: set[str] = field(default_factory=set)

    @property
    def plan(self) -> Any:
        """The best plan, None where there is none."""
        return None if self.best is None else self.best.plan

    @property
    def objective(self) -> int | None:
        """Its objective."""
        return None if self.best is None else self.best.objective

    @property
    def verify_seconds(self) -> float:
        """The longest that verifying has lately taken; one slow moment of the machine is forgotten after some plans."""
        return max(self._verified, default=0.0)

    @property
    def progress(self) -> Progress:
        """What is known now, for the caller."""
        source = self.history[-1].source if self.history else ""
        improved = None if self.best is None else self.best.seconds
        return Progress(round(self.deadline.elapsed, 3), self.objective, self.bound, source, improved)

    def closed(self) -> StopReason | None:
        """Why nothing more can be gained; None where something can be."""
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
        """Whether a run with nothing left to gain waits for a candidate."""
        # A result is no worse than the baseline that was named only where that has been seen.
        if candidate.makes_baseline:
            return True
        # A proof may come before the baselines: speedups are over something, so wait for those that heuristics will bring.
        made = {*self.sources} | self.without_plan
        return candidate.family == "heuristic" and not self.kind.awaited(self.problem) <= made

    def is_needless(self, candidate: Candidate) -> bool:
        """Whether nothing that a candidate may still find would count, while the run waits for others."""
        return not self.options.deterministic and self.closed() is not None and not self.is_awaited(candidate)

    # ------------------------------------------------------------------------------------------------------------ plans

    def offer_plan(
        self, plan: Any, source: str, order: tuple[int, int], checked: Verification[Any] | None = None
    ) -> str | None:
        """Verify a plan, keep it if it is the best, and return what is wrong with it, None where nothing is.

        It may be anything: what is no plan of the kind is a violation. ``source`` is what made it, ``order`` as in
        :attr:`Best.order`, ``checked`` what the verifier said of it, where it has been asked.
        """
        if checked is None:
            began = time.monotonic()
            checked = check(self.kind, self.problem, plan)
            self._verified.append(time.monotonic() - began)
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
        known = best.objective, best.check.tie_break
        if values != known:
            return values < known
        if source != best.source and self.baseline in (source, best.source):
            return source == self.baseline
        return self.options.deterministic and order < best.order

    def plans_known(self) -> tuple[Best | None, dict[str, int], int]:
        """What :meth:`forget_later_plans` takes: the best plan, the objective of each source, and entries of the history."""
        return self.best, dict(self.sources), len(self.history)

    def forget_later_plans(self, known: tuple[Best | None, dict[str, int], int]) -> None:
        """Go back to the plans that were known at a moment; what was proven since remains."""
        self.best, self.sources, entries = known
        del self.history[entries:]

    # ----------------------------------------------------------------------------------------------------------- proofs

    def offer_bound(self, bound: int, source: str) -> None:
        """Take in that no valid plan costs less (in the kind's unit), unless there is one that does.

        A source whose bound was refuted is not believed again.
        """
        if source in self._refuted:
            return
        self.bounds[source] = max(bound, self.bounds.get(source, bound))
        if self.best is not None and bound > self.best.objective:
            self._refute_bounds(self.best.objective)
        elif self.bound is None or bound > self.bound:
            self.bound = bound
            self._record(source)
            LOGGER.info("bound %s by %s after %.3f s", self.words(bound), source, self.deadline.elapsed)

    def offer_infeasibility(self, source: str, why: dict[str, Any] | None = None) -> bool:
        """Take in that there is no plan, unless there is one; returns whether it was taken in.

        ``why`` are details for the result; those of the first proof are kept.
        """
        if self.best is None:
            self.infeasible = True
            self.why = self.why or why or {}
            LOGGER.info("proven infeasible by %s after %.3f s", source, self.deadline.elapsed)
        else:
            self.warnings.append(f"{source} called the problem infeasible, but a plan of {self.best.source} is valid")
        return self.infeasible

    def _refute_bounds(self, objective: int) -> None:
        """Forget everything said by those whose bounds a verified plan undercuts."""
        for source in [source for source, bound in self.bounds.items() if bound > objective]:
            warning = f"a bound of {source} was {self.bounds.pop(source)}, but there is a plan with {objective}: left out"
            self.warnings.append(warning)
            LOGGER.info(warning)
            self._refuted.add(source)
        self.bound = max(self.bounds.values(), default=None)

    def _record(self, source: str) -> None:
        self.history.append(HistoryEntry(round(self.deadline.elapsed, 3), source, self.objective, self.bound))
        if self.on_progress is not None:
            self.on_progress(self.progress)

    def words(self, value: int | None) -> str:
        """An objective or bound for people."""
        return "none" if value is None else self.kind.unit.write(value)
