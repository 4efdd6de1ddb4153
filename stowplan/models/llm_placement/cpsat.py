"""CP-SAT model of LLM placement, on the common model of placements.

Each layer is in one memory (:class:`stowplan.models.placement.cpsat.Places`); those of a device follow one another. Layers
that are alike are counted, not told apart, where parts of them are spilled: for each class of layers, memory and number of
parts there is one integer variable. A model is for one micro-batch and for one device that computes the host's weights in
prompts, since these two decide what a layer costs; :func:`solve` looks at all of them.
"""

from __future__ import annotations

import time
from collections.abc import Callable

from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Value
from stowplan.models.llm_placement.plan import Case, Plan, case_of, cases, plan_of
from stowplan.models.llm_placement.problem import HOST, ROUNDED, Problem, layer_bytes, placement_of
from stowplan.models.llm_placement.relaxation import Relaxation
from stowplan.models.outcome import Outcome
from stowplan.models.placement.cpsat import Places

Var = cp_model.IntVar

#: Part of the time left that the model of one case may take.
CASE_SHARE = 0.6


class Model:
    """The plans of one case; the objective counts nanoseconds."""

    def __init__(self, problem: Problem, case: Case):
        self.problem, self.case, self.model = problem, case, cp_model.CpModel()
        self.places = Places(self.model, placement_of(problem))
        self.begins: dict[tuple[int, int], Var] = {}
        """Whether a device's layers begin with a layer."""
        self.spilled: dict[tuple[int, int, int], Var] = {}
        """Layers of a class in a memory with this number of spilled parts."""
        self._add_order()
        self._add_spills()
        for memory in range(len(problem.memories)):
            self.places.add_loads(memory)
            self._add_capacity(memory)
        self._add_objective()

    def _add_order(self) -> None:
        """The host's layers come first, a device's follow one another, and the case's copying device comes first of those."""
        inside, last = self.places.inside, len(self.problem.layers) - 1
        for number in range(last):
            self.model.add_implication(inside[number + 1, HOST], inside[number, HOST])
        for memory, device in enumerate(self.problem.memories):
            if memory == HOST:
                continue
            if device.copies_weights and (self.case.copier is None):
                self.model.add(sum(inside[number, memory] for number in range(last + 1)) == 0)
            for number in range(last + 1):
                begins = self.begins[number, memory] = self.model.new_bool_var(f"layers of {memory} begin with {number}")
                before = inside[number - 1, memory] if number else 0
                self.model.add(begins >= inside[number, memory] - before)
                self.model.add_implication(begins, inside[number, memory])
                if number:
                    self.model.add_implication(begins, ~inside[number - 1, memory])
                copier = self.case.copier
                if device.copies_weights and copier is not None and memory != copier:
                    self.model.add(begins <= sum(inside[earlier, copier] for earlier in range(number)))
            self.model.add_at_most_one(self.begins[number, memory] for number in range(last + 1))
        if self.case.copier is not None:
            self.model.add_at_least_one(inside[number, self.case.copier] for number in range(last + 1))

    def _add_spills(self) -> None:
        for kind, same in enumerate(self.problem.classes):
            parts = len(self.problem.layers[same[0]].spillable)
            for memory in range(1, len(self.problem.memories)):
                counts = []
                for spilled in range(1, parts + 1):
                    counts.append(self.model.new_int_var(0, len(same), f"{kind} in {memory} with {spilled} spilled"))
                    self.spilled[kind, memory, spilled] = counts[-1]
                if counts:
                    self.model.add(sum(counts) <= sum(self.places.inside[number, memory] for number in same))

    def _add_capacity(self, memory: int) -> None:
        freed = []
        for (kind, device, spilled), count in self.spilled.items():
            layer = self.problem.layers[self.problem.classes[kind][0]]
            size = layer_bytes(layer) - layer_bytes(layer, spilled)
            if memory in (HOST, device):
                freed.append((-size if memory == HOST else size) * count)
        used = self.places.bytes_of(memory) - sum(freed)
        self.model.add(used <= max(0, self.problem.room(memory, self.case.batch)))

    def _add_objective(self) -> None:
        problem, (batch, copier) = self.problem, self.case
        last = len(problem.layers) - 1
        terms = []
        for same in problem.classes:
            costs = [problem.cost(same[0], memory, batch, copier) // ROUNDED for memory in range(len(problem.memories))]
            terms += [costs[memory] * self.places.inside[number, memory] for number in same for memory in range(len(costs))]
        for (kind, memory, spilled), count in self.spilled.items():
            first = problem.classes[kind][0]
            more = problem.cost(first, memory, batch, copier, spilled) - problem.cost(first, memory, batch, copier)
            terms.append(more // ROUNDED * count)
        for memory in range(1, len(problem.memories)):
            once = problem.transfer(memory, batch) // ROUNDED
            terms += [2 * once * self.begins[number, memory] for number in range(last + 1)]
            terms.append(-once * self.places.inside[last, memory])
        self.objective = sum(terms)
        self.model.minimize(self.objective)

    def add_cutoff(self, plan: Plan) -> None:
        """Leave only plans that are faster than this one."""
        self.model.add(self.objective < plan.objective // ROUNDED)

    def add_hint(self, plan: Plan) -> None:
        """Start the solver from a plan of this case; every variable gets a value."""
        values = self.places.hint_values(plan.memories, None)
        for (number, memory), begins in self.begins.items():
            here = plan.memories[number] == memory and (number == 0 or plan.memories[number - 1] != memory)
            values.append((begins, int(here)))
        for (kind, memory, spilled), count in self.spilled.items():
            same = self.problem.classes[kind]
            values.append((count, sum(plan.memories[at] == memory and plan.spilled[at] == spilled for at in same)))
        cpsat_runner.add_hint(self.model, values)

    def extract(self, value: Value) -> Plan:
        """Plan of a solution: of layers that are alike, the first ones of a device have the most spilled parts."""
        memories = self.places.chosen_memories(value)
        spilled = [0] * len(memories)
        for kind, same in enumerate(self.problem.classes):
            for memory in range(1, len(self.problem.memories)):
                here = iter([number for number in same if memories[number] == memory])
                for count in range(len(self.problem.layers[same[0]].spillable), 0, -1):
                    for _ in range(value(self.spilled[kind, memory, count])):
                        spilled[next(here)] = count
        return plan_of(self.problem, memories, spilled, self.case.batch)


def solve(
    problem: Problem,
    *,
    time_limit: float,
    deterministic_limit: float | None = None,
    hint: Plan | None = None,
    on_plan: Callable[[Plan], None] | None = None,
    on_bound: Callable[[int], None] | None = None,
    seed: int = 0,
    should_stop: Callable[[], bool] | None = None,
) -> Outcome[Plan]:
    """Solve the models of all cases, one after the other.

    Parameters
    ----------
    time_limit, deterministic_limit
        Seconds, and CP-SAT's deterministic seconds, for all models together.
    hint
        A valid plan; no other model looks for plans that are not faster.
    on_plan, on_bound
        Called with every better plan and bound.
    seed, should_stop
        As :func:`stowplan.models.cpsat_runner.run` takes them.

    Returns
    -------
    Outcome
        Best plan, and what is proven; running out of time is never ``infeasible``.
    """
    best, end = hint, time.monotonic() + time_limit
    first = None if best is None else case_of(problem, best)
    known = {case: Relaxation(problem, case).bound() or 0 for case in cases(problem)}
    if on_bound is not None and known:
        on_bound(min(known.values()))
    # The case of the hint comes first, then those that promise most: what they find cuts the others short.
    every = sorted(known, key=lambda case: (case != first, known[case]))
    is_proven, bounds = True, list[int]()
    for number, case in enumerate(every):
        if best is not None and known[case] >= best.objective:
            continue
        built = Model(problem, case)
        if best is not None and case == first:
            built.add_hint(best)
        elif best is not None:
            built.add_cutoff(best)
        left, share = end - time.monotonic(), 1.0 if number == len(every) - 1 else CASE_SHARE
        bound = [known[case] // ROUNDED]
        run = cpsat_runner.run(
            built.model,
            time_limit=max(0.01, left * share),
            deterministic_limit=None if deterministic_limit is None else deterministic_limit / len(every),
            on_bound=bound.append,
            seed=seed,
            should_stop=should_stop,
        )
        is_proven &= run.status in ("optimal", "infeasible")
        if run.status != "infeasible":
            bounds.append(ROUNDED * max(*bound, run.bound or 0))
        if run.is_found:
            plan = built.extract(run.value)
            if best is None or plan.objective < best.objective:
                best = plan
                if on_plan is not None:
                    on_plan(plan)
    if best is None:
        reason = "no placement of the layers keeps every memory within what may be used" if is_proven else None
        return Outcome("infeasible" if is_proven else "unknown", None, None, reason)
    proven = min([best.objective, *bounds])
    if on_bound is not None:
        on_bound(proven)
    return Outcome("optimal" if proven == best.objective else "feasible", best, proven)
