"""Signatures of compiled functions, read from their annotations, and how their values pass to C.

What C is given is one array of 64-bit slots: each number is one slot, each array its address and its sizes, each tuple its
members one after the other; behind them are the slots of the results.
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
        ``int``, ``float`` or ``bool``: 64 bits each as C is given them.
    """

    kind: type

    def slots(self, value: Any) -> list[int]:
        """The number as one slot; raises an error where it is none."""
        if self.kind is float:
            return [struct.unpack("q", struct.pack("d", value))[0]]
        return [bool(value) if self.kind is bool else index(value)]

    def result(self, slots: Sequence[int]) -> Any:
        """The number that C left in a slot."""
        return struct.unpack("d", struct.pack("q", slots[0]))[0] if self.kind is float else self.kind(slots[0])


@dataclass(frozen=True)
class Array:
    """A contiguous array."""

    dtype: np.dtype[Any]
    dimensions: int

    def slots(self, value: Any) -> list[int]:
        """Address and sizes; raises TypeError where it is another array."""
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
    """A tuple, named or not."""

    members: tuple[Kind, ...]
    named: type | None = None

    def slots(self, value: Any) -> list[int]:
        """Those of its members."""
        return [slot for kind, member in zip(self.members, value, strict=True) for slot in kind.slots(member)]


Kind = Number | Array | Record


@dataclass(frozen=True)
class Signature:
    """Of one function."""

    parameters: tuple[Kind, ...]
    results: tuple[Number, ...]
    """None for a function that returns nothing."""
    is_tuple: bool
    """Whether it returns a tuple."""


def signature_of(function: Callable[..., Any]) -> Signature:
    """Signature of a function by its annotations.

    Raises
    ------
    TypeError
        An annotation is missing, or is nothing that passes to C; names the function and the parameter.
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
    if annotation in (int, float, bool):
        return Number(annotation)
    dimensions = 1
    if typing.get_origin(annotation) is typing.Annotated:
        annotation, dimensions = typing.get_args(annotation)
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is npt.NDArray:
        # From NumPy 2.5 it is an alias of its own (PEP 695), which stays what it is until its value is asked for.
        return Array(np.dtype(arguments[0]), dimensions)
    if origin is np.ndarray:
        return Array(np.dtype(typing.get_args(arguments[1])[0]), dimensions)
    if origin is tuple and Ellipsis not in arguments:
        return Record(tuple(_kind(member, place) for member in arguments))
    if isinstance(annotation, type) and issubclass(annotation, tuple) and hasattr(annotation, "_fields"):
        hints = typing.get_type_hints(annotation, include_extras=True)
        return Record(tuple(_kind(hints[name], f"{place}.{name}") for name in annotation._fields), annotation)
    # A table of rows: a class of annotated int fields.
    if origin is not None and issubclass(origin, Sequence) and hasattr(arguments[0], "__annotations__"):
        return Array(row_type(arguments[0]), 1)
    raise TypeError(f"{place}: found {annotation}, which does not pass to C")
