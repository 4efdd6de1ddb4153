"""Improving a plan within a neighbourhood: build its model, hint it with the plan, solve it, put the plan together."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Literal, NamedTuple

from ortools.sat.python import cp_model

from stowplan.models.memory_mapping.cpsat.canonical import decisions_of
from stowplan.models.memory_mapping.cpsat.local_run import play_locally, total_ps
from stowplan.models.memory_mapping.cpsat.merge import Merger
from stowplan.models.memory_mapping.cpsat.model import MemoryMappingModel, Value, size_estimate
from stowplan.models.memory_mapping.cpsat.neighbourhood import Neighbourhood
from stowplan.models.memory_mapping.plan import Plan

#: Seconds between two looks at ``should_stop``.
POLL_SECONDS = 0.05

#: Literals of a neighbourhood's model, at most.
MAX_LITERALS = 30_000

LocalStatus = Literal["optimal", "feasible", "none", "infeasible", "empty"]


class Improvement(NamedTuple):
    """What a neighbourhood gave."""

    status: LocalStatus
    """``optimal``: the model was solved to its end. ``infeasible``: a frozen clock does not allow even the plan given, which
    stalls. ``none``: nothing found in time. ``empty``: nothing to decide, or too much."""
    plan: Plan | None
    """The whole plan; its objective is not set, and it may be worse than the one given. None where nothing was found."""
    seconds: float = 0.0
    """Of solving."""
    deterministic: float = 0.0
    """The same in CP-SAT's deterministic seconds."""


class NeighbourhoodModel:
    """The complete model of a neighbourhood, hinted with the plan it was made from.

    Raises
    ------
    NotImplementedError
        As :class:`~stowplan.models.memory_mapping.cpsat.model.MemoryMappingModel` does.
    """

    def __init__(self, neighbourhood: Neighbourhood):
        self.neighbourhood = neighbourhood
        self.complete = MemoryMappingModel(
            neighbourhood.problem, sequences=neighbourhood.sequences, surroundings=neighbourhood.surroundings
        )

    @property
    def model(self) -> cp_model.CpModel:
        """The CP-SAT model."""
        return self.complete.model

    def add_hint(self) -> None:
        """Hint at the given plan, completely."""
        hood, variables = self.neighbourhood, self.complete.variables
        decisions = decisions_of(variables, hood.plan)
        run = play_locally(hood, decisions)
        values = self.complete.values_of(decisions, hood.plan, run.timeline)
        for variable, begin in zip(variables.fixed_begin, run.fixed_begin, strict=True):
            values[variable.index] = begin
        total = self.complete.objective.total
        if total is not None:
            values[total.index] = total_ps(hood, run)
        for index, value in values.items():
            self.model.add_hint(self.model.get_int_var_from_proto_index(index), value)

    def extract(self, value: Value) -> Plan:
        """The whole plan of a solution. Its objective is not set; whether it is valid is for the caller to see.

        It is, except perhaps where a copy's window lies in a merged step or the clock is frozen.
        """
        return Merger(self.neighbourhood, self.complete, value).plan()


def improve(
    neighbourhood: Neighbourhood,
    *,
    time_limit: float,
    seed: int = 0,
    deterministic_limit: float | None = None,
    should_stop: Callable[[], bool] | None = None,
) -> Improvement:
    """Best plan in a neighbourhood, by CP-SAT on one worker.

    Parameters
    ----------
    time_limit
        Seconds of solving. Building takes some 50 us a literal and is not counted.
    deterministic_limit
        The same in CP-SAT's deterministic seconds, one of which takes about ten seconds here.
    should_stop
        Asked every 50 ms; True ends the search.
    """
    if not neighbourhood.free or size_estimate(neighbourhood.sequences) > MAX_LITERALS:
        return Improvement("empty", None)
    built = NeighbourhoodModel(neighbourhood)
    built.add_hint()
    solver = cp_model.CpSolver()
    solver.parameters.num_workers = 1
    solver.parameters.random_seed = seed % (1 << 31)
    solver.parameters.max_time_in_seconds = max(0.01, time_limit)
    solver.parameters.cp_model_probing_level = 0
    if deterministic_limit is not None:
        solver.parameters.max_deterministic_time = deterministic_limit
    stop = threading.Event()

    def watch() -> None:
        while should_stop is not None and not stop.wait(POLL_SECONDS):
            if should_stop():
                solver.stop_search()
                return

    watcher = threading.Thread(target=watch, daemon=True)
    watcher.start()
    try:
        status = solver.solve(built.model)
    finally:
        stop.set()
        watcher.join()
    spent = solver.wall_time, solver.response_proto.deterministic_time
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return Improvement("infeasible" if status == cp_model.INFEASIBLE else "none", None, *spent)
    found: LocalStatus = "optimal" if status == cp_model.OPTIMAL else "feasible"
    return Improvement(found, built.extract(solver.value), *spent)
