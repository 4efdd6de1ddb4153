"""A problem as lists: what models, bounds and heuristics work on.

*Values* are the tensors that an operator writes or that are inputs; a view that nobody writes is its base's value. A value with
bytes of its own is a *storage*; the others share those of their parent's instance.

A *fetch* from the host is an operator that needs nothing and writes one value; the last operators of a structure are fetches.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

import msgspec

from stowplan.models.operator_order.structure import Structure as OrderStructure
from stowplan.models.operator_order.structure import build as build_order
from stowplan.models.operator_order.structure import stable_order
from stowplan.models.rematerialization.plan import Move, Plan
from stowplan.models.rematerialization.problem import Problem, Reservation
from stowplan.models.rematerialization.verify import verify


@dataclass(frozen=True)
class Structure:
    """Operators and values by numbers."""

    problem: Problem
    ordering: OrderStructure
    """The same graph where every operator runs once."""
    tensor: list[int]
    """[values] number of the tensor."""
    size: list[int]
    """[values] bytes; 0 for views."""
    parent: list[int]
    """[values] value whose bytes a view shares; -1 for storages."""
    root: list[int]
    """[values] storage whose bytes it has."""
    writer: list[int]
    """[values] operator; -1 for inputs."""
    kept: list[bool]
    """[values] whether it is there to the end."""
    needs: list[tuple[int, ...]]
    """[operators] values that must be there before it runs."""
    writes: list[tuple[int, ...]]
    """[operators] values, parents before their views."""
    pairs: list[tuple[int, ...]]
    """[operators] values whose bytes a result may take."""
    readers: list[list[int]]
    """[values] operators that need it."""
    cost: list[int]
    once: list[bool]
    order: list[int]
    """Operators in the order given, so that each can run."""
    reservations: tuple[Reservation, ...] = ()
    fetched: tuple[int, ...] = ()
    """Values that the last operators fetch from the host."""

    @property
    def ops(self) -> int:
        """Number of operators, with fetches."""
        return len(self.cost)

    @property
    def computing(self) -> int:
        """Number of operators without fetches."""
        return len(self.cost) - len(self.fetched)

    @property
    def movable(self) -> list[int]:
        """Values that may go to a host and save bytes: storages that somebody reads, but no inputs that stay."""
        stays = not self.problem.free_inputs
        return [
            value
            for value, size in enumerate(self.size)
            if size and (self.readers[value] or self.kept[value]) and not (stays and self.writer[value] < 0)
        ]

    def with_fetches(self, values: Sequence[int], costs: Sequence[int]) -> Structure:
        """The same with a fetch of each of some values behind all other operators, at its cost.

        In place of the value's own writer the fetch is what runs again. In the order it comes right behind the writer, or for
        inputs at the start: there it stands for nothing, so that every operator of a graph runs once.
        """
        fetch = {value: self.ops + number for number, value in enumerate(values)}
        order = [fetch[value] for value in values if self.writer[value] < 0]
        for op in self.order:
            before, after = list[int](), list[int]()
            for value in self.writes[op]:
                if value in fetch:
                    # A view that its writer makes, too, is of the writer's instance.
                    has_view = any(self.parent[other] == value for other in self.writes[op])
                    (before if has_view else after).append(fetch[value])
            order += [*before, op, *after]
        return replace(
            self,
            writer=[fetch.get(value, writer) for value, writer in enumerate(self.writer)],
            needs=[*self.needs, *(() for _ in values)],
            writes=[*self.writes, *((value,) for value in values)],
            pairs=[*self.pairs, *(() for _ in values)],
            cost=[*self.cost, *costs],
            once=[*self.once, *(False for _ in values)],
            order=order,
            fetched=(*self.fetched, *values),
        )

    def assuming(self, live: int, limit: int) -> Structure:
        """The same where what is live at an operator that reservations count is said to be so much, and no more.

        Each reservation is then a number of bytes. Plans within the limit are plans of the structure itself.
        """
        rows = [
            Reservation(size=max(0, row.size + row.times * live), since=row.since, until=row.until) for row in self.reservations
        ]
        counted = dict.fromkeys(row.of for row in self.reservations if row.of is not None)
        ceilings = [Reservation(size=max(0, limit - live), since=of, until=of) for of in counted]
        return replace(self, reservations=(*rows, *ceilings))

    def made(self, sequence: Iterable[int], moves: Iterable[Move] = ()) -> Plan:
        """The plan of a sequence, which need not be valid; its peak is 0 where something is read that is not there."""
        problem, moved = self.problem, tuple(moves) or msgspec.UNSET
        plan = Plan(problem=problem.digest, objective=0, peak=0, sequence=tuple(sequence), moves=moved, name=problem.name)
        verification = verify(problem, plan)
        return msgspec.structs.replace(plan, objective=verification.objective or 0, peak=verification.figures.get("peak", 0))


def build(problem: Problem) -> Structure:
    """Lists of a problem."""
    tensors = problem.tensors
    written = {tensor: number for number, op in enumerate(problem.ops) for tensor in op.writes}

    def source(tensor: int) -> int:
        while tensor not in written and (base := tensors[tensor].alias_of) is not None:
            tensor = base
        return tensor

    values = [
        tensor for tensor in range(len(tensors)) if tensor in written or (tensor in problem.inputs and source(tensor) == tensor)
    ]
    index = {tensor: number for number, tensor in enumerate(values)}
    value = {tensor: index[source(tensor)] for tensor in range(len(tensors)) if source(tensor) in index}
    parent = [-1 if (base := tensors[tensor].alias_of) is None else value[base] for tensor in values]
    depth = [0] * len(values)
    root = list(range(len(values)))
    for number in range(len(values)):
        while parent[root[number]] >= 0:
            root[number] = parent[root[number]]
            depth[number] += 1
    needs, writes, readers = [], [], [list[int]() for _ in values]
    for number, op in enumerate(problem.ops):
        own = {index[tensor] for tensor in op.writes}
        used = {value[tensor] for tensor in op.reads} | {parent[made] for made in own if parent[made] >= 0}
        needs.append(tuple(sorted(used - own)))
        writes.append(tuple(sorted(own, key=lambda made: (depth[made], made))))
        for needed in needs[-1]:
            readers[needed].append(number)
    stays = {
        value[tensor] for tensor in (*problem.outputs, *(() if problem.free_inputs else problem.inputs)) if tensor in value
    }
    ordering = build_order(problem)
    return Structure(
        problem=problem,
        ordering=ordering,
        tensor=values,
        size=[tensors[value].size if tensors[value].alias_of is None else 0 for value in values],
        parent=parent,
        root=root,
        writer=[written.get(value, -1) for value in values],
        kept=[number in stays for number in range(len(values))],
        needs=needs,
        writes=writes,
        pairs=[tuple(value[operand] for operand, _ in op.in_place) for op in problem.ops],
        readers=readers,
        cost=[op.cost for op in problem.ops],
        once=[op.once for op in problem.ops],
        order=stable_order(ordering),
        reservations=problem.reservations,
    )
