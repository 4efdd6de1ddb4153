"""A pass for ExecuTorch that runs a graph's operators in an order that needs less memory.

Operators are only moved: each computes what it did, from the same values. Those that write over what others read, or draw
random numbers, keep their order among those.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from stowplan.backends.executorch.arenas import UnsupportedError, round_up
from stowplan.backends.executorch.planning import reason, solve_with, warn
from stowplan.frontends.torch_program import FakeRun, arguments, is_written, leaves, storage_key, tensors_of
from stowplan.models.operator_order.problem import Op, Problem, Tensor
from stowplan.portfolio.arguments import check_options
from stowplan.portfolio.context import Options
from stowplan.portfolio.operator_order.kind import KIND

#: Bytes that executorch aligns tensors to.
ALIGNMENT = 16


class OrderReport(msgspec.Struct, frozen=True, kw_only=True):
    """What came of one graph. Peaks are the most bytes of activations that live while an operator runs."""

    operators: int
    given: int
    """Peak in the order that the graph had."""
    peak: int
    bound: int
    """No order has a lower peak."""
    moved: bool
    """Whether the graph has another order now."""
    seconds: float

    @property
    def is_proven(self) -> bool:
        """Whether no order has a lower peak."""
        return self.peak <= self.bound


@dataclass
class ReorderPass:
    """A pass for ``ExecutorchBackendConfig(passes=[...])``; made by :func:`reorder_pass`."""

    options: Options
    reports: list[OrderReport] = field(default_factory=list)
    """One for each graph so far."""

    def __call__(self, graph_module: Any) -> Any:
        """Give a graph module the order with the lowest peak; one that cannot be ordered stays as it is, with a warning."""
        from torch.fx.passes.infra.pass_base import PassResult

        try:
            moved = self._reorder(graph_module)
        except Exception as error:  # whatever is wrong with this graph, it has an order
            warn(f"{reason(error)}: the operators keep their order")
            moved = False
        return PassResult(graph_module, moved)

    def _reorder(self, graph_module: Any) -> bool:
        began = time.monotonic()
        reader = GraphReader(graph_module.graph)
        problem = reader.problem
        given = KIND.initial(problem)["given"]
        found = solve_with(self.options, problem)
        moved, peak = False, given.objective
        if found.plan is not None and found.plan.objective < given.objective:
            moved, peak = True, found.plan.objective
            reader.apply(found.plan.order)
            graph_module.recompile()
        self.reports.append(
            OrderReport(
                operators=len(problem.ops),
                given=given.objective,
                peak=peak,
                bound=min(peak, found.bound or 0),
                moved=moved,
                seconds=round(time.monotonic() - began, 3),
            )
        )
        return moved


class GraphReader:
    """A graph of executorch's edge dialect as a problem of operator order.

    Parameters
    ----------
    graph
        A ``torch.fx.Graph`` with the values of its nodes in ``meta["val"]``.

    Raises
    ------
    InputError
        A shape that is not static, or an operator of which nobody knows what it shares.
    UnsupportedError
        A node that is no operator.
    """

    def __init__(self, graph: Any):
        self._graph = graph
        self._nodes = list(graph.nodes)
        self._operators: list[Any] = []
        """Node of each operator of the problem."""
        self._tensors: list[Tensor] = []
        self._numbers: dict[int, int] = {}
        """Numbers of tensors by ``id`` of their values."""
        self._run = FakeRun(graph.owning_module)
        self._storages: dict[Any, list[int]] = {}
        """Keys of the storages of the tensors of a node's value."""
        self._owners: dict[int, int | None] = {}
        """Number of the first tensor with a storage, by its key; None for weights."""
        self.problem = self._read()

    def apply(self, order: tuple[int, ...]) -> None:
        """Move the nodes; raises RuntimeError where the graph is not well formed afterwards."""
        heads = [node for node in self._nodes if node.op in ("placeholder", "get_attr")]
        parts: dict[Any, list[Any]] = {}
        for node in self._nodes:
            if _is_getitem(node):
                parts.setdefault(_whole(node), []).append(node)
        wanted = [
            *heads,
            *(each for number in order for each in (self._operators[number], *parts.get(self._operators[number], ()))),
        ]
        (last,) = (node for node in self._nodes if node.op == "output")
        for node in wanted:
            last.prepend(node)
        self._graph.lint()

    def _read(self) -> Problem:
        inputs: list[int] = []
        ops: list[Op] = []
        outputs: dict[int, None] = {}
        number_of: dict[Any, int] = {}
        for node in self._nodes:
            storages = [storage_key(tensor) for tensor in tensors_of(self._run.run(node))]
            self._storages[node] = self._storages[_base(node)] if _is_view(node) else storages
            if node.op == "get_attr":
                self._owners |= dict.fromkeys(storages)
            elif node.op == "placeholder":
                # Weights are no activations; torch.export names them so.
                if node.name.startswith(("p_", "b_", "c_", "obj_", "_lifted_tensor_constant")):
                    self._owners |= dict.fromkeys(storages)
                else:
                    inputs += self._add(node)
            elif node.op == "output":
                outputs = {each: None for used in node.all_input_nodes for each in self._numbers_of(used)}
            elif node.op == "call_function" and not _is_getitem(node):
                reads = dict.fromkeys(each for used in node.all_input_nodes for each in self._numbers_of(used))
                writes = tuple(self._add(node))
                number_of[node] = len(ops)
                self._operators.append(node)
                ops.append(Op(id=node.name, reads=tuple(reads), writes=writes, kind=str(node.target)))
            elif node.op != "call_function":
                raise UnsupportedError(f"found a node of the kind {node.op}, expected a graph of operators")
        return Problem(
            tensors=tuple(self._tensors),
            ops=tuple(ops),
            inputs=tuple(inputs),
            outputs=tuple(outputs),
            precedences=tuple(dict.fromkeys(self._precedences(number_of))),
            name="executorch",
        )

    def _precedences(self, number_of: dict[Any, int]) -> Iterator[tuple[int, int]]:
        last_random: int | None = None
        written: dict[int, int] = {}
        touching: dict[int, list[int]] = {}
        for node, number in number_of.items():
            for used in node.all_input_nodes:
                producer = _whole(used)
                # Values without tensors, sizes for example, have to be there as well.
                if producer in number_of:
                    yield number_of[producer], number
            written_now = self._storages_of(given for argument, given in arguments(node) if is_written(argument))
            for storage in self._storages_of(node.all_input_nodes):
                if storage in written:
                    yield written[storage], number
                if storage in written_now:
                    yield from ((other, number) for other in touching.get(storage, ()) if other != number)
                    written[storage] = number
                    touching[storage] = []
                touching.setdefault(storage, []).append(number)
            if _is_random(node):
                if last_random is not None:
                    yield last_random, number
                last_random = number

    def _numbers_of(self, node: Any) -> list[int]:
        values = map(id, tensors_of(self._run.values[node]))
        return [self._numbers[value] for value in values if value in self._numbers]

    def _storages_of(self, given: Iterable[Any]) -> dict[int, None]:
        """The storages of nodes, however deep in lists."""
        return dict.fromkeys(key for node in leaves(list(given)) for key in self._storages.get(node, ()))

    def _add(self, node: Any) -> list[int]:
        first = len(self._tensors)
        for tensor, storage in zip(tensors_of(self._run.values[node]), self._storages[node], strict=True):
            number = self._numbers[id(tensor)] = len(self._tensors)
            base = self._owners.setdefault(storage, number)
            # What shares the storage of weights takes nothing.
            size = 0 if base is None else round_up(int(tensor.numel()) * int(tensor.element_size()), ALIGNMENT)
            if base is not None and base < number:
                size = min(size, self._tensors[base].size)
            name = node.name if number == first else f"{node.name}#{number - first}"
            alias_of = None if base == number else base
            self._tensors.append(Tensor(id=name, size=size, alignment=ALIGNMENT, alias_of=alias_of))
        return [*range(first, len(self._tensors))]


