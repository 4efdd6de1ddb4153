"""Forms ``cut`` and ``search`` of graphs of operators: what is live at an operator in every order, and all orders there are.

A graph is read from docs/reference/operator-order.md and rematerialization.md.
"""

from __future__ import annotations

from collections import Counter

from stowplan.certificates.checker.reading import LARGEST, LOOKS, Fields, need, rounded_up, rows, walk, whole

#: Of each operator some others.
Links = list[set[int]]


class Graph:
    """Operators, and the storages that they touch, read from a problem."""

    def __init__(self, problem: Fields):
        self.ops, self.under = problem["ops"], [tensor["alias_of"] for tensor in problem["tensors"]]
        self.writer = {tensor: number for number, op in enumerate(self.ops) for tensor in op["writes"]}
        self.size = [tensor["size"] if tensor["alias_of"] is None else 0 for tensor in problem["tensors"]]
        self.given = self.bases(problem["inputs"])
        self.kept = self.bases(problem["outputs"] + ([] if problem["free_inputs"] else problem["inputs"]))
        self.reads: Links = []
        """Storages that each operator reads or has a view of, without those it writes."""
        self.replaced = [self.bases([operand for operand, _ in op["in_place"]]) for op in self.ops]
        """Storages whose bytes a result of each operator may take."""
        self.before: Links = [set() for _ in self.ops]
        self.after: Links = [set() for _ in self.ops]
        pairs = [*problem["precedences"]]
        for number, op in enumerate(self.ops):
            viewed = [self.under[tensor] for tensor in op["writes"] if self.under[tensor] is not None]
            self.reads.append(self.bases([*op["reads"], *viewed]).difference(op["writes"]))
            for tensor in (*op["reads"], *viewed):
                # Who writes it, or what it is a view of where nobody writes the view.
                writer = next((self.writer[each] for each in self.views(tensor) if each in self.writer), number)
                pairs += [(writer, number)] if writer != number else []
        for first, second in pairs:
            self.before[second].add(first)
            self.after[first].add(second)

    def views(self, tensor: int) -> list[int]:
        """A tensor, what it is a view of, what that is a view of, and so on to the storage whose bytes it has."""
        found = [tensor]
        while (under := self.under[found[-1]]) is not None:
            need(len(found) < len(self.under), f"tensors[{tensor}]", "it is a view of itself")
            found.append(under)
        return found

    def bases(self, tensors: list[int]) -> set[int]:
        """Storages whose bytes tensors have."""
        return {self.views(tensor)[-1] for tensor in tensors}


def _reached(op: int, links: Links) -> set[int]:
    """Operators that links lead to, by one or several."""
    found, waiting = set[int](), [op]
    while waiting:
        more = links[waiting.pop()] - found
        found |= more
        waiting += more
    return found


def cut(problem: Fields, proof: Fields) -> int | None:
    """Least peak in bytes of operator order. Of rematerialization the least added cost, or None where nothing fits.

    Each operator has a number x in [0, 1], 1 where it runs once ``at`` has begun its first run. What runs then reads what is
    live now, or what is written then: amount * (x_user - x_writer) bytes are live beside what ``at`` itself writes (or uses,
    where it may run again). Where operators run once, what follows on one that runs then does so, too: amount times
    x_first - x_second is no more than 0. The sum is linear, so that its least value is found operator by operator. Amounts are
    a flow of the network whose least cut they bound (Ford, Fulkerson).
    """
    graph, again, at = Graph(problem), "limit" in problem, whole(proof, "at")
    scale, price = (whole(proof, "scale"), whole(proof, "price")) if again else (1, 1)
    limit = LARGEST if again and problem["limit"] is None else problem.get("limit", 0)
    reads = graph.reads[at] - graph.replaced[at]
    own = reads.union(graph.ops[at]["writes"]) if again else {*graph.ops[at]["writes"]}
    before, later = _reached(at, graph.before), _reached(at, graph.after)
    # What is there from the start runs before (-2), and the end comes later (-1).
    fixed = {-1: 1, -2: 0} | dict.fromkeys(later if again else {at, *later}, 1)
    fixed |= {each: 0 for each in before if not again or graph.ops[each]["once"]}
    slopes = Counter({each: scale * graph.ops[each]["cost"] for each in before if again})
    left = [0 if tensor in own else price * size for tensor, size in enumerate(graph.size)]
    total = price * (sum(graph.size[each] for each in own) - limit)
    for tensor, user, amount in rows(proof, "held", 3, -1):
        is_there = tensor in graph.writer or tensor in graph.given
        is_used = tensor in (graph.kept if user < 0 else graph.reads[user])
        may_go = user == at and not again and tensor in graph.replaced[at]
        need(is_there and is_used and not may_go, "proof.held", f"{user} does not use tensor {tensor}")
        left[tensor] -= amount
        need(amount >= 0 and left[tensor] >= 0, "proof.held", f"more of tensor {tensor} than may count")
        slopes[user] += amount
        slopes[graph.writer.get(tensor, -2)] -= amount
    for first, second, amount in [] if again else rows(proof, "after", 3):
        need(first in graph.before[second], "proof.after", f"{first} need not come before {second}")
        slopes[first] += amount
        slopes[second] -= amount
    total += sum(slope * fixed[op] if op in fixed else min(0, slope) for op, slope in slopes.items())
    return rounded_up(total, scale)


def search(problem: Fields, proof: Fields, looks: int = LOOKS // 4) -> int:
    """Peak ``below`` which no order stays: all sets of operators that may have run are looked at, from either end.

    There are none to look at where what is there at that end is no less.

    What is live after a set is submodular. So an operator that leaves no more live, and stays below, may be taken at once:
    every order goes on no worse after it.
    """
    graph, below, is_back = Graph(problem), whole(proof, "below"), proof.get("from") == "end"
    every = range(len(graph.ops))
    touched = [graph.reads[op] | graph.bases(graph.ops[op]["writes"]) for op in every]
    # Of each storage who touches it, as bits; the start and the end come last.
    start, end = 1 << len(every), 2 << len(every)
    users = [start * (tensor in graph.given) + end * (tensor in graph.kept) for tensor in range(len(graph.size))]
    for op in every:
        for tensor in touched[op]:
            users[tensor] |= 1 << op
    needed, next_ = (graph.after, graph.before) if is_back else (graph.before, graph.after)
    needs = [sum(1 << each for each in needed[op]) for op in every]
    done = end if is_back else start
    live = sum(size for size, mask in zip(graph.size, users, strict=True) if mask & done and mask & ~done)
    ready = [op for op in every if not needs[op]]
    waiting, seen = [(done, live, ready)] if live < below else [], {done}
    for done, live, ready in walk(waiting, lambda state: 1 + len(state[2]), looks):
        need(bool(ready), "proof.below", "an order stays below it")
        moves = list[tuple[int, int, int]]()
        for op in ready:
            then = done | 1 << op
            peak = after = live
            for tensor in touched[op]:
                size, has_begun, goes_on = graph.size[tensor], bool(users[tensor] & done), bool(users[tensor] & ~then)
                after += size * (goes_on - has_begun)
                is_taken_over = tensor in graph.replaced[op] and not (has_begun if is_back else goes_on)
                peak += size * (not has_begun) - size * is_taken_over
            if peak < below:
                moves.append((after, op, then))
        # One that leaves no more live is enough.
        for after, op, then in [min(moves)] if moves and min(moves)[0] <= live else moves:
            if then not in seen:
                seen.add(then)
                freed = [each for each in next_[op] if not needs[each] & ~then]
                waiting.append((then, after, [each for each in ready if each != op] + freed))
    return below
