"""A pass for ExecuTorch that runs a graph's operators in an order that needs less memory.

Operators are only moved: each computes what it did, from the same values. Those that write over what others read, or draw
random numbers, keep their order among those.
"""

from __future__ import annotations

import operator
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import msgspec

from stowplan.backends.executorch.arenas import UnsupportedError, round_up
from stowplan.backends.executorch.planning import reason, solve_with, warn
from stowplan.frontends.torch_program import arguments, is_written
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
        moved = found.plan is not None and found.plan.objective < given.objective
        if moved:
            reader.apply(found.plan.order)
            graph_module.recompile()
        peak = found.plan.objective if moved else given.objective
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
    UnsupportedError
        A shape that is not static.
    """

    def __init__(self, graph: Any):
        self._graph = graph
        self._nodes = list(graph.nodes)
        self._operators: list[Any] = []
        """Node of each operator of the problem."""
        self._tensors: list[Tensor] = []
        self._results: dict[Any, list[int]] = {}
        """Numbers of the tensors of a node's value."""
        self.problem = self._read()

    def apply(self, order: tuple[int, ...]) -> None:
        """Move the nodes; raises RuntimeError where the graph is not well formed afterwards."""
        heads = [node for node in self._nodes if node.op in ("placeholder", "get_attr")]
        parts: dict[Any, list[Any]] = {}
        for node in self._nodes:
            if _is_getitem(node):
                parts.setdefault(_whole(node), []).append(node)
        wanted = [*heads, *(each for number in order for each in self._with_parts(self._operators[number], parts))]
        (last,) = (node for node in self._nodes if node.op == "output")
        for node in wanted:
            last.prepend(node)
        self._graph.lint()

    def _with_parts(self, node: Any, parts: dict[Any, list[Any]]) -> list[Any]:
        return [node, *parts.get(node, [])]

    def _read(self) -> Problem:
        inputs: list[int] = []
        ops: list[Op] = []
        outputs: dict[int, None] = {}
        number_of: dict[Any, int] = {}
        for node in self._nodes:
            if node.op == "placeholder":
                # Weights are no activations; torch.export names them so.
                if not node.name.startswith(("p_", "b_", "c_", "obj_")):
                    self._results[node] = self._add(node)
                    inputs += self._results[node]
            elif node.op == "output":
                outputs = {each: None for used in node.all_input_nodes for each in self._results.get(used, ())}
            elif node.op == "call_function" and not _is_getitem(node):
                reads = dict.fromkeys(each for used in node.all_input_nodes for each in self._read_of(used))
                self._results[node] = self._add(node, self._base(node))
                number_of[node] = len(ops)
                self._operators.append(node)
                ops.append(Op(id=node.name, reads=tuple(reads), writes=tuple(self._results[node]), kind=str(node.target)))
            elif node.op not in ("get_attr", "call_function"):
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
        written: dict[Any, int] = {}
        touching: dict[Any, list[int]] = {}
        for node, number in number_of.items():
            for used in node.all_input_nodes:
                producer = _whole(used)
                # Values without tensors, sizes for example, have to be there as well.
                if producer in number_of:
                    yield number_of[producer], number
            overwritten = {_root(each) for each in _overwritten(node)}
            for root in {_root(each) for each in node.all_input_nodes}:
                if root in written:
                    yield written[root], number
                if root in overwritten:
                    yield from ((other, number) for other in touching.get(root, ()) if other != number)
                    written[root] = number
                    touching[root] = []
                touching.setdefault(root, []).append(number)
            if _is_random(node):
                if last_random is not None:
                    yield last_random, number
                last_random = number

    def _read_of(self, node: Any) -> list[int]:
        if not _is_getitem(node):
            return self._results.get(node, [])
        every, at = self._results.get(_whole(node), []), node.args[1]
        return [every[at]] if isinstance(at, int) and at < len(every) and not _is_getitem(node.args[0]) else every

    def _base(self, node: Any) -> int | None:
        """The tensor that a node's value is a view of, once executorch has removed copies for views."""
        if "view_copy" not in str(node.target) or not node.all_input_nodes:
            return None
        found = self._read_of(node.all_input_nodes[0])
        return found[0] if len(found) == 1 else None

    def _add(self, node: Any, base: int | None = None) -> list[int]:
        value = node.meta.get("val")
        found = []
        for at, each in enumerate(value if isinstance(value, list | tuple) else [value]):
            if not hasattr(each, "element_size"):
                if each is not None and not isinstance(value, list | tuple):
                    return []
                size = 0
            elif all(type(length) is int for length in each.shape):
                size = round_up(int(each.numel()) * int(each.element_size()), ALIGNMENT)
            else:
                raise UnsupportedError(
                    f"found the shape {[str(length) for length in each.shape]} of {node.name}, expected a static one"
                )
            if base is not None:
                size = min(size, self._tensors[base].size)
            name = node.name if at == 0 else f"{node.name}#{at}"
            self._tensors.append(Tensor(id=name, size=size, alignment=ALIGNMENT, alias_of=base))
            found.append(len(self._tensors) - 1)
        return found


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


def _root(node: Any) -> Any:
    """The node whose bytes a value has."""
    node = _whole(node)
    while node.op == "call_function" and ("view_copy" in str(node.target) or _overwritten(node)) and node.all_input_nodes:
        overwritten = _overwritten(node)
        node = _whole(overwritten[0] if overwritten else node.all_input_nodes[0])
    return node


def _overwritten(node: Any) -> list[Any]:
    """The arguments that an operator writes over."""
    return [given for argument, given in arguments(node) if is_written(argument) and hasattr(given, "meta")]


def _is_random(node: Any) -> bool:
    tags = (*getattr(node.target, "tags", ()), *getattr(getattr(node.target, "_op", None), "tags", ()))
    return any(str(tag).endswith("nondeterministic_seeded") for tag in tags)
