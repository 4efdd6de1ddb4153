"""A memory planning algorithm for ExecuTorch's target memory maps, which puts much-used tensors into fast banks.

A target memory map declares several memories (*banks*). Each bank is an *arena*, a range of memory in which tensors have
offsets, and its ``mem_id`` is the number of the arena. Executorch's own planner for such maps, ``BankedGreedy``, only considers
the sizes of tensors. This planner solves a problem of *banked packing*: it chooses the bank and the offset of each tensor so
that reads and writes cost as little as possible. A *program* is a main graph, together with the graphs that its nodes run
(*bodies*).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

from stowplan.arguments import whole
from stowplan.backends.executorch import arenas, check
from stowplan.backends.executorch.arenas import Tensor
from stowplan.backends.executorch.control_flow import Graph, assign, flatten, is_program, read
from stowplan.backends.executorch.planning import NEEDED, unsupported_version
from stowplan.backends.fallback import UnsupportedError, reason, require, warn
from stowplan.backends.search import SearchOptions, solve_with
from stowplan.document import Document
from stowplan.errors import InputError, UsageError
from stowplan.kernel.context import Options
from stowplan.models.banked_packing.plan import Plan
from stowplan.models.banked_packing.problem import Bank, Buffer, Problem
from stowplan.models.banked_packing.verify import verify
from stowplan.models.packing import problem as packing
from stowplan.portfolio.banked_packing.kind import KIND, traffic_by_bank
from stowplan.portfolio.packing.quick import quick_plan

#: If no costs are given, a byte that is read or written in a bank costs this many times as much as in the bank before. Any
#: ratio above 1 puts much-used tensors into the faster bank; with two banks the plan does not depend on it.
COST_RATIO = 4


class BankReport(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A report about the plan of one program.

    The cost of a plan is the sum over all banks of the bytes that are read and written there, times the cost of the bank.
    """

    buffers: int
    """How many tensors were placed."""
    stock: int | None
    """Cost of the plan of executorch's own planner; None if it found no valid plan."""
    cost: int
    """Cost of the plan."""
    bound: int
    """Proven lower bound on the cost of every plan."""
    stock_traffic: dict[str, int] | None
    """Bytes read and written in each bank with executorch's own plan, by name of the bank; None if there is no valid one."""
    traffic: dict[str, int]
    """Bytes read and written in each bank with the plan, by name of the bank."""
    source: str
    """The method that found the plan: ``executorch`` if its own plan was kept, otherwise a candidate of
    :func:`stowplan.solve`."""
    seconds: float
    """Seconds of planning."""
    format: str = "stowplan.executorch.banks.report"
    version: int = 1

    @property
    def is_proven(self) -> bool:
        """Whether the cost is proven to be minimal."""
        return self.cost <= self.bound


