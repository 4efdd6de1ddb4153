"""An order of our own among those that Inductor tries for the least peak of memory; it keeps the least by its own estimate."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Unpack

from stowplan.backends.fallback import require
from stowplan.backends.search import OrderReport, SearchOptions, ordered
from stowplan.backends.torch.entry import NEEDED
from stowplan.kernel.context import Options
from stowplan.log import LOGGER
from stowplan.models.operator_order.problem import Op, Problem, Tensor


class _Order:
    """A method for ``reorder_for_peak_memory``."""

    def __init__(self, options: Options):
        # Inductor logs the names of its methods.
        self.__name__ = "stowplan"
        self.options = options
        self.reports: list[OrderReport] = []

    def __call__(self, nodes: list[Any]) -> list[Any]:
        try:
            return self._ordered(nodes)
        except Exception as error:  # whatever is wrong with this graph, it has an order
            LOGGER.warning("inductor order: %s: %s: the order given is kept", type(error).__name__, error)
            return list(nodes)

    def _ordered(self, nodes: list[Any]) -> list[Any]:
        from stowplan.backends.torch.private import inductor_graph

        began = time.monotonic()
        problem = problem_of(nodes, set(inductor_graph().get_output_names()))
        plan, report = ordered(problem, self.options, began)
        self.reports.append(report)
        return [nodes[number] for number in plan.order]


def problem_of(nodes: Sequence[Any], outputs: set[str]) -> Problem:
    """Nodes of Inductor's scheduler, with its planning information, as a problem of operator order.

    Parameters
    ----------
    nodes
        ``BaseSchedulerNode`` with ``mpi_node``.
    outputs
        Names of buffers that the graph returns.
    """
    tensors: list[Tensor] = []
    number: dict[str, int] = {}
    inputs: list[int] = []

    def add(buffer: Any) -> int:
        name = buffer.get_name()
        if name not in number:
            plan = buffer.mpi_buffer
            number[name] = len(tensors)
            tensors.append(Tensor(id=name, size=max(plan.size_alloc, plan.size_free)))
        return number[name]

    writes = [tuple(dict.fromkeys(add(buffer) for buffer in node.get_outputs())) for node in nodes]
    written = {tensor for row in writes for tensor in row}
    reads = []
    for node in nodes:
        row = [add(buffer) for buffer in node.mpi_node.pred_buffers]
        inputs += [tensor for tensor in row if tensor not in written]
        reads.append(tuple(dict.fromkeys(row)))
    place = {node: at for at, node in enumerate(nodes)}
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
        outputs=tuple(number[name] for name in sorted(outputs) if name in number),
        precedences=tuple(
            dict.fromkeys((place[other], at) for node, at in place.items() for other in node.mpi_node.pred_nodes)
        ),
        name="inductor",
    )


@contextlib.contextmanager
def inductor_order(time_limit: float = 10.0, **search: Unpack[SearchOptions]) -> Iterator[list[OrderReport]]:
    """What Inductor compiles inside runs in the order of least peak by its own estimate, one of ours among those it tries.

    Nothing is taken from its caches meanwhile: they do not know of the order.

    Parameters
    ----------
    time_limit
        Seconds for each graph.
    search
        ``deterministic``, ``seed`` and ``workers``, as :func:`stowplan.solve` takes them.

    Yields
    ------
    list of OrderReport
        One for each graph so far. A graph that fails keeps its order, and the logger ``stowplan`` says why.

    Raises
    ------
    MissingDependencyError
        Without torch.
    UsageError
        An argument of a wrong type or out of range.
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
    """The list of methods that is the function's default."""
    for default in function.__defaults__ or ():
        if isinstance(default, list) and all(callable(one) for one in default):
            return default
    return None
