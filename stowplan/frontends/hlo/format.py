"""Compiled programs among the inputs: scheduled HLO text and a target with fast memory become a memory-mapping problem."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from stowplan import files
from stowplan.errors import UsageError
from stowplan.frontends.format import InputFormat, Opened, Source, TargetFamily, TargetRow
from stowplan.frontends.options import ReadOptions
from stowplan.hardware.targets import load_target, target_names

if TYPE_CHECKING:
    from stowplan.frontends.hlo.module import HloModule
    from stowplan.hardware.costs import CycleTable
    from stowplan.hardware.costs.signatures import SignatureCosts
    from stowplan.hardware.program import Program


def _open(source: Source, options: ReadOptions) -> Opened:
    from stowplan.frontends.hlo import program_from_module, read_module
    from stowplan.hardware.costs import make_problem

    machine = load_target(str(options.target))
    module = read_module(source.path)
    program = program_from_module(module, donation="tied" if options.donation == "tied" else "free")
    given: dict[str, Any] = {"capacity": options.capacity, "cost_model": options.cost_model, "stalls": options.stalls}
    given = {name: value for name, value in given.items() if value is not None}
    if options.cycles is not None:
        given |= _cost_data(options.cycles, options.cost_model, module, program)
        if "signatures" in given and given["signatures"].table.conflicts:
            count = given["signatures"].table.conflicts
            note = f"{count} entries of the latency table had two cycles, the last count: compilers differ"
            program = msgspec.structs.replace(program, notes=(*program.notes, note))
    problem = make_problem(program, machine, **given)
    freedoms = {"evictions": options.evictions, "prefetches": options.prefetches}
    freedoms = {name: value for name, value in freedoms.items() if value is not None}
    if freedoms:
        problem = msgspec.structs.replace(problem, **freedoms)
    return Opened(problem, program)


def _cost_data(
    paths: tuple[str | Path, ...], cost_model: str | None, module: HloModule, program: Program
) -> dict[str, CycleTable | SignatureCosts]:
    """What the files of ``cycles`` say, as arguments of ``make_problem``: two modules and no other wish mean a cycle table."""
    from stowplan.frontends.hlo.placed import read_cycle_table
    from stowplan.frontends.hlo.signatures import read_costs

    if cost_model == "signatures" or (cost_model is None and (len(paths) != 2 or any(map(files.is_json, paths)))):
        return {"signatures": read_costs(paths, module, program)}
    if len(paths) != 2:
        raise UsageError(
            f"found {len(paths)} files with cycles, expected two for the cost model {cost_model!r}: the module compiled "
            "without and with a plan"
        )
    return {"cycles": read_cycle_table(*paths, program)}


def _claims(source: Source) -> bool | None:
    from stowplan.frontends.hlo import read_module

    return read_module(source.path).is_scheduled


def _rows() -> list[TargetRow]:
    return [
        TargetRow(name, f"{target.fast_memory.capacity / 2**20:g} MiB fast memory", target.description)
        for name, target in ((name, load_target(name)) for name in target_names())
    ]


_ACCEPTED = frozenset({"target", "capacity", "cost_model", "stalls", "cycles", "donation", "evictions", "prefetches"})

FORMAT = InputFormat(
    what="a compiled program",
    suffixes=(".hlo", ".hlo.txt"),
    accepts=lambda source: _ACCEPTED,
    matches=lambda source: source.data is None,
    open=_open,
    targets=TargetFamily(
        "compiled programs", "memory mapping", "tpu-v4", "what is in fast memory, where and when", load_target, _rows
    ),
    claims=_claims,
)
