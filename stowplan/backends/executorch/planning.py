"""A memory planning algorithm for ExecuTorch that improves the plan of the framework's greedy planner.

An *arena* is a range of memory whose size the runtime allocates; executorch's ``mem_id`` is the number of an arena. Some bytes
at the bottom of an arena may be reserved, and some at the top stay free (*padding*). A *program* is a main graph, together with
the graphs that its nodes run (*bodies*), such as the branches of a condition. The *greedy planner* is executorch's function
``greedy``.
"""

from __future__ import annotations

import importlib.metadata
import sys
import time
from collections.abc import Callable, Iterable
from typing import Any, Unpack

from stowplan.backends.executorch import arenas, check
from stowplan.backends.executorch.arenas import Arena
from stowplan.backends.executorch.control_flow import Graph, assign, flatten, is_program, read
from stowplan.backends.fallback import UnsupportedError, reason, require, warn
from stowplan.backends.search import SearchOptions, solve_with
from stowplan.document import Document
from stowplan.kernel.context import Options
from stowplan.models.packing.bounds import load_bound
from stowplan.models.packing.plan import Plan
from stowplan.models.packing.verify import verify
from stowplan.portfolio.packing.quick import quick_plan

#: Arguments of :func:`~stowplan.backends.fallback.require`: the feature, the modules that it needs, and the extra.
NEEDED = ("planning for ExecuTorch", ("executorch",), "executorch")

#: The version of executorch that this back end supports; its first two numbers must be equal.
VERSION = "1.5"


def unsupported_version() -> str:
    """Returns a line that says that the installed version of executorch is not supported; empty if it is supported."""
    try:
        installed = importlib.metadata.version("executorch")
    except importlib.metadata.PackageNotFoundError:
        return f"found an executorch without a version, expected {VERSION}"
    return "" if installed.split(".")[:2] == VERSION.split(".") else f"found executorch {installed}, expected {VERSION}"


