"""Form ``cut``: bytes that are live while one operator runs, in every order.

Let ``x`` of an operator be 1 where it runs once the operator ``at`` has begun its first run, else 0. What is read then
(x_user = 1) and was written before (x_writer = 0) is live now:

    live >= own + sum over rows of ``held``: amount * (x_user - x_writer)

with ``own`` what ``at`` itself has live, and amounts of one storage that add up to its size at most. The sum is linear, so that
its least value is found operator by operator. Amounts are a flow of the network whose least cut they bound (Ford, Fulkerson).
"""

from __future__ import annotations

from collections import Counter

from stowplan.certificates.checker.graphs import Graph, reached
from stowplan.certificates.checker.reading import LARGEST, Fields, bound_of, need, rows, whole

#: In the place of an operator: the end, which reads what is kept; and the start, which writes what is given.
END, START = -1, -2

#: What x of each operator is multiplied by in the sum.
Slopes = Counter[int]


def cut(problem: Fields, proof: Fields) -> int | None:
    """Least peak in bytes of operator order. Of rematerialization the least added cost, or None where nothing fits."""
    graph, at = Graph(problem), whole(proof, "at")
    return _added_cost(problem, graph, at, proof) if "limit" in problem else _peak(graph, at, proof)


def _peak(graph: Graph, at: int, proof: Fields) -> int | None:
    """Operators run once, so that x is 0 of those that ``at`` needs, and 1 of itself and those that need it.

    peak >= sizes of what ``at`` writes + sum of slope * x
    """
    own, replaced = {*graph.ops[at]["writes"]}, graph.replaced[at]
    known = {at: 1} | _all(reached(at, graph.after), 1) | _all(reached(at, graph.before), 0)
    slopes = _held(graph, _prices(graph, own, 1), proof, {(storage, at) for storage in replaced})
    slopes.update(_after(graph, proof))
    return bound_of(_bytes(graph, own) + _least(slopes, known), 1)


def _added_cost(problem: Fields, graph: Graph, at: int, proof: Fields) -> int | None:
    """Operators may run again, also ``at``: x of one that ``at`` needs is 1 where it does, which adds its cost.

    What is live fits in the limit, so that at any price of a byte

        scale * added cost >= scale * sum of cost * x + price * (live - limit)
    """
    need(not problem.get("host", {}).get("limit"), "problem.host", "plans may send values there, of which cuts say nothing")
    scale, price = whole(proof, "scale"), whole(proof, "price")
    own = (graph.reads[at] - graph.replaced[at]).union(graph.ops[at]["writes"])
    needed = reached(at, graph.before)
    known = _all(reached(at, graph.after), 1) | _all({op for op in needed if graph.ops[op]["once"]}, 0)
    slopes = Counter({op: scale * graph.ops[op]["cost"] for op in needed})
    slopes.update(_held(graph, _prices(graph, own, price), proof, set()))
    most = LARGEST if problem["limit"] is None else problem["limit"]
    return bound_of(price * (_bytes(graph, own) - most) + _least(slopes, known), scale)


def _all(ops: set[int], x: int) -> dict[int, int]:
    return dict.fromkeys(ops, x)


def _bytes(graph: Graph, storages: set[int]) -> int:
    return sum(graph.size[storage] for storage in storages)


def _prices(graph: Graph, own: set[int], price: int) -> list[int]:
    """What rows may count of each storage: its size at a price, and nothing where it is counted anyway."""
    return [0 if storage in own else price * size for storage, size in enumerate(graph.size)]


def _held(graph: Graph, most: list[int], proof: Fields, overwritten: set[tuple[int, int]]) -> Slopes:
    """Slopes of ``amount * (x_user - x_writer)`` for rows (storage, user or END, amount) of ``held``.

    The user must read the storage, and not take over its bytes. Amounts of a storage are no more than ``most`` in sum.
    """
    slopes, left = Slopes(), [*most]
    for storage, user, amount in rows(proof, "held", 3, END):
        is_there = storage in graph.writer or storage in graph.given
        is_used = storage in (graph.kept if user == END else graph.reads[user])
        is_live = is_there and is_used and (storage, user) not in overwritten
        need(is_live, "proof.held", f"{user} does not use tensor {storage}")
        left[storage] -= amount
        need(amount >= 0 and left[storage] >= 0, "proof.held", f"more of tensor {storage} than may count")
        slopes[user] += amount
        slopes[graph.writer.get(storage, START)] -= amount
    return slopes


def _after(graph: Graph, proof: Fields) -> Slopes:
    """Slopes of ``amount * (x_first - x_second) <= 0`` for rows (first, second, amount) of ``after``.

    Where first runs once ``at`` has begun (x_first = 1), second, which comes after it, does so, too (x_second = 1).
    """
    slopes = Slopes()
    for first, second, amount in rows(proof, "after", 3):
        need(first in graph.before[second], "proof.after", f"{first} need not come before {second}")
        slopes[first] += amount
        slopes[second] -= amount
    return slopes


def _least(slopes: Slopes, known: dict[int, int]) -> int:
    """``sum of slope * x >= sum of slope * known x + sum of min(0, slope)`` over the rest.

    What is there from the start was written before (x = 0), and the end comes later (x = 1).
    """
    known = {START: 0, END: 1} | known
    return sum(slope * known[op] if op in known else min(0, slope) for op, slope in slopes.items())
