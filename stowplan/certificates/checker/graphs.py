"""Form ``cut``: what is live at an operator, in every order and however often operators run.

A graph of operators is read from docs/reference/operator-order.md and rematerialization.md. Every operator has a number x in
[0, 1]; the proof gives amounts, each of which is an inequality of the problem times the amount. Their sum is linear in x, so
its least value is found operator by operator. Amounts are a flow of the network whose least cut they bound (Ford, Fulkerson).
"""

from __future__ import annotations

from typing import Any

from stowplan.certificates.checker.reading import Part, need, pick


class Graph:
    """Operators, and the storages that they touch, read from a problem."""

    def __init__(self, problem: dict[str, Any]):
        self.tensors, self.ops = problem["tensors"], problem["ops"]
        self.writer = {tensor: number for number, op in enumerate(self.ops) for tensor in op["writes"]}
        self.size = [tensor["size"] if tensor["alias_of"] is None else 0 for tensor in self.tensors]
        stays = problem["outputs"] + ([] if problem["free_inputs"] else problem["inputs"])
        self.given, self.kept = ({self.base(tensor) for tensor in each} for each in (problem["inputs"], stays))
        self.reads: list[set[int]] = []
        """Storages that each operator reads or has a view of, without those it writes."""
        self.before: list[set[int]] = [set() for _ in self.ops]
        self.after: list[set[int]] = [set() for _ in self.ops]
        pairs = [*problem["precedences"]]
        for number, op in enumerate(self.ops):
            views = [tensor for tensor in op["writes"] if self.tensors[tensor]["alias_of"] is not None]
            self.reads.append({self.base(tensor) for tensor in (*op["reads"], *views)}.difference(op["writes"]))
            sources = {self.source(each) for each in (*op["reads"], *(self.tensors[view]["alias_of"] for view in views))}
            pairs += [(source, number) for source in sources - {None, number}]
        for first, second in pairs:
            self.before[second].add(first)
            self.after[first].add(second)

    def base(self, tensor: int) -> int:
        """Storage whose bytes a tensor has."""
        seen = {tensor}
        while (below := self.tensors[tensor]["alias_of"]) is not None:
            need(below not in seen, f"tensors[{tensor}]", "it is a view of itself")
            seen.add(tensor := below)
        return tensor

    def source(self, tensor: int | None) -> int | None:
        """Operator that writes a tensor, or what it is a view of where nobody writes the view."""
        while tensor is not None and tensor not in self.writer:
            tensor = self.tensors[tensor]["alias_of"]
        return None if tensor is None else self.writer[tensor]

    @staticmethod
    def reached(op: int, links: list[set[int]]) -> set[int]:
        """Operators that links lead to, by one or several."""
        found, waiting = set[int](), [*links[op]]
        while waiting:
            at = waiting.pop()
            waiting += () if at in found else links[at]
            found.add(at)
        return found

    def replaced(self, op: int) -> set[int]:
        """Storages whose bytes a result of the operator may take."""
        return {self.base(operand) for operand, _ in self.ops[op]["in_place"]}

    def held(self, proof: Part, most: list[int], barred: set[tuple[int, int]]) -> tuple[list[int], list[int], int, int]:
        """What the rows ``held`` (tensor, user or -1 for the end, amount) add up to.

        Of each storage no more than ``most``; pairs of storage and user that are ``barred`` do not count.

        Returns
        -------
        tuple
            For each operator what it uses and what it has made; what the end uses, and what inputs have made.
        """
        used, made, sent = [0] * len(self.ops), [0] * len(self.ops), [0] * len(self.tensors)
        end = given = 0
        for tensor, user, amount in proof.rows("held", 3, -1):
            is_there = tensor in self.writer or tensor in self.given
            is_used = tensor in self.kept if user < 0 else tensor in pick(self.reads, user, "proof.held")
            need(is_there and is_used and (tensor, user) not in barred, "proof.held", f"{user} does not use tensor {tensor}")
            sent[tensor] += amount
            need(amount >= 0 and sent[tensor] <= most[tensor], "proof.held", f"more of tensor {tensor} than may count")
            if user < 0:
                end += amount
            else:
                used[user] += amount
            if tensor in self.writer:
                made[self.writer[tensor]] += amount
            else:
                given += amount
        return used, made, end, given


def least(slopes: list[int], fixed: dict[int, int]) -> int:
    """Least of a linear function of numbers in [0, 1], some of which are fixed."""
    return sum(slope * fixed[at] if at in fixed else min(0, slope) for at, slope in enumerate(slopes))


def order(problem: dict[str, Any], proof: Part, bound: int | None) -> int:
    """Least peak in bytes of operator order: x is 1 for what has run before the operator ``at``.

    A storage is live where its writer has run and a user has not: amount * (x_writer - x_user) bytes at least. What has run has
    everything before it: amount * (x_second - x_first) is no more than 0.
    """
    graph = Graph(problem)
    at = proof.get("at")
    if at in ("start", "end"):
        # Inputs are there at once where they are ever used, and what stays is there at last.
        users = graph.kept.union(*graph.reads)
        return sum(graph.size[each] for each in (graph.given & users if at == "start" else graph.kept))
    at = proof.whole("at")
    own = pick(graph.ops, at, "proof.at")["writes"]
    fixed = dict.fromkeys(graph.reached(at, graph.before), 1) | dict.fromkeys((*graph.reached(at, graph.after), at), 0)
    most = [0 if tensor in own else size for tensor, size in enumerate(graph.size)]
    used, made, _, given = graph.held(proof, most, {(tensor, at) for tensor in graph.replaced(at)})
    slopes = [one - other for one, other in zip(made, used, strict=True)]
    for first, second, amount in proof.rows("after", 3):
        need(first in pick(graph.before, second, "proof.after"), "proof.after", f"{first} need not come before {second}")
        slopes[second] += amount
        slopes[first] -= amount
    return int(sum(graph.size[each] for each in own) + given + least(slopes, fixed))


def rematerialization(problem: dict[str, Any], proof: Part, bound: int | None) -> int | None:
    """Least added cost: x is 1 for what runs after the first run of the operator ``at``; None where nothing fits.

    What runs later reads what is live now, or what is written later: amount * (x_user - x_writer) of its bytes at their price.
    What the operator itself uses is live beside it, and leaves less room for that.
    """
    graph, limit = Graph(problem), problem["limit"]
    at, scale, price = proof.whole("at"), proof.whole("scale"), proof.whole("price")
    own = pick(graph.reads, at, "proof.at").difference(graph.replaced(at)).union(graph.ops[at]["writes"])
    need(limit is not None or not price, "proof.price", "bytes have a price, and the problem has no limit")
    room = (limit or 0) - sum(graph.size[each] for each in own)
    before = graph.reached(at, graph.before)
    fixed = dict.fromkeys(graph.reached(at, graph.after), 1) | {each: 0 for each in before if graph.ops[each]["once"]}
    most = [0 if tensor in own else price * size for tensor, size in enumerate(graph.size)]
    used, made, end, _ = graph.held(proof, most, set())
    costs = [scale * op["cost"] if number in before else 0 for number, op in enumerate(graph.ops)]
    left = end + least([sum(each) - other for *each, other in zip(costs, used, made, strict=True)], fixed) - price * room
    if bound is None:
        need(scale == 0 and left > 0, "proof", f"what is live fits into {limit} bytes, as far as this shows")
        return None
    need(scale > 0, "proof.scale", "found 0, expected more")
    return int(-(-left // scale))
