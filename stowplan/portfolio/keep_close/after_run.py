"""A run whose plan changes little: the earlier plan takes part in it, and what it finds is brought closer afterwards."""

from __future__ import annotations

from typing import Any

import msgspec

from stowplan.deadline import Deadline
from stowplan.errors import InputError
from stowplan.log import LOGGER
from stowplan.portfolio.context import Options
from stowplan.portfolio.keep_close.closeness import EARLIER, SHARE, Budget, KeepClose, closeness_of, of_this_problem
from stowplan.portfolio.keep_close.closest import Close, Search, allowed
from stowplan.portfolio.kind import Check, Kind, check
from stowplan.portfolio.run.state import Best, RunState

#: What provenance calls plans that were brought closer.
SOURCE = "keep_close"

#: Plans of a run that are looked at again.
MOST_PLANS = 50


class Closer:
    """What :func:`stowplan.solve` does besides a run where it is to keep close.

    Parameters
    ----------
    kind, problem, given
        What is solved, and the earlier plan, checked.

    Raises
    ------
    InputError
        The earlier plan is of this very problem, and not valid.
    UsageError
        It is of another problem, and what it decides cannot be known again.
    """

    def __init__(self, kind: Kind, problem: Any, given: KeepClose):
        self._kind, self._problem, self.given = kind, problem, given
        self._closeness = closeness_of(problem, given)
        self._earlier: Close | None = None
        self._plans: list[tuple[int, int, Any, Check]] = []
        self.details: dict[str, Any] = {}
        plan = self._closeness.start
        if plan is not None:
            found = check(kind, problem, plan)
            if found.ok:
                self._earlier = Close(plan, found, self._closeness.counts(plan))
            elif of_this_problem(problem, given):
                raise InputError(f"the earlier plan is not valid for this problem: {'; '.join(found.violations[:3])}")

    @property
    def starts(self) -> dict[str, Any]:
        """The earlier plan by its name, where it is valid for this problem."""
        return {} if self._earlier is None else {EARLIER: self._earlier.plan}

    @property
    def notes(self) -> tuple[str, ...]:
        """What warnings say."""
        return tuple(self._closeness.notes)

    @staticmethod
    def run_options(options: Options) -> Options:
        """Options of the run, which leaves a part of the time."""
        return msgspec.structs.replace(options, time_limit=(1 - SHARE) * options.time_limit)

    @staticmethod
    def run_deadline(options: Options, deadline: Deadline) -> Deadline:
        """Deadline of the run."""
        return deadline if options.deterministic else deadline.within((1 - SHARE) * deadline.remaining)

    def take(self, plan: Any, found: Check) -> None:
        """Remember a valid plan of the run; of many the best, the first of equals."""
        assert found.objective is not None
        self._plans.append((found.objective, found.second, plan, found))
        if len(self._plans) > 2 * MOST_PLANS:
            self._trim()

    def finish(self, state: RunState, options: Options, deadline: Deadline) -> bool:
        """Put the closest plan that is good enough in the place of the best.

        Returns
        -------
        bool
            Whether Ctrl-C ended the search for it.
        """
        best = state.best
        if best is None:
            return False
        closeness = self._closeness
        plain = Close(best.plan, best.check, closeness.counts(best.plan))
        earlier = self._earlier
        limit = allowed(
            self._kind,
            self._problem,
            best.check,
            None if earlier is None else earlier.check,
            self.given.within,
            None if state.baseline is None else state.sources.get(state.baseline),
        )
        search = Search(self._kind, self._problem, closeness, limit, Budget(options, deadline, plain.total), plain)
        cancelled = False
        if earlier is not None and limit.holds(earlier.check):
            search.best = earlier
        else:
            self._trim()
            try:
                for _, _, plan, found in self._plans:
                    if limit.holds(found):
                        search.offer(plan)
                search.run()
            except KeyboardInterrupt:
                cancelled = True
        close = search.best
        self._plans.clear()
        if close is not plain:
            assert close.check.objective is not None
            source = EARLIER if close is earlier else SOURCE
            plan = self._kind.finish(self._problem, close.plan, close.check.objective)
            state.best = Best(plan, close.check.objective, source, best.order, close.check)
            state.sources.setdefault(source, close.check.objective)
            if source == SOURCE:
                state.families.setdefault(source, "heuristic")
            if state.bound is not None and state.bound > close.check.objective:
                state.offer_bound(state.bound, SOURCE)
        LOGGER.info(
            "kept close: %d of %d decisions changed, %d by the best plan found; objective %s",
            close.changed,
            close.total,
            plain.changed,
            state.words(close.check.objective),
        )
        self.details = {
            "changed": f"{close.changed:,} of {close.total:,} decisions of the earlier plan "
            f"(the best found: {plain.changed:,})",
            "keep_close": {
                "changed": close.changed,
                "of": close.total,
                "parts": {what: list(pair) for what, pair in close.counts.items()},
                "within": self.given.within,
                "best_changed": plain.changed,
                "best_objective": plain.check.objective,
                "earlier_objective": None if earlier is None else earlier.check.objective,
            },
        }
        return cancelled

    def _trim(self) -> None:
        self._plans.sort(key=lambda each: each[:2])
        del self._plans[MOST_PLANS:]
