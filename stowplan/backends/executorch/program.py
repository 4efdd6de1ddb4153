"""The functions for users of ExecuTorch: a memory planning pass, a call that plans an edge program, and tables of offsets.

An *edge program* is an exported program in executorch's edge dialect, which ``to_executorch`` lowers to the final program. The
order of the operators is planned first, and then the offset of each tensor in its *arena*, a range of memory whose size the
runtime allocates. A *method* is one entry point of a program. Tables are written as a C header, as JSON or as CSV.
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
from stowplan.backends.executorch.planning import NEEDED, ArenaReport, MemoryPlanningAlgorithm, unsupported_version
from stowplan.backends.executorch.reorder import ReorderPass
from stowplan.backends.fallback import require
from stowplan.backends.search import OrderReport, SearchOptions
from stowplan.errors import UsageError
from stowplan.models.offset_table import Arena, OffsetRow, OffsetTable


def memory_planning_pass(
    time_limit: float = 10.0, *, target: Any = None, costs: Mapping[str, int] | None = None, **others: Any
) -> Any:
    """Returns a ``MemoryPlanningPass`` for executorch's ``ExecutorchBackendConfig``.

    Parameters
    ----------
    time_limit
        Seconds for each arena; with a target, seconds for each program.
    target, costs
        A ``TargetMemoryMap`` of several memories, and the cost of a byte in each; see
        :class:`~stowplan.backends.executorch.banks.BankedPlanningAlgorithm`. If the target is None, the planner is
        :class:`~stowplan.backends.executorch.planning.MemoryPlanningAlgorithm`.
    others
        ``deterministic``, ``seed`` and ``workers`` (see :func:`stowplan.solve`), and the arguments of executorch's
        ``MemoryPlanningPass``, such as ``alloc_graph_input``.

    Raises
    ------
    MissingDependencyError
        Executorch is not installed.
    UsageError
        An argument has a wrong type or is out of range, ``costs`` are given without a target, or ``share_mutable_buffers`` is
        used with a target. Executorch keeps state that methods share in arena 2, even if the target has another bank there.
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
    """A planned program, with reports."""

    program: Any
    """Executorch's ``ExecutorchProgramManager``: ``program.buffer`` is the contents of the ``.pte`` file."""
    orders: tuple[OrderReport, ...]
    """A report for each graph whose operators were ordered; empty if operators were not allowed to move."""
    arenas: tuple[ArenaReport, ...]
    """A report for each arena of each program that was planned; its ``greedy`` is the size of executorch's own plan for the
    same order of operators."""

    @property
    def size(self) -> int:
        """Bytes of all arenas of all methods."""
        methods = self.program.executorch_program.execution_plan
        return sum(sum(method.non_const_buffer_sizes) for method in methods)


def plan(
    edge: Any, config: Any = None, *, order: bool = True, time_limit: float = 10.0, **search: Unpack[SearchOptions]
) -> Planned:
    """Orders the operators of an edge program and plans its memory; use it instead of ``edge.to_executorch(config)``.

    If the installed version of executorch is not supported, the operators keep their order, the memory plan is executorch's
    own, and a :class:`~stowplan.backends.fallback.PlanningWarning` is issued.

    Parameters
    ----------
    edge
        Executorch's ``EdgeProgramManager``.
    config
        An ``ExecutorchBackendConfig``. Its own passes run first, and its memory planning passes keep all settings except the
        algorithm. None uses the default.
    order
        Whether operators may be moved. If some were moved, the program is also planned in its original order, and the smaller
        program is returned.
    time_limit
        Seconds for the order of each graph, and again for each arena of each program.
    search
        ``deterministic``, ``seed`` and ``workers``; see :func:`stowplan.solve`.

    Returns
    -------
    Planned
        The program, with reports.

    Raises
    ------
    MissingDependencyError
        Executorch is not installed.
    UsageError
        An argument has a wrong type or is out of range, or a memory planning pass of ``config`` is not executorch's.
    """
    require(*NEEDED)
    from executorch.exir import ExecutorchBackendConfig

    options: dict[str, Any] = {"time_limit": time_limit, **search}
    base = ExecutorchBackendConfig() if config is None else config
    if not order or unsupported_version():
        return _lower(edge, base, options, order=False)
    # Lowering changes the edge program, so a copy is kept in case the original order turns out to be better.
    edge_copy = copy.deepcopy(edge)
    ordered = _lower(edge, base, options, order=True)
    if not any(report.moved for report in ordered.orders):
        return ordered
    in_original_order = _lower(edge_copy, base, options, order=False)
    if ordered.size <= in_original_order.size:
        return ordered
    orders = tuple(msgspec.structs.replace(report, moved=False, peak=report.given) for report in ordered.orders)
    return replace(in_original_order, orders=orders)


