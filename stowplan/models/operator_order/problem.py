"""The operator-order problem: operators, the tensors that they read and write, and further precedences between operators.

The rules are on docs/reference/operator-order.md.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING

import msgspec

from stowplan import files
from stowplan.document import ProblemDocument
from stowplan.graph.rules import GraphRules

if TYPE_CHECKING:
    from stowplan.models.operator_order.plan import Plan  # noqa: F401


class Tensor(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A tensor. It has bytes of its own, or it is a view and shares the bytes of another tensor."""

    id: str
    """Name of the tensor."""
    size: int
    """Size in bytes. The size of a view does not count, since a view needs no memory of its own."""
    alignment: int = 1
    """The offset is a multiple of this number of bytes. The value of a view does not count."""
    alias_of: int | None = None
    """Number of the tensor whose bytes it shares, because it is a view or the same memory is written again; None if it has
    bytes of its own."""
    offset: int | msgspec.UnsetType = msgspec.UNSET
    """For a view: bytes from the start of ``alias_of`` to its own start. Files omit the field if it is 0."""

    @property
    def start(self) -> int:
        """The field ``offset`` as a number: 0 if it is unset."""
        return self.offset or 0


class Op(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An operator. It runs once, and all tensors that it reads or writes are in memory while it runs."""

    id: str
    """Name of the operator."""
    reads: tuple[int, ...] = ()
    """Numbers of the tensors that it reads."""
    writes: tuple[int, ...] = ()
    """Numbers of the tensors that it writes."""
    in_place: tuple[tuple[int, int], ...] = ()
    """Pairs (operand, result): the result may reuse the operand's bytes if no later operator needs the operand."""
    kind: str = ""
    """Name of the operation, for people."""

    @property
    def has_effects(self) -> bool:
        """Always false: every operator runs once anyway, and precedences keep side effects in their order."""
        return False


class Problem(ProblemDocument["Plan"], GraphRules, frozen=True, forbid_unknown_fields=True, dict=True, kw_only=True):
    """An operator-order problem. Constructing one that breaks a rule raises :class:`~stowplan.errors.InputError`."""

    tensors: tuple[Tensor, ...]
    """The tensors. Their *numbers* are their positions in this tuple."""
    ops: tuple[Op, ...]
    """The operators in the order of the input. This order is a baseline, but the operators need not be able to run in it. Their
    *numbers* are their positions in this tuple."""
    inputs: tuple[int, ...] = ()
    """Numbers of the tensors that exist before the first operator runs."""
    outputs: tuple[int, ...] = ()
    """Numbers of the tensors that must still exist after the last operator."""
    results: tuple[int, ...] = ()
    """Numbers of the tensors that the program returns, in its order; the same one may be returned twice. A result that the
    model file stores is a tensor that no operator reads or writes. Empty if the reader of the model does not provide them."""
    free_inputs: bool = True
    """Whether the bytes of an input may be reused after its last reader. If false, inputs are live to the end."""
    precedences: tuple[tuple[int, int], ...] = ()
    """Pairs of operators of which the first must run before the second."""
    name: str = ""
    """Name of the problem, for people."""
    format: str = "stowplan.operator_order.problem"
    version: int = 1

    def __post_init__(self) -> None:
        self.check_rules()

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of everything that plans depend on; name, results and kinds of operators are left out."""
        ops = [msgspec.structs.replace(op, kind="") for op in self.ops]
        return files.digest([self.tensors, ops, self.inputs, self.outputs, self.free_inputs, self.precedences])


def of_graph(graph: GraphRules) -> Problem:
    """Build the problem of finding an order of a graph's operators, and offsets for its tensors."""
    return Problem(
        tensors=tuple(
            Tensor(
                id=tensor.id,
                size=tensor.size,
                alignment=tensor.alignment,
                alias_of=tensor.alias_of,
                offset=tensor.start or msgspec.UNSET,
            )
            for tensor in graph.tensors
        ),
        ops=tuple(Op(id=op.id, reads=op.reads, writes=op.writes, in_place=op.in_place, kind=op.kind) for op in graph.ops),
        inputs=graph.inputs,
        outputs=graph.outputs,
        results=graph.results,
        free_inputs=graph.free_inputs,
        precedences=graph.precedences,
        name=graph.name,
    )
