"""The graph that every reader makes of a file: operators, the tensors between them, and what must come before what.

A lowering makes a problem of it: an order and offsets (:func:`stowplan.models.operator_order.problem.of_graph`), offsets in the
order given (:func:`stowplan.frontends.graph.lowering.arena_problem`), a bank of memory for each tensor
(:func:`stowplan.frontends.graph.lowering.banks_problem`), or what is computed again
(:func:`stowplan.models.rematerialization.problem.of_graph`). When a graph is one: :mod:`stowplan.graph.rules`. What readers
promise beside that: :mod:`stowplan.graph.spec`.
"""

from __future__ import annotations

import msgspec

from stowplan.graph.rules import GraphRules


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """A value. It has bytes of its own, or is a view of another tensor's."""

    id: str
    size: int
    """Bytes. A view's say nothing of memory: it takes none of its own."""
    alignment: int = 1
    """Its offset is a multiple of this many bytes. A view has its base's."""
    alias_of: int | None = None
    """Number of the tensor whose bytes it shares (a view of it, or the same memory written again); None has its own."""
    start: int = 0
    """Of a view: bytes from the begin of that tensor to its own."""
    dtype: str = ""
    """Type of its elements as its format calls it; empty where it has none, as memory inside an operator has none."""
    shape: tuple[int, ...] | None = None
    """None where it has none."""


class Op(msgspec.Struct, frozen=True, kw_only=True):
    """An operator: it runs once, and needs what it reads and what it writes in memory while it runs."""

    id: str
    kind: str = ""
    """What it computes, as its format calls it."""
    reads: tuple[int, ...] = ()
    """Numbers of tensors."""
    writes: tuple[int, ...] = ()
    in_place: tuple[tuple[int, int], ...] = ()
    """Pairs (operand, result): the result may take the operand's bytes where no one needs the operand any more."""
    has_effects: bool = False
    """Whether two runs differ, or do more than to compute results: it may not run twice, and ``precedences`` have its place."""


class Graph(msgspec.Struct, GraphRules, frozen=True, dict=True, kw_only=True):
    """A validated graph; construction raises :class:`~stowplan.errors.InputError` where it breaks a rule."""

    tensors: tuple[Tensor, ...]
    ops: tuple[Op, ...]
    """In the order of the file, in which they can run."""
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

    def __post_init__(self) -> None:
        self.check_rules()