def _lower(edge: Any, base: Any, options: Mapping[str, Any], *, order: bool) -> Planned:
    """Lower an edge program to an executorch program with planned memory; ``order`` says whether operators may be moved."""
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
    """Returns a copy of a ``MemoryPlanningPass`` with this algorithm and a new state.

    Raises UsageError for an object of another class.
    """
    if not hasattr(memory_pass, "memory_planning_algo"):
        raise UsageError(f"found {type(memory_pass).__name__} to plan memory, expected executorch's MemoryPlanningPass")
    from executorch.exir.memory_planning import MemoryPlanningAlgorithmSuite

    changed = copy.copy(memory_pass)
    changed.memory_planning_algo = MemoryPlanningAlgorithmSuite([algorithm])
    changed.state = type(memory_pass.state)()
    return changed


def offset_table(program: Any, method: str | None = "forward") -> OffsetTable:
    """Returns the offsets of all planned tensors of a method, under the names of the nodes of its graph.

    Tensors of graphs that its nodes run, such as the branches of a condition, are left out. Views are left out as well, because
    they have the bytes of another tensor.

    Parameters
    ----------
    program
        Executorch's ``ExecutorchProgramManager``.
    method
        Name of the method. None means all methods of the program, each of which has arenas of its own. If there are several,
        the name of every row and of every arena begins with that of its method and a dot: ``encode.arena1``. State that methods
        share has a row for each of them.

    Raises
    ------
    UsageError
        The program has no such method.
    """
    known = sorted(program.methods)
    if method is not None and method not in known:
        raise UsageError(f"found the method {method!r}, expected one of {', '.join(known)}")
    names = known if method is None else [method]
    arenas: list[Arena] = []
    rows: list[OffsetRow] = []
    for name in names:
        prefix = f"{name}." if len(names) > 1 else ""
        graph_module = program.exported_program(name).graph_module
        own_rows = _rows(graph_module, prefix, len(arenas))
        # Sizes of arenas are those that the runtime allocates, including reserved bytes. Arena 0 is for constants.
        first = len(arenas)
        for number, size in enumerate(graph_module.meta["non_const_buffer_sizes"]):
            alignment = max([1, *(row.alignment for row in own_rows if row.arena == first + number)])
            arenas.append(Arena(name=f"{prefix}arena{number}", bytes=size, alignment=alignment))
        rows += own_rows
    # Programs of ExecuTorch have no problem file. The digest of the tensors without their offsets stands for its digest.
    tensors = [msgspec.structs.replace(row, offset=0) for row in rows]
    return OffsetTable(
        kind="packing",
        program=", ".join(names),
        problem_digest=_digest(tensors),
        plan_digest=_digest(rows),
        arenas=tuple(arenas),
        rows=tuple(rows),
    )


def _digest(rows: list[OffsetRow]) -> str:
    """Returns the SHA-256 digest of rows, in hexadecimal digits."""
    return hashlib.sha256(files.encode(rows)).hexdigest()


def _rows(graph_module: Any, prefix: str, first_arena: int) -> list[OffsetRow]:
    """Returns the rows of a graph in the offset table.

    Their names begin with ``prefix``, and ``first_arena`` is the number of the graph's arena 0 in the table.
    """
    rows: dict[int, OffsetRow] = {}
    for node in graph_module.graph.nodes:
        specs = node.meta.get("spec")
        for at, spec in enumerate(specs if isinstance(specs, list | tuple) else [specs]):
            # A view has the bytes of its base, so it gets no row.
            if getattr(spec, "mem_offset", None) is None or not spec.mem_id or id(spec) in rows or hasattr(spec, "_base"):
                continue
            first, last = spec.lifetime
            rows[id(spec)] = OffsetRow(
                name=prefix + (node.name if at == 0 else f"{node.name}_{at}"),
                offset=spec.mem_offset,
                size=spec.nbytes(),
                alignment=spec.alignment,
                start=first,
                end=last + 1,
                arena=first_arena + spec.mem_id,
            )
    return [*rows.values()]


def write_offsets(program: Any, path: str | Path, form: str = "c-header", method: str | None = None) -> None:
    """Writes the table of :func:`offset_table` to a file. The file's name up to its first dot is the prefix of identifiers in
    C.

    Parameters
    ----------
    program
        Executorch's ``ExecutorchProgramManager``.
    path
        The file.
    form
        ``c-header``, ``json`` or ``csv``.
    method
        Name of the method; by default all methods of the program. If there are several, every row begins with the name of its
        method.

    Raises
    ------
    UsageError
        There is no such format or method.
    InputError
        The file cannot be written.
    """
    check_form(form)
    name = Path(path).name.partition(".")[0]
    files.write_atomic(path, FORMATS[form](offset_table(program, method), name))
