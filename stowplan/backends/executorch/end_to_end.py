"""One call from an edge program to a planned ExecuTorch program: order of the operators, then offsets."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from stowplan.backends.executorch import install
from stowplan.backends.executorch.planning import ArenaReport, MemoryPlanningAlgorithm
from stowplan.backends.executorch.reorder import OrderReport, ReorderPass
from stowplan.errors import UsageError
from stowplan.portfolio.arguments import check_options
from stowplan.portfolio.context import Options


@dataclass(frozen=True)
class Planned:
    """A program, and what came of its planning."""

    program: Any
    """Executorch's ``ExecutorchProgramManager``: ``program.buffer`` is the ``.pte`` file."""
    orders: tuple[OrderReport, ...]
    """One for each graph; empty where the order was not to change."""
    arenas: tuple[ArenaReport, ...]
    """One for each arena of each graph; ``greedy`` is executorch's own size for the order that it has."""

    @property
    def size(self) -> int:
        """Bytes of all arenas."""
        methods = self.program.executorch_program.execution_plan
        return sum(sum(method.non_const_buffer_sizes) for method in methods)


def plan(
    edge: Any,
    config: Any = None,
    *,
    order: bool = True,
    time_limit: float = 10.0,
    deterministic: bool = False,
    seed: int = 0,
    workers: int = 2,
) -> Planned:
    """Order the operators of an edge program and plan its memory; in place of ``edge.to_executorch(config)``.

    Parameters
    ----------
    edge
        Executorch's ``EdgeProgramManager``.
    config
        An ``ExecutorchBackendConfig``; its own passes run first, and its memory planning passes keep their settings, but
        for the algorithm. None takes the default.
    order
        Whether operators may be moved. Where they were, the program is planned in its own order as well; the smaller is kept.
    time_limit
        Seconds for each order, and for each arena.
    deterministic, seed, workers
        As :func:`stowplan.solve` takes them.

    Returns
    -------
    Planned
        The program, and reports.

    Raises
    ------
    MissingDependencyError
        Without executorch.
    UsageError
        An argument of a wrong type or out of range, or a memory planning pass that is not executorch's.
    """
    install.require()
    from executorch.exir import ExecutorchBackendConfig

    options = check_options(Options(time_limit=time_limit, deterministic=deterministic, seed=seed, workers=workers))
    base = ExecutorchBackendConfig() if config is None else config
    if not order or install.complaint():
        return _planned(edge, base, options, order=False)
    # Lowering changes the edge program, and the order given may still turn out to be better.
    spare = copy.deepcopy(edge)
    ordered = _planned(edge, base, options, order=True)
    if not any(report.moved for report in ordered.orders):
        return ordered
    given = _planned(spare, base, options, order=False)
    if ordered.size <= given.size:
        return ordered
    orders = tuple(msgspec.structs.replace(report, moved=False, peak=report.given) for report in ordered.orders)
    return replace(given, orders=orders)


def _planned(edge: Any, base: Any, options: Options, *, order: bool) -> Planned:
    """Lower an edge program, in another order or in its own."""
    reorder, algorithm = ReorderPass(options), MemoryPlanningAlgorithm(options)
    passes = base.memory_planning_pass
    planning = (
        {name: _with_algorithm(each, algorithm) for name, each in passes.items()}
        if isinstance(passes, dict)
        else _with_algorithm(passes, algorithm)
    )
    changed = replace(base, passes=[*base.passes, *([reorder] if order else [])], memory_planning_pass=planning)
    return Planned(edge.to_executorch(changed), tuple(reorder.reports), tuple(algorithm.reports))


def _with_algorithm(memory_pass: Any, algorithm: MemoryPlanningAlgorithm) -> Any:
    """A copy of a ``MemoryPlanningPass``, with an algorithm of ours and a state of its own."""
    if not hasattr(memory_pass, "memory_planning_algo"):
        raise UsageError(f"found {type(memory_pass).__name__} to plan memory, expected executorch's MemoryPlanningPass")
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite

    found = copy.copy(memory_pass)
    found.memory_planning_algo = MemoryPlanningAlgorithmSuite([algorithm])
    found.state = type(memory_pass.state)()
    return found
