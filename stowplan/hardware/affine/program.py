"""Affine programs: tensors, copies, which are loop nests with one load and one store, and operators.

A *load* has a value for every iteration of a loop nest. It maps the loop indices to an element of a tensor by quasi-affine
expressions, ``v = t[f(i)]``. It consists of several pieces if different parts of the loop nest read different tensors.

An operator reads each operand through a load: the operand is the array of the load's values, whose shape is the extents of the
loop nest. The program does not say what the operator computes from these arrays, so a load can be rewritten to read other
tensors without a change of the operator.

Every tensor is written before it is read, and is not written again after that. Inputs exist from the start.

The *bank rule* of an operator says along which dimensions its operands and outputs may be spread over the banks of an on-chip
memory (:mod:`stowplan.hardware.affine.rules`).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from stowplan.errors import InputError
from stowplan.hardware.affine.expression import Expression, index

#: Expressions of identity accesses by rank; they are cached since they are needed often.
_IDENTITIES: dict[int, tuple[Expression, ...]] = {}

UNSPREAD = -1
"""In bank rules, stands for an array that is not spread over banks."""


class Bound(NamedTuple):
    """The condition ``low <= expression <= high``."""

    expression: Expression
    low: int
    high: int


@dataclass(frozen=True)
class Piece:
    """An access of some iterations of a loop nest: in each, it reads one element of a tensor, or a constant."""

    tensor: str | None
    """Name of the tensor; None for the constant ``fill``."""
    index: tuple[Expression, ...] = ()
    """One expression over the loop indices for each dimension of the tensor."""
    domain: tuple[Bound, ...] = ()
    """The piece applies to the iterations in which all these conditions hold; to all iterations if empty."""
    fill: float = 0.0
    """The constant that is read if ``tensor`` is None."""


@dataclass(frozen=True)
class Load:
    """A value for every iteration of a loop nest: it is read by the first piece whose conditions hold in the iteration."""

    extents: tuple[int, ...]
    """Number of iterations of each loop, outermost first; loop ``k`` runs over ``[0, extents[k])``."""
    pieces: tuple[Piece, ...]
    dynamic: bool = False
    """Whether the operator selects elements of the operand at run time, as a gather does, so that its real access is not
    affine."""

    @property
    def tensors(self) -> tuple[str, ...]:
        """Names of the tensors that the pieces read, each once, in the order of the pieces."""
        return tuple(dict.fromkeys(piece.tensor for piece in self.pieces if piece.tensor is not None))


@dataclass(frozen=True)
class Store:
    """The element of a tensor that every iteration of a loop nest writes."""

    tensor: str
    index: tuple[Expression, ...]
    """One expression over the loop indices for each dimension of the tensor."""


@dataclass(frozen=True)
class Copy:
    """A loop nest that loads a value and stores it in every iteration: pure data movement."""

    name: str
    op: str
    """Name of the operation that it was created from, such as ``transpose`` or ``slice``."""
    load: Load
    store: Store

    @property
    def extents(self) -> tuple[int, ...]:
        """Number of iterations of each loop, outermost first."""
        return self.load.extents

    @property
    def loads(self) -> tuple[Load, ...]:
        """The copy's only load, for uniform access to statements."""
        return (self.load,)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Name of the tensor that it writes."""
        return (self.store.tensor,)


Option = tuple[int, ...]
"""One way to compute an operator: the spread dimension of each operand, as the operator sees it, followed by the spread
dimension of each output; :data:`UNSPREAD` for those that are not spread."""


@dataclass(frozen=True)
class Operator:
    """An operation that computes: it reads each operand through a load, and writes complete tensors."""

    name: str
    op: str
    loads: tuple[Load, ...]
    outputs: tuple[str, ...]
    attributes: dict[str, Any] = field(default_factory=dict, compare=False, hash=False)
    options: tuple[Option, ...] = ()
    """The bank rule: all options that are allowed, the usual one first."""
    restricted: bool = False
    """Whether the hardware's compute unit imposes the rule, as for convolutions, whose channels must be spread. Otherwise the
    rule only requires that operands and outputs are spread alike."""


Statement = Copy | Operator


@dataclass(frozen=True)
class Tensor:
    """An array. Its elements are identified by their indices; how they are laid out in memory is open."""

    name: str
    shape: tuple[int, ...]
    item_bytes: int = 4

    @property
    def elements(self) -> int:
        """Number of elements."""
        return prod(self.shape)

    @property
    def bytes(self) -> int:
        """Size of all elements in bytes."""
        return self.elements * self.item_bytes


@dataclass(frozen=True)
class Program:
    """Statements in an order in which they can run; :func:`stowplan.hardware.affine.check.check` checks a program."""

    name: str
    tensors: dict[str, Tensor]
    inputs: tuple[str, ...]
    """Names of the tensors that are in main memory from the start: inputs, weights, constants."""
    statements: tuple[Statement, ...]
    outputs: tuple[str, ...]
    """Names of the tensors that are read after the program's end."""

    def copies(self) -> Iterator[Copy]:
        """All copies, in the order of the statements."""
        return (statement for statement in self.statements if isinstance(statement, Copy))

    def tensor(self, name: str, place: str) -> Tensor:
        """Tensor with this name; raises InputError with ``place`` if there is none."""
        tensor = self.tensors.get(name)
        if tensor is None:
            raise InputError(f"found unknown tensor {name!r}", place=place)
        return tensor


def identity(rank: int) -> tuple[Expression, ...]:
    """Expressions of the access ``t[i0, i1, ...]`` to a tensor of this rank."""
    expressions = _IDENTITIES.get(rank)
    if expressions is None:
        expressions = _IDENTITIES[rank] = tuple(index(number) for number in range(rank))
    return expressions


def whole(tensor: Tensor, dynamic: bool = False) -> Load:
    """Load of a complete tensor in its own shape."""
    return Load(tensor.shape, (Piece(tensor.name, identity(len(tensor.shape))),), dynamic)
