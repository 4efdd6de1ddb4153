"""Checks offsets for ExecuTorch by comparing all pairs of tensors; it shares no code with the planner.

A *call* is a node of a graph that runs other graphs, its *bodies*, such as the branches of a condition. ExecuTorch describes
each tensor by a *specification*, its ``TensorSpec``. The framework itself checks for tensors that share bytes only after
planners with the name ``greedy``, and only within one graph. Nothing in this module raises an error.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class _Value:
    """A value of a graph, together with one tensor in whose bytes it may be at run time."""

    spec: Any
    """Specification of the value."""
    home: Any
    """Specification of the tensor in whose bytes the value is: ``spec`` itself, or for the result of a condition, the tensor
    that a branch returned."""
    first: int
    """Index of the first node at which the value is live."""
    last: int
    """Index of the last node at which the value is live."""
    branches: Mapping[int, int] = field(default_factory=dict)
    """The branches that must have run if the value is in these bytes: from the ``id`` of a
    :class:`~stowplan.backends.executorch.control_flow.Call` to the index of its body."""


def faults(graph: Any, placed: Mapping[int, tuple[Any, Any]], sizes: Sequence[int], reserved: Sequence[int]) -> list[str]:
    """Checks the offsets of a graph and its bodies, and returns a line for each fault; an empty list if they are valid.

    First each tensor is checked alone: its arena, its offset and its alignment. Pairs of tensors are compared only if this
    finds no fault.

    Parameters
    ----------
    graph
        A :class:`~stowplan.backends.executorch.control_flow.Graph`. The offset of each tensor must be a multiple of its
        ``alignment``.
    placed
        Arena and offset of each tensor in bytes, by ``id`` of the specification. The arena is None for a tensor without bytes.
    sizes
        [arenas] Size in bytes.
    reserved
        [arenas] Bytes at the bottom that must stay free; 0 for arenas beyond the end of the list.
    """
    parts = list(graph.parts())
    placed = {key: place for key, place in placed.items() if place[0] is not None}
    every = [(spec, pin, part.padding) for part in parts for spec, pin in zip(part.specs, part.pins, strict=True)]
    bound = {id(spec): body for part in parts for call in part.calls for body in call.bodies for spec in call.bound}
    without_place = sum(id(spec) not in placed and id(spec) not in bound for spec, _, _ in every)
    if without_place:
        return [f"{without_place} tensors have no place"]
    violations = []
    for number, (spec, pin, padding) in enumerate(every):
        if id(spec) not in placed:
            continue
        mem_id, at = placed[id(spec)]
        end = at + spec.allocated_memory
        if not 1 <= mem_id < len(sizes):
            violations.append(f"tensor {number} is in arena {mem_id}, and there are {len(sizes)}")
            continue
        if pin is not None and spec.storage_base is None and mem_id != pin:
            violations.append(f"tensor {number} is in arena {mem_id}, bound for {pin}")
        if at < (reserved[mem_id] if mem_id < len(reserved) else 0) or end > sizes[mem_id] - padding:
            violations.append(f"tensor {number} is at bytes {at} to {end}, outside what arena {mem_id} has for it")
        if at % spec.alignment:
            violations.append(f"tensor {number} is at {at}, not a multiple of {spec.alignment}")
        base = spec.storage_base
        if base is not None and placed.get(id(base)) != (mem_id, at - spec.storage_base_offset):
            violations.append(f"tensor {number} is not where it should be inside another")
        if id(spec) in bound and id(spec) in bound[id(spec)].viewed:
            violations.append(f"tensor {number} is read through a view where nobody writes it")
    names = {id(spec): number for number, (spec, _, _) in enumerate(every)}
    return violations or [*_unwritten(parts, placed), *_overlaps(graph, placed, [], names)]


def _unwritten(parts: list[Any], placed: Mapping[int, tuple[int, int]]) -> Iterator[str]:
    """Yields a line for each result of a condition that a view reads at one place while a branch writes it at another place."""
    for part in parts:
        for call in part.calls:
            for spec in call.results if call.moves else ():
                homes = {placed.get(id(value.home)) for value in _values(part, spec)}
                if id(spec) in part.viewed and id(spec) in placed and homes != {placed[id(spec)]}:
                    yield f"a view of a result of node {call.node} is read where no branch writes it"


def _values(graph: Any, spec: Any) -> Iterator[_Value]:
    """Yields a value once for each tensor in whose bytes it may be at run time; live ranges are not filled in."""
    for call in graph.calls if spec is not None else ():
        if call.moves and any(spec is result for result in call.results):
            at = [spec is result for result in call.results].index(True)
            for branch, body in enumerate(call.bodies):
                for inner in _values(body, body.returned[at]):
                    yield replace(inner, spec=spec, branches={**inner.branches, id(call): branch})
            return
    yield _Value(spec, spec, 0, 0)


def _overlaps(
    graph: Any, placed: Mapping[int, tuple[int, int]], outer_values: list[_Value], names: Mapping[int, int]
) -> list[str]:
    """Returns a line for each pair of values that share bytes while both are live, in a graph and in all graphs that it runs.

    Parameters
    ----------
    placed
        Arena and offset of each tensor that has bytes, by ``id`` of the specification.
    outer_values
        Values of the graphs around this one that are live while it runs.
    names
        From the ``id`` of a specification to its number in messages.
    """
    moved = [spec for call in graph.calls if call.moves for spec in call.results]
    specs = {id(spec): spec for spec in [*graph.specs, *moved] if spec is not None}.values()
    own_values = [
        replace(value, first=spec.lifetime[0], last=spec.lifetime[1])
        for spec in specs
        for value in _values(graph, spec)
        if id(value.home) in placed
    ]
    values = own_values + [replace(value, first=0, last=graph.nodes) for value in outer_values]
    rows = [(*placed[id(value.home)], value.home.allocated_memory, value.first, value.last) for value in values]
    arena, low, size, first, last = np.array(rows, np.int64).reshape(-1, 5).T
    violations = []
    for number, value in enumerate(own_values):
        others = slice(number + 1, None)
        conflicts = (
            (arena[others] == arena[number])
            & (low[others] < low[number] + size[number])
            & (low[number] < low[others] + size[others])
            & (first[others] <= last[number])
            & (first[number] <= last[others])
            & (np.minimum(size[others], size[number]) > 0)
        )
        violations += [
            f"tensors {names[id(value.home)]} and {names[id(other.home)]} share bytes while both live"
            for other in (values[number + 1 + at] for at in np.flatnonzero(conflicts).tolist())
            if not (_inside(value.home, other.home) or _inside(other.home, value.home) or _exclude(value, other))
        ]
    for call in graph.calls:
        results = {id(spec) for spec in call.results if call.moves}
        live_around = [value for value in values if value.first <= call.node <= value.last and id(value.spec) not in results]
        for body in call.bodies:
            violations += _overlaps(body, placed, live_around, names)
    return violations


def _exclude(one: _Value, other: _Value) -> bool:
    """Whether two values never exist in the same run, because they need different branches."""
    return any(other.branches.get(call, branch) != branch for call, branch in one.branches.items())


def _inside(spec: Any, base: Any) -> bool:
    """Whether a tensor is the other one, or lies inside its bytes on purpose."""
    while spec is not base and spec.storage_base is not None:
        spec = spec.storage_base
    return spec is base
