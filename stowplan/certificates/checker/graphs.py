"""A graph of operators, and the forms ``cut`` and ``ranges``: bytes that are live while one operator runs, whatever the order.

The graph follows the rules of docs/reference/operator-order.md and rematerialization.md. A *storage* is a tensor with bytes of
its own; all other tensors are views of one. An operator reads and writes storages.

A proof names one operator, ``at``, and has rows ``held`` of a storage, an operator that reads it, and an amount of bytes. Let
``x`` of an operator be 1 if it runs after the first run of ``at`` has begun, otherwise 0. A storage that is read after that
moment (x_user = 1) and was written before it (x_writer = 0) is live at the moment:

    live >= own + sum over rows of ``held``: amount * (x_user - x_writer)

Here ``own`` is the number of bytes that must be live because ``at`` itself reads or writes them. The amounts of one storage add
up to at most its size. The sum is linear in x, so that its minimum is found operator by operator. The amounts are a flow in a
network whose minimum cut is the fewest live bytes. A flow is never larger than a cut (Ford and Fulkerson).

The *added cost* of rematerialization is the cost of all runs of operators, minus the cost of running each once. A *reservation*
is a number of bytes of the limit that something outside of the graph takes from one operator to another.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from fractions import Fraction
from math import ceil

from stowplan.certificates.checker.reading import LARGEST, Fields, bound_of, expect, list_field, need, rows, whole

#: For each operator, a set of other operators.
Links = list[set[int]]


class Graph:
    """Operators, and the storages that they touch, read from a problem."""

    def __init__(self, problem: Fields):
        self.ops: list[Fields] = problem["ops"]
        self.alias_of: list[int | None] = [tensor["alias_of"] for tensor in problem["tensors"]]
        self.writer = {tensor: number for number, op in enumerate(self.ops) for tensor in op["writes"]}
        self.size: list[int] = [tensor["size"] if tensor["alias_of"] is None else 0 for tensor in problem["tensors"]]
        self.initial = self.storages(problem["inputs"])
        """Storages that exist from the start."""
        self.final = self.storages(problem["outputs"] + ([] if problem["free_inputs"] else problem["inputs"]))
        """Storages that exist at the end."""
        self.replaced = [self.storages([operand for operand, _ in op["in_place"]]) for op in self.ops]
        """Storages whose bytes a result of each operator may overwrite."""
        inputs_of = [[*op["reads"], *self._viewed(op)] for op in self.ops]
        self.reads: Links = [self.storages(inputs_of[number]).difference(op["writes"]) for number, op in enumerate(self.ops)]
        """Storages that each operator reads, or makes a view of, except for those that it writes."""
        self.before: Links = [set() for _ in self.ops]
        """Direct predecessors of each operator."""
        self.after: Links = [set() for _ in self.ops]
        self.precedences: list[tuple[int, int]] = problem["precedences"]
        """Pairs (first, second) of operators: every run of the first comes before every run of the second."""
        pairs = [*self.precedences]
        for number, tensors in enumerate(inputs_of):
            writers = (self._written_by(tensor) for tensor in tensors)
            pairs += [(writer, number) for writer in writers if writer not in (None, number)]
        for first, second in pairs:
            self.before[second].add(first)
            self.after[first].add(second)

    def views(self, tensor: int) -> list[int]:
        """A tensor, the tensor that it is a view of, and so on, up to the storage whose bytes it has."""
        chain = [tensor]
        while (viewed := self.alias_of[chain[-1]]) is not None:
            need(len(chain) < len(self.alias_of), f"tensors[{tensor}]", "it is a view of itself")
            chain.append(viewed)
        return chain

    def storages(self, tensors: Iterable[int]) -> set[int]:
        """The storages whose bytes these tensors have."""
        return {self.views(tensor)[-1] for tensor in tensors}

    def touched(self, op: int) -> set[int]:
        """Storages that an operator reads or writes."""
        return self.reads[op] | self.storages(self.ops[op]["writes"])

    def _viewed(self, op: Fields) -> list[int]:
        """The tensors of which an operator makes views."""
        return [viewed for tensor in op["writes"] if (viewed := self.alias_of[tensor]) is not None]

    def _written_by(self, tensor: int) -> int | None:
        """The operator that writes a tensor, or the tensor that it is a view of if no operator writes the view."""
        return next((self.writer[viewed] for viewed in self.views(tensor) if viewed in self.writer), None)


def reached(op: int, links: Links) -> set[int]:
    """Operators that can be reached over one or several links."""
    found, waiting = set[int](), [op]
    while waiting:
        new = links[waiting.pop()] - found
        found |= new
        waiting += new
    return found


#: Numbers that stand for operators: END reads the storages that exist at the end, and START writes those that exist from the
#: start.
END, START = -1, -2

#: Coefficient of each operator's x in the sum.
Slopes = Counter[int]


def cut(problem: Fields, proof: Fields) -> int | None:
    """Returns the bound that the flow of one operator shows. For operator order it is a bound on the peak, in bytes. For
    rematerialization it is a bound on the added cost, or None if no plan fits into the limit."""
    graph, at = Graph(problem), whole(proof, "at")
    if "limit" not in problem:
        return _peak(graph, at, proof)
    need(not problem.get("host", {}).get("limit"), "problem.host", "plans may send values there, of which cuts say nothing")
    return _added_cost(graph, at, _room(graph, problem, at), proof)


def ranges(problem: Fields, proof: Fields) -> int | None:
    """Returns a bound on the added cost if values may be sent to a host and fetched back, or None if no plan fits into the
    limit.

    Suppose that F bytes that are read later exist only on the host while ``at`` runs. They were sent before ``at`` and are
    fetched after it, which takes c = F / bandwidth each, while operators run. The other live bytes fit into the limit, so that
    a cut for a limit that is larger by F shows R: the cost of the operators that ``at`` needs and that run again.

        added cost >= max(R, max(before, c) + cost of at + max(c, behind + R) - once)

    ``before`` and ``behind`` are the costs of the operators that ``at`` needs and of those that need it, and ``once`` is the
    cost of all. R decreases with F, and c increases. The proof divides the values of F into ``ranges``, each of which begins
    where the one before ends. The bound of a range takes R from a cut for its largest F, and c from its smallest F.
    """
    graph, at = Graph(problem), whole(proof, "at")
    limit = _room(graph, problem, at)
    host, costs = problem["host"], [op["cost"] for op in graph.ops]
    expect(host["bandwidth"] > 0, "problem.host.bandwidth", host["bandwidth"], "a number above 0")
    stays = set() if problem["free_inputs"] else graph.initial
    # None of these bytes can be elsewhere while ``at`` runs, or at the end.
    if _bytes(graph, _own(graph, at) | stays) > limit or _bytes(graph, graph.final) > _limit(problem):
        return None
    before, behind = (sum(costs[op] for op in reached(at, links)) for links in (graph.before, graph.after))
    first, shown = 0, list[int]()
    for part in list_field(proof, "ranges"):
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
    """Returns a bound on the peak of operator order in bytes. Operators run once. So x is 0 for the operators that ``at``
    needs, and 1 for ``at`` and all operators that need it.

    peak >= sizes of the storages that ``at`` writes + sum of slope * x
    """
    own, replaced = {*graph.ops[at]["writes"]}, graph.replaced[at]
    fixed_x = {at: 1} | _same_x(reached(at, graph.after), 1) | _same_x(reached(at, graph.before), 0)
    slopes = _held(graph, _prices(graph, own, 1), proof, {(storage, at) for storage in replaced})
    slopes.update(_after(graph, proof))
    return bound_of(_bytes(graph, own) + _least(slopes, fixed_x), 1)


def _added_cost(graph: Graph, at: int, limit: int, proof: Fields) -> int | None:
    """Returns a bound on the added cost of rematerialization. Every operator, also ``at``, may run again. If an operator that
    ``at`` needs runs again, its x is 1, and its cost is added.

    The live bytes fit into the limit, so that for any price of a byte

        scale * added cost >= scale * sum of cost * x + price * (live - limit)
    """
    scale, price = whole(proof, "scale"), whole(proof, "price")
    own = _own(graph, at)
    needed = reached(at, graph.before)
    past = {op for op in needed if graph.ops[op]["once"]} | {op for op, behind in graph.precedences if behind in needed | {at}}
    fixed_x = _same_x(reached(at, graph.after), 1) | _same_x(past, 0)
    slopes = Counter({op: scale * graph.ops[op]["cost"] for op in needed})
    slopes.update(_held(graph, _prices(graph, own, price), proof, set()))
    return bound_of(price * (_bytes(graph, own) - limit) + _least(slopes, fixed_x), scale)


def _limit(problem: Fields) -> int:
    """Bytes that may be live."""
    return LARGEST if problem["limit"] is None else int(problem["limit"])


def _room(graph: Graph, problem: Fields, at: int) -> int:
    """Bytes that may be live at the first run of ``at``: the limit minus the largest reservation that is in force then.

    The size of a reservation may include ``times`` the bytes that are live at an operator, ``of``. If that operator is ``at``,
    the live bytes and this part of the reservation are together (1 + times) * the live bytes. At any other operator, the live
    bytes are at least those that it reads and writes.
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
    """Storages that must be live while an operator of rematerialization runs: those that it reads and writes, except for those
    that a result may overwrite."""
    return (graph.reads[at] - graph.replaced[at]).union(graph.ops[at]["writes"])


