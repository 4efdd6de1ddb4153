"""Loop bodies among the inputs: a data-flow graph and an array of tiles become a modulo scheduling problem."""

from __future__ import annotations

from stowplan.frontends.dfg.problem import is_loop_body, open_loop_body, parse_rules
from stowplan.frontends.format import InputFormat, Opened, Source, TargetFamily, TargetRow
from stowplan.frontends.network.layer_json import is_layer_file
from stowplan.frontends.options import ReadOptions
from stowplan.hardware.se.machines import describe_machine, load_machine, machine_names


def _open(source: Source, options: ReadOptions) -> Opened:
    loop = parse_rules(options.rules, options.fixed, options.op_table)
    return Opened(open_loop_body(source.path, str(options.target), loop))


def _claims(source: Source) -> bool | None:
    """With a machine named, whatever has nodes is taken for a data-flow graph, so for networks that is not enough."""
    if is_loop_body(source.path, source.data):
        return True
    return False if source.data is not None and is_layer_file(source.data) else None


def _rows() -> list[TargetRow]:
    return [
        TargetRow(name, f"{array.tiles} tiles, latency {array.latency}", describe_machine(name))
        for name, array in ((name, load_machine(name)) for name in machine_names())
    ]


FORMAT = InputFormat(
    what="a data-flow graph",
    suffixes=(".json", ".dot", ".gv"),
    accepts=lambda source: frozenset({"target", "rules", "fixed", "op_table"}),
    matches=lambda source: is_loop_body(source.path, source.data, source.target),
    open=_open,
    targets=TargetFamily(
        "data-flow graphs", "modulo scheduling", "se", "tile and time of each instruction", load_machine, _rows
    ),
    claims=_claims,
)
