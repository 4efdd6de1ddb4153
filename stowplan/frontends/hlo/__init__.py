"""Front end for HLO: reads the text of a compiled module, and makes a program from it.

HLO is the intermediate representation of the XLA compiler. A module has computations, which consist of instructions; in a
*scheduled* module they are in the order in which they run. A program is a sequence of *steps* that read and write *tensors*
(:mod:`stowplan.hardware.program`). A module of this package imports only modules that come before it in this list:

- ``opcodes``: facts about opcodes, attributes and memory spaces, read from ``known.toml``
- ``shape``: shapes in HLO text
- ``module``: an HLO module with its computations and instructions
- ``access``: bytes that an instruction moves, and results that it writes in place
- ``flops``: arithmetic of instructions
- ``in_place``: results that may be written over an operand that is no longer needed
- ``parse``: parses HLO text as XLA dumps it
- ``trips``: how often a while loop runs
- ``walk``: walks through a module with its calls and loops inlined
- ``check``: warns of everything in a module that is not modelled
- ``placed``: memories, cycles and signatures of steps in a compiled module
- ``schedule``: the schedule of a module
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from stowplan import files
from stowplan.errors import InputError, UsageError, naming
from stowplan.frontends.formats import InputFormat, Opened, Source, TargetFamily
from stowplan.frontends.hlo.check import check_module
from stowplan.frontends.hlo.module import Computation, HloModule, Instruction, estimated_cycles
from stowplan.frontends.hlo.parse import parse_module, read_module
from stowplan.frontends.hlo.schedule import START, Schedule, ScheduledStep
from stowplan.frontends.hlo.shape import ArrayShape, Shape, TupleShape
from stowplan.frontends.options import ReadOptions
from stowplan.hardware.program import Program, ProgramStep, ProgramTensor, ProgramUse
from stowplan.hardware.targets import Target, load_target, target_names
from stowplan.models.memory_mapping.problem import InFlight

if TYPE_CHECKING:
    from stowplan.hardware.costs import CycleTable
    from stowplan.hardware.costs.signatures import SignatureCosts


__all__ = ["ArrayShape", "Computation", "HloModule", "Instruction", "Shape", "TupleShape", "parse_module", "read_module"]


#: How donated parameters are modelled: see :func:`program_from_module`.
Donation = Literal["free", "tied"]


def read_program(path: str | Path, *, donation: Donation = "free") -> Program:
    """Reads a program from a plain or gzip file of scheduled HLO text.

    Parameters
    ----------
    path
        Path of the file.
    donation
        See :func:`program_from_module`.

    Raises
    ------
    InputError
        The file cannot be read, is not HLO text, or is not a valid scheduled module (:func:`program_from_module`).
    TimeLimitError
        The time limit for reading inputs is over.
    """
    return program_from_module(read_module(path), donation=donation)


def program_from_module(module: HloModule, *, donation: Donation = "free") -> Program:
    """Makes a program from a scheduled module.

    Parameters
    ----------
    donation
        How parameters are modelled that the caller donates, so that an output may use their storage (``input_output_alias``).
        ``"free"``: parameter and output are two tensors. ``"tied"``: they are one tensor, which is both input and output, as in
        XLA; if both are needed at the same time, they remain two tensors.

    Raises
    ------
    InputError
        The module is not scheduled, an instruction does not fit its operands or computations, or the program exceeds a limit of
        :class:`~stowplan.frontends.hlo.schedule.Schedule`; the message names the line.
    TimeLimitError
        The time limit for reading inputs is over.
    """
    with naming(module.source):
        if not module.is_scheduled:
            raise InputError(
                f"found a module without is_scheduled=true, expected a scheduled one{_hint(module)}", place="line 1"
            )
        check_module(module, timed=True)
        schedule = Schedule(module)
        separate = _share_storage(schedule, donation)
        return _build(schedule, separate, _program_name(module))


def _hint(module: HloModule) -> str:
    """Text for an error message that says which file of XLA's dump to use instead of one that is not scheduled."""
    texts = (Path(module.source or "").name, module.name, module.attributes_text)
    if any("before_optimizations" in text for text in texts):
        return (
            ": this is the module before XLA's optimisations, take the file of the same dump with after_optimizations in its "
            "name (targets with banks, such as inferentia, take this one)"
        )
    return ": of XLA's dump, take the file with after_optimizations in its name"