class BankedPlanningAlgorithm:
    """An algorithm for executorch's ``MemoryPlanningAlgorithmSuite`` that minimizes the cost of reads and writes.

    It must be the only algorithm of the suite. The suite compares algorithms by the sum of the bytes of all arenas, which means
    nothing if the arenas are in different memories.

    Parameters
    ----------
    target
        Executorch's ``TargetMemoryMap``: banks with capacities that no plan may exceed, the fastest first.
    costs
        Cost of a byte that is read or written, by name of the bank, as integers in any unit, 0 or more. If it is None, the
        first bank costs 1, and each other bank :data:`COST_RATIO` times as much as the bank before.
    time_limit
        Seconds for each program.
    stock
        Executorch's own planner, a function with the arguments of :meth:`__call__`; None uses the ``BankedGreedy`` of the
        installed executorch. The version of executorch is only checked with None.
    count_uses
        A function that returns how often each tensor is used. It takes a graph module and the specifications of its tensors
        (``TensorSpec``), and returns numbers by ``id`` of the specification. None uses :func:`count_touching_nodes`.
    search
        ``deterministic``, ``seed`` and ``workers``; see :func:`stowplan.solve`.

    Attributes
    ----------
    reports
        A report for each program planned so far.

    Raises
    ------
    UsageError
        The constructor raises it if an argument has a wrong type or is out of range, or if the names of ``costs`` are not those
        of the banks.
    """

    __name__ = "stowplan_banked"

    def __init__(
        self,
        target: Any,
        costs: Mapping[str, int] | None = None,
        *,
        time_limit: float = 10.0,
        stock: Callable[..., Any] | None = None,
        count_uses: Callable[[Any, Sequence[Any]], Mapping[int, int]] | None = None,
        **search: Unpack[SearchOptions],
    ):
        self.target, self.stock, self.count_uses = target, stock, count_uses or count_touching_nodes
        names = [bank.name for bank in target.banks]
        if costs is not None and set(costs) != set(names):
            raise UsageError(
                f"found costs of {', '.join(sorted(costs)) or 'nothing'}, expected one for each bank: {', '.join(names)}"
            )
        cost_of = {name: COST_RATIO**at for at, name in enumerate(names)} if costs is None else costs
        self.costs = tuple(whole(f"the cost {{}} of {name}", cost_of[name], 0) for name in names)
        """[banks] Cost of a byte that is read or written."""
        self.options = Options(time_limit=time_limit, **search)
        self.reports: list[BankReport] = []
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
        """Plan the tensors of one graph, with the interface of executorch's planners; returns its ``MemoryAlgoResult``.

        Executorch's own planner runs first. Its plan is used for bodies, which are planned again with the program that runs
        them. It is also used, with a :class:`~stowplan.backends.fallback.PlanningWarning`, if this planner has no plan or does
        not support the installed version of executorch. The arguments are those of
        :meth:`stowplan.backends.executorch.planning.MemoryPlanningAlgorithm.__call__`.

        Raises
        ------
        InputError
            Neither planner has a plan, for example because the banks cannot hold the tensors.
        MissingDependencyError
            Executorch is not installed, and no ``stock`` planner was given.
        BankPlacementError
            Executorch's own planner has no plan, and this planner does not support the graph or the version of executorch.
            Other errors of executorch's planner are raised in the same case.
        """
        all_specs = list(specs)
        stock = self.stock or _stock(self.target)
        refusal: Exception | None = None
        result = None
        try:
            result = stock(alignment, all_specs, graph_module, graph_signature, extra_padding)
        except Exception as error:  # Executorch's planner may fail although there is a plan.
            refusal = error
        reason_for_stock = "" if self.stock else unsupported_version()
        if not reason_for_stock:
            try:
                graph = read(graph_module, all_specs, extra_padding, self._pending)
                if result is None or is_program(graph_module, graph_signature):
                    return self._plan(alignment, graph, result)
                return result
            except InputError as error:
                if refusal is not None:
                    raise InputError(f"{error}; executorch's own planner: {refusal}") from refusal
                reason_for_stock = str(error)
            except Exception as error:  # Whatever the fault is, executorch's own planner may have a plan.
                reason_for_stock = reason(error)
        if refusal is not None:
            raise refusal
        _realign(self.target, result, alignment)
        warn(f"{reason_for_stock}: the plan is executorch's own")
        return result

    def _plan(self, alignment: int, graph: Graph, result: Any) -> Any:
        """Plan a program, check the plan, and write it into the result; ``result`` is None if executorch has no plan.

        Raises InputError if no plan was found, and UnsupportedError if the graph is not supported or the check finds a fault.
        """
        began = time.monotonic()
        tensors = flatten(graph)
        other_devices = sorted({str(tensor.spec.device.name) for tensor in tensors if tensor.spec.device.name != "CPU"})
        if other_devices:
            raise UnsupportedError(f"found tensors on {', '.join(other_devices)}, expected the CPU's alone")
        padding = max(part.padding for part in graph.parts())
        all_arenas = arenas.arenas(alignment, tensors, graph.reserved, padding)
        problem, owners = self._problem(alignment, all_arenas, graph, padding, tensors)
        stock_places = None if result is None else graph.places(result)
        plan, source, stock, bound = self._solve(problem, owners, stock_places)
        offsets = {
            id(tensor): (self.target.banks[bank].mem_id, at)
            for tensor, bank, at in zip(owners, plan.banks, plan.offsets, strict=True)
        }
        for tensor, bank in zip(owners, plan.banks, strict=True):
            tensor.spec.realign(problem.banks[bank].alignment)
        offsets |= self._pack_undeclared_arenas(all_arenas)
        sizes = [0] * (max((mem_id for mem_id, _ in offsets.values()), default=1) + 1)
        places = assign(graph, tensors, offsets)
        for tensor in tensors:
            mem_id, at = offsets[id(tensor.root())]
            sizes[mem_id] = max(sizes[mem_id], at + tensor.root().allocated_memory + padding)
        placed = {id(spec): (place.mem_id, place.mem_offset) for spec, place in places.items()}
        violations = check.faults(graph, placed, sizes, graph.reserved)
        violations += [bank.name for bank in self.target.banks if bank.mem_id < len(sizes) and sizes[bank.mem_id] > bank.size]
        if violations:
            raise UnsupportedError(f"the plan failed verification ({violations[0]})")
        self.reports.append(
            BankReport(
                buffers=len(owners),
                stock=None if stock is None else stock.objective,
                cost=plan.objective,
                bound=min(bound, plan.objective),
                stock_traffic=None if stock is None else traffic_by_bank(problem, stock),
                traffic=traffic_by_bank(problem, plan),
                source=source,
                seconds=round(time.monotonic() - began, 3),
            )
        )
        if result is None:
            from executorch.exir.memory_planning import MemoryAlgoResult

            result = MemoryAlgoResult({}, [])
        result.spec_dict.update(places)
        result.bufsizes = sizes
        return result

    def _problem(
        self, alignment: int, all_arenas: list[arenas.Arena], graph: Graph, padding: int, tensors: list[Tensor]
    ) -> tuple[Problem, list[Any]]:
        """Returns the banked packing problem, and the tensor of each of its buffers.

        Tensors for arenas that the map does not declare are left out. Raises InputError if a bank's alignment is no multiple of
        the graph's alignment.
        """
        uses: dict[int, int] = {}
        for part in graph.parts():
            uses |= self.count_uses(part.module, part.specs)
        roots: dict[int, int] = {}
        for tensor in tensors:
            root = id(tensor.root())
            roots[root] = roots.get(root, 0) + uses.get(id(tensor.spec), 0)
        banks, reserved = [], graph.reserved
        for bank, cost in zip(self.target.banks, self.costs, strict=True):
            unit = bank.alignment or alignment
            if unit % alignment:
                raise InputError(f"found alignment {unit} of bank {bank.name}, expected a multiple of the graph's, {alignment}")
            bottom = reserved[bank.mem_id] if bank.mem_id < len(reserved) else 0
            capacity = max(0, bank.size - padding)
            banks.append(Bank(name=bank.name, capacity=capacity, cost=cost, alignment=unit, reserved=bottom))
        names = {bank.mem_id: bank.name for bank in self.target.banks}
        buffers: list[Buffer] = []
        owners: list[Any] = []
        for arena in all_arenas:
            for spec, buffer in zip(arena.specs, arena.problem.buffers, strict=True):
                if spec.mem_id is None or spec.mem_id in names:
                    pinned = () if spec.mem_id is None else (names[spec.mem_id],)
                    buffers.append(
                        Buffer(
                            id=str(len(buffers)),
                            lower=buffer.lower,
                            upper=buffer.upper,
                            size=buffer.size,
                            uses=roots[id(spec)],
                            alignment=alignment,
                            banks=pinned,
                        )
                    )
                    owners.append(spec)
        return Problem(buffers=tuple(buffers), banks=tuple(banks), name="banks"), owners

    def _solve(
        self, problem: Problem, owners: list[Tensor], stock_places: Mapping[int, tuple[int, int]] | None
    ) -> tuple[Plan, str, Plan | None, int]:
        """Solves the problem; returns a plan, the method that found it, executorch's own plan, and a lower bound on the cost.

        Executorch's own plan is None if there is none or it is not valid. Raises InputError if no plan was found.
        """
        plans: dict[str, Plan] = {}
        if stock_places is not None:
            numbers = {bank.mem_id: at for at, bank in enumerate(self.target.banks)}
            banks = tuple(numbers[stock_places[id(tensor.spec)][0]] for tensor in owners)
            stock = Plan(
                problem=problem.digest,
                objective=sum(problem.traffic(number) * problem.banks[bank].cost for number, bank in enumerate(banks)),
                banks=banks,
                offsets=tuple(stock_places[id(tensor.spec)][1] for tensor in owners),
            )
            if verify(problem, stock).ok:
                plans["executorch"] = stock
        stock_plan = plans.get("executorch")
        lower_bound = KIND.bound(problem)
        if stock_plan is not None and stock_plan.objective <= lower_bound:
            return stock_plan, "executorch", stock_plan, lower_bound
        result = solve_with(self.options, problem, plans)
        if result.plan is None:
            why = result.details.get(
                "explanation", f"found no plan within {self.options.time_limit:g} s, and no proof that there is none"
            )
            rests = f", assuming {'; '.join(result.assumed)}" if result.assumed else ""
            raise InputError(f"the banks do not hold the graph: {why}{rests}")
        return result.plan, result.provenance.candidate, stock_plan, max(lower_bound, result.bound or 0)

    def _pack_undeclared_arenas(self, all_arenas: list[arenas.Arena]) -> dict[int, tuple[int, int]]:
        """Packs the tensors whose prescribed arena the map does not declare; returns arena and offset by ``id`` of the tensor.

        A quick heuristic packs them, because these arenas have no capacity and no cost.
        """
        declared = {bank.mem_id for bank in self.target.banks}
        offsets: dict[int, tuple[int, int]] = {}
        for arena in all_arenas:
            undeclared = [spec.mem_id is not None and spec.mem_id not in declared for spec in arena.specs]
            buffers = tuple(buffer for buffer, is_here in zip(arena.problem.buffers, undeclared, strict=True) if is_here)
            packed = quick_plan(packing.Problem(buffers=buffers)) if buffers else None
            if packed is not None:
                specs = [spec for spec, is_here in zip(arena.specs, undeclared, strict=True) if is_here]
                for spec, at in zip(specs, packed[1].offsets, strict=True):
                    offsets[id(spec)] = arena.mem_id, arena.bottom + at
        return offsets


