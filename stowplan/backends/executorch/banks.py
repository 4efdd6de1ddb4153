"""A memory planning algorithm for ExecuTorch's target memory maps: what is used most goes into the fastest bank.

Executorch's own planner for such maps, ``BankedGreedy``, looks at sizes alone.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Unpack

from stowplan.arguments import whole
from stowplan.backends.executorch import arenas, check
from stowplan.backends.executorch.arenas import Tensor
from stowplan.backends.executorch.control_flow import Graph, assign, flatten, is_program, read
from stowplan.backends.executorch.planning import NEEDED, complaint
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

#: Cost of a byte in a bank over that in the one before, where costs are not given.
RATIO = 4


class BankReport(Document, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """What came of one graph. Costs are bytes read and written times the cost of their bank."""

    buffers: int
    stock: int | None
    """Cost by executorch's own planner, None where it found no plan."""
    cost: int
    bound: int
    """No plan costs less."""
    stock_traffic: dict[str, int] | None
    """Bytes read and written in each bank, by executorch's own planner."""
    traffic: dict[str, int]
    source: str
    seconds: float
    format: str = "stowplan.executorch.banks.report"
    version: int = 1

    @property
    def is_proven(self) -> bool:
        """Whether no plan costs less."""
        return self.cost <= self.bound


class BankedPlanningAlgorithm:
    """An algorithm for executorch's ``MemoryPlanningAlgorithmSuite``, which must be the only one there.

    The suite adds up the bytes of all arenas, which says nothing where they are of unlike memories.

    Parameters
    ----------
    target
        Executorch's ``TargetMemoryMap``: banks with hard capacities, the fastest first.
    costs
        Cost of a byte read or written, by name of the bank, as whole numbers in any unit; without it each bank costs
        :data:`RATIO` times the one before. With two banks the plan does not depend on it.
    time_limit
        Seconds for each graph.
    stock
        Executorch's planner with the same arguments; None takes the installed one's.
    count_uses
        Uses by ``id`` of the specification, of a graph module and its specifications; by default the nodes that touch it.
    search
        ``deterministic``, ``seed`` and ``workers``, as :func:`stowplan.solve` takes them.

    Attributes
    ----------
    reports
        One for each program planned so far.

    Raises
    ------
    UsageError
        An argument of a wrong type or out of range; costs that do not name each bank.
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
        self.target, self.stock, self.count_uses = target, stock, count_uses or nodes_that_touch
        names = [bank.name for bank in target.banks]
        if costs is not None and set(costs) != set(names):
            raise UsageError(
                f"found costs of {', '.join(sorted(costs)) or 'nothing'}, expected one for each bank: {', '.join(names)}"
            )
        given = {name: RATIO**at for at, name in enumerate(names)} if costs is None else costs
        self.costs = tuple(whole(f"the cost {{}} of {name}", given[name], 0) for name in names)
        """Of a byte in each bank."""
        self.options = Options(time_limit=time_limit, **search)
        self.reports: list[BankReport] = []
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
        """Plan the tensors of one graph, as executorch's planners do; returns its ``MemoryAlgoResult``.

        Raises
        ------
        InputError
            The banks cannot hold the graph, or neither planner found out how.
        BankPlacementError
            Executorch's own, where it refuses the map itself.
        """
        every = list(specs)
        stock = self.stock or _stock(self.target)
        refusal: Exception | None = None
        result = None
        try:
            result = stock(alignment, every, graph_module, graph_signature, extra_padding)
        except Exception as error:  # it may give up where there is a plan
            refusal = error
        wrong = "" if self.stock else complaint()
        if not wrong:
            try:
                graph = read(graph_module, every, extra_padding, self._known)
                if result is None or is_program(graph_module, graph_signature):
                    return self._plan(alignment, graph, result)
                return result
            except InputError as error:
                if refusal is not None:
                    raise InputError(f"{error}; executorch's own planner: {refusal}") from refusal
                wrong = str(error)
            except Exception as error:  # whatever is wrong with this graph, there may be a plan at hand
                wrong = reason(error)
        if refusal is not None:
            raise refusal
        _realign(self.target, result, alignment)
        warn(f"{wrong}: the plan is executorch's own")
        return result

    def _plan(self, alignment: int, graph: Graph, result: Any) -> Any:
        began = time.monotonic()
        tensors = flatten(graph)
        strange = sorted({str(tensor.spec.device.name) for tensor in tensors if tensor.spec.device.name != "CPU"})
        if strange:
            raise UnsupportedError(f"found tensors on {', '.join(strange)}, expected the CPU's alone")
        padding = max(part.padding for part in graph.parts())
        units = arenas.arenas(alignment, tensors, graph.reserved, padding)
        problem, owners = self._problem(alignment, units, graph, padding, tensors)
        at_hand = None if result is None else graph.places(result)
        plan, source, stock, bound = self._solve(problem, owners, at_hand)
        offsets = {
            id(tensor): (self.target.banks[bank].mem_id, at)
            for tensor, bank, at in zip(owners, plan.banks, plan.offsets, strict=True)
        }
        for tensor, bank in zip(owners, plan.banks, strict=True):
            tensor.spec.realign(problem.banks[bank].alignment)
        offsets |= self._elsewhere(units)
        sizes = [0] * (max((mem_id for mem_id, _ in offsets.values()), default=1) + 1)
        places = assign(graph, tensors, offsets)
        for tensor in tensors:
            mem_id, at = offsets[id(tensor.root())]
            sizes[mem_id] = max(sizes[mem_id], at + tensor.root().allocated_memory + padding)
        where = {id(spec): (place.mem_id, place.mem_offset) for spec, place in places.items()}
        wrong = check.faults(graph, where, sizes, graph.reserved)
        wrong += [bank.name for bank in self.target.banks if bank.mem_id < len(sizes) and sizes[bank.mem_id] > bank.size]
        if wrong:
            raise UnsupportedError(f"the plan failed verification ({wrong[0]})")
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
        self, alignment: int, units: list[arenas.Arena], graph: Graph, padding: int, tensors: list[Tensor]
    ) -> tuple[Problem, list[Any]]:
        """The problem, and whose buffers they are."""
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
        for planned in units:
            for spec, buffer in zip(planned.specs, planned.problem.buffers, strict=True):
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
        self, problem: Problem, owners: list[Tensor], at_hand: Mapping[int, tuple[int, int]] | None
    ) -> tuple[Plan, str, Plan | None, int]:
        """A plan, who found it, executorch's own, and a bound."""
        plans: dict[str, Plan] = {}
        if at_hand is not None:
            numbers = {bank.mem_id: at for at, bank in enumerate(self.target.banks)}
            banks = tuple(numbers[at_hand[id(tensor.spec)][0]] for tensor in owners)
            stock = Plan(
                problem=problem.digest,
                objective=sum(problem.traffic(number) * problem.banks[bank].cost for number, bank in enumerate(banks)),
                banks=banks,
                offsets=tuple(at_hand[id(tensor.spec)][1] for tensor in owners),
            )
            if verify(problem, stock).ok:
                plans["executorch"] = stock
        stock_plan = plans.get("executorch")
        floor = KIND.bound(problem)
        if stock_plan is not None and stock_plan.objective <= floor:
            return stock_plan, "executorch", stock_plan, floor
        result = solve_with(self.options, problem, plans)
        if result.plan is None:
            why = result.details.get(
                "explanation", f"found no plan within {self.options.time_limit:g} s, and no proof that there is none"
            )
            rests = f", assuming {'; '.join(result.assumed)}" if result.assumed else ""
            raise InputError(f"the banks do not hold the graph: {why}{rests}")
        return result.plan, result.provenance.candidate, stock_plan, max(floor, result.bound or 0)

    def _elsewhere(self, units: list[arenas.Arena]) -> dict[int, tuple[int, int]]:
        """Places of what is bound for arenas that the map does not declare: laid out there, first fit by size."""
        declared = {bank.mem_id for bank in self.target.banks}
        offsets: dict[int, tuple[int, int]] = {}
        for unit in units:
            bound = [spec.mem_id is not None and spec.mem_id not in declared for spec in unit.specs]
            buffers = tuple(buffer for buffer, is_bound in zip(unit.problem.buffers, bound, strict=True) if is_bound)
            packed = quick_plan(packing.Problem(buffers=buffers)) if buffers else None
            if packed is not None:
                specs = [spec for spec, is_bound in zip(unit.specs, bound, strict=True) if is_bound]
                for spec, at in zip(specs, packed[1].offsets, strict=True):
                    offsets[id(spec)] = unit.mem_id, unit.bottom + at
        return offsets


