"""A pass for ExecuTorch that runs a graph's operators in an order that needs less memory.

Operators are only moved: each computes what it did, from the same values. Those that write over what others read, or draw
random numbers, keep their order among those.
"""

from __future__ import annotations

import operator
import time
from typing import Any, Unpack

from stowplan.backends.fallback import UnsupportedError, reason, warn
from stowplan.backends.search import OrderReport, SearchOptions, ordered
from stowplan.frontends.graph.fx import Dialect, FxReader
from stowplan.kernel.context import Options
from stowplan.models.operator_order.problem import of_graph

#: Bytes that executorch aligns tensors to.
ALIGNMENT = 16

#: How the names of placeholders begin that are weights, buffers and constants.
_WEIGHTS = ("p_", "b_", "c_", "obj_", "_lifted_tensor_constant")


class ReorderPass:
    """A pass for executorch's ``ExecutorchBackendConfig(passes=[...])`` that orders operators for the least peak of live bytes.

    Parameters
    ----------
    time_limit
        Seconds for each graph.
    search
        ``deterministic``, ``seed`` and ``workers``, as :func:`stowplan.solve` takes them.

    Attributes
    ----------
    reports
        One for each graph so far.

    Raises
    ------
    UsageError
        An argument of a wrong type or out of range.
    """

    def __init__(self, time_limit: float = 10.0, **search: Unpack[SearchOptions]):
        self.options = Options(time_limit=time_limit, **search)
        self.reports: list[OrderReport] = []

    def __call__(self, graph_module: Any) -> Any:
        """Give a graph module the order with the lowest peak; one that cannot be ordered stays as it is, with a warning."""
        from torch.fx.passes.infra.pass_base import PassResult

        try:
            moved = self._reorder(graph_module)
        except Exception as error:  # whatever is wrong with this graph, it has an order
            warn(f"{reason(error)}: the operators keep their order")
            moved = False
        return PassResult(graph_module, moved)

    def _reorder(self, graph_module: Any) -> bool:
        began = time.monotonic()
        reader = GraphReader(graph_module.graph)
        plan, report = ordered(reader.problem, self.options, began)
        if report.moved:
            reader.apply(plan.order)
            graph_module.recompile()
        self.reports.append(report)
        return report.moved


class GraphReader:
    """A graph of executorch's edge dialect as a problem of operator order.

    Parameters
    ----------
    graph
        A ``torch.fx.Graph`` with the values of its nodes in ``meta["val"]``.

    Raises
    ------
    InputError
        A shape that is not static, or an operator of which nobody knows what it shares.
    UnsupportedError
        A node that is no operator.
    """

    def __init__(self, graph: Any):
        self._graph = graph
        self._nodes = list(graph.nodes)
        for node in self._nodes:
            if node.op not in ("placeholder", "get_attr", "call_function", "output"):
                raise UnsupportedError(f"found a node of the kind {node.op}, expected a graph of operators")
        # Weights are no activations; torch.export names them so.
        stored = {node.name for node in self._nodes if node.op == "placeholder" and node.name.startswith(_WEIGHTS)}
        dialect = Dialect(alignment=ALIGNMENT, viewed=_viewed, is_flat=True)
        reader = FxReader(graph.owning_module, stored, dialect=dialect, graph=graph)
        self.problem = of_graph(reader.read("executorch"))
        self._operators = reader.operators
        """Node of each operator of the problem."""

    def apply(self, order: tuple[int, ...]) -> None:
        """Move the nodes; raises RuntimeError where the graph is not well formed afterwards."""
        heads = [node for node in self._nodes if node.op in ("placeholder", "get_attr")]
        parts: dict[Any, list[Any]] = {}
        for node in self._nodes:
            if _is_getitem(node):
                parts.setdefault(_whole(node), []).append(node)
        wanted = [
            *heads,
            *(node for number in order for node in (self._operators[number], *parts.get(self._operators[number], ()))),
        ]
        (last,) = (node for node in self._nodes if node.op == "output")
        for node in wanted:
            last.prepend(node)
        self._graph.lint()


def _is_getitem(node: Any) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


def _whole(node: Any) -> Any:
    """The node whose result a node is a part of: itself, but for ``getitem``."""
    while _is_getitem(node):
        node = node.args[0]
    return node


def _is_view_copy(node: Any) -> bool:
    return node.op == "call_function" and "aten.view_copy.default" in str(node.target)


def _viewed(node: Any) -> Any:
    """What executorch has a view of in place of this copy, once it has lowered the graph; None where it copies.

    All that were copies for views are left out.
    """
    if not _is_view_copy(node) or any(user.op == "output" for user in node.users):
        return None
    while _is_view_copy(node):
        node = node.args[0]
    return node
