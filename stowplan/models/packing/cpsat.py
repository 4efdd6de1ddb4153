"""Packing as a CP-SAT model: rectangles of fixed place in time and free offset that do not overlap in two dimensions."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from math import gcd
from typing import Literal

from ortools.sat.python import cp_model

from stowplan.models.packing.bounds import load_bound
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.problem import Problem


@dataclass
class Model:
    """A built model; ``offsets`` count units of ``unit`` bytes."""

    problem: Problem
    unit: int
    model: cp_model.CpModel = field(default_factory=cp_model.CpModel)
    offsets: list[cp_model.IntVar] = field(default_factory=list)
    height: cp_model.IntVar | None = None

    def add_hint(self, plan: Plan) -> None:
        """Start the solver from a plan."""
        self.model.clear_hints()  # type: ignore[no-untyped-call]
        for variable, offset in zip(self.offsets, plan.offsets, strict=True):
            self.model.add_hint(variable, offset // self.unit)
        if self.height is not None:
            self.model.add_hint(self.height, plan.objective // self.unit)

    def extract(self, value: Callable[[cp_model.IntVar], int]) -> Plan:
        """Plan from the values of the variables."""
        offsets = tuple(value(variable) * self.unit for variable in self.offsets)
        height = max((at + each.size for at, each in zip(offsets, self.problem.buffers, strict=True)), default=0)
        return Plan(problem=self.problem.digest, objective=height, offsets=offsets)


def build(problem: Problem, ceiling: int) -> Model:
    """Variables, constraints, objective. ``ceiling`` in bytes: a height that some best plan does not exceed.

    With a capacity any plan within it will do, and there is no objective.
    """
    # Lowered as far as they go, offsets are sums of sizes rounded up to alignments: multiples of what divides all of those.
    unit = gcd(*(value for each in problem.buffers for value in (each.size, each.offset or 0)))
    unit = gcd(unit, *(each.alignment for each in problem.buffers if each.alignment != 1)) or 1
    built = Model(problem, unit)
    limit = (ceiling if problem.capacity is None else problem.capacity) // unit
    model = built.model
    times, spaces, sizes = [], [], []
    for number, buffer in enumerate(problem.buffers):
        size = buffer.size // unit
        last = max(0, limit - size)
        step = max(1, buffer.alignment // unit)
        if buffer.offset is not None:
            offset = model.new_constant(buffer.offset // unit)
        elif step == 1:
            offset = model.new_int_var(0, last, f"offset {number}")
        else:
            multiple = model.new_int_var(0, last // step, f"multiple {number}")
            offset = model.new_int_var(0, last, f"offset {number}")
            model.add(offset == step * multiple)
        built.offsets.append(offset)
        if size == 0:
            continue
        model.add(offset + size <= limit)
        space = model.new_fixed_size_interval_var(offset, size, f"space {number}")
        for start, end in buffer.pieces:
            times.append(model.new_fixed_size_interval_var(start, end - start, f"time {number}"))
            spaces.append(space)
            sizes.append(size)
    model.add_no_overlap_2d(times, spaces)
    if problem.capacity is None:
        height = built.height = model.new_int_var(-(-load_bound(problem) // unit), limit, "height")
        for offset, buffer in zip(built.offsets, problem.buffers, strict=True):
            model.add(height >= offset + buffer.size // unit)
        model.add_cumulative(times, sizes, height)
        model.minimize(height)
    else:
        model.add_cumulative(times, sizes, limit)
    return built


@dataclass(frozen=True)
class Outcome:
    """What the solver came to."""

    status: Literal["optimal", "feasible", "infeasible", "unknown"]
    plan: Plan | None
    bound: int | None
    """Proven least height in bytes; None with a capacity."""


def solve(
    problem: Problem,
    *,
    time_limit: float,
    seed: int = 0,
    deterministic_limit: float | None = None,
    hint: Plan | None = None,
    on_plan: Callable[[Plan], None] | None = None,
    on_bound: Callable[[int], None] | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Outcome:
    """Run the model with one worker; times in seconds."""
    # Buffers on top of each other, the free ones above the fixed: a plan like that exists wherever there is one.
    top = max((each.offset + each.size for each in problem.buffers if each.offset is not None), default=0)
    ceiling = hint.objective if hint else top + sum(each.size + each.alignment - 1 for each in problem.buffers)
    built = build(problem, ceiling)
    if hint is not None:
        built.add_hint(hint)
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed
    solver.parameters.max_time_in_seconds = max(0.01, time_limit)
    if deterministic_limit is not None:
        solver.parameters.max_deterministic_time = deterministic_limit
    solver.parameters.use_energetic_reasoning_in_no_overlap_2d = True

    class Watch(cp_model.CpSolverSolutionCallback):
        def on_solution_callback(self) -> None:
            if on_plan is not None:
                on_plan(built.extract(self.value))

    def take_bound(bound: float) -> None:
        if on_bound is not None and built.height is not None and abs(bound) < 2**53:
            on_bound(round(bound) * built.unit)
        if should_stop is not None and should_stop():
            solver.stop_search()

    solver.best_bound_callback = take_bound
    status = solver.solve(built.model, Watch())
    found = status in (cp_model.OPTIMAL, cp_model.FEASIBLE)
    plan = built.extract(solver.value) if found else None
    if status == cp_model.INFEASIBLE:
        return Outcome("infeasible", None, None)
    bound = round(solver.best_objective_bound) * built.unit if found and built.height is not None else None
    return Outcome("unknown" if not found else "optimal" if status == cp_model.OPTIMAL else "feasible", plan, bound)
