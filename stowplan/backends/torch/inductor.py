"""Adds stowplan's operator order to the orders that Inductor tries; Inductor keeps the one with the lowest estimated peak.

Inductor is the compiler of ``torch.compile``. Its *scheduler* has a list of nodes, which become kernels, and puts them into an
order. The *peak* of an order is the largest number of bytes that are live at once. A problem of *operator order* asks for the
order with the lowest peak.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Unpack

from stowplan.backends.fallback import require
from stowplan.backends.search import OrderReport, SearchOptions, find_order
from stowplan.backends.torch.entry import NEEDED
from stowplan.kernel.context import Options
from stowplan.log import LOGGER
from stowplan.models.operator_order.problem import Op, Problem, Tensor


class _Order:
    """A method for Inductor's ``reorder_for_peak_memory``: it takes a list of nodes and returns them in a new order."""

    def __init__(self, options: Options):
        # Inductor writes the names of its methods into its log.
        self.__name__ = "stowplan"
        self.options = options
        self.reports: list[OrderReport] = []

    def __call__(self, nodes: list[Any]) -> list[Any]:
        try:
            return self._ordered(nodes)
        except Exception as error:  # Whatever the fault is, the graph can keep its order.
            LOGGER.warning("inductor order: %s: %s: the order given is kept", type(error).__name__, error)
            return list(nodes)

    def _ordered(self, nodes: list[Any]) -> list[Any]:
        """Returns the nodes in the order with the lowest peak that was found, and adds a report."""
        from stowplan.backends.torch.private import inductor_graph

        began = time.monotonic()
        problem = problem_of(nodes, set(inductor_graph().get_output_names()))
        plan, report = find_order(problem, self.options, began)
        self.reports.append(report)
        return [nodes[number] for number in plan.order]


def problem_of(nodes: Sequence[Any], outputs: set[str]) -> Problem:
    """Builds a problem of operator order from nodes of Inductor's scheduler.

    Parameters
    ----------
    nodes
        ``BaseSchedulerNode`` with the memory planning information in ``mpi_node``.
    outputs
        Names of the buffers that the graph returns.
    """
    tensors: list[Tensor] = []
    index_of_buffer: dict[str, int] = {}
    inputs: list[int] = []

    def add(buffer: Any) -> int:
        name = buffer.get_name()
        if name not in index_of_buffer:
            plan = buffer.mpi_buffer
            index_of_buffer[name] = len(tensors)
            tensors.append(Tensor(id=name, size=max(plan.size_alloc, plan.size_free)))
        return index_of_buffer[name]

    writes = [tuple(dict.fromkeys(add(buffer) for buffer in node.get_outputs())) for node in nodes]
    written = {tensor for row in writes for tensor in row}
    reads = []
    for node in nodes:
        read = [add(buffer) for buffer in node.mpi_node.pred_buffers]
        inputs += [tensor for tensor in read if tensor not in written]
        reads.append(tuple(dict.fromkeys(read)))
    index = {node: at for at, node in enumerate(nodes)}
    return Problem(
        tensors=tuple(tensors),
        ops=tuple(
            Op(
                id=node.get_name(),
                reads=tuple(tensor for tensor in reads[at] if tensor not in writes[at]),
                writes=writes[at],
            )
            for at, node in enumerate(nodes)
        ),
        inputs=tuple(dict.fromkeys(inputs)),
        outputs=tuple(index_of_buffer[name] for name in sorted(outputs) if name in index_of_buffer),
        precedences=tuple(
            dict.fromkeys((index[other], at) for node, at in index.items() for other in node.mpi_node.pred_nodes)
        ),
        name="inductor",
    )


@contextlib.contextmanager
def inductor_order(time_limit: float = 10.0, **search: Unpack[SearchOptions]) -> Iterator[list[OrderReport]]:
    """A context manager in which Inductor also tries stowplan's operator order for each graph that it compiles.

    Inductor keeps the order with the lowest peak by its own estimate, so that the estimated peak never gets worse. Its caches
    are off inside, because their keys do not include the order.

    Parameters
    ----------
    time_limit
        Seconds for each graph.
    search
        ``deterministic``, ``seed`` and ``workers``; see :func:`stowplan.solve`.

    Yields
    ------
    list of OrderReport
        A report for each graph so far. If ordering a graph fails, it keeps its order, and the logger ``stowplan`` says why. If
        the version of torch cannot try other orders, the list stays empty, and the logger says so.

    Raises
    ------
    MissingDependencyError
        When the context is entered: torch is not installed.
    UsageError
        When the context is entered: an argument has a wrong type or is out of range.
    """
    options = Options(time_limit=time_limit, **search)
    require(*NEEDED)
    from stowplan.backends.torch.private import inductor_config, inductor_memory

    method = _Order(options)
    methods = _methods(inductor_memory().reorder_for_peak_memory)
    if methods is None:
        LOGGER.warning("inductor order: this version of torch takes no orders of others: its own are kept")
        yield method.reports
        return
    methods.append(method)
    try:
        with inductor_config().patch(force_disable_caches=True, reorder_for_peak_memory=True):
            yield method.reports
    finally:
        methods.remove(method)


def _methods(function: Callable[..., Any]) -> list[Any] | None:
    """Returns the list of methods that is a default argument of the function; None if this version of torch has none."""
    for default in function.__defaults__ or ():
        if isinstance(default, list) and all(callable(method) for method in default):
            return default
    return None