class ArenaReport(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A report about one arena. Sizes are bytes of the whole arena, including reserved bytes and padding."""

    mem_id: int
    """Number of the arena."""
    buffers: int
    """How many tensors have bytes of their own in it."""
    greedy: int
    """Size with executorch's greedy planner."""
    size: int
    """Size with the plan that is used."""
    load_bound: int
    """A simple lower bound on the size: reserved bytes and padding, plus the most bytes that are live at once."""
    bound: int
    """The best proven lower bound on the size."""
    source: str
    """The method that found the plan: ``greedy`` if executorch's plan was kept, ``first_fit`` for a quick heuristic, otherwise
    a candidate of :func:`stowplan.solve`."""
    seconds: float
    """Seconds of planning this arena."""
    format: str = "stowplan.executorch.arena.report"
    version: int = 1

    @property
    def is_proven(self) -> bool:
        """Whether the size is proven to be minimal."""
        return self.size <= self.bound

    def __str__(self) -> str:
        """Returns the report as one line for people."""
        proof = "proven least" if self.is_proven else f"at least {self.bound:,} by a proven bound"
        return f"arena {self.mem_id}: greedy {self.greedy:,} bytes, now {self.size:,} ({proof})"


class MemoryPlanningAlgorithm:
    """An algorithm for executorch's ``MemoryPlanningAlgorithmSuite`` that makes each arena as small as possible.

    Executorch's greedy planner runs first. If its plan of an arena is as small as a simple lower bound, the most bytes that are
    live at once, nothing is searched. If no smaller plan is found, the greedy plan stays. All plans of this class are
    verified. If a graph cannot be planned, or the installed executorch is not of the version :data:`VERSION`, the graph keeps
    the greedy plan, and a :class:`~stowplan.backends.fallback.PlanningWarning` is issued.

    Parameters
    ----------
    time_limit
        Seconds for each arena of each program; most need much less.
    greedy
        The greedy planner, a function with the arguments of :meth:`__call__`; None uses the planner of the installed
        executorch. The version of executorch is only checked with None.
    search
        ``deterministic``, ``seed`` and ``workers``; see :func:`stowplan.solve`.

    Attributes
    ----------
    reports
        A report for each arena of each program planned so far.

    Raises
    ------
    UsageError
        The constructor raises it if an argument has a wrong type or is out of range.
    """

    # The suite stores results by the names of algorithms.
    __name__ = "stowplan"

    def __init__(self, time_limit: float = 10.0, *, greedy: Callable[..., Any] | None = None, **search: Unpack[SearchOptions]):
        self.options, self.greedy = Options(time_limit=time_limit, **search), greedy
        self.reports: list[ArenaReport] = []
        self._pending: dict[int, Graph] = {}
        """Graphs that were planned, and that may be bodies of a later graph, by ``id`` of their module."""

    def __call__(
        self,
        alignment: int,
        specs: Iterable[Any],
        graph_module: Any,
        graph_signature: Any = None,
        extra_padding: int = 0,
    ) -> Any:
        """Plan the tensors of one graph, with the interface of executorch's planners.

        Parameters
        ----------
        alignment
            Offsets and sizes are multiples of this many bytes.
        specs
            The ``TensorSpec`` of each tensor that is to be planned.
        graph_module, graph_signature
            The graph, and the signature of its program.
        extra_padding
            Bytes on top of each arena that stay free.

        Returns
        -------
        MemoryAlgoResult
            The offsets of tensors and the sizes of arenas, as executorch defines them. For a body this is the greedy plan;
            offsets in bodies change when the program that runs them is planned.

        Raises
        ------
        MissingDependencyError
            Executorch is not installed, and no greedy planner was given. Errors of the greedy planner are raised as well.
        """
        all_specs = list(specs)
        greedy = self.greedy or _installed_greedy()
        result = greedy(alignment, all_specs, graph_module, graph_signature, extra_padding)
        version_fault = "" if self.greedy else unsupported_version()
        if version_fault:
            warn(f"{version_fault}: the plan is executorch's own")
            return result
        greedy_faults: list[str] = []
        try:
            graph = read(graph_module, all_specs, extra_padding, self._pending)
            if is_program(graph_module, graph_signature):
                self._improve(alignment, graph, result, greedy_faults)
        except Exception as error:  # Whatever the fault is, executorch's own plan can be used.
            warn(
                f"{reason(error)}: the plan is executorch's own"
                + (f", which is wrong: {greedy_faults[0]}" if greedy_faults else "")
            )
        return result

    def _improve(self, alignment: int, graph: Graph, result: Any, faults: list[str]) -> None:
        """Replace the greedy plan of each arena in ``result`` by a smaller plan if one is found.

        Faults of the greedy plan are added to ``faults``; they are searched for only if the graph has bodies. If there are any,
        every arena gets another plan. Raises UnsupportedError if there is no valid plan.
        """
        tensors = flatten(graph)
        all_arenas = arenas.arenas(alignment, tensors, graph.reserved, max(part.padding for part in graph.parts()))
        sizes = list(result.bufsizes)
        sizes += [0] * (max((arena.mem_id for arena in all_arenas), default=0) + 1 - len(sizes))
        greedy_places = graph.places(result)
        if graph.calls:
            faults += check.faults(graph, greedy_places, sizes, graph.reserved)
        reports, roots = [], {}
        for arena in all_arenas:
            offsets = [greedy_places[id(tensor.spec)][1] - arena.bottom for tensor in arena.specs]
            plan, report = self._plan(arena, sizes[arena.mem_id], offsets, is_greedy_valid=not faults)
            reports.append(report)
            if plan is not None:
                sizes[arena.mem_id] = report.size
                for tensor, at in zip(arena.specs, plan.offsets, strict=True):
                    roots[id(tensor)] = arena.mem_id, arena.bottom + at
        if roots:
            places = assign(graph, tensors, roots)
            greedy_places |= {id(spec): (place.mem_id, place.mem_offset) for spec, place in places.items()}
            violations = check.faults(graph, greedy_places, sizes, graph.reserved)
            if violations:
                raise UnsupportedError(f"the plan failed verification ({violations[0]})")
            result.spec_dict.update(places)
            result.bufsizes = sizes
        if faults:
            warn(f"executorch's own plan is wrong ({faults[0]}): the plan is another one")
        self.reports += reports

    def _plan(
        self, arena: Arena, greedy: int, offsets: list[int], is_greedy_valid: bool = True
    ) -> tuple[Plan | None, ArenaReport]:
        """Plans one arena.

        Parameters
        ----------
        greedy, offsets
            Size of the arena in bytes, and the offset of each buffer of its problem, with executorch's greedy plan.
        is_greedy_valid
            Whether the greedy plan is valid; otherwise another one must be found.

        Returns
        -------
        (Plan or None, ArenaReport)
            A plan that is smaller than the greedy plan, or None if no smaller one was found; and the report. If the greedy
            plan is not valid, the plan is the smallest one that was found.

        Raises
        ------
        UnsupportedError
            The greedy plan is not valid, and no other plan was found.
        """
        began = time.monotonic()
        problem = arena.problem
        load = bound = arena.size(load_bound(problem))
        best, size, source = None, greedy if is_greedy_valid else sys.maxsize, "greedy"

        if size > load:
            plans: dict[str, Plan] = {}
            greedy_plan = Plan(
                problem=problem.digest,
                objective=max(map(sum, zip(offsets, problem.spans.size.tolist(), strict=True))),
                offsets=tuple(offsets),
            )
            if verify(problem, greedy_plan).ok:
                plans["executorch"] = greedy_plan
            # For most graphs this plan reaches the lower bound, so that no candidate has to start.
            quick = quick_plan(problem)
            if quick is not None and verify(problem, quick[1]).ok:
                plans["first_fit"] = quick[1]
            for name, plan in plans.items():
                if arena.size(plan.objective) < size:
                    best, size, source = plan, arena.size(plan.objective), name
        if size > load:
            result = solve_with(self.options, problem, plans)
            bound = max(load, arena.size(result.bound or 0))
            if result.plan is not None and arena.size(result.plan.objective) < size:
                best, size, source = result.plan, arena.size(result.plan.objective), result.provenance.candidate
        if best is None and not is_greedy_valid:
            raise UnsupportedError(f"found no plan within {self.options.time_limit:g} s")
        return best, ArenaReport(
            mem_id=arena.mem_id,
            buffers=len(arena.specs),
            greedy=greedy,
            size=size,
            load_bound=load,
            bound=min(bound, size),
            source=source,
            seconds=round(time.monotonic() - began, 3),
        )


def _installed_greedy() -> Callable[..., Any]:
    """Returns the greedy planner of the installed executorch; raises MissingDependencyError if executorch is not installed."""
    require(*NEEDED)
    from executorch.exir.memory_planning import greedy

    planner: Callable[..., Any] = greedy
    return planner
