"""Computes the results of a loop body in NumPy, iteration by iteration, for comparison with the simulator.

Arithmetic operations compute the function that their names say, if they have all operands. Graphs of other tools may omit
constants, and may not say which operand is the address, the predicate or the value. Operations with missing operands, loads,
stores and similar operations, and *generic* operations, of which only the name is known, are therefore *opaque*: each is an
arbitrary but fixed function of all its operands and their order. The results still differ if the simulator uses a wrong value
anywhere. A *variable* is data in the memory of one tile, which instructions read; it *streams* if every iteration reads a new
value.
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
"""One value for each lane (a lane processes independent data): float64 or complex128, shape ``[lanes]``."""


def _as_int32(values: Lanes) -> npt.NDArray[np.int64]:
    """The values, rounded to integers and wrapped to 32 bits, as in hardware."""
    return np.asarray(np.remainder(np.rint(np.real(values)), 2.0**32), np.int64)


def _quotient(dividend: Lanes, divisor: Lanes) -> Lanes:
    """The quotient of two values; a divisor of 0 counts as 1."""
    return np.divide(dividend, np.where(divisor == 0, 1.0, divisor))


#: The operations that are not opaque, each with its number of operands and its function.
_EXACT: dict[str, tuple[int, Callable[..., Any]]] = {
    "add": (2, lambda a, b: a + b),
    "sub": (2, lambda a, b: a - b),
    "mul": (2, lambda a, b: a * b),
    "madd": (3, lambda a, b, c: a * b + c),
    "div": (2, _quotient),
    "neg": (1, lambda a: -a),
    "copy": (1, lambda a: a),
    "min": (2, lambda a, b: np.minimum(a, b)),
    "max": (2, lambda a, b: np.maximum(a, b)),
    "and": (2, lambda a, b: (_as_int32(a) & _as_int32(b)).astype(float)),
    "or": (2, lambda a, b: (_as_int32(a) | _as_int32(b)).astype(float)),
    "xor": (2, lambda a, b: (_as_int32(a) ^ _as_int32(b)).astype(float)),
    "shl": (2, lambda a, b: a * 2.0 ** (_as_int32(b) % 32)),
    "shr": (2, lambda a, b: a * 2.0 ** -(_as_int32(b) % 32)),
    "lt": (2, lambda a, b: (np.real(a) < np.real(b)).astype(float)),
    "gt": (2, lambda a, b: (np.real(a) > np.real(b)).astype(float)),
    "eq": (2, lambda a, b: (a == b).astype(float)),
    "select": (3, lambda a, b, c: np.where(a != 0, b, c)),
}

#: Operations that bring data from outside the loop body: a new value in each iteration, or the same value in all iterations.
STREAMED = ("load", "input")
INVARIANT = ("parameter", "constant")

#: Names of opaque operations.
_OPAQUE = (*STREAMED, *INVARIANT, "store", "output", "merge", "compare", "extend", "concatenate", "exp", "branch", "not")

#: Names of all operations, without generic ones.
OPERATIONS = (*_EXACT, *_OPAQUE)


def generic_operation(name: str) -> str:
    """The name of the generic operation for an operation of which only the name is known."""
    return f"{GENERIC}{name}"


def compute(op: str, operands: Sequence[Lanes], lanes: int) -> Lanes:
    """The result of an operation, which may be generic; operands and result have shape ``[lanes]``. Raises ValueError for an
    operation that is neither generic nor in :data:`OPERATIONS`."""
    exact = _EXACT.get(op)
    with np.errstate(all="ignore"):
        if exact is not None and exact[0] == len(operands):
            return np.asarray(exact[1](*operands))
        # Each operand has a different function, so that an exchange of operands changes the result. Results are bounded, so
        # that recurrences stay finite.
        phase = _phase(op) + np.arange(lanes)
        total: Lanes = np.cos(phase)
        for place, operand in enumerate(operands):
            total = total + np.sin((place + 1.5) * operand + phase) / (place + 1)
        return total


def _phase(op: str) -> float:
    """A number in [0, 1) that depends on the operation's name, so that opaque operations differ."""
    return zlib.crc32(op.encode()) / 2**32 if op.startswith(GENERIC) else OPERATIONS.index(op) / len(OPERATIONS)


def make_data(problem: Problem, iterations: int, lanes: int = 4, seed: int = 0) -> dict[str, Lanes]:
    """Random data for all variables, by id.

    The shape is ``[iterations, lanes]`` for variables that have a new value in each iteration, and ``[lanes]`` for others.
    """
    generator = np.random.default_rng(seed)
    return {
        variable.id: generator.uniform(-2.0, 2.0, (iterations, lanes) if variable.streams else lanes)
        for variable in problem.variables
    }


def check_data(problem: Problem, data: Mapping[str, Lanes], iterations: int) -> int:
    """Checks data for all variables, and returns the number of lanes, which is 1 if there are no data.

    Raises
    ------
    UsageError
        A variable has no data, or data of a wrong shape or of another number of lanes.
    """
    lanes = {np.shape(values)[-1] for values in data.values() if np.ndim(values)} or {1}
    if len(lanes) != 1:
        raise UsageError(f"found data of {' and '.join(map(str, sorted(lanes)))} lanes, expected the same number everywhere")
    width = int(lanes.pop())
    for variable in problem.variables:
        if variable.id not in data:
            raise UsageError(f"found no data for the variable {variable.id!r}")
        expected = (iterations, width) if variable.streams else (width,)
        if np.shape(data[variable.id]) != expected:
            raise UsageError(f"found data of shape {np.shape(data[variable.id])} for {variable.id!r}, expected {expected}")
    return width


def run_graph(problem: Problem, data: Mapping[str, Lanes], iterations: int) -> dict[str, list[Lanes]]:
    """Computes the loop body of a problem.

    Parameters
    ----------
    problem
        The modulo-scheduling problem, whose instructions form the loop body.
    data
        Content of every variable: ``[iterations, lanes]`` for variables that stream, ``[lanes]`` for others.
    iterations
        Number of iterations.

    Returns
    -------
    dict
        For every instruction, by its id, its results in all iterations, each of shape ``[lanes]``.

    Raises
    ------
    UsageError
        A variable has no data, or data of a wrong shape.
    """
    lanes = check_data(problem, data, iterations)
    streams = {variable.id: variable.streams for variable in problem.variables}
    values: dict[str, list[Lanes]] = {instruction.id: [] for instruction in problem.instructions}
    order = _order(problem)

    def operand_value(operand: Operand, iteration: int) -> Lanes:
        if operand.constant is not None:
            return np.full(lanes, operand.constant)
        if operand.variable is not None:
            content = data[operand.variable]
            return np.asarray(content[iteration] if streams[operand.variable] else content)
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
    """The numbers of the instructions, each after those whose results it reads in the same iteration."""
    needs = {
        number: [
            problem.number[name] for operand in instruction.operands if (name := operand.instruction) and not operand.distance
        ]
        for number, instruction in enumerate(problem.instructions)
    }
    return list(TopologicalSorter(needs).static_order())
