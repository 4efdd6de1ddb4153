"""A graph of operators, as the rules of docs/reference/operator-order.md and rematerialization.md have it.

A *storage* is a tensor with bytes of its own; all others are views of one. An operator reads and writes storages.
"""

from __future__ import annotations

from collections.abc import Iterable

from stowplan.certificates.checker.reading import Fields, need

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
        pairs = [*problem["precedences"]]
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
