"""Reads graphs of ``torch.fx`` as graphs of operators and tensors: programs of ``torch.export``, and their forms in back ends.

Torch is imported only when a program is read. A run on fake tensors, which have storages but no data, shows which results are
views. A *storage* is the bytes that a tensor shares with its views. A result may be written over an operand if torch tags the
operator as pointwise. Parameters, buffers and constants are *stored*: they exist before the program runs, and do not count as
tensors of the graph. A *higher-order* operator, such as ``cond``, runs graphs, which are called inner graphs here. The value of
a node may consist of nested tuples, lists and dictionaries; a *leaf* is a tensor or other value in them.
"""

from __future__ import annotations

import contextlib
import math
import operator
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, TypeVar

from stowplan.deadline import check_reading
from stowplan.errors import InputError
from stowplan.frontends.torch_program import (
    RANDOM,
    EffectOrder,
    FakeRun,
    UpperBounds,
    arguments,
    is_higher_order,
    is_random,
    is_written,
    leaves,
    static_shape,
    storage_key,
    tensors_of,
    warn_of_unknown,
)
from stowplan.graph.graph import Graph, Op, Tensor
from stowplan.log import warn_unmodelled
from stowplan.models.operator_order.structure import build, stable_order

Entry = TypeVar("Entry")

#: Operators that copy the whole storage of their first argument even if the argument is a view of a small part of it, as
#: measured with torch 2.13. On fake tensors they copy only the view.
_COPY_STORAGE = ("copy", "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter")


class Inlined(NamedTuple):
    """Describes the arguments of a higher-order operator that runs one graph once."""

    graph: int
    """Position of the graph among the arguments."""
    operands: int
    """Position of the first input of the graph; the other inputs follow it."""
    context: Callable[..., AbstractContextManager[Any]] = lambda *_: contextlib.nullcontext()
    """Makes the context manager in which the graph runs, from the arguments before the graph."""


def _autocast(device: str, dtype: Any, enabled: bool, cache: bool | None) -> AbstractContextManager[Any]:
    """The context manager for ``wrap_with_autocast``, from the arguments of this operator."""
    import torch

    return torch.autocast(device, dtype, enabled, cache)


#: Higher-order operators whose graph is read as if its operators were in their place.
INLINED = {
    "wrap_with_set_grad_enabled": Inlined(1, 2),
    "wrap_with_autocast": Inlined(4, 5, _autocast),
    "invoke_subgraph": Inlined(0, 2),
    "tag_activation_checkpoint": Inlined(0, 1),
}

#: Higher-order operators that may need memory that is not counted, with the words by which a warning names this memory.
_UNSEEN = {
    "auto_functionalized": "what the operator that it runs allocates is",
    "auto_functionalized_v2": "what the operator that it runs allocates is",
    "flex_attention": "the scores that it holds without a fused kernel are",
    "wrap_with_autocast": "copies of operands and weights in the lower precision are",
}


class Inside(NamedTuple):
    """The memory that an inner graph needs in addition to its inputs."""

    peak: int
    """Peak of the inner graph in bytes, without its inputs."""
    results: Sequence[int]
    """For each result, the bytes of its storage."""
    is_random: bool
    """Whether an operator of the inner graph draws random numbers."""


def _of_map(node: Any, graphs: Sequence[Inside], result_size: int, results: Sequence[Any]) -> int:
    """Bytes for a map: the results of all iterations are live while the last iteration runs, and while they are stacked."""
    times, part = max((len(tensor) for tensor in tensors_of(results)), default=0), sum(graphs[0].results)
    return max(times * part, (times - 1) * part + graphs[0].peak - result_size)


def _of_scan(node: Any, graphs: Sequence[Inside], result_size: int, results: Sequence[Any]) -> int:
    """Bytes for a scan: results are scattered into their places with two indices of 8 bytes for each element of an
    iteration."""
    stacked = tensors_of(results[len(node.args[1]) :])
    return graphs[0].peak + sum(16 * math.prod(map(int, tensor.shape[1:])) for tensor in stacked)


