"""Graphs of an ExecuTorch program that run others: which of their tensors live together, and which are the same bytes.

*Facts of executorch 1.5.* Bodies are planned before the graph that runs them, all at the lowest bytes of its arenas. At run
time a result of ``cond`` becomes the very tensor that the branch returned, in the bytes of the branch; those planned for the
result itself are written by nobody, and views of it are read there all the same. ``map`` and ``scan`` copy what a body returns,
in each turn. Of their placeholders only slices have bytes; others are planned, but stand for a tensor of the graph around.
``while_loop`` cannot be emitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stowplan.backends.executorch.arenas import Place, Tensor, places
from stowplan.backends.fallback import UnsupportedError

#: The operators that are modelled, and which of their arguments a body is given in slices; without slices, results move.
MODELLED = {"cond": None, "map_impl": 1, "scan": 2}


@dataclass(frozen=True)
class Call:
    """A node that runs other graphs."""

    node: int
    """Its number in its graph."""
    results: tuple[Any, ...]
    bodies: tuple[Graph, ...]
    moves: bool
    """Whether results become what a body returns; otherwise they are copied."""
    bound: tuple[Any, ...]
    """Specifications of placeholders that are planned, but stand for tensors of the graph around."""


@dataclass(frozen=True)
class Graph:
    """A graph whose memory is planned, with those that its nodes run."""

    module: Any
    specs: tuple[Any, ...]
    """What has to be planned, but for what its bodies have."""
    pins: tuple[int | None, ...]
    """``mem_id`` of each, before it was planned."""
    padding: int
    nodes: int
    calls: tuple[Call, ...]
    placeholders: tuple[Any, ...]
    returned: tuple[Any, ...]
    viewed: frozenset[int]
    """``id`` of specifications at whose planned bytes views are read."""

    @property
    def reserved(self) -> list[int]:
        """Bytes at the bottom of each arena that are not to be planned: none for what it runs, which is planned with it."""
        return [] if self.calls else list(getattr(self.module, "input_mem_buffer_sizes", None) or [])

    def parts(self) -> Iterator[Graph]:
        """Itself, and all graphs that it runs."""
        yield self
        for call in self.calls:
            for body in call.bodies:
                yield from body.parts()

    def bound(self) -> list[Any]:
        """All specifications of it that stand for tensors of another graph."""
        return [spec for part in self.parts() for call in part.calls for spec in call.bound if spec is not None]

    def places(self, result: Any) -> dict[int, tuple[Any, Any]]:
        """Arena and offset by ``id`` of the specification: by executorch's result, or as it has planned what the graph runs."""
        inner = {spec: spec for part in self.parts() for spec in part.specs if part is not self}
        return {id(spec): (place.mem_id, place.mem_offset) for spec, place in (inner | result.spec_dict).items()}


def is_program(module: Any, signature: Any) -> bool:
    """Whether a graph is a program's own, not one that its nodes run: those are planned under the program's signature too."""
    inputs = getattr(signature, "input_specs", None)
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    return inputs is None or names == [spec.arg.name for spec in inputs]


def read(module: Any, specs: list[Any], padding: int, known: dict[int, Graph]) -> Graph:
    """A graph that is about to be planned.

    Parameters
    ----------
    known
        Graphs that were planned before, by ``id`` of the module; those that this one runs are taken out.

    Raises
    ------
    UnsupportedError
        An operator that runs graphs and is not modelled, or one that runs a graph that others run as well.
    """
    nodes = list(module.graph.nodes)
    calls = []
    for number, node in enumerate(nodes):
        # What a delegate runs is no graph here, and plans its memory itself.
        names = [used.target for used in node.all_input_nodes if used.op == "get_attr"]
        bodies = [body for body in (getattr(module, name, None) for name in names) if hasattr(body, "graph")]
        if not bodies:
            continue
        operator = getattr(node.target, "__name__", str(node.target))
        if operator not in MODELLED:
            raise UnsupportedError(f"found {operator}, which runs other graphs, expected one of {', '.join(MODELLED)}")
        if any(id(body) not in known for body in bodies):
            raise UnsupportedError(f"found a graph of {operator} that was not planned, or that others run as well")
        graphs = tuple(known.pop(id(body)) for body in bodies)
        sliced = MODELLED[operator]
        given = [at for at, argument in enumerate(node.args) if isinstance(argument, list | tuple) for _ in argument]
        bound = () if sliced is None else [spec for at, spec in zip(given, graphs[0].placeholders, strict=True) if at != sliced]
        calls.append(Call(number, tuple(_specs(node)), graphs, sliced is None, tuple(bound)))
    views = [spec for node in nodes for spec in _specs(node) if hasattr(spec, "_base") and spec.is_static_shape_tensor]
    graph = known[id(module)] = Graph(
        module=module,
        specs=tuple(specs),
        pins=tuple(spec.mem_id for spec in specs),
        padding=padding,
        nodes=len(nodes),
        calls=tuple(calls),
        placeholders=tuple(spec for node in nodes if node.op == "placeholder" for spec in _specs(node)),
        returned=tuple(spec for node in nodes if node.op == "output" for spec in _specs(node)),
        viewed=frozenset(id(spec._base) for spec in views),
    )
    return graph


