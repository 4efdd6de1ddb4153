"""Graphs of ``torch.fx`` as graphs of operators and tensors: programs of ``torch.export``, and what back ends make of them.

Torch is imported when a program is read, never before. Whether a result is a view comes from the storages of a run on tensors
without data, and whether it may take an operand's place from the operator's tag as pointwise. Parameters, buffers and constants
are no tensors here.
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

#: Operators that copy all of the storage under their first argument, however little of it that is a view of: kernels of 2.13,
#: measured. Runs without data copy the view.
_COPY_STORAGE = ("copy", "slice_scatter", "select_scatter", "diagonal_scatter", "as_strided_scatter")


class Inlined(NamedTuple):
    """Where a higher-order operator that runs one graph once has it, and what it is given, among its arguments."""

    graph: int
    operands: int
    context: Callable[..., AbstractContextManager[Any]] = lambda *_: contextlib.nullcontext()
    """In what the graph runs, given the arguments before it."""


def _autocast(device: str, dtype: Any, enabled: bool, cache: bool | None) -> AbstractContextManager[Any]:
    import torch

    return torch.autocast(device, dtype, enabled, cache)


INLINED = {
    "wrap_with_set_grad_enabled": Inlined(1, 2),
    "wrap_with_autocast": Inlined(4, 5, _autocast),
    "invoke_subgraph": Inlined(0, 2),
    "tag_activation_checkpoint": Inlined(0, 1),
}

#: What is not counted of operators that are in no other table, or hold more than their graphs do.
_UNSEEN = {
    "auto_functionalized": "what the operator that it runs allocates is",
    "auto_functionalized_v2": "what the operator that it runs allocates is",
    "flex_attention": "the scores that it holds without a fused kernel are",
    "wrap_with_autocast": "copies of operands and weights in the lower precision are",
}


class Inside(NamedTuple):
    """What a graph that an operator runs needs beside what it is given. Sizes are bytes."""

    peak: int
    results: Sequence[int]
    """[results] of the storage under each."""
    is_random: bool


def _of_map(node: Any, graphs: Sequence[Inside], own: int, results: Sequence[Any]) -> int:
    """Results of all iterations live while the last runs, and while they are stacked."""
    times, part = max((len(tensor) for tensor in tensors_of(results)), default=0), sum(graphs[0].results)
    return max(times * part, (times - 1) * part + graphs[0].peak - own)


def _of_scan(node: Any, graphs: Sequence[Inside], own: int, results: Sequence[Any]) -> int:
    """Results are scattered into their places with two indices of 8 bytes for each element of an iteration's."""
    stacked = tensors_of(results[len(node.args[1]) :])
    return graphs[0].peak + sum(16 * math.prod(map(int, tensor.shape[1:])) for tensor in stacked)


#: Branches and loops: bytes beside operands and results, given the node, its graphs, the bytes of its results and these.
NESTED: dict[str, Callable[[Any, Sequence[Inside], int, Sequence[Any]], int]] = {
    # Results of the branch are those of the operator.
    "cond": lambda node, graphs, own, results: max(0, *(graph.peak - own for graph in graphs)),
    # The last iteration's values, as large as the results, live while the next runs.
    "while_loop": lambda node, graphs, own, results: max(graph.peak for graph in graphs),
    "map_impl": _of_map,
    "scan": _of_scan,
}


def copied_storages(node: Any, args: Sequence[Any]) -> list[Sequence[int]]:
    """Bytes that the storages under an operator's first results have at least, given its arguments' values."""
    name = str(getattr(node.target, "overloadpacket", "")).removeprefix("aten.")
    # Of what shows the same bytes several times, the view is copied.
    if name not in _COPY_STORAGE or any(
        stride == 0 and size > 1 for stride, size in zip(args[0].stride(), args[0].shape, strict=True)
    ):
        return []
    return [[args[0].untyped_storage().nbytes()]]


def expect_modelled(node: Any, place: str) -> None:
    """Raise InputError for an operator that no table has; warn of one that may hold more than is known."""
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


#: Stands among the keys of storages for none.
_NO_TENSOR = -2


class Dialect(NamedTuple):
    """How operators of a graph run, where a back end has changed it."""

    alignment: int | None = None
    """Bytes that tensors are aligned to, and their sizes rounded up to; None for their elements' own."""
    viewed: Callable[[Any], Any] | None = None
    """The node whose bytes a copy shares once the graph is lowered; None for a copy that stays one."""
    is_flat: bool = False
    """Whether every node is one operator, also those that run graphs and those without tensors, in no other's place."""


#: That of ``torch.export``.
TORCH = Dialect()