#: For branches and loops, by the name of the operator, functions that return the bytes that the operator needs besides operands
#: and results. Their arguments are the node, its inner graphs, the bytes of its results, and the results.
NESTED: dict[str, Callable[[Any, Sequence[Inside], int, Sequence[Any]], int]] = {
    # The results of the branch are the results of the operator, so they do not count twice.
    "cond": lambda node, graphs, own, results: max(0, *(graph.peak - own for graph in graphs)),
    # The values of an iteration, which are as large as the results, are live while the next iteration runs.
    "while_loop": lambda node, graphs, own, results: max(graph.peak for graph in graphs),
    "map_impl": _of_map,
    "scan": _of_scan,
}


def copied_storages(node: Any, args: Sequence[Any]) -> list[Sequence[int]]:
    """Lower bounds on the bytes of the storages of an operator's first results, from the values of its arguments.

    Each entry of the list is a sequence with a bound for the first result, one for the second and so on. For each result, the
    largest of its bounds counts. The list is empty for an operator that copies only the view, and not its whole storage.
    """
    name = str(getattr(node.target, "overloadpacket", "")).removeprefix("aten.")
    # If an argument shows the same bytes several times, as an expanded tensor does, only the view is copied.
    if name not in _COPY_STORAGE or any(
        stride == 0 and size > 1 for stride, size in zip(args[0].stride(), args[0].shape, strict=True)
    ):
        return []
    return [[args[0].untyped_storage().nbytes()]]


def expect_modelled(node: Any, place: str) -> None:
    """Raises InputError for an operator that is not modelled; warns of one that may need more memory than is counted.

    ``node`` is the node of the operator, and ``place`` names it in messages.
    """
    if is_higher_order(node):
        name = str(node.target)
        if name not in INLINED and name not in NESTED and name not in _UNSEEN:
            raise InputError(f"found the higher-order operator {name}, expected one of those modelled", place=place)
        if name in _UNSEEN:
            warn_unmodelled(f"{name}: {_UNSEEN[name]} not counted", place)
    elif not hasattr(node.target, "_schema") and tensors_of(node.meta.get("val")):
        raise InputError(f"found the function {node.target}, expected an operator of torch", place=place)
    else:
        warn_of_unknown(node.target, place)


#: The key under which a value without a storage is looked up, in place of the key of a storage.
_NO_TENSOR = -2


class Dialect(NamedTuple):
    """How the operators of a graph run after a back end has changed it."""

    alignment: int | None = None
    """Tensors are aligned to multiples of this many bytes, and their sizes are rounded up to such multiples. If it is None, a
    tensor is aligned to the size of its elements."""
    viewed: Callable[[Any], Any] | None = None
    """A function that gets the node of an operator that copies in torch. If the back end replaces the copy by a view, the
    function returns the node whose bytes the value then shares; otherwise None. The field is None if the back end replaces no
    copies."""
    is_flat: bool = False
    """Whether every node becomes exactly one operator, including nodes that run graphs and nodes without tensors. Then no node
    is checked with :func:`expect_modelled`, and no result is written over an operand."""


#: The dialect of ``torch.export``.
TORCH = Dialect()


