"""Sequences by simulation: run a given order, evict storages when memory runs out, and recompute them when they are needed.

A policy chooses the storage to evict by its bytes, the time to its next use and the cost of recomputing it, like caches whose
requests are known (Belady 1966) and dynamic tensor rematerialization (Kirisame et al. 2021). Checkpointing (Griewank and
Walther 2000; Chen et al. 2016) is the same simulation, restricted to keep over long times only storages that are live between
segments of the order.

The simulation has at most one instance of each storage and may keep a storage that nobody needs any more. The peak of the plan
is therefore never above that of the simulation.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

from stowplan.models.rematerialization.structure import Structure
from stowplan.parameters import Parameters, parameters
from stowplan.portfolio.rematerialization import residency, simulation
from stowplan.portfolio.rematerialization.engine import build_graph


class SimulationParameters(Parameters, frozen=True):
    """Parameters of the simulation."""

    parts: tuple[float, ...] = (0.75, 0.5, 0.25)
    """Parts of a range from which the live bytes at an operator that reservations count are assumed, one after the other. The
    range is from the fewest bytes that can be live there up to the number of bytes with which nothing else would fit.
    """


PARAMS = parameters(SimulationParameters, __name__)


@dataclass(frozen=True)
class Policy:
    """An eviction policy: evict the storage of the largest ``size ** bytes * distance ** time / (1 + cost) ** cost`` first.

    The distance is that to the next use, in operators of the order; the cost is that of recomputing the storage.
    """

    bytes: float = 1.0
    """Exponent of the size."""
    time: float = 1.0
    """Exponent of the distance."""
    cost: float = 1.0
    """Exponent of the cost."""
    checkpoints: Collection[int] | None = None
    """The only storages that are kept over a distance longer than ``reach``, even if there is space for others; None for
    all."""
    reach: int = 0
    """That distance, in operators of the order."""


def simulate(
    structure: Structure,
    order: Sequence[int],
    limit: int,
    policy: Policy = Policy(),
    should_stop: Callable[[], bool] = lambda: False,
) -> list[int] | None:
    """A sequence whose peak is within a limit; None if the simulation finds none or is stopped.

    Parameters
    ----------
    structure
        The structure of the problem.
    order
        The order in which operators run for the first time; it has all of them.
    limit
        Limit of the live bytes.
    policy
        Which storage to evict first.
    should_stop
        Called before every operator of the order.
    """
    sequences = [
        _run_simulation(variant, order, limit, policy, should_stop) for variant in with_assumed_reservations(structure, limit)
    ]
    cost = structure.cost
    return min((runs for runs in sequences if runs is not None), key=lambda runs: sum(cost[op] for op in runs), default=None)


def with_assumed_reservations(structure: Structure, limit: int) -> list[Structure]:
    """The structure with reservations of fixed sizes.

    If reservations count the live bytes at some operator, which depend on the plan, there are several such structures, each
    with another assumption on these bytes.
    """
    counted = {row.of for row in structure.reservations if row.of is not None}
    if not counted:
        return [structure]
    least = max(_own_bytes(structure, op) for op in counted)
    most = min(max(0, limit - row.size) // row.times for row in structure.reservations if row.times)
    return [structure.assuming(least + int(part * max(0, most - least)), limit) for part in PARAMS.parts]


def _own_bytes(structure: Structure, op: int) -> int:
    """The fewest bytes that can be live at an operator: those that it reads and writes, and inputs that stay."""
    stays = (value for value, kept in enumerate(structure.kept) if kept and structure.writer[value] < 0)
    used = (structure.root[value] for value in (*structure.needs[op], *structure.writes[op], *stays))
    return sum(structure.size[root] for root in {*used})


def _run_simulation(
    structure: Structure, order: Sequence[int], limit: int, policy: Policy, should_stop: Callable[[], bool]
) -> list[int] | None:
    """Run the compiled simulation step by step."""
    graph = build_graph(structure)
    tables = residency.order_tables(structure, order, policy.checkpoints or ())
    reach = -1 if policy.checkpoints is None else policy.reach
    state = residency.start(graph, tables, limit, (policy.bytes, policy.time, policy.cost), reach)
    for _ in range(len(order) + 1):
        if should_stop() or not simulation.step(graph, tables, state):
            return None
    return [int(op) for op in state.sequence[: state.head[residency.RUNS]]]


def simulate_within_limit(
    structure: Structure, order: Sequence[int], policy: Policy, should_stop: Callable[[], bool]
) -> list[int] | None:
    """A sequence within the problem's limit; None if the simulation finds none or is stopped."""
    limit = structure.problem.limit
    # Without a limit, the order itself is a plan.
    return list(order) if limit is None else simulate(structure, order, limit, policy, should_stop)


def checkpoint_policies(structure: Structure, order: Sequence[int]) -> list[Policy]:
    """Checkpointing policies, which keep the storages that are live between segments of the order.

    The number of segments is the square root of the number of operators, half of it, or twice. The segments are equally long,
    or each ends nearby where the fewest bytes are live.
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