class FxReader:
    """Walks a graph of ``torch.fx``.

    Parameters
    ----------
    module
        With the graph.
    stored
        Names of inputs that are no tensors here; all where None: a graph that an operator runs.
    changed
        Names of inputs that the program writes over at its end.
    mode
        Of the tensors without data that the graph is run on; a new one where None.
    bounds
        Of sizes that the program leaves open.
    dialect
        By default that of ``torch.export``.
    graph
        That of the module where it is None.
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
        """[operators] node."""
        self._run = FakeRun(module, mode, bounds)
        self._held: list[FakeRun] = []
        self._tensors: list[Tensor] = []
        self._ops: list[Op] = []
        self._numbers: dict[Any, list[int | None]] = {}
        """[leaves of a node's value] its tensor; None for what is stored or no tensor."""
        self._base: dict[int, int | None] = {_NO_TENSOR: None}
        """The tensor that has the bytes of a storage, None where they are stored."""
        self._makers: dict[Any, set[int]] = {}
        """Operators behind a value that is no tensor."""
        self._order = EffectOrder()

    def read(self, name: str, first: int = 0) -> Graph:
        """The graph; what the graph returns begins at the value ``first`` of its last node."""
        given = [node for node in self._graph.nodes if node.op == "placeholder"]
        for node in given:
            is_stored = self._stored is None or node.name in self._stored
            self._make(node, node.name, self._run.run(node), is_stored=is_stored)
        last = self._walk(self._run, self._graph)
        # The caller sees what becomes of an input that is written over.
        kept = [node for node in given if node.name in self._changed or self._is_overwritten(node)]
        outputs = tuple(dict.fromkeys(number for node in (*last.all_input_nodes, *kept) for number in self._of(node)))
        results = tuple(number for node in leaves(last.args[0])[first:] for number in self._returned(node))
        return Graph(
            name=name,
            results=results,
            tensors=tuple(self._tensors),
            ops=tuple(self._ops),
            inputs=tuple(number for node in given for number in self._of(node)),
            outputs=outputs,
            precedences=tuple(self._order.precedences),
        )

    def _returned(self, node: Any) -> list[int]:
        """Tensors that a value is which the graph returns; of what is stored those that no operator touches."""
        numbers = self._numbers.get(node, [])
        for at, tensor in enumerate(leaves(self._run.values.get(node))):
            if tensors_of(tensor) and numbers[at] is None:
                numbers[at] = len(self._tensors)
                self._tensors.append(
                    Tensor(id=f"stored {node.name}" + f"#{at}" * (at > 0), size=_part(tensor)[1], **_elements(tensor))
                )
        return self._of(node)

    def _inside(self, module: Any, place: str) -> Inside:
        """What a graph needs beside what it is given."""
        inner = FxReader(module, None, mode=self._run.mode, bounds=self._run.bounds)
        structure = build(inner.read(""))
        if any(node.op == "placeholder" and inner._is_overwritten(node) for node in module.graph.nodes):
            raise InputError("found a graph that writes over what it is given, expected none", place=place)
        (last,) = (node for node in module.graph.nodes if node.op == "output")
        sizes = [_storage_bytes(leaf) for leaf in leaves(inner._run.taken(last.args[0]))]
        return Inside(structure.peak(stable_order(structure)), sizes, RANDOM in inner._order.overwritten)

    def _is_overwritten(self, node: Any) -> bool:
        return any(storage_key(tensor) in self._order.overwritten for tensor in tensors_of(self._run.values[node]))

    def _of(self, node: Any) -> list[int]:
        return [number for number in self._numbers.get(node, ()) if number is not None]

    def _walk(self, run: FakeRun, graph: Any, prefix: str = "") -> Any:
        """Take a graph's operators; its placeholders have their values. Returns the node of its results."""
        for node in graph.nodes:
            check_reading()
            name = prefix + node.name
            if node.op != "placeholder":
                self._makers[node] = {maker for used in node.all_input_nodes for maker in self._makers.get(used, ())}
            if node.op == "get_attr":
                self._make(node, name, run.run(node), is_stored=True)
            elif node.op == "call_function" and node.target is operator.getitem:
                whole = dict(zip(map(id, leaves(run.values[node.args[0]])), self._numbers[node.args[0]], strict=True))
                self._numbers[node] = [whole[id(part)] for part in leaves(run.run(node))]
            elif node.op == "call_function":
                if not self._dialect.is_flat:
                    expect_modelled(node, f"operator {name}")
                inlined = self._entry(INLINED, node)
                self._op(node, run, name) if inlined is None else self._inline(node, run, name, inlined)
            elif node.op not in ("placeholder", "output"):
                raise InputError(f"found a node of the kind {node.op}, expected an operator", place=f"operator {name}")
        return node

    def _entry(self, table: Mapping[str, Entry], node: Any) -> Entry | None:
        """What a table says of a higher-order operator; None of others, and in dialects that are flat."""
        return None if self._dialect.is_flat or not is_higher_order(node) else table.get(str(node.target))

    def _inline(self, node: Any, run: FakeRun, name: str, inlined: Inlined) -> None:
        """Take the operators of a graph that an operator runs once, as if they stood in its place."""
        module = run.values[node.args[inlined.graph]]
        inner = FakeRun(module, run.mode, run.bounds)
        given = [node for node in module.graph.nodes if node.op == "placeholder"]
        for inside, used in zip(given, node.args[inlined.operands :], strict=True):
            inner.values[inside] = run.taken(used)
            self._numbers[inside], self._makers[inside] = self._numbers.get(used, [None]), self._makers.get(used, set())
        with inlined.context(*node.args[: inlined.graph]):
            last = self._walk(inner, module.graph, f"{name}.")
        self._held.append(inner)
        run.values[node] = inner.taken(last.args[0])
        self._numbers[node] = [number for leaf in leaves(last.args[0]) for number in self._numbers.get(leaf, [None])]
        self._makers[node] = self._makers[last]

    def _op(self, node: Any, run: FakeRun, name: str) -> None:
        place = f"operator {name}"
        reads = list(dict.fromkeys(number for used in node.all_input_nodes for number in self._of(used)))
        touched = dict.fromkeys(storage_key(tensor) for used in node.all_input_nodes for tensor in tensors_of(run.values[used]))
        targets = tensors_of([run.taken(given) for argument, given in arguments(node) if is_written(argument)])
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
        number, known = len(self._ops), len(self._tensors)
        self._make(node, name, value, [graph.results for graph in graphs] or copied_storages(node, run.taken(node.args)))
        writes = list(dict.fromkeys(number for number in self._of(node) if number >= known))
        if nested:
            own = sum(self._tensors[tensor].size for tensor in writes)
            writes.append(len(self._tensors))
            self._tensors.append(Tensor(id=f"{name}.scratch", size=nested(node, graphs, own, leaves(value))))
        if not (reads or writes or overwritten or self._dialect.is_flat):
            return
        pairs = self._in_place(node, run, known)
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
        # Whoever reads tensors comes after them by itself; nodes of a flat graph have a place also where these are stored.
        self._makers[node] = {number} if self._dialect.is_flat or not tensors_of(value) else set()
        self._order.add(number, touched, overwritten)

    def _in_place(self, node: Any, run: FakeRun, known: int) -> tuple[tuple[int, int], ...]:
        """A result of an element-wise operator may take the bytes of an operand that lies in memory as it does."""
        import torch

        result = run.values[node]
        is_new = len(self._tensors) == known + 1 and self._tensors[known].alias_of is None
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
        # Where another operand looks at the same bytes in another way, they would be written over before they are read.
        unlike = {storage_key(tensor) for _, _, tensor in operands if self._layout(tensor) != self._layout(result)}
        same = sorted((users, number) for users, number, tensor in operands if storage_key(tensor) not in unlike)
        return tuple((number, known) for _, number in same[:1])

    def _layout(self, tensor: Any) -> tuple[Any, ...]:
        """Where elements lie, and how many bytes there are."""
        size = self._tensors[self._base[storage_key(tensor)] or 0].size
        return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.element_size(), size

    def _make(self, node: Any, name: str, value: Any, least: Sequence[Sequence[int]] = (), *, is_stored: bool = False) -> None:
        """Tensors of a node's value: what has a storage that is known is a view, or stored; none where all of it is stored.

        ``least`` has lists of bytes that the storages under the first results have at least.
        """
        if is_stored:
            self._base.update((storage_key(tensor), None) for tensor in tensors_of(value))
        numbers = self._numbers[node] = []
        new: dict[int, int] = {}
        place, told = f"operator {name}", leaves(node.meta.get("val"))
        for at, tensor in enumerate(leaves(value)):
            key = storage_key(tensor) if tensors_of(tensor) else _NO_TENSOR
            base = self._base.get(key, -1)
            if base is None or key in new:
                numbers.append(new.get(key))  # A second view of what the operator makes is the first.
                continue
            alignment = max(1, int(tensor.element_size()))
            size = math.prod(static_shape(tensor, place)) * alignment
            least_bytes = [every[at] for every in least if at < len(every)]
            if self._run.bounds is not None and at < len(told) and tensors_of(told[at]):
                # Where one size grows others may shrink: the run has the largest of those that are given.
                most = self._run.bounds.bytes(told[at], place)
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
            own = name if at == 0 else f"{name}#{at}"
            self._tensors.append(
                Tensor(
                    id=own,
                    size=size,
                    alignment=alignment,
                    alias_of=base if base >= 0 else None,
                    start=start,
                    **_elements(tensor),
                )
            )


def _part(tensor: Any) -> tuple[int, int]:
    """The first byte of a tensor in its storage, and how many bytes it takes up to its last; all of it where that is open."""
    start, shape, stride = tensor.storage_offset(), tensor.shape, tensor.stride()
    if not all(type(number) is int for number in (start, *shape, *stride)):
        return 0, _storage_bytes(tensor)
    last = sum((extent - 1) * step for extent, step in zip(shape, stride, strict=True))
    return start * tensor.element_size(), (last + 1) * tensor.element_size() if all(shape) else 0


def _elements(tensor: Any) -> dict[str, Any]:
    """Type and shape of a tensor; no shape where a size is open."""
    is_static = all(type(size) is int for size in tensor.shape)
    return {"dtype": str(tensor.dtype).removeprefix("torch."), "shape": tuple(tensor.shape) if is_static else None}


def _storage_bytes(value: Any) -> int:
    return int(value.untyped_storage().nbytes()) if tensors_of(value) else 0
