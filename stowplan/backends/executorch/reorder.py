"""A pass for ExecuTorch that puts the operators of a graph into an order that needs less memory.

The order is the plan of a problem of *operator order*, which asks for the order with the smallest peak of live bytes. Operators
are only moved, and each computes the same result from the same values. An operator that overwrites a value keeps its order
relative to the operators that read the value. Operators that draw random numbers keep their order among each other.
"""

from __future__ import annotations

import operator
import time
from typing import Any, Unpack

from stowplan.backends.fallback import UnsupportedError, reason, warn
from stowplan.backends.search import OrderReport, SearchOptions, find_order
from stowplan.frontends.graph.fx import Dialect, FxReader
from stowplan.kernel.context import Options
from stowplan.models.operator_order.problem import of_graph

#: Executorch aligns tensors to multiples of this many bytes.
ALIGNMENT = 16

#: Prefixes of the names that ``torch.export`` gives to placeholders of weights, buffers and constants.
_WEIGHTS = ("p_", "b_", "c_", "obj_", "_lifted_tensor_constant")


class ReorderPass:
    """A pass for executorch's ``ExecutorchBackendConfig(passes=[...])`` that orders operators for the least peak of live bytes.

    Parameters
    ----------
    time_limit
        Seconds for each graph.
    search
        ``deterministic``, ``seed`` and ``workers``; see :func:`stowplan.solve`.

    Attributes
    ----------
    reports
        A report for each graph that was ordered so far.

    Raises
    ------
    UsageError
        The constructor raises it if an argument has a wrong type or is out of range.
    """

    def __init__(self, time_limit: float = 10.0, **search: Unpack[SearchOptions]):
        self.options = Options(time_limit=time_limit, **search)
        self.reports: list[OrderReport] = []

    def __call__(self, graph_module: Any) -> Any:
        """Order the operators of a graph module, and return a ``PassResult`` that says whether the order was changed.

        If the graph cannot be ordered, it stays unchanged, and a :class:`~stowplan.backends.fallback.PlanningWarning` is
        issued.
        """
        from torch.fx.passes.infra.pass_base import PassResult

        try:
            moved = self._reorder(graph_module)
        except Exception as error:  # Whatever the fault is, the graph can keep its order.
            warn(f"{reason(error)}: the operators keep their order")
            moved = False
        return PassResult(graph_module, moved)

    def _reorder(self, graph_module: Any) -> bool:
        """Order the operators of a graph module, and add a report; returns whether the order was changed."""
        began = time.monotonic()
        reader = GraphReader(graph_module.graph)
        plan, report = find_order(reader.problem, self.options, began)
        if report.moved:
            reader.apply(plan.order)
            graph_module.recompile()
        self.reports.append(report)
        return report.moved


class GraphReader:
    """Reads a graph of executorch's edge dialect as a problem of operator order, and applies an order to it.

    The edge dialect is the form of an exported program that executorch lowers to its own operators.

    Parameters
    ----------
    graph
        A ``torch.fx.Graph`` with the values of its nodes in ``meta["val"]``.

    Raises
    ------
    InputError
        A shape is not static, or it is not known which results of an operator share storage with its operands.
    UnsupportedError
        A node is no operator.
    """

    def __init__(self, graph: Any):
        self._graph = graph
        self._nodes = list(graph.nodes)
        for node in self._nodes:
            if node.op not in ("placeholder", "get_attr", "call_function", "output"):
                raise UnsupportedError(f"found a node of the kind {node.op}, expected a graph of operators")
        # Weights do not count as activations; ``torch.export`` gives their placeholders these names.
        weights = {node.name for node in self._nodes if node.op == "placeholder" and node.name.startswith(_WEIGHTS)}
        dialect = Dialect(alignment=ALIGNMENT, viewed=_viewed, is_flat=True)
        reader = FxReader(graph.owning_module, weights, dialect=dialect, graph=graph)
        self.problem = of_graph(reader.read("executorch"))
        self._operators = reader.operators
        """[operators of the problem] The node of each operator."""

    def apply(self, order: tuple[int, ...]) -> None:
        """Move the nodes into this order, a permutation of the numbers of the problem's operators.

        Raises RuntimeError if the graph is not well formed afterwards.
        """
        inputs = [node for node in self._nodes if node.op in ("placeholder", "get_attr")]
        tuple_elements: dict[Any, list[Any]] = {}
        for node in self._nodes:
            if _is_getitem(node):
                tuple_elements.setdefault(_producer(node), []).append(node)
        new_order = [
            *inputs,
            *(node for number in order for node in (self._operators[number], *tuple_elements.get(self._operators[number], ()))),
        ]
        (last,) = (node for node in self._nodes if node.op == "output")
        for node in new_order:
            last.prepend(node)
        self._graph.lint()


def _is_getitem(node: Any) -> bool:
    """Whether a node picks an element of a tuple."""
    return node.op == "call_function" and node.target is operator.getitem


def _producer(node: Any) -> Any:
    """Returns the node that computes the value of ``node``.

    It is ``node`` itself, or the producer of the tuple from which ``node`` picks an element.
    """
    while _is_getitem(node):
        node = node.args[0]
    return node


def _is_view_copy(node: Any) -> bool:
    """Whether a node copies a value into a tensor of another shape (``view_copy``)."""
    return node.op == "call_function" and "aten.view_copy.default" in str(node.target)


def _viewed(node: Any) -> Any:
    """Returns the node with whose value ``node`` will share its bytes; None if ``node`` will have bytes of its own.

    When executorch lowers a graph, it replaces a copy into another shape by a view of the copied value. In a chain of copies,
    all of them become views of the value before the first copy. A copy that is an output of the graph stays a copy.
    """
    if not _is_view_copy(node) or any(user.op == "output" for user in node.users):
        return None
    while _is_view_copy(node):
        node = node.args[0]
    return node
