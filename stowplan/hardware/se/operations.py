"""What the operations of a tile compute, on arrays of lanes.

Operations with known operands compute what their names say. Graphs of other tools leave out constants, and do not say which
operand is the address, the predicate or the value: there, and for loads, stores and the like, an operation is a fixed function
of all its operands and their order, so that a value that goes astray still shows.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

Lanes: TypeAlias = npt.NDArray[Any]
"""One value for each lane: float64 or complex128, shape ``[lanes]``."""


def _whole(values: Lanes) -> npt.NDArray[np.int64]:
    # Wrapped into 32 bits, as a lane would.
    return np.asarray(np.remainder(np.rint(np.real(values)), 2.0**32), np.int64)


def _guarded(above: Lanes, below: Lanes) -> Lanes:
    return np.divide(above, np.where(below == 0, 1.0, below))


#: (number of operands, function) of the operations that need to be told apart from opaque ones.
_EXACT: dict[str, tuple[int, Callable[..., Any]]] = {
    "add": (2, lambda a, b: a + b),
    "sub": (2, lambda a, b: a - b),
    "mul": (2, lambda a, b: a * b),
    "madd": (3, lambda a, b, c: a * b + c),
    "div": (2, _guarded),
    "neg": (1, lambda a: -a),
    "copy": (1, lambda a: a),
    "min": (2, lambda a, b: np.minimum(a, b)),
    "max": (2, lambda a, b: np.maximum(a, b)),
    "and": (2, lambda a, b: (_whole(a) & _whole(b)).astype(float)),
    "or": (2, lambda a, b: (_whole(a) | _whole(b)).astype(float)),
    "xor": (2, lambda a, b: (_whole(a) ^ _whole(b)).astype(float)),
    "shl": (2, lambda a, b: a * 2.0 ** (_whole(b) % 32)),
    "shr": (2, lambda a, b: a * 2.0 ** -(_whole(b) % 32)),
    "lt": (2, lambda a, b: (np.real(a) < np.real(b)).astype(float)),
    "gt": (2, lambda a, b: (np.real(a) > np.real(b)).astype(float)),
    "eq": (2, lambda a, b: (a == b).astype(float)),
    "select": (3, lambda a, b, c: np.where(a != 0, b, c)),
}

#: Operations without operands of their own kind: data from outside the loop body.
STREAMED = ("load", "input")
INVARIANT = ("parameter", "constant")

#: Fixed functions of all operands.
_OPAQUE = (*STREAMED, *INVARIANT, "store", "output", "merge", "compare", "extend", "concatenate", "exp", "branch", "not")

#: All operations.
OPERATIONS = (*_EXACT, *_OPAQUE)

#: Names that other tools use, in lower case.
OTHER_NAMES = {
    "mult": "mul", "fadd": "add", "fsub": "sub", "fmul": "mul", "fdiv": "div", "fma": "madd", "mac": "madd", "muladd": "madd",
    "ls": "shl", "sl": "shl", "shift_left": "shl", "rs": "shr", "sr": "shr", "ars": "shr", "sra": "shr", "lshr": "shr",
    "ashr": "shr", "lod": "load", "loadb": "load", "loadh": "load", "memr": "load", "imp": "load", "ld": "load",
    "oload": "parameter", "oloadb": "parameter", "oloadh": "parameter", "param": "parameter",
    "movc": "constant", "const": "constant", "movcl": "constant",
    "st": "store", "str": "store", "storeb": "store", "storeh": "store", "ostore": "store", "ostoreb": "store",
    "ostoreh": "store", "memw": "store", "out": "output", "in": "input",
    "cmerge": "merge", "phi": "merge", "sel": "select", "mux": "select", "cmp": "compare", "icmp": "compare", "fcmp": "compare",
    "clt": "lt", "cgt": "gt", "sext": "extend", "zext": "extend", "trunc": "extend", "cat": "concatenate",
    "bge": "branch", "br": "branch", "mov": "copy", "move": "copy", "nop": "copy", "relay": "copy", "route": "copy",
}  # fmt: skip


def known_operation(name: str) -> str | None:
    """Our name of an operation, whatever tool it comes from; None for one we do not know."""
    lower = name.lower()
    return lower if lower in OPERATIONS else OTHER_NAMES.get(lower)


def compute(op: str, operands: Sequence[Lanes], lanes: int) -> Lanes:
    """Result of an operation; operands and result have shape ``[lanes]``."""
    exact = _EXACT.get(op)
    with np.errstate(all="ignore"):
        if exact is not None and exact[0] == len(operands):
            return np.asarray(exact[1](*operands))
        # Each operand in another way, so that two that change places are noticed; bounded, so that recurrences stay finite.
        phase = OPERATIONS.index(op) / len(OPERATIONS) + np.arange(lanes)
        total: Lanes = np.cos(phase)
        for place, operand in enumerate(operands):
            total = total + np.sin((place + 1.5) * operand + phase) / (place + 1)
        return total
