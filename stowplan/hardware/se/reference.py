"""A loop body run in NumPy, iteration by iteration, as the graph says: what the simulator's numbers are compared with."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from stowplan.errors import UsageError
from stowplan.hardware.se.operations import Lanes, compute
from stowplan.models.modulo_scheduling.problem import Operand, Problem


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
    needs = [
        {problem.number[operand.instruction] for operand in each.operands if operand.instruction and operand.distance == 0}
        for each in problem.instructions
    ]
    order: list[int] = []
    done: set[int] = set()
    while len(order) < len(needs):
        ready = [number for number, needed in enumerate(needs) if number not in done and needed <= done]
        order += ready
        done.update(ready)
    return order