def _share_storage(schedule: Schedule, donation: Donation) -> set[int]:
    """Unites the storages of values that must share storage; returns the results of updates that need their own storage.

    A *value* is one write of one array (:mod:`stowplan.frontends.hlo.schedule`). An *update* writes a part of an array and
    leaves the rest as it is. In a compiled program every update can be in place, since the compiler has copied all values that
    are still needed. In text that was written or changed by hand this may not hold. An update of a value that is read later, or
    that the caller keeps, then counts as a copy. Notes about these values are added to the schedule.
    """
    values = schedule.values
    overlapping = sum(not values.share(before, after, forced=True) for before, after in schedule.carried)
    if overlapping:
        schedule.notes.append(f"{overlapping} loop-carried values overlap in time with what shares their storage")
    separate = sum(not values.share(first, second) for first, second in schedule.branch_results)
    if separate:
        schedule.notes.append(f"{separate} results of branches have storage of their own")
    refused = {
        update.result for step in schedule.steps for update in step.updates if not values.share(update.operand, update.result)
    }
    if refused:
        schedule.notes.append(f"{len(refused)} updates are copies, not in place: what they update is read later or kept")
    untied = sum(not values.share(donated, result) for donated, result in schedule.donated) if donation == "tied" else 0
    if untied:
        schedule.notes.append(f"{untied} donated parameters are needed while the output in their storage is: not tied to it")
    return refused


def _build(schedule: Schedule, refused: set[int], name: str) -> Program:
    """The program of a schedule; ``refused`` are the results of updates that are not in place."""
    values = schedule.values
    groups: dict[int, list[int]] = {}
    for value in range(len(values.names)):
        groups.setdefault(values.storage(value), []).append(value)
    outputs = {values.storage(value) for value in schedule.outputs}
    tensors = tuple(
        ProgramTensor(
            name=values.names[group[0]],
            size=values.sizes[storage],
            is_input=any(values.defined[value] == START for value in group),
            is_output=storage in outputs,
            members=tuple(values.names[value] for value in group) if len(group) > 1 else (),
        )
        for storage, group in groups.items()
    )
    number = {storage: position for position, storage in enumerate(groups)}
    tensor_of = [number[values.storage(value)] for value in range(len(values.names))]
    steps = tuple(_finish(step, tensors, tensor_of, values.sizes, refused) for step in schedule.steps)
    in_flight = {
        InFlight(use.tensor, step.begun, end): None
        for end, step in enumerate(schedule.steps, 1)
        if step.begun is not None
        for use in steps[step.begun].uses
        if any(use.tensor == other.tensor for other in steps[end - 1].uses)
    }
    return Program(
        name=name,
        steps=steps,
        tensors=tensors,
        loops=tuple(sorted(schedule.loops, key=lambda loop: (loop.start, -loop.end))),
        in_flight=tuple(in_flight),
        value_tensor={name: tensor_of[value] for name, value in schedule.value_of.items()},
        notes=tuple(schedule.notes),
    )


