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
        self.given = {self.base(tensor) for tensor in problem["inputs"]}
        self.kept = {self.base(tensor) for tensor in stays}
        self.reads: list[set[int]] = []
        """Storages that each operator reads or has a view of, without those it writes."""
        self.before: list[set[int]] = [set() for _ in self.ops]
        for number, op in enumerate(self.ops):
            views = [tensor for tensor in op["writes"] if self.tensors[tensor]["alias_of"] is not None]
            own = {tensor for tensor in op["writes"] if tensor not in views}
            self.reads.append({self.base(tensor) for tensor in (*op["reads"], *views)} - own)
            for tensor in (*op["reads"], *(self.tensors[view]["alias_of"] for view in views)):
                source = self.source(tensor)
                if source is not None and source != number:
                    self.before[number].add(source)
        for first, second in problem["precedences"]:
            self.before[second].add(first)

    def base(self, tensor: int) -> int:
        """Storage whose bytes a tensor has."""
        while self.tensors[tensor]["alias_of"] is not None:
            tensor = self.tensors[tensor]["alias_of"]
        return tensor

    def source(self, tensor: int | None) -> int | None:
        """Operator that writes a tensor, or what it is a view of where nobody writes the view."""
        while tensor is not None and tensor not in self.writer:
            tensor = self.tensors[tensor]["alias_of"]
        return None if tensor is None else self.writer[tensor]

    def reached(self, op: int, links: list[set[int]]) -> set[int]:
        """Operators that links lead to."""
        found: set[int] = set()
        waiting = [*links[op]]
        while waiting:
            at = waiting.pop()
            if at not in found:
                found.add(at)
                waiting += links[at]
        return found

    def ancestors(self, op: int) -> set[int]:
        """Operators that run before an operator's first run."""
        return self.reached(op, self.before)

    def descendants(self, op: int) -> set[int]:
        """Operators that run only after it."""
        after: list[set[int]] = [set() for _ in self.ops]
        for number, befores in enumerate(self.before):
            for each in befores:
                after[each].add(number)
        return self.reached(op, after)

    def replaced(self, op: int) -> set[int]:
        """Storages whose bytes a result of the operator may take."""
        return {self.base(operand) for operand, _ in self.ops[op]["in_place"]}


def order(problem: dict[str, Any], proof: Part, bound: int | None) -> int:
    """Least peak in bytes of operator order: x is 1 for what has run before the operator ``at``."""
    graph = Graph(problem)
    at = proof.get("at")
    users = set().union(*graph.reads)
    if at in ("start", "end"):
        # Inputs are there at once where they are ever used, and what stays is there at last.
        some = {each for each in graph.given if each in users or each in graph.kept} if at == "start" else graph.kept
        return sum(graph.size[each] for each in some if each in graph.given or each in graph.writer)
    at = proof.whole("at")
    op = pick(graph.ops, at, "proof.at")
    fixed = dict.fromkeys(graph.ancestors(at), 1) | dict.fromkeys((*graph.descendants(at), at), 0)
    total = sum(graph.size[each] for each in op["writes"])
    slope, sent = [0] * len(graph.ops), dict[int, int]()
    for tensor, user, amount in proof.rows("held", 3, -1):
        # A storage is live where its writer has run and a user has not: amount * (x_writer - x_user) bytes at least.
        pick(graph.tensors, tensor, "proof.held")
        need(amount >= 0 and graph.writer.get(tensor) != at, "proof.held", f"amount {amount} of tensor {tensor}")
        is_there = tensor in graph.writer or tensor in graph.given
        need(is_there and graph.tensors[tensor]["alias_of"] is None, "proof.held", f"tensor {tensor} has no bytes")
        if user < 0:
            need(tensor in graph.kept, "proof.held", f"tensor {tensor} does not stay to the end")
        else:
            pick(graph.ops, user, "proof.held")
            need(tensor in graph.reads[user], "proof.held", f"operator {user} does not use tensor {tensor}")
            need(user != at or tensor not in graph.replaced(at), "proof.held", f"tensor {tensor} may be replaced")
            slope[user] -= amount
        sent[tensor] = sent.get(tensor, 0) + amount
        need(sent[tensor] <= graph.size[tensor], "proof.held", f"more of tensor {tensor} than its bytes")
        if tensor in graph.writer:
            slope[graph.writer[tensor]] += amount
        else:
            total += amount
    for first, second, amount in proof.rows("after", 3):
        # What has run has everything before it: amount * (x_second - x_first) is no more than 0.
        need(first in graph.before[pick([*range(len(slope))], second, "proof.after")], "proof.after", f"{first} need not come")
        slope[second] += amount
        slope[first] -= amount
    return int(total + sum(min(0, each) if op not in fixed else each * fixed[op] for op, each in enumerate(slope)))


def rematerialization(problem: dict[str, Any], proof: Part, bound: int | None) -> int | None:
    """Least added cost: x is 1 for what runs after the first run of the operator ``at``; None where nothing fits."""
    graph, limit = Graph(problem), problem["limit"]
    at, scale, price = proof.whole("at"), proof.whole("scale"), proof.whole("price")
    op = pick(graph.ops, at, "proof.at")
    need(limit is not None or not price, "proof.price", "bytes have a price, and the problem has no limit")
    before = graph.ancestors(at)
    own = (graph.reads[at] - graph.replaced(at)) | {each for each in op["writes"] if graph.size[each]}
    room = (limit or 0) - sum(graph.size[each] for each in own)
    fixed = dict.fromkeys(graph.descendants(at), 1)
    fixed |= {each: 0 for each in before if graph.ops[each]["once"]}
    slope = [scale * each["cost"] if number in before else 0 for number, each in enumerate(graph.ops)]
    total, sent = 0, dict[int, int]()
    for tensor, user, amount in proof.rows("held", 3, -1):
        # What runs later reads what is live now, or what is written later: amount * (x_user - x_writer).
        pick(graph.tensors, tensor, "proof.held")
        is_there = tensor in graph.writer or tensor in graph.given
        need(is_there and graph.tensors[tensor]["alias_of"] is None, "proof.held", f"tensor {tensor} has no bytes")
        if user < 0:
            need(tensor in graph.kept, "proof.held", f"tensor {tensor} does not stay to the end")
            total += amount
        else:
            pick(graph.ops, user, "proof.held")
            need(tensor in graph.reads[user], "proof.held", f"operator {user} does not use tensor {tensor}")
            slope[user] += amount
        sent[tensor] = sent.get(tensor, 0) + amount
        # What the operator itself uses is counted as its own.
        most = 0 if tensor in own else price * graph.size[tensor]
        need(amount >= 0 and sent[tensor] <= most, "proof.held", f"more of tensor {tensor} than its bytes at that price")
        if tensor in graph.writer:
            slope[graph.writer[tensor]] -= amount
    total += sum(min(0, each) if op not in fixed else each * fixed[op] for op, each in enumerate(slope))
    left = total - price * room
    if bound is None:
        need(scale == 0 and left > 0, "proof", f"what is live fits into {limit} bytes, as far as this shows")
        return None
    need(scale > 0, "proof.scale", "found 0, expected more")
    return int(-(-left // scale))