class FxReader:
    """Reads a graph of ``torch.fx``.

    Parameters
    ----------
    module
        The module with the graph.
    stored
        Names of inputs that do not count as tensors, such as parameters. None means all inputs, for an inner graph.
    changed
        Names of inputs that the program overwrites at its end.
    mode
        The fake tensor mode in which the graph is run; by default a new one.
    bounds
        Upper bounds of symbolic sizes; None if all sizes are numbers.
    dialect
        The dialect of the graph; by default that of ``torch.export``.
    graph
        The graph; by default that of the module.
    """

    def __init__(
        self,
        module: Any,
        stored: Collection[str] | None,
        changed: Collection[str] = (),
        mode: Any = None,
        bounds: UpperBounds | None = None,
        dialect: Dialect = TORCH,
        graph: Any = None,
    ):
        self._graph, self._stored, self._changed = module.graph if graph is None else graph, stored, changed
        self._dialect = dialect
        self.operators: list[Any] = []
        """The node of each operator of the graph, in the order of the operators."""
        self._run = FakeRun(module, mode, bounds)
        self._inner_runs: list[FakeRun] = []
        self._tensors: list[Tensor] = []
        self._ops: list[Op] = []
        self._numbers: dict[Any, list[int | None]] = {}
        """For each node, the number of the tensor of each leaf of its value; None for a leaf that is stored or no tensor."""
        self._base: dict[int, int | None] = {_NO_TENSOR: None}
        """For each storage, by its key, the number of the tensor that has its bytes; None if the storage is stored."""
        self._makers: dict[Any, set[int]] = {}
        """For each node whose value is no tensor, such as a size, the operators on which the value depends."""
        self._order = EffectOrder()

    def read(self, name: str, first: int = 0) -> Graph:
        """Reads the graph.

        Parameters
        ----------
        name
            Name of the graph.
        first
            Position of the first result among the values that the last node returns. New values of overwritten inputs and
            buffers come before the results.

        Raises
        ------
        InputError
            An operator is not modelled, cannot run on fake tensors or changes the bytes of an argument, or a size is not known;
            the message names the operator.
        TimeLimitError
            The time limit for reading inputs is over.
        """
        placeholders = [node for node in self._graph.nodes if node.op == "placeholder"]
        for node in placeholders:
            is_stored = self._stored is None or node.name in self._stored
            self._make(node, node.name, self._run.run(node), is_stored=is_stored)
        last = self._walk(self._run, self._graph)
        # An input that is overwritten stays live to the end, because the caller sees its new contents.
        updated = [node for node in placeholders if node.name in self._changed or self._is_overwritten(node)]
        outputs = tuple(dict.fromkeys(number for node in (*last.all_input_nodes, *updated) for number in self._of(node)))
        results = tuple(number for node in leaves(last.args[0])[first:] for number in self._returned(node))
        return Graph(
            name=name,
            results=results,
            tensors=tuple(self._tensors),
            ops=tuple(self._ops),
            inputs=tuple(number for node in placeholders for number in self._of(node)),
            outputs=outputs,
            precedences=tuple(self._order.precedences),
        )

    def _returned(self, node: Any) -> list[int]:
        """Numbers of the tensors of a node's value that the graph returns; a stored value becomes a tensor that no operator
        uses. The list is empty for anything that is no tensor."""
        numbers = self._numbers.get(node, [])
        for at, tensor in enumerate(leaves(self._run.values.get(node))):
            if tensors_of(tensor) and numbers[at] is None:
                numbers[at] = len(self._tensors)
                self._tensors.append(
                    Tensor(id=f"stored {node.name}" + f"#{at}" * (at > 0), size=_part(tensor)[1], **_elements(tensor))
                )
        return self._of(node)

    def _inside(self, module: Any, place: str) -> Inside:
        """The memory that the inner graph ``module`` needs; raises InputError if the graph overwrites one of its inputs."""
        inner = FxReader(module, None, mode=self._run.mode, bounds=self._run.bounds)
        structure = build(inner.read(""))
        if any(node.op == "placeholder" and inner._is_overwritten(node) for node in module.graph.nodes):
            raise InputError("found a graph that writes over what it is given, expected none", place=place)
        (last,) = (node for node in module.graph.nodes if node.op == "output")
        sizes = [_storage_bytes(leaf) for leaf in leaves(inner._run.with_values(last.args[0]))]
        return Inside(structure.peak(stable_order(structure)), sizes, RANDOM in inner._order.overwritten)

    def _is_overwritten(self, node: Any) -> bool:
        """Whether an operator overwrites bytes of a node's value."""
        return any(storage_key(tensor) in self._order.overwritten for tensor in tensors_of(self._run.values[node]))

    def _of(self, node: Any) -> list[int]:
        """Numbers of the tensors of a node's value."""
        return [number for number in self._numbers.get(node, ()) if number is not None]

    def _walk(self, run: FakeRun, graph: Any, prefix: str = "") -> Any:
        """Adds the operators of a graph whose placeholders have their values already; returns the node of its results."""
        for node in graph.nodes:
            check_reading()
            name = prefix + node.name
            if node.op != "placeholder":
                self._makers[node] = {maker for used in node.all_input_nodes for maker in self._makers.get(used, ())}
            if node.op == "get_attr":
                self._make(node, name, run.run(node), is_stored=True)
            elif node.op == "call_function" and node.target is operator.getitem:
                numbers_of = dict(zip(map(id, leaves(run.values[node.args[0]])), self._numbers[node.args[0]], strict=True))
                self._numbers[node] = [numbers_of[id(part)] for part in leaves(run.run(node))]
            elif node.op == "call_function":
                if not self._dialect.is_flat:
                    expect_modelled(node, f"operator {name}")
                inlined = self._entry(INLINED, node)
                self._op(node, run, name) if inlined is None else self._inline(node, run, name, inlined)
            elif node.op not in ("placeholder", "output"):
                raise InputError(f"found a node of the kind {node.op}, expected an operator", place=f"operator {name}")
        return node

    def _entry(self, table: Mapping[str, Entry], node: Any) -> Entry | None:
        """The entry of a table for a higher-order operator; None for other operators, and if :attr:`Dialect.is_flat`."""
        return None if self._dialect.is_flat or not is_higher_order(node) else table.get(str(node.target))

    def _inline(self, node: Any, run: FakeRun, name: str, inlined: Inlined) -> None:
        """Adds the operators of the inner graph of ``node``, which runs once, as if they were in the place of the node."""
        module = run.values[node.args[inlined.graph]]
        inner = FakeRun(module, run.mode, run.bounds)
        placeholders = [node for node in module.graph.nodes if node.op == "placeholder"]
        for inside, used in zip(placeholders, node.args[inlined.operands :], strict=True):
            inner.values[inside] = run.with_values(used)
            self._numbers[inside], self._makers[inside] = self._numbers.get(used, [None]), self._makers.get(used, set())
        with inlined.context(*node.args[: inlined.graph]):
            last = self._walk(inner, module.graph, f"{name}.")
        self._inner_runs.append(inner)
        run.values[node] = inner.with_values(last.args[0])
        self._numbers[node] = [number for leaf in leaves(last.args[0]) for number in self._numbers.get(leaf, [None])]
        self._makers[node] = self._makers[last]

    def _op(self, node: Any, run: FakeRun, name: str) -> None:
        """Adds the operator of a node, with the tensors of its value, and with precedences if it uses overwritten storages."""
        place = f"operator {name}"
        reads = list(dict.fromkeys(number for used in node.all_input_nodes for number in self._of(used)))
        touched = dict.fromkeys(storage_key(tensor) for used in node.all_input_nodes for tensor in tensors_of(run.values[used]))
        targets = tensors_of([run.with_values(operand) for argument, operand in arguments(node) if is_written(argument)])
        before = [(storage_key(target), _storage_bytes(target)) for target in targets]
        viewed = None if self._dialect.viewed is None else self._dialect.viewed(node)
        value = run.run(node) if viewed is None else run.view(node, viewed)
        if before != [(storage_key(target), _storage_bytes(target)) for target in targets]:
            raise InputError(f"found {node.target}, which gives its argument other bytes, expected none that does", place=place)
        overwritten = {key for key, _ in before}
        nested = self._entry(NESTED, node)
        graphs = [self._inside(run.values[used], place) for used in node.all_input_nodes if nested and used.op == "get_attr"]
        if is_random(node) or any(graph.is_random for graph in graphs):
            touched[RANDOM] = None
            overwritten.add(RANDOM)
        number, first_new = len(self._ops), len(self._tensors)
        self._make(node, name, value, [graph.results for graph in graphs] or copied_storages(node, run.with_values(node.args)))
        writes = list(dict.fromkeys(number for number in self._of(node) if number >= first_new))
        if nested:
            result_size = sum(self._tensors[tensor].size for tensor in writes)
            writes.append(len(self._tensors))
            self._tensors.append(Tensor(id=f"{name}.scratch", size=nested(node, graphs, result_size, leaves(value))))
        if not (reads or writes or overwritten or self._dialect.is_flat):
            return
        pairs = self._in_place(node, run, first_new)
        self.operators.append(node)
        self._ops.append(
            Op(
                id=name,
                reads=tuple(reads),
                writes=tuple(writes),
                in_place=pairs,
                kind=str(node.target),
                has_effects=bool(overwritten),
            )
        )
        self._order.precedences.update(((maker, number), None) for maker in sorted(self._makers[node]))
        # Readers of tensors come after their writers anyway. In flat graphs this also orders readers of stored values.
        self._makers[node] = {number} if self._dialect.is_flat or not tensors_of(value) else set()
        self._order.add(number, touched, overwritten)

    def _in_place(self, node: Any, run: FakeRun, first_new: int) -> tuple[tuple[int, int], ...]:
        """The pair of an operand and the result of an element-wise operator that may share bytes.

        Their layouts must be equal. Among several operands, the one with the fewest users is chosen. There is no pair if no
        operand fits.
        """
        import torch

        result = run.values[node]
        is_new = len(self._tensors) == first_new + 1 and self._tensors[first_new].alias_of is None
        if (
            torch.Tag.pointwise not in getattr(node.target, "tags", ())
            or not is_new
            or self._stored is None
            or self._dialect.is_flat
        ):
            return ()
        operands = [
            (len(used.users), number, tensor)
            for used in node.all_input_nodes
            for number, tensor in zip(self._numbers[used], leaves(run.values[used]), strict=True)
            if number is not None
        ]
        # If another operand views the same bytes with another layout, the result would overwrite bytes that are still read.
        unlike = {storage_key(tensor) for _, _, tensor in operands if self._layout(tensor) != self._layout(result)}
        same = sorted((users, number) for users, number, tensor in operands if storage_key(tensor) not in unlike)
        return tuple((number, first_new) for _, number in same[:1])

    def _layout(self, tensor: Any) -> tuple[Any, ...]:
        """The layout of a tensor: its sizes and strides, its place in its storage, and the bytes of the storage."""
        size = self._tensors[self._base[storage_key(tensor)] or 0].size
        return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.element_size(), size

    def _make(self, node: Any, name: str, value: Any, least: Sequence[Sequence[int]] = (), *, is_stored: bool = False) -> None:
        """Adds the tensors of a node's value.

        A leaf whose storage another tensor has is a view of that tensor, and a leaf whose storage is stored is no tensor.

        Parameters
        ----------
        least
            Lower bounds on the bytes of the storages of the first results (:func:`copied_storages`).
        is_stored
            Whether the storages of the value become stored ones, because the node is a parameter or a constant.
        """
        if is_stored:
            self._base.update((storage_key(tensor), None) for tensor in tensors_of(value))
        numbers = self._numbers[node] = []
        new: dict[int, int] = {}
        place, recorded = f"operator {name}", leaves(node.meta.get("val"))
        for at, tensor in enumerate(leaves(value)):
            key = storage_key(tensor) if tensors_of(tensor) else _NO_TENSOR
            base = self._base.get(key, -1)
            if base is None or key in new:
                numbers.append(new.get(key))  # Two results with the same storage are one tensor.
                continue
            alignment = max(1, int(tensor.element_size()))
            size = math.prod(static_shape(tensor, place)) * alignment
            least_bytes = [every[at] for every in least if at < len(every)]
            if self._run.bounds is not None and at < len(recorded) and tensors_of(recorded[at]):
                # The bytes need not be largest at the largest symbolic sizes, since other sizes may shrink as one grows.
                most = self._run.bounds.bytes(recorded[at], place)
                least_bytes += [most] if most > size else []
            start = 0
            if base >= 0:
                start, size = _part(tensor)
            else:
                alignment = self._dialect.alignment or alignment
                size = max(_storage_bytes(tensor), *least_bytes, 0)
                size += -size % (self._dialect.alignment or 1)
                self._base[key] = new[key] = len(self._tensors)
            numbers.append(len(self._tensors))
            tensor_id = name if at == 0 else f"{name}#{at}"
            self._tensors.append(
                Tensor(
                    id=tensor_id,
                    size=size,
                    alignment=alignment,
                    alias_of=base if base >= 0 else None,
                    start=start,
                    **_elements(tensor),
                )
            )


def _part(tensor: Any) -> tuple[int, int]:
    """The first byte of a tensor in its storage, and the number of bytes from there to the end of its last element.

    If a size or stride is symbolic, the part is the whole storage.
    """
    start, shape, stride = tensor.storage_offset(), tensor.shape, tensor.stride()
    if not all(type(number) is int for number in (start, *shape, *stride)):
        return 0, _storage_bytes(tensor)
    last = sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True))
    return start * tensor.element_size(), (last + 1) * tensor.element_size() if all(shape) else 0


def _elements(tensor: Any) -> dict[str, Any]:
    """Type and shape of a tensor; no shape if a size is symbolic."""
    is_static = all(type(size) is int for size in tensor.shape)
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": tuple(tensor.shape) if is_static else None}


def _storage_bytes(value: Any) -> int:
    """Bytes of the storage of a tensor; 0 for any other value."""
    return int(value.untyped_storage().nbytes()) if tensors_of(value) else 0
