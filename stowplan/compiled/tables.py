"""Tables whose rows compiled functions read by name: NumPy's record arrays.

A field of a record takes a third of the time to compile that an element of an array does.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypeVar, cast

import numpy as np
from numpy.typing import NDArray

R = TypeVar("R")

#: Values of a field, row by row.
Column = Sequence[int] | NDArray[np.int64] | NDArray[np.bool_]


def row_type(kind: type) -> np.dtype[Any]:
    """How a row of ``kind``, a class of annotated int fields, stands in memory: 8 bytes a field, in their order."""
    # NumPy's own attributes of a record would hide such fields from Python, though not from compiled code.
    assert not {*kind.__annotations__} & {*dir(np.record)}, kind
    return np.dtype((np.record, [(name, np.int64) for name in kind.__annotations__]))


def records(kind: type[R], count: int) -> Sequence[R]:
    """``count`` rows of ``kind``, a class of annotated int fields, all zero."""
    return cast(Sequence[R], np.zeros(count, row_type(kind)).view(np.recarray))


def filled(kind: type[R], count: int, columns: Mapping[str, Column]) -> Sequence[R]:
    """Rows with these values; a column may be shorter than the table."""
    table: Any = records(kind, count)
    for name, column in columns.items():
        table[name][: len(column)] = column
    return cast(Sequence[R], table)


def values(table: Any, name: str) -> list[int]:
    """A field of all rows: one by one, NumPy takes a microsecond for each."""
    return cast(list[int], table[name].tolist())


def plain(kind: type[R], table: Any, which: NDArray[np.int64]) -> list[R]:
    """Those rows as plain objects with Python ints."""
    objects = []
    for row in np.asarray(table[which]).tolist():
        objects.append(kind())
        for name, value in zip(kind.__annotations__, row, strict=True):
            setattr(objects[-1], name, value)
    return objects
