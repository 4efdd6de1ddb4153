"""Affine programs: tensors, operators, and copies, which are loop nests with one load and one store.

A *load* has a value for every iteration of a loop nest. It maps the loop indices to an element of a tensor by quasi-affine
expressions, ``v = t[f(i)]``. It consists of several pieces if different parts of the loop nest read different tensors.

An operator reads each operand through a load: the operand is the array of the load's values, whose shape is the extents of the
loop nest. The program does not say what the operator computes from these arrays, so a load can be rewritten to read other
tensors without a change of the operator.

Every tensor is written before it is read, and is not written again after that. Inputs exist from the start.

The *bank rule* of an operator says along which dimensions its operands and outputs may be spread over the banks of an on-chip
memory (:mod:`stowplan.hardware.affine.rules`). The dimension along which an array is spread is its *spread dimension*.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from math import prod
from typing import Any, NamedTuple

from stowplan.errors import InputError
from stowplan.hardware.affine.expression import Expression, index

#: Expressions of identity accesses by the rank of the tensor, which are cached because they are needed often.
_IDENTITIES: dict[int, tuple[Expression, ...]] = {}

UNSPREAD = -1
"""Bank rules have this number in the place of the spread dimension if an array is not spread over banks."""


class Bound(NamedTuple):
    """The condition ``low <= expression <= high``."""

    expression: Expression
    """An expression over loop indices."""
    low: int
    """Its smallest allowed value."""
    high: int
    """Its largest allowed value."""


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
    """The accesses, in the order in which their conditions are tried. In each iteration, the conditions of at least one piece
    hold."""
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
    """Name of the tensor."""
    index: tuple[Expression, ...]
    """One expression over the loop indices for each dimension of the tensor."""


@dataclass(frozen=True)
class Copy:
    """A loop nest that loads a value and stores it in every iteration: pure data movement."""

    name: str
    """Name, which no other statement has."""
    op: str
    """Name of the operation that it was created from, such as ``transpose`` or ``slice``."""
    load: Load
    """The value that each iteration reads."""
    store: Store
    """The element that each iteration writes."""

    @property
    def extents(self) -> tuple[int, ...]:
        """Number of iterations of each loop, outermost first."""
        return self.load.extents

    @property
    def loads(self) -> tuple[Load, ...]:
        """Its only load, under the name that operators have as well."""
        return (self.load,)

    @property
    def outputs(self) -> tuple[str, ...]:
        """Name of the only tensor that it writes, under the name that operators have as well."""
        return (self.store.tensor,)


Option = tuple[int, ...]
"""One way to compute an operator: the spread dimension of each operand, followed by that of each output; :data:`UNSPREAD` for
those that are not spread. The dimensions of an operand are those of the array of its load's values, not of the tensors that the
load reads."""


@dataclass(frozen=True)
class Operator:
    """An operation that computes: it reads each operand through a load, and writes complete tensors."""

    name: str
    """Name, which no other statement has."""
    op: str
    """Name of the operation, such as ``matmul``."""
    loads: tuple[Load, ...]
    """One load for each operand."""
    outputs: tuple[str, ...]
    """Names of the tensors that it writes."""
    attributes: dict[str, Any] = field(default_factory=dict, compare=False, hash=False)
    """Parameters of the operation, such as strides. They do not count when operators are compared."""
    options: tuple[Option, ...] = ()
    """The bank rule: all options that are allowed, the usual one first. An operator of a valid program has at least one."""
    restricted: bool = False
    """Whether the hardware's compute unit imposes the bank rule, as for convolutions, whose channels must be spread. Otherwise
    the rule only requires that operands and outputs are spread alike."""


Statement = Copy | Operator


@dataclass(frozen=True)
class Tensor:
    """An array. Its elements are identified by their indices; their layout in memory is not decided yet."""

    name: str
    """Name, which no other tensor has."""
    shape: tuple[int, ...]
    """Size of each dimension."""
    item_bytes: int = 4
    """Size of an element in bytes."""

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
    """Name of the program."""
    tensors: dict[str, Tensor]
    """All tensors by name."""
    inputs: tuple[str, ...]
    """Names of the tensors that are in main memory from the start: inputs, weights, constants."""
    statements: tuple[Statement, ...]
    """Copies and operators in an order in which they can run."""
    outputs: tuple[str, ...]
    """Names of the tensors that are read after the program's end."""

    def copies(self) -> Iterator[Copy]:
        """All copies, in the order of the statements."""
        return (statement for statement in self.statements if isinstance(statement, Copy))

    def tensor(self, name: str, place: str) -> Tensor:
        """The tensor with this name. If there is none, it raises InputError, which says that the name occurs at ``place``."""
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
    """A load that reads a complete tensor in its own shape; ``dynamic`` is that field of the load."""
    return Load(tensor.shape, (Piece(tensor.name, identity(len(tensor.shape))),), dynamic)