def _specs(node: Any) -> list[Any]:
    """Specifications of a node's values, None for those that are no tensors."""
    value = node.meta.get("spec")
    every = value if isinstance(value, list | tuple) else [value]
    return [spec if hasattr(spec, "lifetime") else None for spec in every]


def flatten(program: Graph) -> list[Tensor]:
    """The tensors of a graph and of all that it runs, in one time; what must have the same bytes lies inside one another.

    A tensor that a node touches lives as long as the bodies of that node run.

    Raises
    ------
    UnsupportedError
        A tensor of several graphs, or a branch that returns something that it has not made.
    """
    tensors: dict[int, Tensor] = {}
    _add(program, 0, tensors)
    bound = {id(spec) for spec in program.bound()}
    for tensor in tensors.values():
        base = tensor.spec.storage_base
        if base is not None:
            if tensor.storage_base is not None or id(base) not in tensors.keys() - bound:
                raise UnsupportedError("found a tensor inside the bytes of one that is not planned, or that a branch returns")
            tensor.storage_base, tensor.storage_base_offset = tensors[id(base)], tensor.spec.storage_base_offset
    return [tensor for key, tensor in tensors.items() if key not in bound]


def _add(graph: Graph, clock: int, tensors: dict[int, Tensor]) -> int:
    """Add a graph that begins at a time; returns the time after it."""
    begins, ends = [], []
    calls = {call.node: call for call in graph.calls}
    for number in range(graph.nodes):
        begins.append(clock)
        for body in calls[number].bodies if number in calls else ():
            clock = _add(body, clock, tensors)
        ends.append(clock)
        clock += 1

    def life(spec: Any) -> tuple[Any, Any]:
        first, last = spec.lifetime
        return (first, last) if first is None or last is None else (begins[first], ends[last])

    for spec, pin in zip(graph.specs, graph.pins, strict=True):
        if id(spec) in tensors:
            raise UnsupportedError("found a tensor that several graphs have")
        tensors[id(spec)] = Tensor(spec, pin, life(spec))
    for call in graph.calls:
        owners = {id(result): tensors[id(result)] for result in call.results if id(result) in tensors}
        for body in call.bodies if call.moves else ():
            made = [spec for spec in body.returned if spec is not None and not spec.const]
            if len({*map(id, made)} - {*map(id, body.placeholders)}) < len(body.returned):
                raise UnsupportedError("found a branch that returns what it was given, or one tensor twice, expected its own")
            for result, spec in zip(call.results, body.returned, strict=True):
                if id(spec) in tensors:  # otherwise the runtime allocates it
                    tensor, (first, last) = tensors[id(spec)], life(result)
                    tensor.lifetime = min(first, tensor.lifetime[0]), max(last, tensor.lifetime[1])
                    _join(owners.setdefault(id(result), tensor).root(), tensor.root())
    return clock


def _join(one: Tensor, other: Tensor) -> None:
    """Put two tensors at the same bytes."""
    pins = {one.mem_id, other.mem_id} - {None}
    if len(pins) > 1:
        raise UnsupportedError("found a branch that returns a tensor bound for another arena than the result")
    if one is not other:
        inner, outer = sorted((one, other), key=lambda tensor: tensor.allocated_memory)
        inner.storage_base = outer
        outer.mem_id = pins.pop() if pins else None


def assign(graph: Graph, tensors: list[Tensor], roots: Mapping[int, tuple[int, int]]) -> dict[Any, Place]:
    """Places by specification, given arena and offset of the tensors that have bytes of their own, by ``id``."""
    inside = [tensor for tensor in tensors if id(tensor.root()) in roots]
    placed = places(inside, roots)
    return {tensor.spec: placed[id(tensor)] for tensor in inside} | dict.fromkeys(graph.bound(), Place())
