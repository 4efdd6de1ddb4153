"""A rematerialization problem as lists, for models, bounds and heuristics.

A *value* is a tensor that is an input or that an operator writes. A view that no operator writes is no value of its own;
whoever reads it reads the value of its base. A value with bytes of its own is a *storage*. All other values are views and share
the bytes of their parent. A *reservation* is memory that something outside the graph occupies during a part of a plan
(:class:`~.problem.Reservation`).

The *host* is a second memory; a plan can send values to it and fetch them back. A *fetch* is modelled as an operator that reads
nothing and writes one value. Fetches are the last operators of a structure. Nothing here raises an error for a valid problem.
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
    """The graph of operators and values. Both are identified by their index in the lists."""

    problem: Problem
    """The problem that the lists were built from."""
    ordering: OrderStructure
    """The arrays of the same graph for operator order, in which every operator runs once."""
    tensor: list[int]
    """[values] number of the tensor."""
    size: list[int]
    """[values] size in bytes; 0 for views."""
    parent: list[int]
    """[values] the value whose bytes a view shares; -1 for storages."""
    root: list[int]
    """[values] the storage that contains the value's bytes; for a storage, itself."""
    writer: list[int]
    """[values] the operator that writes the value; -1 for inputs."""
    kept: list[bool]
    """[values] whether the value must be live to the end: outputs, and inputs whose bytes may not be reused."""
    needs: list[tuple[int, ...]]
    """[operators] values that must be live before the operator runs."""
    writes: list[tuple[int, ...]]
    """[operators] values that the operator writes, parents before their views."""
    pairs: list[tuple[int, ...]]
    """[operators] values of operands whose bytes a result may reuse (:attr:`~.problem.Op.in_place`)."""
    readers: list[list[int]]
    """[values] operators that need the value."""
    cost: list[int]
    """[operators] cost of one run."""
    once: list[bool]
    """[operators] whether the operator must not run more than once."""
    order: list[int]
    """Operators in the order of the input, changed where an operator comes before one that it needs."""
    reservations: tuple[Reservation, ...] = ()
    """Bytes of the limit that are not available during a part of the plan."""
    fetched: tuple[int, ...] = ()
    """The values that the last operators fetch from the host, one for each of these operators; empty before
    :meth:`with_fetches`."""

    @property
    def ops(self) -> int:
        """Number of operators including fetches."""
        return len(self.cost)

    @property
    def computing(self) -> int:
        """Number of operators without fetches."""
        return len(self.cost) - len(self.fetched)

    @property
    def movable(self) -> list[int]:
        """Values that may be sent to the host: storages that are read or must stay, without inputs that stay to the end."""
        stays = not self.problem.free_inputs
        return [
            value
            for value, size in enumerate(self.size)
            if size and (self.readers[value] or self.kept[value]) and not (stays and self.writer[value] < 0)
        ]

    def with_fetches(self, values: Sequence[int], costs: Sequence[int]) -> Structure:
        """The same structure with a fetch from the host for each of these values, as additional operators at the end.

        The fetch becomes the writer of the value, so that a further run of the fetch brings the value back, instead of a
        recomputation. Every operator must run at least once. Therefore ``order`` has the fetch right behind the original
        writer, or at the start for an input; this first run has no meaning.

        Parameters
        ----------
        values
            Values that may be fetched.
        costs
            Cost of the copy of each value.
        """
        fetch = {value: self.ops + number for number, value in enumerate(values)}
        order = [fetch[value] for value in values if self.writer[value] < 0]
        for op in self.order:
            before, after = list[int](), list[int]()
            for value in self.writes[op]:
                if value in fetch:
                    # If the writer also writes a view of the value, that view belongs to the writer's instance.
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
        """Returns the same structure with reservations of a fixed size.

        The size of a reservation may include a multiple of the bytes that are live at an operator, its ``of``. Here it is
        assumed that exactly ``live`` bytes are live at each of these operators. Further reservations make sure that no more
        bytes are live there. Plans that fit into ``limit`` bytes are then plans of the original structure.
        """
        rows = [
            Reservation(size=max(0, row.size + row.times * live), since=row.since, until=row.until) for row in self.reservations
        ]
        counted = dict.fromkeys(row.of for row in self.reservations if row.of is not None)
        ceilings = [Reservation(size=max(0, limit - live), since=of, until=of) for of in counted]
        return replace(self, reservations=(*rows, *ceilings))

    def made(self, sequence: Iterable[int], moves: Iterable[Move] = ()) -> Plan:
        """Build the plan with this sequence and these moves, and compute its objective and peak.

        The plan need not be valid; its peak is 0 if a run reads a missing value.
        """
        problem, moved = self.problem, tuple(moves) or msgspec.UNSET
        plan = Plan(problem=problem.digest, objective=0, peak=0, sequence=tuple(sequence), moves=moved, name=problem.name)
        verification = verify(problem, plan)
        return msgspec.structs.replace(plan, objective=verification.objective or 0, peak=verification.figures.get("peak", 0))


def build(problem: Problem) -> Structure:
    """Build the lists of a problem."""
    tensors = problem.tensors
    written = {tensor: number for number, op in enumerate(problem.ops) for tensor in op.writes}

    def source(tensor: int) -> int:
        """The tensor whose value is used for this one: for a view that no operator writes, its base."""
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
        results = {index[tensor] for tensor in op.writes}
        used = {value[tensor] for tensor in op.reads} | {parent[result] for result in results if parent[result] >= 0}
        needs.append(tuple(sorted(used - results)))
        writes.append(tuple(sorted(results, key=lambda result: (depth[result], result))))
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