def _same_x(ops: set[int], x: int) -> dict[int, int]:
    """The same value of x for all these operators."""
    return dict.fromkeys(ops, x)


def _bytes(graph: Graph, storages: set[int]) -> int:
    """Total size of storages."""
    return sum(graph.size[storage] for storage in storages)


def _prices(graph: Graph, own: set[int], price: int) -> list[int]:
    """Maximum amount of each storage in rows: its size times the price of a byte, or 0 if ``own`` already counts it."""
    return [0 if storage in own else price * size for storage, size in enumerate(graph.size)]


def _held(graph: Graph, most: list[int], proof: Fields, overwritten: set[tuple[int, int]]) -> Slopes:
    """Slopes of ``amount * (x_user - x_writer)`` for the rows (storage, user or END, amount) of ``held``.

    The user must read the storage and must not overwrite its bytes. The amounts of a storage add up to at most ``most``.
    """
    slopes, remaining = Slopes(), [*most]
    for storage, user, amount in rows(proof, "held", 3, END):
        is_there = storage in graph.writer or storage in graph.initial
        is_used = storage in (graph.final if user == END else graph.reads[user])
        is_live = is_there and is_used and (storage, user) not in overwritten
        need(is_live, "proof.held", f"{user} does not use tensor {storage}")
        remaining[storage] -= amount
        need(amount >= 0 and remaining[storage] >= 0, "proof.held", f"more of tensor {storage} than may count")
        slopes[user] += amount
        slopes[graph.writer.get(storage, START)] -= amount
    return slopes


def _after(graph: Graph, proof: Fields) -> Slopes:
    """Slopes of ``amount * (x_first - x_second) <= 0`` for the rows (first, second, amount) of ``after``.

    If the first operator runs after ``at`` has begun (x_first = 1), so does the second, which comes after it (x_second = 1).
    """
    slopes = Slopes()
    for first, second, amount in rows(proof, "after", 3):
        need(first in graph.before[second], "proof.after", f"{first} need not come before {second}")
        slopes[first] += amount
        slopes[second] -= amount
    return slopes


def _least(slopes: Slopes, fixed_x: dict[int, int]) -> int:
    """The minimum of ``sum of slope * x``: slope * x for operators whose x is fixed, and min(0, slope) for all others.

    The start is before ``at`` (x = 0), and the end is after it (x = 1).
    """
    fixed_x = {START: 0, END: 1} | fixed_x
    return sum(slope * fixed_x[op] if op in fixed_x else min(0, slope) for op, slope in slopes.items())
