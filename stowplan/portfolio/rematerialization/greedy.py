"""Sequences by simulation: run a given order, evict what promises most where memory runs out, and run its writers
again where it is needed.

What is evicted goes by its bytes, the time to its next use and the cost of having it again, as caches with known requests
(Belady 1966) and dynamic tensor rematerialization (Kirisame et al. 2021) have it. Checkpoints (Griewank and Walther 2000; Chen
et al. 2016) are the same simulation that keeps over long times only what is live between segments of the order.

A simulation holds one instance of a storage at most, and may hold what no one needs any more, so that the plan's peak is never
above the simulation's.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from stowplan.models.rematerialization.structure import Structure
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.rematerialization import residency, simulation
from stowplan.portfolio.rematerialization.engine import make


class SimulationParameters(Parameters, frozen=True):
    """Parameters of the simulation."""

    parts: tuple[float, ...] = (0.75, 0.5, 0.25)
    """Parts of the way from the least that is live at an operator that reservations count up to what would leave no room for
    anything else, that are tried.
    """


PARAMS = parameters(SimulationParameters, __name__)


@dataclass(frozen=True)
class Policy:
    """What is evicted first: the largest ``size ** bytes * distance ** time / cost ** cost``."""

    bytes: float = 1.0
    time: float = 1.0
    cost: float = 1.0
    checkpoints: Collection[int] | None = None
    """Storages that are kept over times longer than ``reach`` though there is room for others, too; None for all."""
    reach: int = 0
    """Operators of the order."""


def simulate(
    structure: Structure,
    order: Sequence[int],
    limit: int,
    policy: Policy = Policy(),
    should_stop: Callable[[], bool] = lambda: False,
) -> list[int] | None:
    """A sequence whose peak is within a limit; None where this way finds none.

    Parameters
    ----------
    order
        In which operators run first: all of them, so that each can run.
    limit
        Bytes.
    should_stop
        Asked before every operator of the order.
    """
    made = [_simulated(known, order, limit, policy, should_stop) for known in assumed(structure, limit)]
    cost = structure.cost
    return min((runs for runs in made if runs is not None), key=lambda runs: sum(cost[op] for op in runs), default=None)


def assumed(structure: Structure, limit: int) -> list[Structure]:
    """The structure with reservations of so many bytes; several where they count what is live at an operator."""
    counted = {row.of for row in structure.reservations if row.of is not None}
    if not counted:
        return [structure]
    least = max(_own_bytes(structure, op) for op in counted)
    most = min(max(0, limit - row.size) // row.times for row in structure.reservations if row.times)
    return [structure.assuming(least + int(part * max(0, most - least)), limit) for part in PARAMS.parts]


def _own_bytes(structure: Structure, op: int) -> int:
    """What is live at an operator at least: what it reads and writes, and inputs that stay."""
    stays = (value for value, kept in enumerate(structure.kept) if kept and structure.writer[value] < 0)
    used = (structure.root[value] for value in (*structure.needs[op], *structure.writes[op], *stays))
    return sum(structure.size[root] for root in {*used})


def _simulated(
    structure: Structure, order: Sequence[int], limit: int, policy: Policy, should_stop: Callable[[], bool]
) -> list[int] | None:
    graph = make(structure)
    tables = residency.plain(structure, order, policy.checkpoints or ())
    reach = -1 if policy.checkpoints is None else policy.reach
    state = residency.start(graph, tables, limit, (policy.bytes, policy.time, policy.cost), reach)
    for _ in range(len(order) + 1):
        if should_stop() or not simulation.step(graph, tables, state):
            return None
    return [int(op) for op in state.sequence[: state.head[residency.RUNS]]]


def simulated(structure: Structure, order: Sequence[int], policy: Policy, should_stop: Callable[[], bool]) -> list[int] | None:
    """A sequence within the problem's limit, if the simulation finds one before it is to stop."""
    limit = structure.problem.limit
    # Without a limit the order itself is a plan.
    return list(order) if limit is None else simulate(structure, order, limit, policy, should_stop)


def checkpoint_policies(structure: Structure, order: Sequence[int]) -> list[Policy]:
    """Keep what is live between segments: square root of the number of operators, half and twice as many.

    Segments end evenly, or near there where least is live.
    """
    ordering = structure.ordering
    begin, end = ordering.lives(order)
    profile = ordering.profile(order)
    storage_of = {int(tensor): at for at, tensor in enumerate(ordering.tensor)}
    storage = {value: storage_of[tensor] for value, tensor in enumerate(structure.tensor) if tensor in storage_of}
    count = len(order)
    policies = []
    for parts in dict.fromkeys(max(2, round(math.sqrt(count) * factor)) for factor in (0.5, 1.0, 2.0)):
        step = max(1, count // parts)
        places = list(range(step, count, step))
        valleys = [min(range(at, min(count, at + step)), key=lambda number: (int(profile[number]), number)) for at in places]
        for cuts in (places, valleys):
            kept = {value for value, at in storage.items() if any(int(begin[at]) < cut < int(end[at]) for cut in cuts)}
            policies.append(Policy(checkpoints=frozenset(kept), reach=step))
    return policies
