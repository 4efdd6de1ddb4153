"""Forms ``cut`` and ``search`` of graphs of operators: what is live at an operator in every order, and all orders there are.

A graph is read from docs/reference/operator-order.md and rematerialization.md.
"""

from __future__ import annotations

from stowplan.certificates.checker.reading import LOOKS, Fields, need, pick, rows, whole
from stowplan.certificates.checker.tree import Splits


class Graph:
    """Operators, and the storages that they touch, read from a problem."""

    def __init__(self, problem: Fields):
        self.tensors, self.ops = problem["tensors"], problem["ops"]
        self.writer = {tensor: number for number, op in enumerate(self.ops) for tensor in op["writes"]}
        self.size = [tensor["size"] if tensor["alias_of"] is None else 0 for tensor in self.tensors]
        stays = problem["outputs"] + ([] if problem["free_inputs"] else problem["inputs"])
        self.given, self.kept = ({self.base(tensor) for tensor in each} for each in (problem["inputs"], stays))
        self.reads: list[set[int]] = []
        """Storages that each operator reads or has a view of, without those it writes."""
        self.replaced = [{self.base(operand) for operand, _ in op["in_place"]} for op in self.ops]
        """Storages whose bytes a result of each operator may take."""
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


def cut(problem: Fields, proof: Fields, splits: Splits) -> int | None:
    """Least peak in bytes of operator order. Of rematerialization the least added cost, or None where nothing fits.

    Each operator has a number x in [0, 1], 1 where it runs once ``at`` has begun its first run. What runs then reads what is
    live now, or what is written then: amount * (x_user - x_writer) bytes are live beside what ``at`` itself writes (or uses,
    where it may run again). Where operators run once, what follows on one that runs then does so, too: amount times
    x_first - x_second is no more than 0. The sum is linear, so that its least value is found operator by operator. Amounts are
    a flow of the network whose least cut they bound (Ford, Fulkerson).
    """
    graph, again = Graph(problem), "limit" in problem
    if proof.get("at") in ("start", "end") and not again:
        # Inputs are there at once where they are ever used, and what stays is there at last.
        at_once = graph.given & graph.kept.union(*graph.reads)
        return sum(graph.size[each] for each in (at_once if proof["at"] == "start" else graph.kept))
    at = whole(proof, "at")
    scale, price = (whole(proof, "scale"), whole(proof, "price")) if again else (0, 1)
    reads = pick(graph.reads, at, "proof.at") - graph.replaced[at]
    own = reads.union(graph.ops[at]["writes"]) if again else {*graph.ops[at]["writes"]}
    before, later = graph.reached(at, graph.before), graph.reached(at, graph.after)
    fixed = dict.fromkeys(later if again else {at, *later}, 1)
    fixed |= {each: 0 for each in before if not again or graph.ops[each]["once"]}
    slopes = [scale * graph.ops[each]["cost"] if again and each in before else 0 for each in range(len(graph.ops))]
    live = price * sum(graph.size[each] for each in own)
    sent = [0] * len(graph.tensors)
    for tensor, user, amount in rows(proof, "held", 3, -1):
        is_there = tensor in graph.writer or tensor in graph.given
        is_used = tensor in graph.kept if user < 0 else tensor in pick(graph.reads, user, "proof.held")
        may_go = user == at and not again and tensor in graph.replaced[at]
        need(is_there and is_used and not may_go, "proof.held", f"{user} does not use tensor {tensor}")
        sent[tensor] += amount
        most = 0 if tensor in own else price * graph.size[tensor]
        need(amount >= 0 and sent[tensor] <= most, "proof.held", f"more of tensor {tensor} than may count")
        if user < 0:
            live += amount
        else:
            slopes[user] += amount
        if tensor in graph.writer:
            slopes[graph.writer[tensor]] -= amount
    for first, second, amount in [] if again else rows(proof, "after", 3):
        need(first in pick(graph.before, second, "proof.after"), "proof.after", f"{first} need not come before {second}")
        slopes[first] += amount
        slopes[second] -= amount
    live += sum(slope * fixed[op] if op in fixed else min(0, slope) for op, slope in enumerate(slopes))
    if not again:
        return int(live)
    limit = problem["limit"]
    need(limit is not None or not price, "proof.price", "bytes have a price, and the problem has no limit")
    left = live - price * (limit or 0)
    need(scale > 0 or left > 0, "proof", f"what is live fits into {limit} bytes, as far as this shows")
    return int(-(-left // scale)) if scale else None


def search(problem: Fields, proof: Fields, splits: Splits, looks: int = LOOKS // 4) -> int:
    """Peak ``below`` which no order stays: all sets of operators that may have run are looked at, from either end.

    What is live after a set is submodular. So an operator that leaves no more live, and stays below, may be taken at once:
    every order goes on no worse after it.
    """
    graph, below = Graph(problem), whole(proof, "below")
    is_back = proof.get("from") == "end"
    every = range(len(graph.ops))
    start, end = 1 << len(every), 2 << len(every)
    touched = [graph.reads[op] | {graph.base(tensor) for tensor in graph.ops[op]["writes"]} for op in every]
    users = [start * (tensor in graph.given) + end * (tensor in graph.kept) for tensor in range(len(graph.tensors))]
    for op in every:
        for tensor in touched[op]:
            users[tensor] |= 1 << op
    needed, next_ = (graph.after, graph.before) if is_back else (graph.before, graph.after)
    needs = [sum(1 << each for each in needed[op]) for op in every]
    done = end if is_back else start
    live = sum(size for size, mask in zip(graph.size, users, strict=True) if mask & done and mask & ~done)
    waiting, seen = [(done, live, [op for op in every if not needs[op]])], {done}
    while waiting and looks > 0:
        done, live, ready = waiting.pop()
        looks -= 1 + len(ready)
        need(bool(ready), "proof.below", "an order stays below it")
        moves: list[tuple[int, int, int]] = []
        for op in ready:
            after_it = done | 1 << op
            peak = after = live
            for tensor in touched[op]:
                size, has_begun, goes_on = graph.size[tensor], users[tensor] & done, users[tensor] & ~after_it
                peak += 0 if has_begun else size
                after += size * (bool(goes_on) - bool(has_begun))
                peak -= size if tensor in graph.replaced[op] and not (has_begun if is_back else goes_on) else 0
            if peak < below and after <= live:
                moves = [(op, after_it, after)]
                break
            if peak < below:
                moves.append((op, after_it, after))
        for op, after_it, after in moves:
            if after_it not in seen:
                seen.add(after_it)
                freed = [each for each in next_[op] if not needs[each] & ~after_it]
                waiting.append((after_it, after, [each for each in ready if each != op] + freed))
    need(not waiting, "proof", "the search takes too long")
    return below
