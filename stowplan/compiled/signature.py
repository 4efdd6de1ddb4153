"""Signatures of the Python functions that are compiled to machine code, and how their arguments are passed to it.

Types of parameters and results are read from the annotations. The machine code has the calling convention of C: it gets the
address of one array of 64-bit slots. A number takes one slot. An array takes one slot for its address and one for its length in
each dimension. A tuple takes the slots of its members, one after the other. The slots of the results follow those of the
arguments.
"""

from __future__ import annotations

import struct
import typing
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import index
from typing import Any

import numpy as np
import numpy.typing as npt

from stowplan.compiled.tables import row_type


@dataclass(frozen=True)
class Number:
    """A Python number.

    Parameters
    ----------
    kind
        ``int``, ``float`` or ``bool``; each is passed in 64 bits.
    """

    kind: type

    def slots(self, value: Any) -> list[int]:
        """The slot of a number; raises TypeError or struct.error for a value that cannot be converted."""
        if self.kind is float:
            return [struct.unpack("q", struct.pack("d", value))[0]]
        return [bool(value) if self.kind is bool else index(value)]

    def result(self, slots: Sequence[int]) -> Any:
        """The number in a slot that the compiled function has written."""
        return struct.unpack("d", struct.pack("q", slots[0]))[0] if self.kind is float else self.kind(slots[0])


@dataclass(frozen=True)
class Array:
    """A contiguous array."""

    dtype: np.dtype[Any]
    """Type of the elements."""
    dimensions: int
    """Number of dimensions."""

    def slots(self, value: Any) -> list[int]:
        """The slots of an array; raises TypeError if it has another type or number of dimensions, or is not contiguous."""
        if (
            not isinstance(value, np.ndarray)
            or value.dtype != self.dtype
            or value.ndim != self.dimensions
            or not value.flags.c_contiguous
        ):
            kind = f"{value.ndim}-d array of {value.dtype}" if isinstance(value, np.ndarray) else type(value).__name__
            raise TypeError(f"found a {kind}, expected a contiguous {self.dimensions}-d array of {self.dtype}")
        return [value.ctypes.data, *value.shape]


@dataclass(frozen=True)
class Record:
    """A tuple or a named tuple."""

    members: tuple[Kind, ...]
    """Types of the members."""
    named: type | None = None
    """The class of the named tuple; None for a plain tuple."""

    def slots(self, value: Any) -> list[int]:
        """The slots of all members; raises ValueError if their number is wrong, and the errors of their own ``slots``."""
        return [slot for kind, member in zip(self.members, value, strict=True) for slot in kind.slots(member)]


Kind = Number | Array | Record


@dataclass(frozen=True)
class Signature:
    """The signature of one function."""

    parameters: tuple[Kind, ...]
    """Types of the parameters, in their order."""
    results: tuple[Number, ...]
    """Types of the returned numbers; empty for a function that returns nothing."""
    is_tuple: bool
    """Whether the function returns a tuple."""


def signature_of(function: Callable[..., Any]) -> Signature:
    """The signature of a function, read from its annotations.

    Raises
    ------
    TypeError
        An annotation is missing or cannot be passed to C; the message names the function and the parameter.
    """
    hints = typing.get_type_hints(function, include_extras=True)
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    place = f"{function.__module__}.{function.__name__}"
    parameters = tuple(_kind(hints.get(name), f"{place}, {name}") for name in names)
    returned = hints.get("return")
    if returned is type(None):
        return Signature(parameters, (), False)
    kind = _kind(returned, f"{place}, what it returns")
    results = kind.members if isinstance(kind, Record) else (kind,)
    if not all(isinstance(result, Number) for result in results):
        raise TypeError(f"{place} returns {returned}; compiled functions write arrays that they are given, and return numbers")
    return Signature(parameters, typing.cast(tuple[Number, ...], results), isinstance(kind, Record))


def _kind(annotation: Any, place: str) -> Kind:
    """The type that an annotation stands for; raises TypeError, which names the place, if it cannot be passed to C."""
    if annotation in (int, float, bool):
        return Number(annotation)
    dimensions = 1
    if typing.get_origin(annotation) is typing.Annotated:
        annotation, dimensions = typing.get_args(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is npt.NDArray:
        # From NumPy 2.5 on, NDArray is a lazily evaluated type alias (PEP 695), and the origin of an annotation is the alias
        # itself. In earlier versions the origin is np.ndarray, see below.
        return Array(np.dtype(arguments[0]), dimensions)
    if origin is np.ndarray:
        return Array(np.dtype(typing.get_args(arguments[1])[0]), dimensions)
    if origin is tuple and Ellipsis not in arguments:
        return Record(tuple(_kind(member, place) for member in arguments))
    if isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
        hints = typing.get_type_hints(annotation, include_extras=True)
        return Record(tuple(_kind(hints[name], f"{place}.{name}") for name in annotation._fields), annotation)
    # A table is a sequence of rows, which are objects of a class with annotated int fields. It is passed as an array of
    # records.
    if origin is not None and issubclass(origin, Sequence) and hasattr(arguments[0], "__annotations__"):
        return Array(row_type(arguments[0]), 1)
    raise TypeError(f"{place}: found {annotation}, which does not pass to C")
