"""Builds a memory-mapping problem from a program, a target and a cost model.

A *use* is a read or a write of one tensor by one step. A *cost model* gives the latency of a step, depending on which of its
uses are served from fast memory.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, get_args

from stowplan.errors import UsageError
from stowplan.hardware.costs.measured import Measurements
from stowplan.hardware.costs.roofline import CycleTable, roofline_pieces, table_pieces
from stowplan.hardware.costs.signatures import SignatureCosts
from stowplan.hardware.program import Program, ProgramStep
from stowplan.hardware.targets import Target
from stowplan.log import bounded
from stowplan.models.memory_mapping.problem import AliasRule, Loop, Piece, Problem, Stalls, Step, Table, Tensor, Use

#: The cost models: the roofline model; a compiler's estimates of two modules (table); measured latencies; and a latency table
#: by signatures of instructions with a learned prediction.
CostModel = Literal["roofline", "table", "measured", "signatures"]

#: Latency of one run of a step: the maximum of some pieces, which are affine functions of the uses in fast memory, or a table
#: with an entry for each choice of them.
Latency = tuple[Piece, ...] | Table


def make_problem(
    program: Program,
    target: Target,
    *,
    cost_model: CostModel | None = None,
    capacity: int | None = None,
    stalls: Stalls | None = None,
    alias_rule: AliasRule = "in_place",
    cycles: CycleTable | None = None,
    measurements: Measurements | None = None,
    signatures: SignatureCosts | None = None,
    name: str | None = None,
) -> Problem:
    """Builds the memory-mapping problem of a program on a target.

    Parameters
    ----------
    program
        The compiled program.
    target
        The machine.
    cost_model
        ``"roofline"``; ``"table"``, which needs ``cycles``; ``"measured"``, which needs ``measurements``; or ``"signatures"``,
        which needs ``signatures``. Steps without data have roofline costs. If it is None, the model is the one whose data are
        given or, if none are given, that of the target.
    capacity
        Bytes of fast memory; None for the target's capacity.
    stalls
        Whether the program may wait for copies, ``"allowed"`` or ``"forbidden"``; None for the target's default.
    alias_rule
        Which properties values that share storage must have in common; see ``docs/reference/memory-mapping.md``.
    cycles, measurements, signatures
        Data of the cost models. Only the data of the chosen model are used.
    name
        Name of the problem; None for the program's name.

    Returns
    -------
    Problem
        The problem, with latencies in ps and sizes in bytes.

    Raises
    ------
    UsageError
        The cost model is unknown, or its data are missing.
    InputError
        The program breaks a rule of memory-mapping problems, the data of the cost model are for another program, or the
        capacity is less than 1.
    """
    data_of_model: dict[str, CycleTable | Measurements | SignatureCosts | None] = {
        "table": cycles,
        "measured": measurements,
        "signatures": signatures,
    }
    model: str = cost_model or next((name for name, data in data_of_model.items() if data is not None), target.cost_model)
    if capacity is not None:
        target = target.with_capacity(capacity)
    latency = _latency_of(model, data_of_model.get(model), program, target)
    steps = []
    for step in program.steps:
        uses = tuple([Use(use.tensor, use.is_output, use.bytes) for use in step.uses])
        cost = latency(step) or roofline_pieces(step, target)
        pieces, table = ((), cost) if isinstance(cost, Table) else (cost, None)
        steps.append(Step(step.name, step.opcode, step.weight, uses, pieces, table))
    tensors = [
        Tensor(
            name=tensor.name,
            size=max(tensor.size, 1),  # The problem requires sizes of at least 1, because an empty tensor has an address, too.
            copy_in_ps=target.copies.in_ps(tensor.size),
            copy_out_ps=target.copies.out_ps(tensor.size),
            is_input=tensor.is_input,
            is_output=tensor.is_output,
            members=tensor.members,
        )
        for tensor in program.tensors
    ]
    return Problem(
        name=program.name if name is None else name,
        target=target.name,
        cost_model=model,
        capacity=int(target.fast_memory.capacity),
        steps=tuple(steps),
        tensors=tuple(tensors),
        loops=tuple(Loop(loop.start, loop.end, loop.trip_count) for loop in program.loops),
        alignment=int(target.fast_memory.alignment),
        channels=target.copies.channels,
        max_preloads=target.fast_memory.max_preloads,
        stalls=target.stalls if stalls is None else stalls,
        alias_rule=alias_rule,
        in_flight=program.in_flight,
        notes=bounded(program.notes),
    )


#: Words for error messages: the data that each cost model needs besides the target.
_NEEDS = {
    "table": "cycles: two modules with the compiler's estimates",
    "measured": "measurements: a file of measured latencies",
    "signatures": "a latency table: compiled modules, or a file made of them",
}


def _latency_of(
    model: str, data: CycleTable | Measurements | SignatureCosts | None, program: Program, target: Target
) -> Callable[[ProgramStep], Latency | None]:
    """A function that returns the latency of a step by a cost model, and None if the data have none for the step.

    Raises
    ------
    UsageError
        The cost model is unknown, or its data are missing.
    InputError
        There are measurements of a step that the program does not have.
    """
    if model not in get_args(CostModel):
        raise UsageError(f"found cost model {model!r}, expected one of {', '.join(get_args(CostModel))}")
    if model == "roofline":
        return lambda step: None
    if data is None:
        raise UsageError(f"the cost model {model!r} needs {_NEEDS[model]}")
    if isinstance(data, SignatureCosts):
        return lambda step: data.step_table(step, target)
    if isinstance(data, Measurements):
        entries = data.by_step(program)
        return lambda step: entries[step.name].table(step, target) if step.name in entries else None
    return lambda step: table_pieces(step, data.steps[step.name], target) if step.name in data.steps else None
