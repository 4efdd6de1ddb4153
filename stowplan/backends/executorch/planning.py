"""A memory planning algorithm for ExecuTorch: the framework's greedy plan, made smaller where that is possible."""

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

#: What is asked of :func:`~stowplan.backends.fallback.require`.
NEEDED = ("planning for ExecuTorch", ("executorch",), "executorch")

#: Version of executorch whose memory planning this back end was written and tested for: its first two numbers.
VERSION = "1.5"


def complaint() -> str:
    """What is wrong with the installed version of executorch, in one line; empty where it is the one that is known."""
    try:
        installed = importlib.metadata.version("executorch")
    except importlib.metadata.PackageNotFoundError:
        return f"found an executorch without a version, expected {VERSION}"
    return "" if installed.split(".")[:2] == VERSION.split(".") else f"found executorch {installed}, expected {VERSION}"


class ArenaReport(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What came of one arena. Sizes are bytes of the whole arena, with what is reserved in it and on top of it."""

    mem_id: int
    buffers: int
    greedy: int
    """Size by executorch's greedy planner."""
    size: int
    load_bound: int
    """No plan is smaller: what is reserved, and the most bytes that live at once."""
    bound: int
    """No plan is smaller; at least ``load_bound``."""
    source: str
    """What found the plan: ``greedy`` where it stayed."""
    seconds: float
    format: str = "stowplan.executorch.arena.report"
    version: int = 1

    @property
    def is_proven(self) -> bool:
        """Whether no plan is smaller."""
        return self.size <= self.bound


class MemoryPlanningAlgorithm:
    """An algorithm for executorch's ``MemoryPlanningAlgorithmSuite``.

    Each arena is packed to the least height; an arena that is not smaller than greedy's stays as greedy has it, and one that
    greedy packs to its load costs nothing. Everything is verified before it is handed over. A graph that cannot be planned
    keeps greedy's plan, with a :class:`~stowplan.backends.fallback.PlanningWarning`.

    Parameters
    ----------
    time_limit
        Seconds for each arena of each graph; most take far less.
    greedy
        Executorch's planner with the same arguments; None takes the installed one's.
    search
        ``deterministic``, ``seed`` and ``workers``, as :func:`stowplan.solve` takes them.

    Attributes
    ----------
    reports
        One for each arena of each program planned so far.

    Raises
    ------
    UsageError
        An argument of a wrong type or out of range.
    """

    # The suite keeps results by the names of their algorithms.
    __name__ = "stowplan"

    def __init__(self, time_limit: float = 10.0, *, greedy: Callable[..., Any] | None = None, **search: Unpack[SearchOptions]):
        self.options, self.greedy = Options(time_limit=time_limit, **search), greedy
        self.reports: list[ArenaReport] = []
        self._known: dict[int, Graph] = {}
        """Graphs by ``id`` of the module that no other was seen to run so far."""

    def __call__(
        self,
        alignment: int,
        specs: Iterable[Any],
        graph_module: Any,
        graph_signature: Any = None,
        extra_padding: int = 0,
    ) -> Any:
        """Plan the tensors of one graph, as executorch's planners do; returns its ``MemoryAlgoResult``."""
        every = list(specs)
        greedy = self.greedy or _installed_greedy()
        result = greedy(alignment, every, graph_module, graph_signature, extra_padding)
        wrong = "" if self.greedy else complaint()
        if wrong:
            warn(f"{wrong}: the plan is executorch's own")
            return result
        faults: list[str] = []
        try:
            graph = read(graph_module, every, extra_padding, self._known)
            if is_program(graph_module, graph_signature):
                self._improve(alignment, graph, result, faults)
        except Exception as error:  # whatever is wrong with this graph, there is a plan at hand
            warn(f"{reason(error)}: the plan is executorch's own" + (f", which is wrong: {faults[0]}" if faults else ""))
        return result

    def _improve(self, alignment: int, graph: Graph, result: Any, faults: list[str]) -> None:
        tensors = flatten(graph)
        units = arenas.arenas(alignment, tensors, graph.reserved, max(part.padding for part in graph.parts()))
        sizes = list(result.bufsizes)
        sizes += [0] * (max((unit.mem_id for unit in units), default=0) + 1 - len(sizes))
        at_hand = graph.places(result)
        if graph.calls:
            faults += check.faults(graph, at_hand, sizes, graph.reserved)
        reports, roots = [], {}
        for unit in units:
            offsets = [at_hand[id(tensor.spec)][1] - unit.bottom for tensor in unit.specs]
            plan, report = self._plan(unit, sizes[unit.mem_id], offsets, is_right=not faults)
            reports.append(report)
            if plan is not None:
                sizes[unit.mem_id] = report.size
                for tensor, at in zip(unit.specs, plan.offsets, strict=True):
                    roots[id(tensor)] = unit.mem_id, unit.bottom + at
        if roots:
            places = assign(graph, tensors, roots)
            at_hand |= {id(spec): (place.mem_id, place.mem_offset) for spec, place in places.items()}
            wrong = check.faults(graph, at_hand, sizes, graph.reserved)
            if wrong:
                raise UnsupportedError(f"the plan failed verification ({wrong[0]})")
            result.spec_dict.update(places)
            result.bufsizes = sizes
        if faults:
            warn(f"executorch's own plan is wrong ({faults[0]}): the plan is another one")
        self.reports += reports

    def _plan(self, unit: Arena, greedy: int, offsets: list[int], is_right: bool = True) -> tuple[Plan | None, ArenaReport]:
        """A plan of an arena that is smaller than greedy's if that is right, None where there is none; and what to report."""
        began = time.monotonic()
        problem = unit.problem
        load = bound = unit.size(load_bound(problem))
        best, size, source = None, greedy if is_right else sys.maxsize, "greedy"

        if size > load:
            plans: dict[str, Plan] = {}
            at_hand = Plan(
                problem=problem.digest,
                objective=max(map(sum, zip(offsets, problem.spans.size.tolist(), strict=True))),
                offsets=tuple(offsets),
            )
            if verify(problem, at_hand).ok:
                plans["executorch"] = at_hand
            # Most graphs are at their load with this one, and need no process.
            quick = quick_plan(problem)
            if quick is not None and verify(problem, quick[1]).ok:
                plans["first_fit"] = quick[1]
            for name, plan in plans.items():
                if unit.size(plan.objective) < size:
                    best, size, source = plan, unit.size(plan.objective), name
        if size > load:
            result = solve_with(self.options, problem, plans)
            bound = max(load, unit.size(result.bound or 0))
            if result.plan is not None and unit.size(result.plan.objective) < size:
                best, size, source = result.plan, unit.size(result.plan.objective), result.provenance.candidate
        if best is None and not is_right:
            raise UnsupportedError(f"found no plan within {self.options.time_limit:g} s")
        return best, ArenaReport(
            mem_id=unit.mem_id,
            buffers=len(unit.specs),
            greedy=greedy,
            size=size,
            load_bound=load,
            bound=min(bound, size),
            source=source,
            seconds=round(time.monotonic() - began, 3),
        )


def _installed_greedy() -> Callable[..., Any]:
    require(*NEEDED)
    from executorch.exir.memory_planning import greedy

    planner: Callable[..., Any] = greedy
    return planner
