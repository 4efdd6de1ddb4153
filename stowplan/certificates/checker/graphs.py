"""A graph of operators; forms ``cut`` and ``ranges``: bytes that are live while one operator runs, in every order.

The graph is as the rules of docs/reference/operator-order.md and rematerialization.md have it.
A *storage* is a tensor with bytes of its own; all others are views of one. An operator reads and writes storages.

Let ``x`` of an operator be 1 where it runs once the operator ``at`` has begun its first run, else 0. What is read then
(x_user = 1) and was written before (x_writer = 0) is live now:

    live >= own + sum over rows of ``held``: amount * (x_user - x_writer)

with ``own`` what ``at`` itself has live, and amounts of one storage that add up to its size at most. The sum is linear, so that
its least value is found operator by operator. Amounts are a flow of the network whose least cut they bound (Ford, Fulkerson).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from math import ceil

from stowplan.certificates.checker.reading import LARGEST, Fields, bound_of, expect, listed, need, rows, whole

#: Of each operator some others.
Links = list[set[int]]


class Graph:
    """Operators, and the storages that they touch, read from a problem."""

    def __init__(self, problem: Fields):
        self.ops: list[Fields] = problem["ops"]
        self.alias_of: list[int | None] = [tensor["alias_of"] for tensor in problem["tensors"]]
        self.writer = {tensor: number for number, op in enumerate(self.ops) for tensor in op["writes"]}
        self.size: list[int] = [tensor["size"] if tensor["alias_of"] is None else 0 for tensor in problem["tensors"]]
        self.given = self.storages(problem["inputs"])
        """Storages that are there from the start."""
        self.kept = self.storages(problem["outputs"] + ([] if problem["free_inputs"] else problem["inputs"]))
        """Storages that are there at the end."""
        self.replaced = [self.storages([operand for operand, _ in op["in_place"]]) for op in self.ops]
        """Storages whose bytes a result of each operator may take."""
        used = [[*op["reads"], *self._viewed(op)] for op in self.ops]
        self.reads: Links = [self.storages(used[number]).difference(op["writes"]) for number, op in enumerate(self.ops)]
        """Storages that each operator reads or has a view of, without those it writes."""
        self.before: Links = [set() for _ in self.ops]
        """Operators that must run before each one, directly."""
        self.after: Links = [set() for _ in self.ops]
        self.precedences: list[tuple[int, int]] = problem["precedences"]
        """Operators whose last run is before the first of another."""
        pairs = [*self.precedences]
        for number, tensors in enumerate(used):
            writers = (self._written_by(tensor) for tensor in tensors)
            pairs += [(writer, number) for writer in writers if writer not in (None, number)]
        for first, second in pairs:
            self.before[second].add(first)
            self.after[first].add(second)

    def views(self, tensor: int) -> list[int]:
        """A tensor, what it is a view of, what that is a view of, and so on to the storage whose bytes it has."""
        chain = [tensor]
        while (viewed := self.alias_of[chain[-1]]) is not None:
            need(len(chain) < len(self.alias_of), f"tensors[{tensor}]", "it is a view of itself")
            chain.append(viewed)
        return chain

    def storages(self, tensors: Iterable[int]) -> set[int]:
        """Storages whose bytes tensors have."""
        return {self.views(tensor)[-1] for tensor in tensors}

    def touched(self, op: int) -> set[int]:
        """Storages that an operator reads or writes."""
        return self.reads[op] | self.storages(self.ops[op]["writes"])

    def _viewed(self, op: Fields) -> list[int]:
        """What the views that an operator makes are views of."""
        return [viewed for tensor in op["writes"] if (viewed := self.alias_of[tensor]) is not None]

    def _written_by(self, tensor: int) -> int | None:
        """Who writes a tensor, or what it is a view of where nobody writes the view."""
        return next((self.writer[viewed] for viewed in self.views(tensor) if viewed in self.writer), None)


def reached(op: int, links: Links) -> set[int]:
    """Operators that links lead to, by one or several."""
    known, waiting = set[int](), [op]
    while waiting:
        new = links[waiting.pop()] - known
        known |= new
        waiting += new
    return known


#: In the place of an operator: the end, which reads what is kept; and the start, which writes what is given.
END, START = -1, -2

#: What x of each operator is multiplied by in the sum.
Slopes = Counter[int]


def cut(problem: Fields, proof: Fields) -> int | None:
    """Least peak in bytes of operator order. Of rematerialization the least added cost, or None where nothing fits."""
    graph, at = Graph(problem), whole(proof, "at")
    if "limit" not in problem:
        return _peak(graph, at, proof)
    need(not problem.get("host", {}).get("limit"), "problem.host", "plans may send values there, of which cuts say nothing")
    return _added_cost(graph, at, _room(graph, problem, at), proof)


def ranges(problem: Fields, proof: Fields) -> int | None:
    """Least added cost where values may go to a host and come back, or None where nothing fits.

    Say that F bytes, of what is read later, have no place but the host while ``at`` runs, which has that many. They came there
    before ``at``, and go back after it, which takes c = F / bandwidth either way, beside operators. Without these bytes what is
    live fits in the limit, so that a cut with F more bytes shows R, the cost of what ``at`` needs and that runs again.

        added cost >= max(R, max(before, c) + cost of at + max(c, behind + R) - once)

    ``before`` and ``behind`` are the costs of what ``at`` needs and of what needs it, ``once`` is that of all. R falls with F,
    and c grows: each of ``ranges``, which goes on where the one before ends, has a cut for R of its last F, and c of its first.
    """
    graph, at = Graph(problem), whole(proof, "at")
    limit = _room(graph, problem, at)
    host, costs = problem["host"], [op["cost"] for op in graph.ops]
    expect(host["bandwidth"] > 0, "problem.host.bandwidth", host["bandwidth"], "a number above 0")
    stays = set() if problem["free_inputs"] else graph.given
    # None of this can be elsewhere while ``at`` runs, or at the end.
    if _bytes(graph, _own(graph, at) | stays) > limit or _bytes(graph, graph.kept) > _limit(problem):
        return None
    before, behind = (sum(costs[op] for op in reached(at, links)) for links in (graph.before, graph.after))
    first, shown = 0, list[int]()
    for part in listed(proof, "ranges"):
        last = whole(part, "last", first)
        runs = _added_cost(graph, at, limit + last, part)
        if runs is not None:
            copies = ceil(first / Fraction(host["bandwidth"]))
            shown.append(max(runs, max(before, copies) + costs[at] + max(copies, behind + runs) - sum(costs)))
        first = last + 1
    most = min(host["limit"], sum(graph.size))
    need(first > most, "proof.ranges", f"they end at {first - 1} bytes, there may be {most}")
    return min(shown, default=None)


def _peak(graph: Graph, at: int, proof: Fields) -> int | None:
    """Operators run once, so that x is 0 of those that ``at`` needs, and 1 of itself and those that need it.

    peak >= sizes of what ``at`` writes + sum of slope * x
    """
    own, replaced = {*graph.ops[at]["writes"]}, graph.replaced[at]
    known = {at: 1} | _all(reached(at, graph.after), 1) | _all(reached(at, graph.before), 0)
    slopes = _held(graph, _prices(graph, own, 1), proof, {(storage, at) for storage in replaced})
    slopes.update(_after(graph, proof))
    return bound_of(_bytes(graph, own) + _least(slopes, known), 1)


def _added_cost(graph: Graph, at: int, limit: int, proof: Fields) -> int | None:
    """Operators may run again, also ``at``: x of one that ``at`` needs is 1 where it does, which adds its cost.

    What is live fits in the limit, so that at any price of a byte

        scale * added cost >= scale * sum of cost * x + price * (live - limit)
    """
    scale, price = whole(proof, "scale"), whole(proof, "price")
    own = _own(graph, at)
    needed = reached(at, graph.before)
    past = {op for op in needed if graph.ops[op]["once"]} | {op for op, behind in graph.precedences if behind in needed | {at}}
    known = _all(reached(at, graph.after), 1) | _all(past, 0)
    slopes = Counter({op: scale * graph.ops[op]["cost"] for op in needed})
    slopes.update(_held(graph, _prices(graph, own, price), proof, set()))
    return bound_of(price * (_bytes(graph, own) - limit) + _least(slopes, known), scale)


def _limit(problem: Fields) -> int:
    """Bytes that may be live."""
    return LARGEST if problem["limit"] is None else int(problem["limit"])


def _room(graph: Graph, problem: Fields, at: int) -> int:
    """Bytes that may be live at the first run of ``at``: the limit less what the largest reservation in force takes.

    One that counts ``times`` the bytes live at ``at`` itself leaves its room to 1 + times of them; those live at another
    operator are no less than what that reads and writes.
    """
    limit = _limit(problem)
    room, past, future = limit, reached(at, graph.before), reached(at, graph.after)
    for row in problem.get("reserved", []):
        since, until, of = row["since"], row["until"], row["of"]
        for op in {since, until, of} - {None}:
            expect(graph.ops[op]["once"], "problem.reserved", f"operator {op}", "one that may run once only")
        has_begun = since is None or since == at or since in past
        is_left = until is None or until in future
        if not (since == at if since is not None and since == until else has_begun and is_left):
            continue
        if of == at:
            room = min(room, (limit - row["size"]) // (1 + row["times"]))
        else:
            waiting = 0 if of is None else row["times"] * _bytes(graph, _own(graph, of))
            room = min(room, limit - row["size"] - waiting)
    return room


def _own(graph: Graph, at: int) -> set[int]:
    """What an operator that may run again reads and writes, without what a result may replace."""
    return (graph.reads[at] - graph.replaced[at]).union(graph.ops[at]["writes"])


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
