"""What users of ExecuTorch call: a memory planning pass, one call from an edge program to a planned one, and tables of offsets.

First the order of the operators is planned, then offsets. Tables are written as a C header, JSON or CSV.
"""

from __future__ import annotations

import copy
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Unpack

import msgspec

from stowplan import files
from stowplan.backends.emit import FORMATS, check_form
from stowplan.backends.executorch.banks import BankedPlanningAlgorithm
from stowplan.backends.executorch.planning import NEEDED, ArenaReport, MemoryPlanningAlgorithm, complaint
from stowplan.backends.executorch.reorder import ReorderPass
from stowplan.backends.fallback import require
from stowplan.backends.search import OrderReport, SearchOptions
from stowplan.errors import UsageError
from stowplan.models.offset_table import Arena, OffsetRow, OffsetTable


def memory_planning_pass(
    time_limit: float = 10.0, *, target: Any = None, costs: Mapping[str, int] | None = None, **others: Any
) -> Any:
    """A ``MemoryPlanningPass`` for executorch's ``ExecutorchBackendConfig``.

    Parameters
    ----------
    time_limit, target, costs
        As :class:`~stowplan.backends.executorch.banks.BankedPlanningAlgorithm` takes them; without a target the planner is
        :class:`~stowplan.backends.executorch.planning.MemoryPlanningAlgorithm`.
    others
        As :func:`stowplan.solve` takes them (``deterministic``, ``seed``, ``workers``), or as executorch's
        ``MemoryPlanningPass`` does: ``alloc_graph_input``, ``share_mutable_buffers`` and so on.

    Raises
    ------
    MissingDependencyError
        Without executorch.
    UsageError
        An argument of a wrong type or out of range; or, with a target, state that methods share: executorch keeps it in
        arena 2, whatever the map says.
    """
    require(*NEEDED)
    search: Any = {name: others.pop(name) for name in SearchOptions.__annotations__.keys() & others.keys()}
    algorithm: Any
    if target is None:
        if costs is not None:
            raise UsageError("found costs without a target, expected the banks that they are of")
        algorithm = MemoryPlanningAlgorithm(time_limit, **search)
    elif others.get("share_mutable_buffers"):
        raise UsageError("found share_mutable_buffers with banks, expected it off: executorch keeps such state in arena 2")
    else:
        algorithm = BankedPlanningAlgorithm(target, costs, time_limit=time_limit, **search)
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite
    from executorch.exir.passes import MemoryPlanningPass

    return MemoryPlanningPass(memory_planning_algo=MemoryPlanningAlgorithmSuite([algorithm]), **others)


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
    edge: Any, config: Any = None, *, order: bool = True, time_limit: float = 10.0, **search: Unpack[SearchOptions]
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
    search
        ``deterministic``, ``seed`` and ``workers``, as :func:`stowplan.solve` takes them.

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
    require(*NEEDED)
    from executorch.exir import ExecutorchBackendConfig

    options: dict[str, Any] = {"time_limit": time_limit, **search}
    base = ExecutorchBackendConfig() if config is None else config
    if not order or complaint():
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


def _planned(edge: Any, base: Any, options: Mapping[str, Any], *, order: bool) -> Planned:
    """Lower an edge program, in another order or in its own."""
    reorder, algorithm = ReorderPass(**options), MemoryPlanningAlgorithm(**options)
    passes = base.memory_planning_pass
    planning = (
        {name: _with_algorithm(memory_pass, algorithm) for name, memory_pass in passes.items()}
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

    own = copy.copy(memory_pass)
    own.memory_planning_algo = MemoryPlanningAlgorithmSuite([algorithm])
    own.state = type(memory_pass.state)()
    return own


def offset_table(program: Any, method: str = "forward") -> OffsetTable:
    """Offsets of all planned tensors of a method, named as in its graph; control flow's own tensors are left out.

    Parameters
    ----------
    program
        Executorch's ``ExecutorchProgramManager``.
    method
        Of several methods, the one to look at.
    """
    graph_module = program.exported_program(method).graph_module
    sizes = list(graph_module.meta["non_const_buffer_sizes"])
    rows: dict[int, OffsetRow] = {}
    for node in graph_module.graph.nodes:
        specs = node.meta.get("spec")
        for at, spec in enumerate(specs if isinstance(specs, list | tuple) else [specs]):
            # A view has the bytes of its base, and no place of its own.
            if getattr(spec, "mem_offset", None) is None or not spec.mem_id or id(spec) in rows or hasattr(spec, "_base"):
                continue
            first, last = spec.lifetime
            rows[id(spec)] = OffsetRow(
                name=node.name if at == 0 else f"{node.name}_{at}",
                offset=spec.mem_offset,
                size=spec.nbytes(),
                alignment=spec.alignment,
                start=first,
                end=last + 1,
                arena=spec.mem_id,
            )
    every = tuple(rows.values())
    # The arenas are executorch's: what it asks of the runtime, with what is reserved in them. The first is for constants.
    arenas = tuple(
        Arena(name=f"arena{number}", bytes=size, alignment=max([1, *(row.alignment for row in every if row.arena == number)]))
        for number, size in enumerate(sizes)
    )
    digest = hashlib.sha256(files.encode(list(every))).hexdigest()
    return OffsetTable(kind="packing", program=method, problem_digest=digest, plan_digest=digest, arenas=arenas, rows=every)


def write_offsets(program: Any, path: str | Path, form: str = "c-header", method: str = "forward") -> None:
    """Write :func:`offset_table` to a file, whose name is what C identifiers begin with.

    Raises
    ------
    UsageError
        A format other than ``c-header``, ``json`` and ``csv``.
    """
    check_form(form)
    name = Path(path).name.partition(".")[0]
    files.write_atomic(path, FORMATS[form](offset_table(program, method), name))
