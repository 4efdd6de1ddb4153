"""Improving a plan within a neighbourhood: build its model, hint it with the plan, solve it, put the plan together."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, NamedTuple

from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.cpsat_runner import Value
from stowplan.models.memory_mapping.cpsat.canonical import decisions_of
from stowplan.models.memory_mapping.cpsat.local_run import play_locally, total_ps
from stowplan.models.memory_mapping.cpsat.merge import Merger
from stowplan.models.memory_mapping.cpsat.model import MemoryMappingModel, size_estimate
from stowplan.models.memory_mapping.cpsat.neighbourhood import Neighbourhood
from stowplan.models.memory_mapping.cpsat.solve import WITHOUT_PROBING
from stowplan.models.memory_mapping.plan import Plan

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
            neighbourhood.problem, sequences=neighbourhood.sequences, fixed_part=neighbourhood.fixed_part
        )

    @property
    def model(self) -> cp_model.CpModel:
        """The CP-SAT model."""
        return self.complete.model

    def add_hint(self) -> dict[int, int]:
        """Hint at the given plan, completely; returns the values of all variables, by index."""
        neighbourhood, variables = self.neighbourhood, self.complete.variables
        decisions = decisions_of(variables, neighbourhood.plan)
        run = play_locally(neighbourhood, decisions)
        values = self.complete.values_of(decisions, neighbourhood.plan, run.moments)
        for variable, begin in zip(variables.fixed_begin, run.fixed_begin, strict=True):
            values[variable.index] = begin
        total = self.complete.objective.total
        if total is not None:
            values[total.index] = total_ps(neighbourhood, run)
        cpsat_runner.add_hint(self.model, values)
        return values

    def extract(self, value: Value) -> Plan:
        """The whole plan of a solution.

        Parameters
        ----------
        value
            Gives the value of a variable of the model.

        Returns
        -------
        Plan
            Its objective is not set. Whether it is valid is for the caller to see: it is, except perhaps where a copy's window
            lies in a merged step or the clock is frozen.
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

    Returns
    -------
    Improvement
        The whole plan with what was found put in, where anything was.

    Raises
    ------
    NotImplementedError
        As :class:`NeighbourhoodModel` does.
    """
    if not neighbourhood.free or size_estimate(neighbourhood.sequences) > MAX_LITERALS:
        return Improvement("empty", None)
    built = NeighbourhoodModel(neighbourhood)
    built.add_hint()
    run = cpsat_runner.run(
        built.model,
        time_limit=time_limit,
        seed=seed,
        deterministic_limit=deterministic_limit,
        parameters=WITHOUT_PROBING,
        should_stop=should_stop,
    )
    spent = run.seconds, run.deterministic
    if run.is_found:
        return Improvement("optimal" if run.status == "optimal" else "feasible", built.extract(run.value), *spent)
    return Improvement("infeasible" if run.status == "infeasible" else "none", None, *spent)
