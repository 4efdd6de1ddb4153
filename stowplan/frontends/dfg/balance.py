"""Makes paths equally long if delays are limited, by inserting copy instructions, which pass a value on, into shorter paths.

The *delay* of a value is the number of clocks that it waits at its consumer. If the rules limit delays, two paths between the
same instructions must take nearly the same time. The number of copies for each value follows from a small integer program over
the times of instructions and the initiation interval (II). For each value, the difference between the times of its producer
and its consumer has a lower and an upper bound (:mod:`stowplan.models.modulo_scheduling.differences`). An II is *refuted* if
these bounds prove that no plan has it. Every copy between a producer and a consumer raises both bounds: the lower one by the
copy's latency, and the upper one also by the longest time on links and the largest delay. The program minimizes the number of
copies first, and the II second. It does not model tiles and slots, so that a balanced graph may still have no plan.
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

#: The largest number of copies between a producer and a consumer, which bounds the times in the integer program.
MOST_COPIES = 64

#: CP-SAT's limit in deterministic seconds, so that a graph gets the same copies on every machine.
_WORK = 1.0

#: Limit in seconds of wall time, in case that the deterministic limit does not end the solver. It is so large that it should
#: never decide the result.
_SECONDS = 300.0


def balanced(problem: Problem, fill: Callable[[Instruction], Instruction] = lambda copy: copy) -> Problem:
    """The problem with copy instructions (op ``copy``), if limits on delays refute every II of the problem without them.

    The problem itself is returned if its rules do not limit delays, if an II is not refuted, or if no numbers of copies that
    help are found.

    Parameters
    ----------
    problem
        The problem.
    fill
        Gets a copy instruction without latency and tiles, and returns it with them. By default it is returned unchanged, so
        that it has the latency of the machine and may be on any tile.

    Raises
    ------
    InputError
        The problem with copies breaks a rule that every problem must satisfy, for example because the machine cannot execute
        ``copy``.
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
    """The number of copies on each edge that needs any; empty if no numbers of copies help, or if none are found in time."""
    structure, machine = Structure(problem), problem.machine
    limit = problem.rules.max_delay or 0
    sample = fill(Instruction(id="copy", op="copy"))
    latency = machine.latency if sample.latency is None else sample.latency
    model = cp_model.CpModel()
    horizon = (max(problem.latencies) + farthest(problem) + latency + limit) * (structure.count + MOST_COPIES)
    ii = model.new_int_var(min(resource_mii(problem, structure), machine.spoke_depth), machine.spoke_depth, "II")
    time = [model.new_int_var(0, horizon, f"time {number}") for number in range(structure.count)]
    # Suppose that values may not wait, and that the tiles can be coloured with 0 and 1 such that links take an odd number of
    # clocks exactly between different colours. Then the clocks that the links of an edge take in total have the same parity as
    # the sum of the colours of the tiles of its producer and its consumer.
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
    # The II is at most the depth of the spoke RAM, which has an entry for each slot of a tile's schedule. With this weight, one
    # copy less outweighs every difference of the II.
    total = sum(copies.values())
    model.minimize((machine.spoke_depth + 1) * total + ii)
    result = cpsat_runner.run(model, time_limit=_SECONDS, deterministic_limit=_WORK)
    if not result.is_found:
        return {}
    return {edge: result.value(count) for edge, count in copies.items() if result.value(count)}
