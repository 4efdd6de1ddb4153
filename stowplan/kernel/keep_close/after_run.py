"""Keeps a result close to an earlier plan: the earlier plan takes part in the run, and after the run a search looks for a plan
that differs from it in fewer decisions than the best plan. Such a plan is called *closer*. A decision is one part of a plan,
for example the offset of one buffer."""

from __future__ import annotations

from collections.abc import Mapping
from operator import itemgetter
from typing import Any

import msgspec

from stowplan.deadline import Deadline
from stowplan.errors import InputError, UsageError
from stowplan.kernel.context import Options
from stowplan.kernel.keep_close.earlier_plan import changes_of, given, is_of_problem
from stowplan.kernel.keep_close.reverting import AcceptedPlan, RevertingSearch, cost_limit
from stowplan.kernel.kind import Kind, check
from stowplan.kernel.plan_changes import EARLIER, SHARE, Budget, KeepClose
from stowplan.kernel.state import Best, RunState, Start
from stowplan.log import LOGGER
from stowplan.result import Result
from stowplan.verification import Verification

#: Source of plans that this search found, as the provenance names it.
SOURCE = "keep_close"

#: Maximum number of valid plans of the run from which the search may start.
MAX_PLANS = 50


def stability_pass_of(kind: Kind[Any, Any], problem: Any, keep_close: Any, plans: Mapping[str, Any]) -> StabilityPass:
    """Makes the :class:`StabilityPass` for the argument ``keep_close`` of :func:`stowplan.solve`.

    Raises
    ------
    UsageError
        ``plans`` has the name ``earlier``, which is reserved; ``keep_close`` is neither a plan of the kind nor a
        :class:`KeepClose` with one, or its fraction is out of range; or the earlier plan belongs to another problem and cannot
        be matched to this one.
    InputError
        The earlier plan is not valid for the problem that it belongs to.
    """
    stability_pass = StabilityPass(kind, problem, given(keep_close, kind))
    if EARLIER in plans:
        raise UsageError(f"found a plan named {EARLIER!r}, which is the name of the one to keep close to: give it another")
    return stability_pass


class StabilityPass:
    """The steps that :func:`stowplan.solve` adds to a run in order to keep close to an earlier plan.

    Parameters
    ----------
    kind, problem
        The problem to solve.
    request
        The checked request: the earlier plan, and how much worse the objective may become.

    Raises
    ------
    InputError
        The earlier plan belongs to this problem, and is not valid.
    UsageError
        The earlier plan belongs to another problem, and its decisions cannot be matched to those of this one.
    """

    def __init__(self, kind: Kind[Any, Any], problem: Any, request: KeepClose):
        self._kind, self._problem, self.request = kind, problem, request
        self._changes = changes_of(problem, request)
        self._earlier: AcceptedPlan | None = None
        self._plans: list[tuple[int, int, Any, Verification[Any]]] = []
        self.details: dict[str, Any] = {}
        """Details for the result, which :meth:`finish` fills in."""
        plan = self._changes.start
        if plan is not None:
            verdict = check(kind, problem, plan)
            if verdict.ok:
                self._earlier = AcceptedPlan(plan, verdict, self._changes.counts(plan))
            elif is_of_problem(problem, request):
                raise InputError(f"the earlier plan is not valid for this problem: {'; '.join(verdict.lines[:3])}")

    @property
    def starts(self) -> dict[str, Start]:
        """The earlier plan by its name, if it is valid for this problem."""
        return {} if self._earlier is None else {EARLIER: Start(self._earlier.plan, self._earlier.check)}

    def limits(self, options: Options, deadline: Deadline) -> tuple[Options, Deadline]:
        """Options and deadline of the run, which leave the part :data:`SHARE` of the time limit for the search after it."""
        run_share = 1 - SHARE
        if not options.deterministic:
            deadline = deadline.within(run_share * deadline.remaining)
        return options.limited(run_share * options.time_limit, run_share * options.extent), deadline

    def add_details(self, result: Result) -> Result:
        """The result with details and warnings about the earlier plan."""
        return msgspec.structs.replace(
            result,
            details=result.details | self.details,
            highlights=result.highlights | ({"changed": self.details["changed"]} if self.details else {}),
            warnings=(*result.warnings, *self._changes.notes),
        )

    def remember(self, plan: Any, verdict: Verification[Any]) -> None:
        """Remembers a valid plan of the run. If there are too many, only the :data:`MAX_PLANS` best are kept; among equally
        good plans, those that came first."""
        assert verdict.objective is not None
        self._plans.append((verdict.objective, verdict.tie_break, plan, verdict))
        if len(self._plans) > 2 * MAX_PLANS:
            self._trim()

    def finish(self, state: RunState) -> bool:
        """Replaces the best plan by the closest one that is good enough, in the time that the run has left. It does nothing if
        the run has no plan.

        Returns
        -------
        bool
            Whether the run was cancelled.
        """
        options, deadline, best = state.options, state.deadline, state.best
        if best is None:
            return deadline.was_cancelled
        changes = self._changes
        plain = AcceptedPlan(best.plan, best.check, changes.counts(best.plan))
        earlier = self._earlier
        limit = cost_limit(
            self._kind,
            self._problem,
            best.check,
            None if earlier is None else earlier.check,
            self.request.within,
            None if state.baseline is None else state.sources.get(state.baseline),
        )
        search = RevertingSearch(self._kind, self._problem, changes, limit, Budget(options, deadline, plain.total), plain)
        cancelled = False
        if earlier is not None and limit.holds(earlier.check):
            search.best = earlier
        else:
            self._trim()
            try:
                for _, _, plan, verdict in self._plans:
                    if limit.holds(verdict):
                        search.offer(plan)
                search.run()
            except KeyboardInterrupt:
                cancelled = True
        if options.deterministic and deadline.expired:
            state.cut_short = True
            state.warnings.append("there was too little time for plans closer to the earlier one: another run may differ")
        chosen = search.best
        self._plans.clear()
        if chosen is not plain:
            assert chosen.check.objective is not None
            source = EARLIER if chosen is earlier else SOURCE
            plan = self._kind.finish(self._problem, chosen.plan, chosen.check.objective)
            state.best = Best(plan, chosen.check.objective, source, best.order, chosen.check, deadline.elapsed)
            state.sources.setdefault(source, chosen.check.objective)
            if source == SOURCE:
                state.families.setdefault(source, "heuristic")
            if state.bound is not None and state.bound > chosen.check.objective:
                state.offer_bound(state.bound, SOURCE)
        LOGGER.info(
            "kept close: %d of %d decisions changed, %d by the best plan found; objective %s",
            chosen.changed,
            chosen.total,
            plain.changed,
            state.words(chosen.check.objective),
        )
        self.details = {
            "changed": f"{chosen.changed:,} of {chosen.total:,} decisions of the earlier plan "
            f"(the best found: {plain.changed:,})",
            "keep_close": {
                "changed": chosen.changed,
                "of": chosen.total,
                "parts": {what: list(pair) for what, pair in chosen.counts.items()},
                "within": self.request.within,
                "best_changed": plain.changed,
                "best_objective": plain.check.objective,
                "earlier_objective": None if earlier is None else earlier.check.objective,
            },
        }
        return cancelled or deadline.was_cancelled

    def _trim(self) -> None:
        """Forgets all but the best plans."""
        self._plans.sort(key=itemgetter(0, 1))
        del self._plans[MAX_PLANS:]
