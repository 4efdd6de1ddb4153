"""The CP-SAT model of LLM placement, which is built on the common model of placements. It minimizes the time of a *request*,
which is a prompt and a number of steps of generation.

Each layer is in one memory (:class:`stowplan.models.placement.cpsat.Places`), and the layers of a device are consecutive. Parts
of a layer are *spilled* if they are on the host although the layer is on a device. Layers that differ at most in their names
are a *class*. The model does not decide which layers of a class have spilled parts, but how many: it has an integer variable
for each class, memory and number of spilled parts.

The time of a layer depends on the *micro-batch*, the number of tokens of a prompt that are computed at once, and on the
*copying device*, which computes prompts with the weights that are on the host, after it has copied them. A model is therefore
for one *case* (:class:`~.plan.Case`), that is, one choice of the two; :func:`solve` solves the models of all cases. A hint must
be a valid plan; then nothing here raises an error.
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

#: Fraction of the remaining time that the model of one case may take; the model of the last case may take all of it.
CASE_SHARE = 0.6


class Model:
    """The CP-SAT model of the plans of one case. Its objective is the time of the request in nanoseconds."""

    def __init__(self, problem: Problem, case: Case):
        self.problem, self.case, self.model = problem, case, cp_model.CpModel()
        self.places = Places(self.model, placement_of(problem))
        self.begins: dict[tuple[int, int], Var] = {}
        """For each (layer, memory of a device), a Boolean variable: whether the layers of this device begin with this layer."""
        self.spilled: dict[tuple[int, int, int], Var] = {}
        """For each (class, memory of a device, number of spilled parts), the number of the class's layers that are on this
        device and have this number of spilled parts."""
        self._add_order()
        self._add_spills()
        for memory in range(len(problem.memories)):
            self.places.add_loads(memory)
            self._add_capacity(memory)
        self._add_objective()

    def _add_order(self) -> None:
        """Require that the layers of the host come first and that the layers of each device are consecutive.

        The copying device of the case must be in use, before all other devices that can copy weights. If the case has no
        copying device, no device that can copy weights is in use.
        """
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
        """Add the numbers of layers with spilled parts, which are at most the numbers of layers on the devices."""
        for kind, members in enumerate(self.problem.classes):
            parts = len(self.problem.layers[members[0]].spillable)
            for memory in range(1, len(self.problem.memories)):
                counts = []
                for spilled in range(1, parts + 1):
                    counts.append(self.model.new_int_var(0, len(members), f"{kind} in {memory} with {spilled} spilled"))
                    self.spilled[kind, memory, spilled] = counts[-1]
                if counts:
                    self.model.add(sum(counts) <= sum(self.places.inside[number, memory] for number in members))

    def _add_capacity(self, memory: int) -> None:
        """Limit the bytes of layers, caches and spilled parts in a memory."""
        freed = []
        for (kind, device, spilled), count in self.spilled.items():
            layer = self.problem.layers[self.problem.classes[kind][0]]
            size = layer_bytes(layer) - layer_bytes(layer, spilled)
            if memory in (HOST, device):
                freed.append((-size if memory == HOST else size) * count)
        used = self.places.bytes_of(memory) - sum(freed)
        self.model.add(used <= max(0, self.problem.room(memory, self.case.batch)))

    def _add_objective(self) -> None:
        """Add the objective: the times of layers without spilled parts, the additional times of spilled parts, and the times of
        transfers of activations to and from the devices."""
        problem, (batch, copier) = self.problem, self.case
        last = len(problem.layers) - 1
        terms = []
        for members in problem.classes:
            costs = [problem.cost(members[0], memory, batch, copier) // ROUNDED for memory in range(len(problem.memories))]
            terms += [costs[memory] * self.places.inside[number, memory] for number in members for memory in range(len(costs))]
        for (kind, memory, spilled), count in self.spilled.items():
            first = problem.classes[kind][0]
            added_ps = problem.cost(first, memory, batch, copier, spilled) - problem.cost(first, memory, batch, copier)
            terms.append(added_ps // ROUNDED * count)
        for memory in range(1, len(problem.memories)):
            transfer_ns = problem.transfer(memory, batch) // ROUNDED
            terms += [2 * transfer_ns * self.begins[number, memory] for number in range(last + 1)]
            terms.append(-transfer_ns * self.places.inside[last, memory])
        self.objective = sum(terms)
        self.model.minimize(self.objective)

    def add_cutoff(self, plan: Plan) -> None:
        """Allow only plans that are faster than this plan."""
        self.model.add(self.objective < plan.objective // ROUNDED)

    def add_hint(self, plan: Plan) -> None:
        """Let the solver start from a plan of this case; every variable gets a value."""
        values = self.places.hint_values(plan.memories, None)
        for (number, memory), begins in self.begins.items():
            begins_here = plan.memories[number] == memory and (number == 0 or plan.memories[number - 1] != memory)
            values.append((begins, int(begins_here)))
        for (kind, memory, spilled), count in self.spilled.items():
            members = self.problem.classes[kind]
            values.append((count, sum(plan.memories[at] == memory and plan.spilled[at] == spilled for at in members)))
        cpsat_runner.add_hint(self.model, values)

    def extract(self, value: Value) -> Plan:
        """Returns the plan of a solution; ``value`` returns the value of a variable in the solution.

        Of the layers of a class on a device, the first ones have the most spilled parts.
        """
        memories = self.places.chosen_memories(value)
        spilled = [0] * len(memories)
        for kind, members in enumerate(self.problem.classes):
            for memory in range(1, len(self.problem.memories)):
                layers_here = iter([number for number in members if memories[number] == memory])
                for count in range(len(self.problem.layers[members[0]].spillable), 0, -1):
                    for _ in range(value(self.spilled[kind, memory, count])):
                        spilled[next(layers_here)] = count
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
        Limits in seconds, and in CP-SAT's deterministic seconds, for all models together.
    hint
        A valid plan; None if there is none. The model of its case starts from it. All other models allow only plans that are
        faster than the best plan so far.
    on_plan, on_bound
        Called with every better plan, and with the bounds before and after all models are solved, in ps.
    seed, should_stop
        The arguments of :func:`stowplan.models.cpsat_runner.run` with these names.

    Returns
    -------
    Outcome
        The best plan and bound. Running out of time is never reported as ``infeasible``.
    """
    best, end = hint, time.monotonic() + time_limit
    first = None if best is None else case_of(problem, best)
    bound_of = {case: Relaxation(problem, case).bound() or 0 for case in cases(problem)}
    if on_bound is not None and bound_of:
        on_bound(min(bound_of.values()))
    # The case of the hint comes first, then the others in ascending order of their bounds. A plan that is found early allows
    # the search to skip cases whose bound is not smaller.
    ordered_cases = sorted(bound_of, key=lambda case: (case != first, bound_of[case]))
    is_proven, bounds = True, list[int]()
    for number, case in enumerate(ordered_cases):
        if best is not None and bound_of[case] >= best.objective:
            continue
        built = Model(problem, case)
        if best is not None and case == first:
            built.add_hint(best)
        elif best is not None:
            built.add_cutoff(best)
        left, share = end - time.monotonic(), 1.0 if number == len(ordered_cases) - 1 else CASE_SHARE
        bound = [bound_of[case] // ROUNDED]
        run = cpsat_runner.run(
            built.model,
            time_limit=max(0.01, left * share),
            deterministic_limit=None if deterministic_limit is None else deterministic_limit / len(ordered_cases),
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
