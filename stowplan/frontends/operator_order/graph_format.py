"""Graph files among the inputs: operators and tensors in JSON become an operator-order problem."""

from __future__ import annotations

from stowplan.frontends.format import InputFormat, Opened, Source
from stowplan.frontends.operator_order.graph_json import is_graph_file, read_graph
from stowplan.frontends.options import ReadOptions


def _open(source: Source, options: ReadOptions) -> Opened:
    return Opened(read_graph(source.path, source.data))


FORMAT = InputFormat(
    what="a graph of operators and tensors",
    suffixes=(".json",),
    accepts=lambda source: frozenset(),
    matches=lambda source: source.data is not None and is_graph_file(source.data),
    open=_open,
)
