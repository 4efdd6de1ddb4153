"""Kernels to try things on: those of the paper, and butterflies of the fast Fourier transform."""

from __future__ import annotations

from typing import Any

import msgspec

from stowplan.errors import UsageError
from stowplan.frontends.dfg.expression import trace
from stowplan.frontends.dfg.graph import Dfg
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Variable


def distance() -> Dfg:
    """Squared distance to a point, equation 1 of the paper without its root."""

    def kernel(x: Any, y: Any, z: Any, x0: float = 0.0, y0: float = 0.0, z0: float = 0.0) -> Any:
        return (x - x0) ** 2 + (y - y0) ** 2 + (z - z0) ** 2

    return trace(kernel, name="distance")


def vector_add() -> Dfg:
    """Sum of two streams."""
    return trace(lambda a, b: a + b, name="vector_add")


def multiply_add() -> Dfg:
    """Product of two streams plus a third."""
    return trace(lambda a, b, c: a * b + c, name="multiply_add")


def unrolled(graph: Dfg, times: int) -> Dfg:
    """``times`` iterations as one: each variable has a copy for each, and carried values come from the copy they belong to."""
    if times < 1:
        raise UsageError(f"found {times} copies, expected 1 or more")

    def moved(operand: Operand, copy: int) -> Operand:
        if operand.variable is not None:
            return msgspec.structs.replace(operand, variable=f"{operand.variable}_{copy}")
        if operand.instruction is None:
            return operand
        back, source = divmod(copy - operand.distance, times)
        return msgspec.structs.replace(operand, instruction=f"{operand.instruction}_{source}", distance=-back)

    instructions = tuple(
        Instruction(
            id=f"{each.id}_{copy}",
            op=each.op,
            operands=tuple(moved(operand, copy) for operand in each.operands),
            writes=tuple(f"{name}_{copy}" for name in each.writes),
        )
        for copy in range(times)
        for each in graph.instructions
    )
    variables = tuple(
        msgspec.structs.replace(each, id=f"{each.id}_{copy}") for copy in range(times) for each in graph.variables
    )
    results = frozenset(f"{name}_{copy}" for copy in range(times) for name in graph.results)
    return Dfg(f"{graph.name}_x{times}", instructions, variables, results=results)


def fft(points: int, *, inverse: bool = False, inputs: bool = False) -> Dfg:
    """Butterflies of a radix-2 transform, decimation in time: every instruction is a +- w·b on complex words.

    Parameters
    ----------
    points
        A power of two.
    inverse
        Conjugate twiddle factors; as usual, without the division by ``points``.
    inputs
        Whether the inputs are instructions too (op ``copy``), as for data that comes from another flow.

    The inputs are the variables ``x0`` to ``x{points - 1}``; every butterfly has twiddle factors of its own: ``w{stage}_{k}``.
    Results of the last stage are ``s{stage}_{k}`` for frequency k.
    """
    stages = points.bit_length() - 1
    if points < 2 or points != 1 << stages:
        raise UsageError(f"found {points} points, expected a power of two from 2")
    variables = [Variable(id=f"x{k}", streams=True) for k in range(points)]
    instructions = []
    if inputs:
        instructions = [Instruction(id=f"in{k}", op="copy", operands=(Operand(variable=f"x{k}"),)) for k in range(points)]
    for stage in range(1, stages + 1):
        for k in range(points):
            low, high = k & ~(1 << (stage - 1)), k | (1 << (stage - 1))
            twiddle = f"w{stage}_{k}"
            variables.append(Variable(id=twiddle))

            def value(at: int, stage: int = stage) -> Operand:
                if stage > 1:
                    return Operand(instruction=f"s{stage - 1}_{at}")
                # Decimation in time reads the input in bit-reversed order.
                order = int(format(at, f"0{stages}b")[::-1], 2)
                return Operand(instruction=f"in{order}") if inputs else Operand(variable=f"x{order}")

            operands = (value(high), Operand(variable=twiddle), value(low))
            instructions.append(Instruction(id=f"s{stage}_{k}", op="madd", operands=operands))
    name = f"{'i' if inverse else ''}fft{points}" + ("_inputs" if inputs else "")
    return Dfg(name, tuple(instructions), tuple(variables))
