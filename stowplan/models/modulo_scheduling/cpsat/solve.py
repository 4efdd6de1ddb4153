"""The search over initiation intervals (II) with CP-SAT.

An II is *refuted* if it is proven that no plan has it. Small IIs are refuted in ascending order, and plans are sought at larger
ones, until the least possible II is known. Then the makespan, the number of clocks from 0 to the last result of one iteration,
is minimized at the best II.

The *delay* of a value is the time that it waits for its consumer, and a *slot* is a clock modulo the II. A *pin* fixes the
tile, time or slot of an instruction. A hint must be a valid plan; then nothing here raises an error.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Unpack

import msgspec

from stowplan.models.cpsat_runner import Budget, Search, Value
from stowplan.models.modulo_scheduling.bounds import critical_path, find_obstacle, unrefuted_iis
from stowplan.models.modulo_scheduling.cpsat.model import ModuloModel, latest_time, size
from stowplan.models.modulo_scheduling.cpsat.places import LeastIIModel, bands
from stowplan.models.modulo_scheduling.cpsat.questions import explain
from stowplan.models.modulo_scheduling.plan import Plan, encode_objective
from stowplan.models.modulo_scheduling.problem import Problem
from stowplan.models.modulo_scheduling.structure import Structure
from stowplan.models.outcome import Best, Outcome

#: Fractions of the budget (:class:`~stowplan.models.cpsat_runner.Budget`): for the first attempt at the least II, for each
#: attempt at a larger II, and, as a reserve, for the makespan.
FIRST_SHARE, STEP_SHARE, MAKESPAN_SHARE = 0.2, 0.1, 0.2

#: Fraction of the budget for the first attempt at the largest II, if delays are limited.
NARROW_SHARE = 0.3

#: Largest number of literals (Boolean variables) of models in which all instructions have times. Larger models would take
#: longer than they save.
MOST_LITERALS = 400_000

#: Bounds on an II or a makespan that are larger than this mean that the model has no solutions.
MOST_BOUND = 1 << 40

#: The result of one attempt: a plan was found, it is proven that there is none, or neither.
Answer = Literal["feasible", "infeasible", "unknown"]


def solve(
    problem: Problem, *, incumbent: Callable[[], Plan | None] | None = None, **search: Unpack[Search[Plan]]
) -> Outcome[Plan]:
    """Find the best plan of a problem and a proven bound, or prove that there is no plan.

    Parameters
    ----------
    incumbent
        Called between two models for the best valid plan that other candidates of the ``solve`` call have found; None as its
        result means that there is none.
    search
        Keyword arguments of :func:`stowplan.models.cpsat_runner.find_plan`: limits, a hint and callbacks. The limits apply to
        all models together, including the time to build them.

    Returns
    -------
    Outcome
        The best plan and bound; for an infeasible problem the reason. Running out of time is never reported as ``infeasible``.
    """
    run = _Search(problem, incumbent, search)
    reason = find_obstacle(problem, run.structure)
    if reason is not None:
        return Outcome("infeasible", None, None, reason)
    run.offer_bound(encode_objective(run.least, run.path))
    run.offer_plan(search.get("hint"))
    if run.start_without_links():
        run.find_least_ii()
    if run.no_plan_at_all:
        return Outcome("infeasible", None, None, run.reason)
    run.minimize_makespan()
    return run.outcome()


class _Search(Best[Plan]):
    """The state of :func:`solve`. All IIs smaller than ``least`` are refuted, and ``plan`` is the best plan so far."""

    def __init__(self, problem: Problem, incumbent: Callable[[], Plan | None] | None, search: Search[Plan]):
        super().__init__(lambda plan: plan.objective, search.get("on_plan"), search.get("on_bound"), 0)
        self.problem = problem
        self.structure = Structure(problem)
        self.budget = Budget(search["time_limit"], search.get("deterministic_limit"), search.get("should_stop"))
        self.reason: str | None = None
        self.incumbent = incumbent
        #: IIs that no bound refutes; empty if there is an obstacle.
        self.iis = unrefuted_iis(problem, self.structure).iis
        self.least = min(self.iis, default=problem.machine.spoke_depth + 1)
        self.path = critical_path(problem, self.structure)
        self.most = max(self.iis, default=problem.machine.spoke_depth)
        self._workers, self._seed = search.get("workers", 1), search.get("seed", 0)
        self._tried: set[int] = set()
        self._refuted: set[int] = set()
        rules = problem.rules
        timed_pins = any(pin.time is not None or pin.slot is not None for pin in problem.pins)
        #: Whether times can always be found if the tiles are valid. If this is so and one II is possible, all larger IIs are
        #: possible.
        self.places_decide = not problem.limits_waits and not rules.pass_through and not timed_pins
        fixed = bool(self.structure.recurrent or self.structure.port_limits)
        slots_may_meet = not self.structure.has_one_latency and fixed
        #: Whether tiles, and times on recurrences, that are valid at an II remain valid at all larger ones.
        self._is_monotone = not problem.limits_waits and not timed_pins and not slots_may_meet
        self._everything = list(range(self.structure.count))

    def adopt_incumbent(self) -> None:
        """Adopt the best plan of other candidates if it is better."""
        plan = None if self.incumbent is None else self.incumbent()
        if plan is not None and (self.plan is None or plan.objective < self.plan.objective):
            self.plan = plan

    @property
    def no_plan_at_all(self) -> bool:
        """Whether every II is refuted."""
        return self.plan is None and self.least > self.most

    @property
    def is_final(self) -> bool:
        """Whether all IIs smaller than that of the best plan, or all IIs if there is no plan, are refuted."""
        return self.least > self.most if self.plan is None else self.plan.ii <= self.least

    def refute(self, below: int) -> None:
        """Record that no II smaller than ``below`` has a plan."""
        self.least = next((ii for ii in self.iis if ii >= max(self.least, below)), self.most + 1)
        if self.least <= self.most:
            self.offer_bound(encode_objective(self.least, self.path))

    # Initiation intervals

    def start_without_links(self) -> bool:
        """If values may pass through tiles, first search for a plan in which they do not.

        Returns False if time runs out meanwhile.
        """
        if not self.problem.rules.pass_through or self.plan is not None:
            return True
        one, any_number = self.problem.machine.one_link, self.problem.machine.any_links
        pairs = [(a, b) for a, row in enumerate(one) for b in range(len(row)) if row[b] is not None]
        if any(one[a][b] != any_number[a][b] for a, b in pairs):
            return True
        rules = msgspec.structs.replace(self.problem.rules, pass_through=False)
        outcome = solve(
            msgspec.structs.replace(self.problem, rules=rules),
            time_limit=self.budget.part(0.3),
            workers=self._workers,
            seed=self._seed,
            deterministic_limit=self.budget.deterministic_part(0.3),
            should_stop=self.budget.should_stop,
        )
        self.budget.spend_part(0.3)
        if outcome.plan is not None:
            self.offer_plan(msgspec.structs.replace(outcome.plan, problem=self.problem.digest))
        return not self.budget.is_spent

    def find_least_ii(self) -> None:
        """Try the least II that is not refuted. If that takes long, also search for plans at larger IIs, until all IIs below
        that of the best plan are refuted."""
        if self.is_final:
            return
        if self.problem.rules.max_delay is not None:
            self.search_with_limited_delays()
            return
        if self.attempt(self.least, FIRST_SHARE) == "feasible":
            return
        self.raise_bound()
        share = STEP_SHARE
        while not self.is_final and not self.budget.is_spent and self._spare > 0:
            self.adopt_incumbent()
            if self.is_final:
                break
            both = self.places_decide and self._is_monotone
            made_progress = self.bisect_step(share) if both else self.sweep(share)
            share = share if made_progress else 2 * share

    @property
    def _spare(self) -> float:
        """The fraction of the budget that is left for the search over IIs."""
        return self.budget.remaining_share - (MAKESPAN_SHARE if self.plan is not None else 0.0)

    def raise_bound(self) -> None:
        """Refute many IIs at once by a model in which the II is a variable. The model often gives a plan, too."""
        if self.budget.is_spent or self.is_final:
            return
        model = LeastIIModel(self.structure, self.least, self.most)
        if self.plan is not None:
            model.hint_places(self.plan)
        if self.run(model, FIRST_SHARE, keep=self.places_decide, refutes=True) == "infeasible":
            self.refute(self.most + 1)
            self.reason = explain(self.structure, self.most, self.budget, self._seed)

    def bisect_step(self, share: float) -> bool:
        """Make one step of the search over IIs. The search divides the range of undecided IIs, since every II above a possible
        one is possible, too.

        Returns False if the step gave no result.
        """
        if self.plan is None:
            return self.attempt(self.most, share) != "unknown" or self.attempt_bands(share)
        if self.plan.ii - self.least == 1:
            return self.attempt(self.least, self._spare) != "unknown"
        middle = (self.plan.ii + 3 * self.least) // 4
        if middle > self.least and self.attempt(middle, min(share, self._spare)) != "unknown":
            return True
        return self._spare > 0 and self.attempt(self.least, min(share, self._spare)) != "unknown"

    def attempt_bands(self, share: float) -> bool:
        """Search for a plan at the largest II, with few allowed tiles for each instruction (:func:`.places.bands`). Returns
        whether one was found."""
        windows = bands(self.structure)
        if windows is None or self.budget.is_spent:
            return False
        recurrent = self.structure.recurrent
        last_time = latest_time(self.structure, self.most, recurrent)
        model = ModuloModel(self.structure, self.most, last_time=last_time, windows=windows)
        return self.run(model, share, keep=True) == "feasible"

    def search_with_limited_delays(self) -> None:
        """Search with limited delays: first at the largest II, then by bisection, with attempts at the least II in between."""
        share, tried = STEP_SHARE, set[int]()
        if self.plan is None and self.attempt_whole(self.iis[-1], NARROW_SHARE) != "feasible":
            self.raise_bound()
        while not self.is_final and not self.budget.is_spent and self._spare > 0:
            self.adopt_incumbent()
            above = self.most + 1 if self.plan is None else self.plan.ii
            untried = [ii for ii in self.iis if self.least <= ii < above and ii not in tried | self._refuted]
            if not untried:
                share, tried = 2 * share, set()
            else:
                middle = untried[len(untried) // 2]
                tried.add(middle)
                self.attempt_whole(middle, min(share, self._spare))
            if not self.is_final and self._spare > 0:
                self.attempt(self.least, min(share / 2, self._spare))

    def sweep(self, share: float) -> bool:
        """Try IIs one by one, ascending. This is the search for problems in which an II above a possible one need not be
        possible.

        Returns False if some IIs remain undecided.
        """
        is_complete = True
        for ii in self.iis:
            if ii < self.least:
                continue
            if self.plan is not None and ii >= self.plan.ii:
                break
            if self.budget.is_spent or self._spare <= 0:
                return False
            answer = self.attempt(ii, min(share, self._spare))
            if answer == "feasible":
                break
            is_complete = is_complete and answer == "infeasible"
        return is_complete

    def attempt(self, ii: int, share: float) -> Answer:
        """Search for a plan at an II with a fraction of the whole budget, and record the result."""
        places = ModuloModel(
            self.structure,
            ii,
            last_time=latest_time(self.structure, ii, self.structure.recurrent),
        )
        answer = self.run(places, share, keep=self.places_decide)
        if answer == "infeasible" and (self._is_monotone or ii == self.least):
            # If the problem is monotone, tiles and times that are valid at a smaller II would also be valid at this II.
            self.refute(ii + 1)
            if self.no_plan_at_all:
                self.reason = explain(self.structure, self.most, self.budget, self._seed)
        if answer == "infeasible" or self.budget.is_spent:
            return answer
        if self.places_decide and (answer == "unknown" or (self.plan is not None and self.plan.ii <= ii)):
            return answer
        # Valid tiles need not lead to a plan if delays are limited, times are fixed, or buffers of asynchronous values need
        # memory.
        self.places_decide = False
        return self.attempt_whole(ii, share)

    def attempt_whole(self, ii: int, share: float) -> Answer:
        """Search for a plan at an II with a model that has the times of all instructions; see :meth:`attempt`."""
        if size(self.structure, ii, links=self.problem.rules.pass_through) > MOST_LITERALS:
            return "unknown"
        model = ModuloModel(
            self.structure,
            ii,
            last_time=latest_time(self.structure, ii, self._everything),
            whole=True,
            links=self.problem.rules.pass_through,
        )
        answer = self.run(model, share, keep=True)
        self._refuted.update([ii] if answer == "infeasible" else [])
        while self.least in self._refuted:
            self.refute(self.least + 1)
            if self.no_plan_at_all:
                self.reason = f"every initiation interval up to {self.most} is refuted: times, delays or links do not fit"
        return answer

    # Makespan

    def minimize_makespan(self) -> None:
        """Minimize the makespan at the II of the plan."""
        self.adopt_incumbent()
        if self.plan is None or self.budget.is_spent or self.is_optimal:
            return
        plan = self.plan
        if size(self.structure, plan.ii, links=self.problem.rules.pass_through) > MOST_LITERALS:
            return
        model = ModuloModel(
            self.structure,
            plan.ii,
            whole=True,
            last_time=plan.makespan - min(self.problem.latencies),
            links=self.problem.rules.pass_through,
            makespan=(min(self.path, plan.makespan), plan.makespan),
        )
        model.add_hint(plan)
        self.run(model, 1.0, keep=True, proves=plan.ii <= self.least)

    # Running

    def run(
        self,
        model: ModuloModel | LeastIIModel,
        share: float,
        *,
        keep: bool,
        proves: bool = False,
        refutes: bool = False,
    ) -> Answer:
        """Solve a model with a fraction of the budget.

        Parameters
        ----------
        keep
            Whether solutions of the model are turned into plans.
        proves
            Whether bounds of the model are bounds on the makespan at the least II.
        refutes
            Whether bounds of the model are bounds on the II.
        """
        if self.plan is not None and isinstance(model, ModuloModel) and model.makespan is None:
            model.add_hint(self.plan, complete=False)
        parameters = {}
        if isinstance(model, ModuloModel) and model.makespan is None:
            # An II that remained undecided is tried again with full linear relaxations, which decide some cases that search
            # without them does not decide.
            if model.ii in self._tried:
                parameters["linearization_level"] = 2
            self._tried.add(model.ii)
        if self.budget.is_spent:
            return "unknown"

        def handle_bound(bound: int | None) -> None:
            if bound is None or bound > MOST_BOUND:
                return
            if proves and isinstance(model, ModuloModel):
                self.offer_bound(encode_objective(model.ii, bound))
            elif refutes:
                self.refute(bound)

        def handle_plan(value: Value) -> None:
            self.offer_plan(model.extract(value))

        outcome = self.budget.run(
            model.model,
            share,
            workers=self._workers,
            seed=self._seed,
            parameters=parameters,
            on_solution=handle_plan if keep else None,
            on_bound=handle_bound if proves or refutes else None,
        )
        handle_bound(outcome.bound)
        return "feasible" if outcome.is_found else "infeasible" if outcome.status == "infeasible" else "unknown"
