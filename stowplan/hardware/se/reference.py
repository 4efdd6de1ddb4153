"""A loop body run in NumPy, iteration by iteration, as the graph says: what the simulator's numbers are compared with.

Operations with known operands compute what their names say. Graphs of other tools leave out constants, and do not say which
operand is the address, the predicate or the value: there, and for loads, stores and the like, an operation is a fixed function
of all its operands and their order, so that a value that goes astray still shows. So is a generic operation, of which nothing
is known but its name.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable, Mapping, Sequence
from graphlib import TopologicalSorter
from typing import Any, TypeAlias

import numpy as np
import numpy.typing as npt

from stowplan.errors import UsageError
from stowplan.models.modulo_scheduling.problem import GENERIC, Operand, Problem

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


def generic_operation(name: str) -> str:
    """The operation that stands for an op of which only the name is known."""
    return f"{GENERIC}{name}"


def compute(op: str, operands: Sequence[Lanes], lanes: int) -> Lanes:
    """Result of an operation, generic ones included; operands and result have shape ``[lanes]``."""
    exact = _EXACT.get(op)
    with np.errstate(all="ignore"):
        if exact is not None and exact[0] == len(operands):
            return np.asarray(exact[1](*operands))
        # Each operand in another way, so that two that change places are noticed; bounded, so that recurrences stay finite.
        phase = _phase(op) + np.arange(lanes)
        total: Lanes = np.cos(phase)
        for place, operand in enumerate(operands):
            total = total + np.sin((place + 1.5) * operand + phase) / (place + 1)
        return total


def _phase(op: str) -> float:
    """What tells one opaque operation from another, in [0, 1)."""
    return zlib.crc32(op.encode()) / 2**32 if op.startswith(GENERIC) else OPERATIONS.index(op) / len(OPERATIONS)


def make_data(problem: Problem, iterations: int, lanes: int = 4, seed: int = 0) -> dict[str, Lanes]:
    """Random data for all variables: shape ``[iterations, lanes]`` where a variable streams, else ``[lanes]``."""
    chance = np.random.default_rng(seed)
    return {
        variable.id: chance.uniform(-2.0, 2.0, (iterations, lanes) if variable.streams else lanes)
        for variable in problem.variables
    }


def check_data(problem: Problem, data: Mapping[str, Lanes], iterations: int) -> int:
    """Number of lanes; raises UsageError where a variable has no data, or data of a wrong shape."""
    lanes = {np.shape(values)[-1] for values in data.values() if np.ndim(values)} or {1}
    if len(lanes) != 1:
        raise UsageError(f"found data of {' and '.join(map(str, sorted(lanes)))} lanes, expected the same number everywhere")
    wide = int(lanes.pop())
    for variable in problem.variables:
        if variable.id not in data:
            raise UsageError(f"found no data for the variable {variable.id!r}")
        expected = (iterations, wide) if variable.streams else (wide,)
        if np.shape(data[variable.id]) != expected:
            raise UsageError(f"found data of shape {np.shape(data[variable.id])} for {variable.id!r}, expected {expected}")
    return wide


def run_graph(problem: Problem, data: Mapping[str, Lanes], iterations: int) -> dict[str, list[Lanes]]:
    """Values of every instruction by id, one for each iteration."""
    lanes = check_data(problem, data, iterations)
    streams = {variable.id: variable.streams for variable in problem.variables}
    values: dict[str, list[Lanes]] = {instruction.id: [] for instruction in problem.instructions}
    order = _order(problem)

    def operand_value(operand: Operand, iteration: int) -> Lanes:
        if operand.constant is not None:
            return np.full(lanes, operand.constant)
        if operand.variable is not None:
            held = data[operand.variable]
            return np.asarray(held[iteration] if streams[operand.variable] else held)
        assert operand.instruction is not None
        if iteration < operand.distance:
            return np.full(lanes, operand.initial)
        return values[operand.instruction][iteration - operand.distance]

    for iteration in range(iterations):
        for number in order:
            instruction = problem.instructions[number]
            operands = [operand_value(operand, iteration) for operand in instruction.operands]
            values[instruction.id].append(compute(instruction.op, operands, lanes))
    return values


def _order(problem: Problem) -> list[int]:
    """Instructions such that each comes after those it needs within its iteration."""
    needs = {
        number: [
            problem.number[name] for operand in instruction.operands if (name := operand.instruction) and not operand.distance
        ]
        for number, instruction in enumerate(problem.instructions)
    }
    return list(TopologicalSorter(needs).static_order())
