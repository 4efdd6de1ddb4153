"""Small loop bodies for tests of mappers."""

from __future__ import annotations

from benchmarks.lib.modulo_scheduling import kernels
from stowplan.frontends.dfg import lower
from stowplan.hardware.se.machines import load_machine
from stowplan.models.modulo_scheduling.machine import Machine
from stowplan.models.modulo_scheduling.problem import Instruction, Operand, Problem


def chain(count: int, *, back: int | None = None, machine: Machine | None = None) -> Problem:
    """Instructions that feed one another; ``back``: the first reads the last of this many iterations before."""
    made = []
    for number in range(count):
        operands = [Operand(instruction=f"n{number - 1}")] if number else []
        if number == 0 and back is not None:
            operands.append(Operand(instruction=f"n{count - 1}", distance=back))
        made.append(Instruction(id=f"n{number}", op="add", operands=tuple(operands)))
    return Problem(instructions=tuple(made), machine=machine or load_machine("se"), name=f"chain {count}")


def butterflies(points: int = 4) -> Problem:
    """A small Fourier transform with its inputs as instructions."""
    return lower(kernels.fft(points, inputs=True))


def distance() -> Problem:
    """The paper's kernel."""
    return lower(kernels.distance())
