"""From a program and a target to a memory-mapping problem."""

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

CostModel = Literal["roofline", "table", "measured", "signatures"]

#: Latency of one run of a step: the largest of some pieces, or a table.
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
    """The memory-mapping problem of a program on a target.

    Parameters
    ----------
    program, target
        What runs, and where.
    cost_model
        ``"roofline"``; ``"table"``, which needs ``cycles``; ``"measured"``, which needs ``measurements``; ``"signatures"``,
        which needs ``signatures``. Steps that the data lack have roofline costs. None takes the model of the data given, else
        the target's.
    capacity
        Bytes of fast memory, instead of the target's.
    stalls
        May the program wait for copies? The target's default where None.
    alias_rule
        What values that share storage must have in common, see ``docs/reference/memory-mapping.md``.
    name
        Name of the problem; the program's where None.

    Returns
    -------
    Problem
        Latencies in ps, sizes in bytes.

    Raises
    ------
    UsageError
        An unknown cost model, or one whose data were not given.
    InputError
        A program that breaks a rule of the problem.
    """
    given = {"table": cycles, "measured": measurements, "signatures": signatures}
    model: str = cost_model or next((name for name, data in given.items() if data is not None), target.cost_model)
    if capacity is not None:
        target = target.with_capacity(capacity)
    latency = _latency_of(model, program, target, cycles, measurements, signatures)
    steps = []
    for step in program.steps:
        uses = tuple([Use(use.tensor, use.is_output, use.bytes) for use in step.uses])
        cost = latency(step)
        pieces, table = ((), cost) if isinstance(cost, Table) else (cost, None)
        steps.append(Step(step.name, step.opcode, step.weight, uses, pieces, table))
    tensors = [
        Tensor(
            name=tensor.name,
            size=max(tensor.size, 1),  # an empty tensor still has an address
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
        notes=bounded(program.notes),
    )


def _latency_of(
    model: str,
    program: Program,
    target: Target,
    cycles: CycleTable | None,
    measurements: Measurements | None,
    signatures: SignatureCosts | None,
) -> Callable[[ProgramStep], Latency]:
    if model not in get_args(CostModel):
        raise UsageError(f"found cost model {model!r}, expected one of {', '.join(get_args(CostModel))}")
    if model == "table":
        if cycles is None:
            raise UsageError("the cost model 'table' needs cycles: two modules with the compiler's estimates")
        estimates = cycles.steps

        def from_table(step: ProgramStep) -> Latency:
            estimate = estimates.get(step.name)
            return roofline_pieces(step, target) if estimate is None else table_pieces(step, estimate, target)

        return from_table
    if model == "measured":
        if measurements is None:
            raise UsageError("the cost model 'measured' needs measurements: a file of measured latencies")
        entries = measurements.by_step(program)

        def from_measurements(step: ProgramStep) -> Latency:
            entry = entries.get(step.name)
            return roofline_pieces(step, target) if entry is None else entry.table(step, target)

        return from_measurements
    if model == "signatures":
        if signatures is None:
            raise UsageError("the cost model 'signatures' needs a latency table: compiled modules, or a file made of them")
        costs = signatures

        def from_signatures(step: ProgramStep) -> Latency:
            return costs.step_table(step, target) or roofline_pieces(step, target)

        return from_signatures
    return lambda step: roofline_pieces(step, target)
