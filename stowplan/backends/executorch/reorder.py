"""A pass for ExecuTorch that runs a graph's operators in an order that needs less memory.

Operators are only moved: each computes what it did, from the same values. Those that write over what others read, or draw
random numbers, keep their order among those.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Iterable
from typing import Any, Unpack

from stowplan.backends.executorch.arenas import round_up
from stowplan.backends.fallback import UnsupportedError, reason, warn
from stowplan.backends.search import OrderReport, SearchOptions, ordered
from stowplan.frontends.torch_program import (
    RANDOM,
    EffectOrder,
    FakeRun,
    arguments,
    is_written,
    leaves,
    storage_key,
    tensors_of,
)
from stowplan.kernel.context import Options
from stowplan.models.operator_order.problem import Op, Problem, Tensor

#: Bytes that executorch aligns tensors to.
ALIGNMENT = 16


class ReorderPass:
    """A pass for executorch's ``ExecutorchBackendConfig(passes=[...])`` that orders operators for the least peak of live bytes.

    Parameters
    ----------
    time_limit
        Seconds for each graph.
    search
        ``deterministic``, ``seed`` and ``workers``, as :func:`stowplan.solve` takes them.

    Attributes
    ----------
    reports
        One for each graph so far.

    Raises
    ------
    UsageError
        An argument of a wrong type or out of range.
    """

    def __init__(self, time_limit: float = 10.0, **search: Unpack[SearchOptions]):
        self.options = Options(time_limit=time_limit, **search)
        self.reports: list[OrderReport] = []

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
        plan, report = ordered(reader.problem, self.options, began)
        if report.moved:
            reader.apply(plan.order)
            graph_module.recompile()
        self.reports.append(report)
        return report.moved


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
            *(node for number in order for node in (self._operators[number], *parts.get(self._operators[number], ()))),
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
                outputs = {tensor: None for used in node.all_input_nodes for tensor in self._numbers_of(used)}
            elif node.op == "call_function" and not _is_getitem(node):
                reads = dict.fromkeys(tensor for used in node.all_input_nodes for tensor in self._numbers_of(used))
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
            precedences=self._precedences(number_of),
            name="executorch",
        )

    def _precedences(self, number_of: dict[Any, int]) -> tuple[tuple[int, int], ...]:
        order = EffectOrder()
        for node, number in number_of.items():
            for used in node.all_input_nodes:
                producer = _whole(used)
                # Values without tensors, sizes for example, have to be there as well.
                if producer in number_of:
                    order.precedences[number_of[producer], number] = None
            drawn = dict.fromkeys([RANDOM] if _is_random(node) else [])
            touched = self._storages_of(node.all_input_nodes) | drawn
            written = self._storages_of(given for argument, given in arguments(node) if is_written(argument)) | drawn
            order.add(number, touched, written)
        return tuple(order.precedences)

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
