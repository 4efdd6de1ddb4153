"""Affine programs: tensors, copies that are loop nests with one load and one store, and operators that read through loads.

A load is quasi-affine: it maps the indices of a loop nest to an index of a tensor (the paper's ``v = t[f(i)]``), in pieces
where different parts of the nest read different tensors. An operator sees each operand as an array of its own, as large as the
loop nest of its load. What it computes of it is its own affair, so that rewriting a load never changes an operator.

Every tensor is written before it is read, and no more after that. Inputs are there from the start.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from stowplan.errors import InputError
from stowplan.hardware.affine.expression import Expression, index

#: Loops or dimensions of an identity access are asked for again and again.
_IDENTITIES: dict[int, tuple[Expression, ...]] = {}

UNSPREAD = -1
"""In bank rules: not spread over banks."""


class Bound(NamedTuple):
    """``low <= expression <= high``, both inclusive."""

    expression: Expression
    low: int
    high: int


@dataclass(frozen=True)
class Piece:
    """Where part of a loop nest reads: one element of a tensor, or a constant."""

    tensor: str | None
    """None where it reads the constant."""
    index: tuple[Expression, ...] = ()
    """One expression over the loop indices for each dimension of the tensor."""
    domain: tuple[Bound, ...] = ()
    """All hold where the piece applies; empty for the whole nest."""
    fill: float = 0.0
    """The constant."""


@dataclass(frozen=True)
class Load:
    """A value for every iteration of a loop nest: from the first piece whose domain holds."""

    extents: tuple[int, ...]
    """Iterations of each loop, outermost first; loop ``k`` runs over ``[0, extents[k])``."""
    pieces: tuple[Piece, ...]
    dynamic: bool = False
    """Which elements an operator looks at is known only when it runs (a gather), so its real access is not affine."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Tensors read, each once, in order."""
        return tuple(dict.fromkeys(piece.tensor for piece in self.pieces if piece.tensor is not None))


@dataclass(frozen=True)
class Store:
    """Where every iteration of a loop nest writes."""

    tensor: str
    index: tuple[Expression, ...]


@dataclass(frozen=True)
class Copy:
    """A loop nest that loads a value and stores it: pure data movement."""

    name: str
    op: str
    """What it was made of: ``transpose``, ``slice`` ..."""
    load: Load
    store: Store

    @property
    def extents(self) -> tuple[int, ...]:
        """Iterations of each loop."""
        return self.load.extents

    @property
    def loads(self) -> tuple[Load, ...]:
        """Its one load."""
        return (self.load,)

    @property
    def outputs(self) -> tuple[str, ...]:
        """The tensor it writes."""
        return (self.store.tensor,)


Option = tuple[int, ...]
"""How one way to compute an operator wants its data spread: a dimension for each operand, as the operator sees it, and then for
each output; :data:`UNSPREAD` for those that are not spread."""


@dataclass(frozen=True)
class Operator:
    """Something that computes: reads each operand through a load and writes whole tensors."""

    name: str
    op: str
    loads: tuple[Load, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict, compare=False, hash=False)
    options: tuple[Option, ...] = ()
    """Bank rule: every way that is allowed, the usual one first."""
    restricted: bool = False
    """Whether the rule comes from the compute unit (a convolution wants its channels spread), not only from equality."""


Statement = Copy | Operator


@dataclass(frozen=True)
class Tensor:
    """An array; kept row by row for the purposes of naming its elements only."""

    name: str
    shape: tuple[int, ...]
    item_bytes: int = 4

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Bytes of all elements."""
        return self.elements * self.item_bytes


@dataclass(frozen=True)
class Program:
    """Statements in an order in which they can run. Check one with :func:`stowplan.hardware.affine.check.check`."""

    name: str
    tensors: dict[str, Tensor]
    inputs: tuple[str, ...]
    """Tensors that are there from the start, in main memory: inputs, weights, constants."""
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    """Tensors that someone reads when the program is done."""

    def copies(self) -> Iterator[Copy]:
        """All loop nests that only move data."""
        return (statement for statement in self.statements if isinstance(statement, Copy))

    def tensor(self, name: str, place: str) -> Tensor:
        """Tensor of a name; raises InputError naming ``place`` where there is none."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise InputError(f"found unknown tensor {name!r}", place=place)
        return tensor


def identity(rank: int) -> tuple[Expression, ...]:
    """Every index as it is: the access ``t[i0, i1, ...]``."""
    expressions = _IDENTITIES.get(rank)
    if expressions is None:
        expressions = _IDENTITIES[rank] = tuple(index(number) for number in range(rank))
    return expressions


def whole(tensor: Tensor, dynamic: bool = False) -> Load:
    """Load of a whole tensor as it is."""
    return Load(tensor.shape, (Piece(tensor.name, identity(len(tensor.shape))),), dynamic)
