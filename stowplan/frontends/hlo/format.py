"""Compiled programs among the inputs: scheduled HLO text and a target with fast memory become a memory-mapping problem."""

from __future__ import annotations

from typing import Any

from stowplan.frontends.format import InputFormat, Opened, Source, TargetFamily, TargetRow
from stowplan.frontends.options import ReadOptions
from stowplan.hardware.targets import load_target, target_names


def _open(source: Source, options: ReadOptions) -> Opened:
    from stowplan.frontends.hlo.program import read_program
    from stowplan.hardware.costs import make_problem

    machine = load_target(str(options.target))
    program = read_program(source.path)
    given: dict[str, Any] = {"capacity": options.capacity, "cost_model": options.cost_model, "stalls": options.stalls}
    given = {name: value for name, value in given.items() if value is not None}
    if options.cycles is not None:
        from stowplan.frontends.hlo.cycle_table import read_cycle_table

        given["cycles"] = read_cycle_table(*options.cycles, program)
    return Opened(make_problem(program, machine, **given), program)


def _claims(source: Source) -> bool | None:
    from stowplan.frontends.hlo import read_module

    return read_module(source.path).is_scheduled or None


def _rows() -> list[TargetRow]:
    return [
        TargetRow(name, f"{target.fast_memory.capacity / 2**20:g} MiB fast memory", target.description)
        for name, target in ((name, load_target(name)) for name in target_names())
    ]


FORMAT = InputFormat(
    what="a compiled program",
    suffixes=(".hlo", ".hlo.txt"),
    accepts=lambda source: frozenset({"target", "capacity", "cost_model", "stalls", "cycles"}),
    matches=lambda source: source.data is None,
    open=_open,
    targets=TargetFamily("compiled programs", "memory mapping", "a target for it (tpu-v4)", load_target, _rows),
    claims=_claims,
)
