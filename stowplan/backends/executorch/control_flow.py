"""Graphs of an ExecuTorch program whose nodes run other graphs (*bodies*): when tensors are live, and which must share bytes.

ExecuTorch describes each tensor by a *specification* (in code *spec*), its ``TensorSpec``. Lists of the specifications of a
node's values have None for a value that is no tensor. The framework calls a planner first for the bodies and then for the graph
that runs them. This back end only plans the outermost graph, together with all its bodies.

*Facts of executorch 1.5.* The framework plans bodies before the graph that runs them, all at the lowest bytes of its arenas. At
run time a result of ``cond`` becomes the tensor that the branch returned, in the bytes of the branch. The framework also plans
bytes for the result itself. Nothing writes these bytes, but an operator that reads a view of the result reads them
nevertheless. ``map`` and ``scan`` copy the results of a body in each iteration. They pass some of their arguments to the body
in slices. The framework plans bytes for all placeholders of the body, but at run time only the placeholders of slices use
theirs, and the other placeholders are tensors of the outer graph. ``while_loop`` cannot be emitted.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from stowplan.backends.executorch.arenas import Place, Tensor, places
from stowplan.backends.fallback import UnsupportedError

#: The operators whose bodies are supported. The value is the index of the argument that the operator passes to its body in
#: slices; None if there is no such argument, which also means that results become the tensors that the body returned.
MODELLED = {"cond": None, "map_impl": 1, "scan": 2}


@dataclass(frozen=True)
class Call:
    """A node that runs other graphs."""

    node: int
    """Its index in its graph."""
    results: tuple[Any, ...]
    """Specifications of its results."""
    bodies: tuple[Graph, ...]
    """The graphs that it runs: the branches of a condition, or the body of a loop."""
    moves: bool
    """True for ``cond``, where a result becomes the tensor that a body returned; False if the tensor is copied instead."""
    bound: tuple[Any, ...]
    """Specifications of the placeholders of the bodies that at run time are tensors of the outer graph, without bytes of their
    own."""


@dataclass(frozen=True)
class Graph:
    """A graph whose memory is planned, with the graphs that its nodes run."""

    module: Any
    """The ``torch.fx.GraphModule``."""
    specs: tuple[Any, ...]
    """Specifications of the graph's own tensors that have to be planned; tensors of its bodies are not included."""
    pins: tuple[int | None, ...]
    """For each of ``specs``, the number of the arena that is prescribed for the tensor; None if none is."""
    padding: int
    """Bytes at the top of each arena that stay free."""
    nodes: int
    """How many nodes the graph has."""
    calls: tuple[Call, ...]
    """The nodes that run other graphs."""
    placeholders: tuple[Any, ...]
    """Specifications of the inputs."""
    returned: tuple[Any, ...]
    """Specifications of the outputs."""
    viewed: frozenset[int]
    """``id`` of the specification of each tensor that has a view in the graph. The view is read at the bytes that are planned
    for the tensor."""

    @property
    def reserved(self) -> list[int]:
        """For each arena, the bytes at its bottom that executorch has reserved for bodies that it planned before.

        The list is empty if the graph has bodies, because they are planned again, together with the graph.
        """
        return [] if self.calls else list(getattr(self.module, "input_mem_buffer_sizes", None) or [])

    def parts(self) -> Iterator[Graph]:
        """This graph, and all graphs that it runs directly or indirectly."""
        yield self
        for call in self.calls:
            for body in call.bodies:
                yield from body.parts()

    def bound(self) -> list[Any]:
        """Specifications of all placeholders of bodies that at run time are tensors of an outer graph."""
        return [spec for part in self.parts() for call in part.calls for spec in call.bound if spec is not None]

    def places(self, result: Any) -> dict[int, tuple[Any, Any]]:
        """Returns the arena and the offset in bytes of each tensor, by the ``id`` of its specification.

        Parameters
        ----------
        result
            Executorch's ``MemoryAlgoResult`` for this graph. Bodies were planned before, and their specifications have the
            places.
        """
        inner = {spec: spec for part in self.parts() for spec in part.specs if part is not self}
        return {id(spec): (place.mem_id, place.mem_offset) for spec, place in (inner | result.spec_dict).items()}


def is_program(module: Any, signature: Any) -> bool:
    """Whether a graph is the main graph of a program rather than a body.

    Executorch plans bodies with the signature of the program, but they have other inputs. Without a signature (None), the graph
    counts as a main graph.
    """
    inputs = getattr(signature, "input_specs", None)
    names = [node.name for node in module.graph.nodes if node.op == "placeholder"]
    return inputs is None or names == [spec.arg.name for spec in inputs]


