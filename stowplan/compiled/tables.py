"""Tables whose rows compiled functions read by field name: NumPy's record arrays.

Code that reads a field of a record is compiled in a third of the time that code needs that reads an element of an array.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

R = TypeVar("R")

#: Values of one field in all rows.
Column = Sequence[int] | NDArray[np.int64] | NDArray[np.bool_]


def row_type(kind: type) -> np.dtype[Any]:
    """The memory layout of a row of ``kind``, a class of annotated int fields: 8 bytes for each field, in their order."""
    # A field with the name of an attribute of NumPy's records could be read by compiled code, but not by Python.
    assert not {*kind.__annotations__} & {*dir(np.record)}, kind
    return np.dtype((np.record, [(name, np.int64) for name in kind.__annotations__]))


def records(kind: type[R], count: int) -> Sequence[R]:
    """A table of ``count`` rows of ``kind``, a class of annotated int fields, all zero."""
    return cast(Sequence[R], np.zeros(count, row_type(kind)).view(np.recarray))


def filled(kind: type[R], count: int, columns: Mapping[str, Column]) -> Sequence[R]:
    """A table of ``count`` rows with these columns, by field name. A column may be shorter than the table; the rest of the
    field is then zero. Raises ValueError for a longer column or an unknown field."""
    table: Any = records(kind, count)
    for name, column in columns.items():
        table[name][: len(column)] = column
    return cast(Sequence[R], table)


def values(table: Any, name: str) -> list[int]:
    """One field of all rows as a list. Reading the rows one by one would take NumPy a microsecond each."""
    return cast(list[int], table[name].tolist())


def plain(kind: type[R], table: Any, which: NDArray[np.int64]) -> list[R]:
    """The rows with the numbers ``which`` as plain Python objects of class ``kind`` with int fields."""
    objects = []
    for row in np.asarray(table[which]).tolist():
        objects.append(kind())
        for name, value in zip(kind.__annotations__, row, strict=True):
            setattr(objects[-1], name, value)
    return objects
