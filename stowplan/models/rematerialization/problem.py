"""The rematerialization problem: operators that may run more than once, their costs, and a limit on the bytes that are live.

A plan is a sequence of runs of operators. Each run produces a new *instance* of the tensors that the operator writes. The rules
for plans are on docs/reference/rematerialization.md; the rules for graphs are in :mod:`stowplan.graph.rules`.
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

#: The sum of all operators' costs and the limit in bytes must be less than this. Sums then fit into 64 bits even if each
#: operator runs a thousand times.
LIMIT = 1 << 52


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tensor. It has bytes of its own, or it is a view and shares the bytes of another tensor."""

    id: str
    """Name of the tensor."""
    size: int
    """Size in bytes. The size of a view does not count, since a view needs no memory of its own."""
    alias_of: int | None = None
    """Number of the tensor whose bytes it shares; None if it has bytes of its own."""

    @property
    def alignment(self) -> int:
        """Always 1, since plans of this kind have no offsets."""
        return 1

    @property
    def start(self) -> int:
        """Always 0, since plans of this kind have no offsets."""
        return 0


class Op(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An operator. Each of its runs needs all tensors that it reads, and computes all tensors that it writes."""

    id: str
    """Name of the operator."""
    reads: tuple[int, ...] = ()
    """Numbers of the tensors that it reads."""
    writes: tuple[int, ...] = ()
    """Numbers of the tensors that it writes."""
    in_place: tuple[tuple[int, int], ...] = ()
    """Pairs (operand, result): the result may reuse the operand's bytes if no later step needs this instance of the operand."""
    cost: int = 0
    """Cost of one run, such as its time or FLOPs, in the same unit for all operators."""
    once: bool = False
    """Whether it must not run more than once, because it draws random numbers or has side effects."""
    kind: str = ""
    """Name of the operation, for people."""

    @property
    def has_effects(self) -> bool:
        """Whether it must not run more than once."""
        return self.once


class Reservation(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Bytes of the limit that something outside the graph occupies during a part of the plan, such as an optimizer's state.

    The reservation is in force from the run of operator ``since`` up to, but not including, the run of operator ``until``. If
    both are the same operator, it is in force during that run only. These two operators, and ``of``, must be marked ``once``,
    so that each of them has only one run.

    If several reservations are in force at the same time, each must fit by itself, and their bytes are not added up. They
    describe different situations in which the graph may run.
    """

    size: int
    """Number of bytes, to which ``times`` may add more. If ``times`` is above 0, it may be negative, to subtract bytes that all
    uses of the graph share: ``times`` counts them once for each use, although they exist only once."""
    since: int | None = None
    """Number of the operator with whose run it begins; None if it is in force from the start of the plan."""
    until: int | None = None
    """Number of the operator before whose run it ends; None if it is in force to the end of the plan."""
    times: int = 0
    """A factor: the bytes that are live while operator ``of`` runs are added to ``size`` this many times. It describes programs
    that use the same graph several times, for example once for each layer. While one use runs, ``times`` other uses have run up
    to operator ``of`` and continue later, and each of them keeps the bytes that are live there."""
    of: int | None = None
    """Number of the operator whose live bytes ``times`` multiplies; None if ``times`` is 0."""

    @property
    def is_of_one_run(self) -> bool:
        """Whether it is in force only during the run of one operator."""
        return self.since is not None and self.since == self.until


class Host(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """Memory of a host, such as the RAM of a GPU's computer. Values can be sent to it and fetched back while operators run.

    In each direction, copies run one after the other in the order in which they are issued.
    """

    bandwidth: float
    """Bytes per unit of cost, in each direction."""
    limit: int
    """Number of bytes that may be on the host at once; 0 means that there is no host."""

    def __post_init__(self) -> None:
        # The digest is computed from the text of the number. It must be the same for an integer and for the float that is read
        # from a file.
        msgspec.structs.force_setattr(self, "bandwidth", float(self.bandwidth))

    def copy_cost(self, size: int) -> int:
        """Duration of a copy of this number of bytes on an idle channel, in units of cost, rounded up."""
        # The division is exact, so that only its result is rounded.
        return math.ceil(size / Fraction(self.bandwidth))


class Problem(ProblemDocument["Plan"], GraphRules, frozen=True, forbid_unknown_fields=True, dict=True, kw_only=True):
    """A rematerialization problem. Constructing one that breaks a rule raises :class:`~stowplan.errors.InputError`."""

    tensors: tuple[Tensor, ...]
    """The tensors. Their *numbers* are their positions in this tuple."""
    ops: tuple[Op, ...]
    """The operators in the order of the input. If they can run in this order, it is a baseline; but it may also be an order in
    which an operator comes before one that it needs. Their *numbers* are their positions in this tuple."""
    inputs: tuple[int, ...] = ()
    """Numbers of the tensors that exist before the first operator runs."""
    outputs: tuple[int, ...] = ()
    """Numbers of the tensors that must still exist after the last operator."""
    free_inputs: bool = True
    """Whether the bytes of an input may be reused after the last operator that reads it. If false, inputs are live to the
    end."""
    precedences: tuple[tuple[int, int], ...] = ()
    """Pairs of operators: all runs of the first come before all runs of the second."""
    limit: int | None = None
    """Number of bytes that may be live at once; None for no limit."""
    host: Host | msgspec.UnsetType = msgspec.UNSET
    """The host that values can be sent to. Files omit the field if there is none."""
    reserved: tuple[Reservation, ...] | msgspec.UnsetType = msgspec.UNSET
    """Bytes of the limit that are not available during some part of the plan. Files omit the field if there are none."""
    name: str = ""
    """Name of the problem, for people."""
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
        """The host, if it has any memory; otherwise None."""
        return self.host if self.host is not msgspec.UNSET and self.host.limit else None

    @property
    def reservations(self) -> tuple[Reservation, ...]:
        """The field ``reserved`` as a tuple: empty if it is unset."""
        return self.reserved or ()

    def copy_cost(self, tensor: int) -> int:
        """Duration of a copy of a tensor to the host or back, in units of cost, rounded up; 0 without a host."""
        return 0 if self.channel is None else self.channel.copy_cost(self.tensors[tensor].size)

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of everything that plans depend on; the name and the kinds of operators are left out."""
        ops = [msgspec.structs.replace(op, kind="") for op in self.ops]
        rules: list[Any] = [self.tensors, ops, self.inputs, self.outputs, self.free_inputs, self.precedences, self.limit]
        if self.channel is not None:
            rules.append(self.channel)
        return files.digest([*rules, self.reservations] if self.reservations else rules)


def _check(host: Host, largest: int) -> None:
    """Raise InputError if the host breaks a rule. ``largest`` is the size in bytes of the largest tensor."""
    expect(0 < host.bandwidth < math.inf, "host.bandwidth", host.bandwidth, "a number above 0: bytes per unit of cost")
    expect(0 <= host.limit < LIMIT, "host.limit", host.limit, f"0 to {LIMIT - 1} bytes")
    expected = f"copies of {largest} bytes in less than {LIMIT} of cost"
    expect(host.copy_cost(largest) < LIMIT, "host.bandwidth", host.bandwidth, expected)


def _check_reservation(problem: Problem, row: Reservation, place: str) -> None:
    """Raise InputError if a reservation breaks a rule; ``place`` is its position in the input, for the message."""
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
    """Build the rematerialization problem of a graph.

    Parameters
    ----------
    costs
        Cost of one run of each operator, by the operator's id; operators that are missing in it cost 1. If it is None, the cost
        of every operator is the number of bytes that it writes.
    limit
        Number of bytes that may be live at once; None for no limit.
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
    """Total size in bytes of the tensors that an operator writes, without views."""
    return sum(graph.tensors[tensor].size for tensor in op.writes if graph.tensors[tensor].alias_of is None)


def amended(problem: Problem, changes: Mapping[str, Any]) -> Problem:
    """The problem with ``changes["capacity"]``, the value of the option ``--capacity``, as its limit."""
    return msgspec.structs.replace(problem, limit=changes["capacity"])
