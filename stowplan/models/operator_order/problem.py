"""The instance of operator order: operators, the tensors they read and write, and what must come before what.

See docs/reference/operator-order.md.
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
    """A value. It has bytes of its own, or is a view of another tensor's."""

    id: str
    size: int
    """Bytes. A view's say nothing of memory: it takes none of its own."""
    alignment: int = 1
    """Its offset is a multiple of this many bytes. A view has its base's."""
    alias_of: int | None = None
    """Number of the tensor whose bytes it shares (a view of it, or the same memory written again); None has its own."""
    offset: int | msgspec.UnsetType = msgspec.UNSET
    """Of a view: bytes from the begin of that tensor to its own. Left out where it is 0."""

    @property
    def start(self) -> int:
        """The offset as a number."""
        return self.offset or 0


class Op(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """An operator: it runs once, and needs what it reads and what it writes in memory while it runs."""

    id: str
    reads: tuple[int, ...] = ()
    """Numbers of tensors."""
    writes: tuple[int, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    """Pairs (operand, result): the result may take the operand's bytes where no one needs the operand any more."""
    kind: str = ""
    """What it computes, for people."""

    @property
    def has_effects(self) -> bool:
        """Every operator runs once; precedences say what effects are."""
        return False


class Problem(ProblemDocument["Plan"], GraphRules, frozen=True, forbid_unknown_fields=True, dict=True, kw_only=True):
    """A validated instance; construction raises :class:`~stowplan.errors.InputError` where it breaks a rule."""

    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    """In the order given: a baseline. It need not be one in which they can run."""
    inputs: tuple[int, ...] = ()
    """Numbers of tensors that are there from the start."""
    outputs: tuple[int, ...] = ()
    """Numbers of tensors that are there to the end."""
    results: tuple[int, ...] = ()
    """Numbers of the tensors that the program returns, in its order, one perhaps twice; what it stores is one that no operator
    touches. Empty where the reader does not say."""
    free_inputs: bool = True
    """Whether the bytes of an input are free after its last reader; else inputs are there to the end."""
    precedences: tuple[tuple[int, int], ...] = ()
    """Pairs of operators: the first runs before the second."""
    name: str = ""
    format: str = "stowplan.operator_order.problem"
    version: int = 1

    def __post_init__(self) -> None:
        self.check_rules()

    @cached_property
    def digest(self) -> str:
        """Hex SHA-256 of what a plan depends on: everything but the name, the results and the kinds of operators."""
        ops = [msgspec.structs.replace(op, kind="") for op in self.ops]
        return files.digest([self.tensors, ops, self.inputs, self.outputs, self.free_inputs, self.precedences])


def of_graph(graph: GraphRules) -> Problem:
    """Problem of a graph: an order of its operators, and offsets."""
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