def count_touching_nodes(graph_module: Any, specs: Sequence[Any]) -> dict[int, int]:
    """Returns how many nodes read or write each tensor, by ``id`` of its specification (executorch's ``TensorSpec``).

    Views, allocations and the selection of an element of a tuple do not count. A tensor without uses has 0.
    """
    from executorch.exir import memory
    from executorch.exir.memory_planning import get_node_tensor_specs

    without_traffic = {memory.alloc, memory.view, memory.free}
    uses = dict.fromkeys(map(id, specs), 0)
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or node.target in without_traffic or getattr(node.target, "__name__", "") == "getitem":
            continue
        touched = {id(spec) for touching in (node, *node.all_input_nodes) for spec in get_node_tensor_specs(touching)}
        for key in touched & uses.keys():
            uses[key] += 1
    return uses


def _stock(target: Any) -> Callable[..., Any]:
    """Executorch's own planner for a map; raises MissingDependencyError if executorch is not installed."""
    require(*NEEDED)
    from executorch.exir.banked_memory_planning import BankedGreedy

    planner: Callable[..., Any] = BankedGreedy(target)
    return planner


def _realign(target: Any, result: Any, alignment: int) -> None:
    """Give tensors the alignment of the bank in which executorch's planner has placed them.

    This is needed because the planner of this module may have changed their alignments before it failed.
    """
    units = {bank.mem_id: bank.alignment or alignment for bank in target.banks}
    for spec, place in result.spec_dict.items():
        spec.realign(units.get(place.mem_id, alignment) if spec.storage_base is None else alignment)
