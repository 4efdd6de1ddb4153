"""Makes paths equally long if delays are limited, by inserting instructions that pass a value on (op ``copy``) into shorter
ones.

The number of copies for each value follows from a small integer program over the times of instructions and the initiation
interval (II): with k copies between them, the difference of the times of producer and consumer is between the bounds for k + 1
steps (:mod:`stowplan.models.modulo_scheduling.differences`). It minimizes the number of copies first, and the II second. Tiles
and slots are not modelled, so that a balanced graph may still have no plan.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec
from ortools.sat.python import cp_model

from stowplan.models import cpsat_runner
from stowplan.models.modulo_scheduling.bounds import resource_mii, unrefuted_iis
from stowplan.models.modulo_scheduling.differences import farthest, hop_span, two_colours
from stowplan.models.modulo_scheduling.problem import Edge, Instruction, Operand, Problem
from stowplan.models.modulo_scheduling.structure import Structure

#: The largest number of copies between a producer and a consumer.
MOST_COPIES = 64

#: CP-SAT's limit in deterministic seconds, so that a graph gets the same copies on every machine.
_WORK = 1.0

#: Limit in seconds of wall time.
_SECONDS = 300.0


def balanced(problem: Problem, fill: Callable[[Instruction], Instruction] = lambda copies: copies) -> Problem:
    """The problem with copies, if limits on delays make every II impossible without; otherwise, or if copies do not help,
    itself.

    Parameters
    ----------
    fill
        Sets the latency and the tiles of a copy.
    """
    if problem.rules.max_delay is None or unrefuted_iis(problem).iis:
        return problem
    counts = _copies(problem, fill)
    if not counts:
        return problem
    copies: list[Instruction] = []
    operands = [list(instruction.operands) for instruction in problem.instructions]
    used_names = {instruction.id for instruction in problem.instructions}
    for edge, count in counts.items():
        at = producer = problem.instructions[edge.source].id
        for _ in range(count):
            name = f"{producer}.delay{len(copies)}"
            while name in used_names:
                name += "_"
            used_names.add(name)
            copies.append(fill(Instruction(id=name, op="copy", operands=(Operand(instruction=at),))))
            at = name
        # The distance and the initial value belong to the edge after the last copy.
        operands[edge.target][edge.operand] = msgspec.structs.replace(operands[edge.target][edge.operand], instruction=at)
    rewritten = (
        msgspec.structs.replace(instruction, operands=tuple(new))
        for instruction, new in zip(problem.instructions, operands, strict=True)
    )
    return msgspec.structs.replace(problem, instructions=(*rewritten, *copies))


def _copies(problem: Problem, fill: Callable[[Instruction], Instruction]) -> dict[Edge, int]:
    """The number of copies for each edge that needs some; empty if no numbers of copies help."""
    structure, machine = Structure(problem), problem.machine
    limit = problem.rules.max_delay or 0
    sample = fill(Instruction(id="copy", op="copy"))
    latency = machine.latency if sample.latency is None else sample.latency
    model = cp_model.CpModel()
    horizon = (max(problem.latencies) + farthest(problem) + latency + limit) * (structure.count + MOST_COPIES)
    ii = model.new_int_var(min(resource_mii(problem, structure), machine.spoke_depth), machine.spoke_depth, "II")
    time = [model.new_int_var(0, horizon, f"time {number}") for number in range(structure.count)]
    colours = limit == 0 and two_colours(structure) is not None
    colour = [model.new_bool_var(f"colour {number}") for number in range(structure.count)] if colours else []
    copies: dict[Edge, cp_model.IntVar] = {}
    for edge in problem.edges:
        if edge.asynchronous:
            continue
        span = hop_span(structure, structure.group[edge.source], structure.group[edge.target])
        if span is None:
            continue
        count = copies[edge] = model.new_int_var(0, MOST_COPIES, f"copies on {edge}")
        clocks: Any = time[edge.target] - time[edge.source] + ii * edge.distance - problem.latencies[edge.source]
        model.add(clocks >= latency * count + span[0])
        model.add(clocks <= (latency + farthest(problem) + limit) * count + span[1] + limit)
        if colours:
            turns = model.new_int_var(-horizon, horizon, f"turns of {edge}")
            model.add(clocks - latency * count == colour[edge.target] + colour[edge.source] + 2 * turns)
    total = sum(copies.values())
    model.minimize((machine.spoke_depth + 1) * total + ii)
    result = cpsat_runner.run(model, time_limit=_SECONDS, deterministic_limit=_WORK)
    if not result.is_found:
        return {}
    return {edge: result.value(count) for edge, count in copies.items() if result.value(count)}