def nodes_that_touch(graph_module: Any, specs: Sequence[Any]) -> dict[int, int]:
    """Nodes that read or write each tensor, by ``id`` of the specification; views and allocations move nothing."""
    from executorch.exir import memory
    from executorch.exir.memory_planning import get_node_tensor_specs

    still = {memory.alloc, memory.view, memory.free}
    uses = dict.fromkeys(map(id, specs), 0)
    for node in graph_module.graph.nodes:
        if node.op != "call_function" or node.target in still or getattr(node.target, "__name__", "") == "getitem":
            continue
        touched = {id(spec) for touching in (node, *node.all_input_nodes) for spec in get_node_tensor_specs(touching)}
        for key in touched & uses.keys():
            uses[key] += 1
    return uses


def _stock(target: Any) -> Callable[..., Any]:
    require(*NEEDED)
    from executorch.exir.banked_memory_planning import BankedGreedy

    planner: Callable[..., Any] = BankedGreedy(target)
    return planner


def _realign(target: Any, result: Any, alignment: int) -> None:
    """Give tensors the alignment of the bank that executorch's planner has put them in, in case ours has changed it."""
    units = {bank.mem_id: bank.alignment or alignment for bank in target.banks}
    for spec, place in result.spec_dict.items():
        spec.realign(units.get(place.mem_id, alignment) if spec.storage_base is None else alignment)
