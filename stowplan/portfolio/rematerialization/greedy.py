"""Sequences by simulation: run the operators in an order, evict storages when memory runs out, and recompute them when needed.

To *evict* a storage is to give up its bytes before its last use. A *policy* chooses the storage to evict by its bytes, the time
to its next use and the cost of recomputing it. Such rules come from caches whose requests are known in advance (Belady 1966)
and from dynamic tensor rematerialization (Kirisame et al. 2021). *Checkpointing* (Griewank and Walther 2000; Chen et al. 2016)
is the same simulation with *checkpoints*: only storages that are live between two *segments*, consecutive parts of the order,
are kept over long times.

In the simulation there is at most one copy of each storage. A storage may stay in memory although no operator needs it any
more. The plan that has the same sequence does not count the bytes of such a storage, and so its peak is never above that of the
simulation. A *reservation* is a number of bytes of the limit that something outside of the graph takes between two moments of a
plan. The functions raise no errors.
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
    """Assumptions on the live bytes at an operator on which the size of a reservation depends. These bytes are not known before
    there is a plan. Each assumption is a number from 0 to 1: 0 stands for the fewest bytes that can be live at the operator, 1
    for the most with which the reservation still fits into the limit, and a number between them for a point between the two.
    """


PARAMS = parameters(SimulationParameters, __name__)


@dataclass(frozen=True)
class Policy:
    """An eviction policy: evict the storage with the largest score first.

    The score is ``size ** bytes * distance ** time / (1 + c) ** cost``, where the size is that of the storage in bytes, the
    distance is the number of operators of the order up to its next use, and c is the cost of recomputing it. This is the total
    cost of the operators that would have to run again, including those that recompute other evicted storages which it needs.
    """

    bytes: float = 1.0
    """Exponent of the size. The larger it is, the sooner large storages are evicted."""
    time: float = 1.0
    """Exponent of the distance. The larger it is, the sooner storages are evicted that are not used for long."""
    cost: float = 1.0
    """Exponent of 1 plus the cost of recomputing. The larger it is, the longer expensive storages are kept."""
    checkpoints: Collection[int] | None = None
    """The only storages that are kept over a distance longer than ``reach``, even if there is space for others; None if all
    storages may be kept over any distance. Storages that are still needed and cannot be recomputed are kept as well."""
    reach: int = 0
    """Distance, in operators of the order, over which storages that are no checkpoints are kept at most."""


def simulate(
    structure: Structure,
    order: Sequence[int],
    limit: int,
    policy: Policy = Policy(),
    should_stop: Callable[[], bool] = lambda: False,
) -> list[int] | None:
    """Returns a sequence whose peak is within a limit; None if the simulation fails or is stopped.

    The *peak* is the largest number of live bytes. If sizes of reservations have to be assumed, there is one simulation for
    each assumption, and the cheapest sequence is the result. A simulation whose assumption is too low fails.

    Parameters
    ----------
    structure
        The structure of the problem.
    order
        The order in which all operators run for the first time.
    limit
        Limit of the live bytes.
    policy
        The policy that chooses storages to evict.
    should_stop
        Function that is called before every operator of the order and says whether to give up.
    """
    sequences = [
        _run_simulation(variant, order, limit, policy, should_stop) for variant in with_assumed_reservations(structure, limit)
    ]
    cost = structure.cost
    return min((runs for runs in sequences if runs is not None), key=lambda runs: sum(cost[op] for op in runs), default=None)


def with_assumed_reservations(structure: Structure, limit: int) -> list[Structure]:
    """Structures of the same problem whose reservations have fixed sizes, for a limit in bytes.

    If the size of a reservation depends on the live bytes at some operator, there is one structure for each of
    :attr:`SimulationParameters.parts`, with another assumption on these bytes. Otherwise the structure itself is the only one.
    """
    counted = {row.of for row in structure.reservations if row.of is not None}
    if not counted:
        return [structure]
    least = max(_own_bytes(structure, op) for op in counted)
    most = min(max(0, limit - row.size) // row.times for row in structure.reservations if row.times)
    return [structure.assuming(least + int(part * max(0, most - least)), limit) for part in PARAMS.parts]


def _own_bytes(structure: Structure, op: int) -> int:
    """The fewest bytes that can be live at an operator: the storages that it reads and writes, and inputs that are kept."""
    stays = (value for value, kept in enumerate(structure.kept) if kept and structure.writer[value] < 0)
    used = (structure.root[value] for value in (*structure.needs[op], *structure.writes[op], *stays))
    return sum(structure.size[root] for root in {*used})


def _run_simulation(
    structure: Structure, order: Sequence[int], limit: int, policy: Policy, should_stop: Callable[[], bool]
) -> list[int] | None:
    """Run the compiled simulation step by step; returns the sequence of runs, or None if it fails or is stopped.

    It fails if values do not fit into the limit, cannot be recomputed, or need more than eight runs for each operator on
    average.
    """
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
    """A sequence within the problem's limit; None if the simulation fails or is stopped. Without a limit it is the order."""
    limit = structure.problem.limit
    return list(order) if limit is None else simulate(structure, order, limit, policy, should_stop)


def checkpoint_policies(structure: Structure, order: Sequence[int]) -> list[Policy]:
    """Checkpointing policies, which keep the storages that are live between segments of the order.

    The number of segments is about half the square root of the number of operators, the square root, or twice the square root.
    For each number there are two policies: either the segments are equally long, or each ends at the place nearby at which the
    fewest bytes are live.
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
