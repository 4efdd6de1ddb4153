"""Notation for accesses in loop nests: tensors that are indexed with quasi-affine functions of loop indices."""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.errors import InputError
from stowplan.hardware.affine.expression import Expression, Extents, add, constant, floor_divide, index, modulo, scale
from stowplan.hardware.affine.program import Tensor


class Index:
    """A quasi-affine function of loop indices, such as ``2 * i + j // 3``; Python's operators build it.

    These operators raise InputError, which names ``place``, if the function is not quasi-affine or a divisor is less than 1.

    Parameters
    ----------
    expression
        The function.
    extents
        Number of iterations of each loop, outermost first.
    place
        Which operator of the affine program uses the function, such as ``operator conv1``, for error messages.
    """

    def __init__(self, expression: Expression, extents: Extents, place: str):
        self.expression, self._extents, self._place = expression, extents, place

    def _other(self, other: object, sign: str) -> Expression:
        if isinstance(other, Index):
            return other.expression
        if isinstance(other, int) and not isinstance(other, bool):
            return constant(other)
        raise InputError(f"found {sign} with {type(other).__name__}, expected whole numbers in an index", place=self._place)

    def _made(self, expression: Expression) -> Index:
        return Index(expression, self._extents, self._place)

    def _number(self, other: object, sign: str) -> int:
        value = self._other(other, sign)
        if not value.is_constant:
            what = f"({self.expression.text()}) {sign} ({value.text()})"
            raise InputError(f"found a non-affine index {what}, expected a constant beside {sign}", place=self._place)
        if sign != "*" and value.constant < 1:
            raise InputError(f"found {sign} {value.constant}, expected at least 1", place=self._place)
        return value.constant

    def __add__(self, other: Index | int) -> Index:
        return self._made(add(self.expression, self._other(other, "+"), self._extents))

    __radd__ = __add__

    def __sub__(self, other: Index | int) -> Index:
        return self._made(add(self.expression, self._other(other, "-"), self._extents, -1))

    def __rsub__(self, other: Index | int) -> Index:
        return self._made(add(self._made(constant(0))._other(other, "-"), self.expression, self._extents, -1))

    def __neg__(self) -> Index:
        return self._made(scale(self.expression, -1))

    def __mul__(self, other: Index | int) -> Index:
        if isinstance(other, Index) and self.expression.is_constant:
            return other * self.expression.constant
        return self._made(scale(self.expression, self._number(other, "*")))

    __rmul__ = __mul__

    def __floordiv__(self, other: Index | int) -> Index:
        return self._made(floor_divide(self.expression, self._number(other, "//"), self._extents))

    def __rfloordiv__(self, other: int) -> Index:
        return self._made(self._made(constant(0))._other(other, "//")) // self

    def __mod__(self, other: Index | int) -> Index:
        return self._made(modulo(self.expression, self._number(other, "%"), self._extents))

    def __rmod__(self, other: int) -> Index:
        return self._made(self._made(constant(0))._other(other, "%")) % self


class Variable:
    """A tensor of a program that is being built.

    Indexing it with loop indices gives an *access*: ``y[i, 2 * j]`` is the pair of ``y`` and ``(i, 2 * j)``. The number of
    indices is checked when the program is built.
    """

    def __init__(self, tensor: Tensor):
        self.tensor = tensor

    @property
    def name(self) -> str:
        """Name of the tensor."""
        return self.tensor.name

    @property
    def shape(self) -> tuple[int, ...]:
        """Sizes of the dimensions of the tensor."""
        return self.tensor.shape

    def __getitem__(self, indices: Index | int | tuple[Index | int, ...]) -> tuple[Variable, tuple[Index | int, ...]]:
        return self, indices if isinstance(indices, tuple) else (indices,)


def reshaped(shape: Sequence[int], source: Sequence[int]) -> list[Expression]:
    """For each element of an array that was reshaped from ``source`` to ``shape``, the indices that it had before.

    Returns one expression for each dimension of ``source``, in terms of the indices of the reshaped array. Elements keep their
    row-major order. The caller has checked that both shapes have the same number of elements.
    """
    flat = constant(0)
    for at, size in enumerate(shape):
        flat = add(scale(flat, size), index(at), shape)
    coordinates: list[Expression] = []
    for size in reversed(source):
        coordinates.append(modulo(flat, size, shape))
        flat = floor_divide(flat, size, shape)
    return coordinates[::-1]


def expressions(indices: Sequence[Index | int], place: str) -> tuple[Expression, ...]:
    """The expressions of the indices in an access.

    Raises InputError, which names ``place``, for an index that is neither an :class:`Index` nor an integer.
    """
    affine = []
    for operand in indices:
        if isinstance(operand, Index):
            affine.append(operand.expression)
        elif isinstance(operand, int) and not isinstance(operand, bool):
            affine.append(constant(operand))
        else:
            raise InputError(f"found a non-affine index of type {type(operand).__name__}, expected whole numbers", place=place)
    return tuple(affine)