def read(module: Any, specs: list[Any], padding: int, pending: dict[int, Graph]) -> Graph:
    """Reads a graph that is about to be planned.

    Parameters
    ----------
    module, specs, padding
        See :class:`Graph`.
    pending
        Graphs that were read before and that no other graph runs so far, by ``id`` of the module. The bodies of this graph are
        removed, and this graph is added.

    Raises
    ------
    UnsupportedError
        An operator that runs graphs is not in :data:`MODELLED`, a body was not read before, or several nodes run it.
    """
    nodes = list(module.graph.nodes)
    calls = []
    for number, node in enumerate(nodes):
        # A delegate has no graph here, and plans its memory itself.
        names = [used.target for used in node.all_input_nodes if used.op == "get_attr"]
        bodies = [body for body in (getattr(module, name, None) for name in names) if hasattr(body, "graph")]
        if not bodies:
            continue
        operator = getattr(node.target, "__name__", str(node.target))
        if operator not in MODELLED:
            raise UnsupportedError(f"found {operator}, which runs other graphs, expected one of {', '.join(MODELLED)}")
        if any(id(body) not in pending for body in bodies):
            raise UnsupportedError(f"found a graph of {operator} that was not planned, or that others run as well")
        graphs = tuple(pending.pop(id(body)) for body in bodies)
        sliced = MODELLED[operator]
        # For each placeholder of the body, the index of the argument that it comes from.
        argument_of = [at for at, argument in enumerate(node.args) if isinstance(argument, list | tuple) for _ in argument]
        bound = (
            ()
            if sliced is None
            else [spec for at, spec in zip(argument_of, graphs[0].placeholders, strict=True) if at != sliced]
        )
        calls.append(Call(number, tuple(_specs(node)), graphs, sliced is None, tuple(bound)))
    views = [spec for node in nodes for spec in _specs(node) if hasattr(spec, "_base") and spec.is_static_shape_tensor]
    graph = pending[id(module)] = Graph(
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
    """Specifications of a node's values; None for a value that is no tensor."""
    value = node.meta.get("spec")
    every = value if isinstance(value, list | tuple) else [value]
    return [spec if hasattr(spec, "lifetime") else None for spec in every]


def flatten(program: Graph) -> list[Tensor]:
    """Returns the tensors of a graph and of all graphs that it runs, with lifetimes on one common time axis.

    If two tensors must have the same bytes, one of them lies inside of the other. A tensor that a node uses lives until the
    bodies of that node have run. Placeholders that at run time are tensors of an outer graph are left out.

    Raises
    ------
    UnsupportedError
        Several graphs have the same tensor; a branch returns a tensor that it has not computed, one tensor twice, or a tensor
        for another arena than the result; or a tensor lies inside of one that is not planned or that a branch returns.
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
    """Add the tensors of a graph whose first node runs at the time ``clock``; returns the first time after the graph.

    Raises UnsupportedError as :func:`flatten` does.
    """
    begins, ends = [], []
    calls = {call.node: call for call in graph.calls}
    for number in range(graph.nodes):
        begins.append(clock)
        for body in calls[number].bodies if number in calls else ():
            clock = _add(body, clock, tensors)
        ends.append(clock)
        clock += 1

    def life(spec: Any) -> tuple[Any, Any]:
        """The first and the last time at which a tensor is live; None if executorch does not know them."""
        first, last = spec.lifetime
        return (first, last) if first is None or last is None else (begins[first], ends[last])

    for spec, pin in zip(graph.specs, graph.pins, strict=True):
        if id(spec) in tensors:
            raise UnsupportedError("found a tensor that several graphs have")
        tensors[id(spec)] = Tensor(spec, pin, life(spec))
    for call in graph.calls:
        owners = {id(result): tensors[id(result)] for result in call.results if id(result) in tensors}
        for body in call.bodies if call.moves else ():
            computed = [spec for spec in body.returned if spec is not None and not spec.const]
            if len({*map(id, computed)} - {*map(id, body.placeholders)}) < len(body.returned):
                raise UnsupportedError("found a branch that returns what it was given, or one tensor twice, expected its own")
            for result, spec in zip(call.results, body.returned, strict=True):
                if id(spec) in tensors:  # Otherwise the runtime allocates the tensor.
                    tensor, (first, last) = tensors[id(spec)], life(result)
                    tensor.lifetime = min(first, tensor.lifetime[0]), max(last, tensor.lifetime[1])
                    _join(owners.setdefault(id(result), tensor).root(), tensor.root())
    return clock


def _join(one: Tensor, other: Tensor) -> None:
    """Give two tensors the same bytes: the smaller one lies inside of the larger one, and both are in the prescribed arena.

    Raises UnsupportedError if different arenas are prescribed for them.
    """
    pins = {one.mem_id, other.mem_id} - {None}
    if len(pins) > 1:
        raise UnsupportedError("found a branch that returns a tensor bound for another arena than the result")
    if one is not other:
        inner, outer = sorted((one, other), key=lambda tensor: tensor.allocated_memory)
        inner.storage_base = outer
        outer.mem_id = pins.pop() if pins else None


def assign(graph: Graph, tensors: list[Tensor], roots: Mapping[int, tuple[int, int]]) -> dict[Any, Place]:
    """Returns the places of the tensors of a graph and its bodies, by specification.

    Placeholders that at run time are tensors of an outer graph get a place without bytes.

    Parameters
    ----------
    graph, tensors
        The graph, and its tensors as :func:`flatten` returns them.
    roots
        Arena and offset of tensors that have bytes of their own, by ``id`` of the :class:`Tensor`. A tensor gets a place only
        if it, or the outermost tensor that it lies inside of, is among them.
    """
    inside = [tensor for tensor in tensors if id(tensor.root()) in roots]
    placed = places(inside, roots)
    return {tensor.spec: placed[id(tensor)] for tensor in inside} | dict.fromkeys(graph.bound(), Place())
