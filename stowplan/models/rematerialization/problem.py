"""The instance of rematerialization: operators that may run again, what they cost, and the bytes that they may take at once.

See docs/reference/rematerialization.md. The rules of its graph are those of :mod:`stowplan.graph.rules`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from fractions import Fraction
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec

from stowplan import files
from stowplan.checks import expect
from stowplan.document import ProblemDocument
from stowplan.graph.rules import GraphRules, OpLike

if TYPE_CHECKING:
    from stowplan.models.rematerialization.plan import Plan  # noqa: F401

#: The costs of all operators together, and the limit, stay below this: a thousand runs of each then fit in 64 bits.
LIMIT = 1 << 52


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A value. It has bytes of its own, or is a view of another tensor's."""

    id: str
    size: int
    """Bytes. A view's say nothing of memory: it takes none of its own."""
    alias_of: int | None = None
    """Number of the tensor that it is a view of; None has bytes of its own."""

    @property
    def alignment(self) -> int:
        """Plans have no offsets."""
        return 1

    @property
    def start(self) -> int:
        """Plans have no offsets."""
        return 0


class Op(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An operator: every run of it needs what it reads, and computes all that it writes anew."""

    id: str
    reads: tuple[int, ...] = ()
    """Numbers of tensors."""
    writes: tuple[int, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    """Pairs (operand, result): the result may take the operand's bytes where no one needs that instance any more."""
    cost: int = 0
    """Of one run: time, FLOPs or what else is to be saved, in one unit for all operators."""
    once: bool = False
    """Whether it may not run again: random numbers, effects."""
    kind: str = ""
    """What it computes, for people."""

    @property
    def has_effects(self) -> bool:
        """Whether it may not run again."""
        return self.once


class Reservation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bytes of the limit that something beside the graph takes while a part of a plan runs.

    It is in force from the run of ``since`` on and before the run of ``until``; where both are the same operator, during that
    run alone. These operators, and ``of``, may run once only. A graph may run in several situations, so that of several
    reservations in force each holds by itself: their bytes do not add up.
    """

    size: int
    """Bytes. Negative only with ``times``, where what is live at ``of`` is counted once in all."""
    since: int | None = None
    """Number of an operator; None for the first step."""
    until: int | None = None
    """Number of an operator; None for the last step."""
    times: int = 0
    """How many times what is live while ``of`` runs is taken, too: by other uses of the graph that wait there."""
    of: int | None = None

    @property
    def is_of_one_run(self) -> bool:
        """Whether it is in force during the run of one operator alone."""
        return self.since is not None and self.since == self.until


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Memory behind a channel: values may be sent there and fetched again while operators run.

    Either direction takes one copy at a time, in the order in which they are issued.
    """

    bandwidth: float
    """Bytes in each direction per unit of cost."""
    limit: int
    """Bytes that may stand there at once; 0 is as without a host."""

    def __post_init__(self) -> None:
        # As it is read from a file: digests are of its text.
        msgspec.structs.force_setattr(self, "bandwidth", float(self.bandwidth))

    def copy_cost(self, size: int) -> int:
        """What a copy of so many bytes takes on an idle channel, rounded up."""
        # A float is a fraction: nothing is rounded but the result.
        return math.ceil(size / Fraction(self.bandwidth))


class Problem(ProblemDocument["Plan"], GraphRules, frozen=True, forbid_unknown_fields=True, dict=True, kw_only=True):
    """A validated instance; construction raises :class:`~stowplan.errors.InputError` where it breaks a rule."""

    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    """In the order given: a baseline. It need not be one in which they can run."""
    inputs: tuple[int, ...] = ()
    """Numbers of tensors that are there from the start."""
    outputs: tuple[int, ...] = ()
    """Numbers of tensors that are there to the end."""
    free_inputs: bool = True
    """Whether the bytes of an input are free after its last reader; else inputs are there to the end."""
    precedences: tuple[tuple[int, int], ...] = ()
    """Pairs of operators: all runs of the first are before those of the second."""
    limit: int | None = None
    """Bytes that may be live at once; None for as many as it takes."""
    host: Host | msgspec.UnsetType = msgspec.UNSET
    """Files without it have no such field."""
    reserved: tuple[Reservation, ...] | msgspec.UnsetType = msgspec.UNSET
    """What else takes bytes of the limit, and when: limits by moment. Files without them have no such field."""
    name: str = ""
    format: str = "stowplan.rematerialization.problem"
    version: int = 1

    def __post_init__(self) -> None:
        expect(self.limit is None or 0 <= self.limit < LIMIT, "limit", f"{self.limit}", f"0 to {LIMIT - 1} bytes")
        total = 0
        for number, op in enumerate(self.ops):
            place = f"ops[{number}] ({op.id})"
            expect(0 <= op.cost < LIMIT, place, f"cost {op.cost}", f"0 to {LIMIT - 1}")
            total += op.cost
            expect(total < LIMIT, place, f"costs that add up to {total}", f"less than {LIMIT}")
        self.check_rules()
        for number, row in enumerate(self.reservations):
            _check_reservation(self, row, f"reserved[{number}]")
        if self.host is not msgspec.UNSET:
            _check(self.host, max((tensor.size for tensor in self.tensors), default=0))

    @property
    def channel(self) -> Host | None:
        """The host, where something may be sent there."""
        return self.host if self.host is not msgspec.UNSET and self.host.limit else None

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """All of them; none where the field is unset."""
        return self.reserved or ()

    def copy_cost(self, tensor: int) -> int:
        """What a copy of a tensor to the host, or back, takes on an idle channel, rounded up; 0 without a channel."""
        return 0 if self.channel is None else self.channel.copy_cost(self.tensors[tensor].size)

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of what a plan depends on: everything but the name and the kinds of operators."""
        ops = [msgspec.structs.replace(op, kind="") for op in self.ops]
        rules: list[Any] = [self.tensors, ops, self.inputs, self.outputs, self.free_inputs, self.precedences, self.limit]
        if self.channel is not None:
            rules.append(self.channel)
        return files.digest([*rules, self.reservations] if self.reservations else rules)


def _check(host: Host, largest: int) -> None:
    """Raise InputError where a host breaks a rule; ``largest`` is the size of the largest tensor."""
    expect(0 < host.bandwidth < math.inf, "host.bandwidth", host.bandwidth, "a number above 0: bytes per unit of cost")
    expect(0 <= host.limit < LIMIT, "host.limit", host.limit, f"0 to {LIMIT - 1} bytes")
    expected = f"copies of {largest} bytes in less than {LIMIT} of cost"
    expect(host.copy_cost(largest) < LIMIT, "host.bandwidth", host.bandwidth, expected)


def _check_reservation(problem: Problem, row: Reservation, place: str) -> None:
    """Raise InputError where a reservation breaks a rule."""
    for name in ("since", "until", "of"):
        op = getattr(row, name)
        if op is not None:
            expect(0 <= op < len(problem.ops), f"{place}.{name}", op, f"an operator, 0 to {len(problem.ops) - 1}")
            expect(problem.ops[op].once, f"{place}.{name}", f"operator {problem.ops[op].id}", "one that may run once only")
    expect(0 <= row.times < 1 << 16, f"{place}.times", row.times, f"0 to {(1 << 16) - 1}")
    expect((row.of is not None) == (row.times > 0), f"{place}.of", row.of, "an operator where times is above 0, else null")
    least = -LIMIT if row.times else -1
    expect(least < row.size < LIMIT, f"{place}.size", f"{row.size}", f"{least + 1} to {LIMIT - 1} bytes")


def of_graph(graph: GraphRules, costs: Mapping[str, int] | None = None, limit: int | None = None) -> Problem:
    """Problem of a graph: what is computed again.

    Parameters
    ----------
    costs
        By the id of the operator; 1 for those that it does not name. By default what each writes, in bytes.
    limit
        Bytes that may be live at once.
    """
    return Problem(
        tensors=tuple(Tensor(id=tensor.id, size=tensor.size, alias_of=tensor.alias_of) for tensor in graph.tensors),
        ops=tuple(
            Op(
                id=op.id,
                reads=op.reads,
                writes=op.writes,
                in_place=op.in_place,
                cost=_written(graph, op) if costs is None else costs.get(op.id, 1),
                once=op.has_effects,
                kind=op.kind,
            )
            for op in graph.ops
        ),
        inputs=graph.inputs,
        outputs=graph.outputs,
        free_inputs=graph.free_inputs,
        precedences=graph.precedences,
        limit=limit,
        name=graph.name,
    )


def _written(graph: GraphRules, op: OpLike) -> int:
    return sum(graph.tensors[tensor].size for tensor in op.writes if graph.tensors[tensor].alias_of is None)


def amended(problem: Problem, changes: Mapping[str, Any]) -> Problem:
    """The problem with the option ``capacity`` as its limit."""
    return msgspec.structs.replace(problem, limit=changes["capacity"])