def reorder_pass(time_limit: float = 10.0, *, deterministic: bool = False, seed: int = 0, workers: int = 2) -> ReorderPass:
    """A pass for executorch's ``ExecutorchBackendConfig(passes=[...])`` that orders operators for the least peak of live bytes.

    Parameters
    ----------
    time_limit
        Seconds for each graph.
    deterministic, seed, workers
        As :func:`stowplan.solve` takes them.

    Returns
    -------
    ReorderPass
        With ``reports`` of what it did.

    Raises
    ------
    UsageError
        An argument of a wrong type or out of range.
    """
    return ReorderPass(check_options(Options(time_limit=time_limit, deterministic=deterministic, seed=seed, workers=workers)))


def _is_getitem(node: Any) -> bool:
    return node.op == "call_function" and node.target is operator.getitem


def _whole(node: Any) -> Any:
    """The node whose result a node is a part of: itself, but for ``getitem``."""
    while _is_getitem(node):
        node = node.args[0]
    return node


def _is_view_copy(node: Any) -> bool:
    return node.op == "call_function" and "aten.view_copy.default" in str(node.target)


def _is_view(node: Any) -> bool:
    """Whether executorch has a view instead of this copy, once it has lowered the graph."""
    return _is_view_copy(node) and all(user.op != "output" for user in node.users)


def _base(node: Any) -> Any:
    """What executorch has a view of: all that were copies for views are left out."""
    while _is_view_copy(node):
        node = node.args[0]
    return node


def _is_random(node: Any) -> bool:
    tags = (*getattr(node.target, "tags", ()), *getattr(getattr(node.target, "_op", None), "tags", ()))
    return any(str(tag).endswith("nondeterministic_seeded") for tag in tags)
