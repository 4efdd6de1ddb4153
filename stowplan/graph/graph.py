"""The graph that every reader makes from a model file: operators, the tensors between them, and constraints on their order.

A *lowering* translates a graph into a problem:

- operator order, which asks for an order of the operators and an offset for each tensor
  (:func:`stowplan.models.operator_order.problem.of_graph`)
- packing, which asks for the offsets in the order of the file (:func:`stowplan.frontends.graph.lowering.arena_problem`)
- banked packing, which asks for one of several memories for each tensor
  (:func:`stowplan.frontends.graph.lowering.banks_problem`)
- rematerialization, which asks which tensors are computed again to save memory
  (:func:`stowplan.models.rematerialization.problem.of_graph`)

The rules of a valid graph are in :mod:`stowplan.graph.rules`, and further promises of readers in :mod:`stowplan.graph.spec`.
Tensors and operators are named by their numbers, which are their positions in the fields ``tensors`` and ``ops``. A *view* is a
tensor that shares the bytes of another one. The *base* of a tensor is the tensor that owns its bytes: the tensor itself, or for
a view the end of its chain of views.
"""

from __future__ import annotations

import msgspec

from stowplan.graph.rules import GraphRules


class Tensor(msgspec.Struct, frozen=True, kw_only=True):
    """A tensor, which has bytes of its own or is a view of another tensor's bytes."""

    id: str
    """Name, which no other tensor has."""
    size: int
    """Bytes. A view takes no memory of its own, whatever its size."""
    alignment: int = 1
    """Its offset is a multiple of this many bytes. The offset of a view follows from that of its base."""
    alias_of: int | None = None
    """Number of the tensor whose bytes it shares, as a view of it or as another value written to the same memory; None if it
    has bytes of its own."""
    start: int = 0
    """For a view: bytes from the start of the tensor ``alias_of`` to its own start."""
    dtype: str = ""
    """Type of its elements, as the file format names it; empty if it has none, such as memory inside an operator."""
    shape: tuple[int, ...] | None = None
    """Size of each dimension; None if it has no shape."""


class Op(msgspec.Struct, frozen=True, kw_only=True):
    """An operator. It runs once; while it runs, its inputs and outputs are in memory."""

    id: str
    """Name, which no other operator has."""
    kind: str = ""
    """The operation, as the file format names it."""
    reads: tuple[int, ...] = ()
    """Numbers of the tensors that it reads."""
    writes: tuple[int, ...] = ()
    """Numbers of the tensors that it writes; no other operator writes one of them."""
    in_place: tuple[tuple[int, int], ...] = ()
    """Pairs (operand, result) of tensor numbers: the result may overwrite the operand's bytes if no other operator still needs
    the operand."""
    has_effects: bool = False
    """Whether it has effects other than its results, or gives other results when it runs again. It then may not run twice,
    and ``precedences`` fix its position."""


class Graph(msgspec.Struct, GraphRules, frozen=True, dict=True, kw_only=True):
    """A validated graph. Creating one that breaks a rule raises :class:`~stowplan.errors.InputError`."""

    tensors: tuple[Tensor, ...]
    """The tensors, in any order."""
    ops: tuple[Op, ...]
    """Operators in the order of the file, in which they can run."""
    inputs: tuple[int, ...] = ()
    """Numbers of tensors that exist from the start."""
    outputs: tuple[int, ...] = ()
    """Numbers of tensors that exist until the end."""
    results: tuple[int, ...] = ()
    """Numbers of the tensors that the program returns, in its order; a number may occur twice. A constant that is returned is a
    tensor that no operator reads or writes. Empty if the reader does not know the results."""
    free_inputs: bool = True
    """Whether the bytes of an input are free after its last reader; otherwise inputs exist until the end."""
    precedences: tuple[tuple[int, int], ...] = ()
    """Pairs of operator numbers: the first operator runs before the second."""
    name: str = ""
    """Name of the model, for people."""

    def __post_init__(self) -> None:
        self.check_rules()
