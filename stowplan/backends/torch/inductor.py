"""An order of our own among those that Inductor tries for the least peak of memory; it keeps the least by its own estimate."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import msgspec

from stowplan.backends.torch.entry import require
from stowplan.log import LOGGER
from stowplan.models.operator_order.problem import Op, Problem, Tensor
from stowplan.portfolio.context import Options
from stowplan.portfolio.operator_order.kind import KIND
from stowplan.portfolio.solve import solve


class OrderReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one graph of Inductor's scheduler. Peaks are bytes."""

    nodes: int
    given: int
    """Peak in the order that Inductor had."""
    peak: int
    bound: int
    """No order has a lower peak."""
    seconds: float


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
        from torch._inductor.virtualized import V

        began = time.monotonic()
        problem = problem_of(nodes, set(V.graph.get_output_names()))
        given = KIND.initial(problem)["given"]
        options = self.options
        found = solve(
            problem,
            time_limit=options.time_limit,
            deterministic=options.deterministic,
            seed=options.seed,
            workers=options.workers,
        )
        best = given if found.plan is None or found.plan.objective >= given.objective else found.plan
        self.reports.append(
            OrderReport(
                nodes=len(nodes),
                given=given.objective,
                peak=best.objective,
                bound=min(best.objective, found.bound or 0),
                seconds=round(time.monotonic() - began, 3),
            )
        )
        return [nodes[each] for each in best.order]


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

    writes = [tuple(dict.fromkeys(add(each) for each in node.get_outputs())) for node in nodes]
    written = {each for row in writes for each in row}
    reads = []
    for node in nodes:
        row = [add(each) for each in node.mpi_node.pred_buffers]
        inputs += [each for each in row if each not in written]
        reads.append(tuple(dict.fromkeys(row)))
    place = {node: at for at, node in enumerate(nodes)}
    return Problem(
        tensors=tuple(tensors),
        ops=tuple(
            Op(
                id=node.get_name(),
                reads=tuple(each for each in reads[at] if each not in writes[at]),
                writes=writes[at],
            )
            for at, node in enumerate(nodes)
        ),
        inputs=tuple(dict.fromkeys(inputs)),
        outputs=tuple(number[each] for each in sorted(outputs) if each in number),
        precedences=tuple(
            dict.fromkeys((place[other], at) for node, at in place.items() for other in node.mpi_node.pred_nodes)
        ),
        name="inductor",
    )


@contextlib.contextmanager
def inductor_order(
    time_limit: float = 10.0, *, deterministic: bool = False, seed: int = 0, workers: int = 2
) -> Iterator[list[OrderReport]]:
    """What Inductor compiles inside runs in the order of least peak by its own estimate, one of ours among those it tries.

    Nothing is taken from its caches meanwhile: they do not know of the order.

    Parameters
    ----------
    time_limit
        Seconds for each graph.
    deterministic, seed, workers
        As :func:`stowplan.solve` takes them.

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
    options = Options(time_limit=time_limit, deterministic=deterministic, seed=seed, workers=workers)
    require()
    from torch._inductor import config, memory

    method = _Order(options)
    methods = _methods(memory.reorder_for_peak_memory)
    if methods is None:
        LOGGER.warning("inductor order: this version of torch takes no orders of others: its own are kept")
        yield method.reports
        return
    methods.append(method)
    try:
        with config.patch(force_disable_caches=True, reorder_for_peak_memory=True):
            yield method.reports
    finally:
        methods.remove(method)


def _methods(function: Callable[..., Any]) -> list[Any] | None:
    """The list of methods that is the function's default."""
    for each in function.__defaults__ or ():
        if isinstance(each, list) and all(callable(one) for one in each):
            return each
    return None