def _finish(
    step: ScheduledStep, tensors: tuple[ProgramTensor, ...], tensor_of: list[int], sizes: list[int], refused: set[int]
) -> ProgramStep:
    """The step with at most one read and one write of each tensor.

    The bytes of several reads of one tensor are added up, but to no more than the tensor's size, and so are those of writes.
    """
    in_place = {update.result: update.write for update in step.updates if update.result not in refused}
    copied = {update.operand for update in step.updates if update.result in refused}
    moved: dict[tuple[int, bool], int] = {}
    for value, part in step.reads:
        key = (tensor_of[value], False)
        moved[key] = moved.get(key, 0) + (sizes[value] if value in copied else part)
    for value in step.writes:
        key = (tensor_of[value], True)
        full_size = 0 if step.opcode == "AllocateBuffer" else sizes[value]
        moved[key] = moved.get(key, 0) + in_place.get(value, full_size)
    return ProgramStep(
        name=step.name,
        opcode=step.opcode,
        flops=step.work.flops,
        elementwise=step.work.elementwise,
        weight=step.weight,
        uses=tuple(
            ProgramUse(tensor, is_output, min(size, tensors[tensor].size)) for (tensor, is_output), size in moved.items()
        ),
        cycles=estimated_cycles(step.instruction),
    )


def _program_name(module: HloModule) -> str:
    """The name of the program: that of the file without its extension, if there is one, and that of the module."""
    if module.source is None:
        return module.name
    return f"{files.printable(Path(module.source).name).split('.hlo')[0].split('.txt')[0]}/{module.name}"


def _open(source: Source, options: ReadOptions) -> Opened:
    from stowplan.hardware.costs import make_problem

    try:
        machine = load_target(str(options.target))
    except InputError:
        # If the file is no HLO text at all, the error should say so before the target is checked.
        read_module(source.path)
        raise
    module = read_module(source.path)
    program = program_from_module(module, donation="tied" if options.donation == "tied" else "free")
    arguments: dict[str, Any] = options.only({"capacity", "cost_model", "stalls"}).given()
    if options.cycles is not None:
        arguments |= _cost_data(options.cycles, options.cost_model, module, program, machine)
        if "signatures" in arguments and arguments["signatures"].table.conflicts:
            count = arguments["signatures"].table.conflicts
            note = f"{count} entries of the latency table had two cycles, the last count: compilers differ"
            program = msgspec.structs.replace(program, notes=(*program.notes, note))
    problem = make_problem(program, machine, **arguments)
    return Opened(msgspec.structs.replace(problem, **options.only({"evictions", "prefetches"}).given()), program)


def _cost_data(
    paths: tuple[str | Path, ...], cost_model: str | None, module: HloModule, program: Program, machine: Target
) -> dict[str, CycleTable | SignatureCosts]:
    """The files of the option ``cycles`` as arguments of ``make_problem``.

    A *cycle table* has the cycles that the compiler estimates for each step, read from two modules that were compiled without
    and with a plan. Without a cost model, two modules become a cycle table, and all other files become signatures with their
    cycles. Raises UsageError if the cost model needs two files and there are more or fewer, and InputError if a file is not
    valid.
    """
    from stowplan.frontends.hlo.placed import read_costs, read_cycle_table

    if cost_model == "signatures" or (cost_model is None and (len(paths) != 2 or any(map(files.is_json, paths)))):
        return {"signatures": read_costs(paths, module, program, target=machine)}
    if len(paths) != 2:
        raise UsageError(
            f"found {len(paths)} files with cycles, expected two for the cost model {cost_model!r}: the module compiled "
            "without and with a plan"
        )
    return {"cycles": read_cycle_table(*paths, program, fast_space=machine.fast_space)}


def _claims(source: Source) -> bool | None:
    """Whether HLO text is a compiled program, and not a graph. Raises InputError if it is no HLO text."""
    return read_module(source.path).is_scheduled


_ACCEPTED = frozenset({"target", "capacity", "cost_model", "stalls", "cycles", "donation", "evictions", "prefetches"})

FORMAT = InputFormat(
    what="a compiled program",
    suffixes=(".hlo", ".hlo.txt"),
    accepts=lambda source: _ACCEPTED,
    matches=lambda source: source.data is None,
    open=_open,
    targets=TargetFamily(
        "compiled programs",
        "memory mapping",
        "tpu-v4",
        "which tensors are in fast memory, where and when",
        load_target,
        target_names,
        lambda target: f"{target.fast_memory.capacity / 2**20:g} MiB fast memory",
    ),
    claims=_claims,
)
