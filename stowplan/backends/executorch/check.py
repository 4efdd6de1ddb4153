"""Says what is wrong with offsets for ExecuTorch, looking at all pairs of tensors; shares no code with what plans them.

The framework itself looks for tensors that share bytes only after planners of the name ``greedy``, and in one graph alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np


@dataclass(frozen=True)
class _Value:
    """A value of a graph at the bytes of one tensor that it may be."""

    spec: Any
    home: Any
    """The tensor: ``spec`` itself, but for results of branches."""
    first: int
    last: int
    branches: Mapping[int, int] = field(default_factory=dict)
    """Number of the branch by ``id`` of the operator: those that must have run for it to be there."""


def faults(graph: Any, placed: Mapping[int, tuple[Any, Any]], sizes: Sequence[int], reserved: Sequence[int]) -> list[str]:
    """What is wrong, one line each; empty where nothing is.

    Parameters
    ----------
    graph
        A :class:`~stowplan.backends.executorch.control_flow.Graph`; the ``alignment`` of its tensors is what holds.
    placed
        Arena and offset, by ``id`` of the specification; None of what has no bytes.
    sizes
        Bytes of each arena.
    reserved
        Bytes at the bottom of each arena that stay free.
    """
    parts = list(graph.parts())
    placed = {key: place for key, place in placed.items() if place[0] is not None}
    every = [(spec, pin, part.padding) for part in parts for spec, pin in zip(part.specs, part.pins, strict=True)]
    bound = {id(spec): body for part in parts for call in part.calls for body in call.bodies for spec in call.bound}
    lost = sum(id(spec) not in placed and id(spec) not in bound for spec, _, _ in every)
    if lost:
        return [f"{lost} tensors have no place"]
    wrong = []
    for number, (spec, pin, padding) in enumerate(every):
        if id(spec) not in placed:
            continue
        mem_id, at = placed[id(spec)]
        end = at + spec.allocated_memory
        if not 1 <= mem_id < len(sizes):
            wrong.append(f"tensor {number} is in arena {mem_id}, and there are {len(sizes)}")
            continue
        if pin is not None and spec.storage_base is None and mem_id != pin:
            wrong.append(f"tensor {number} is in arena {mem_id}, bound for {pin}")
        if at < (reserved[mem_id] if mem_id < len(reserved) else 0) or end > sizes[mem_id] - padding:
            wrong.append(f"tensor {number} is at bytes {at} to {end}, outside what arena {mem_id} has for it")
        if at % spec.alignment:
            wrong.append(f"tensor {number} is at {at}, not a multiple of {spec.alignment}")
        base = spec.storage_base
        if base is not None and placed.get(id(base)) != (mem_id, at - spec.storage_base_offset):
            wrong.append(f"tensor {number} is not where it should be inside another")
        if id(spec) in bound and id(spec) in bound[id(spec)].viewed:
            wrong.append(f"tensor {number} is read through a view where nobody writes it")
    names = {id(spec): number for number, (spec, _, _) in enumerate(every)}
    return wrong or [*_unwritten(parts, placed), *_overlaps(graph, placed, [], names)]


def _unwritten(parts: list[Any], placed: Mapping[int, tuple[int, int]]) -> Iterator[str]:
    """Views of what branches return that are read elsewhere than where a branch writes it."""
    for part in parts:
        for call in part.calls:
            for spec in call.results if call.moves else ():
                homes = {placed.get(id(value.home)) for value in _values(part, spec)}
                if id(spec) in part.viewed and id(spec) in placed and homes != {placed[id(spec)]}:
                    yield f"a view of a result of node {call.node} is read where no branch writes it"


def _values(graph: Any, spec: Any) -> Iterator[_Value]:
    """The bytes that a tensor of a graph may have at run time."""
    for call in graph.calls if spec is not None else ():
        if call.moves and any(spec is result for result in call.results):
            at = [spec is result for result in call.results].index(True)
            for branch, body in enumerate(call.bodies):
                for inner in _values(body, body.returned[at]):
                    yield replace(inner, spec=spec, branches={**inner.branches, id(call): branch})
            return
    yield _Value(spec, spec, 0, 0)


def _overlaps(graph: Any, placed: Mapping[int, tuple[int, int]], held: list[_Value], names: Mapping[int, int]) -> list[str]:
    """Values that share bytes while both are needed: of a graph, of what it runs, and of those that run it."""
    moved = [spec for call in graph.calls if call.moves for spec in call.results]
    specs = {id(spec): spec for spec in [*graph.specs, *moved] if spec is not None}.values()
    own = [
        replace(value, first=spec.lifetime[0], last=spec.lifetime[1])
        for spec in specs
        for value in _values(graph, spec)
        if id(value.home) in placed
    ]
    values = own + [replace(value, first=0, last=graph.nodes) for value in held]
    rows = [(*placed[id(value.home)], value.home.allocated_memory, value.first, value.last) for value in values]
    arena, low, size, first, last = np.array(rows, np.int64).reshape(-1, 5).T
    wrong = []
    for number, value in enumerate(own):
        rest = slice(number + 1, None)
        meet = (
            (arena[rest] == arena[number])
            & (low[rest] < low[number] + size[number])
            & (low[number] < low[rest] + size[rest])
            & (first[rest] <= last[number])
            & (first[number] <= last[rest])
            & (np.minimum(size[rest], size[number]) > 0)
        )
        wrong += [
            f"tensors {names[id(value.home)]} and {names[id(other.home)]} share bytes while both live"
            for other in (values[number + 1 + at] for at in np.flatnonzero(meet).tolist())
            if not (_inside(value.home, other.home) or _inside(other.home, value.home) or _exclude(value, other))
        ]
    for call in graph.calls:
        results = {id(spec) for spec in call.results if call.moves}
        around = [value for value in values if value.first <= call.node <= value.last and id(value.spec) not in results]
        for body in call.bodies:
            wrong += _overlaps(body, placed, around, names)
    return wrong


def _exclude(one: _Value, other: _Value) -> bool:
    """Whether no run has both."""
    return any(other.branches.get(call, branch) != branch for call, branch in one.branches.items())


def _inside(spec: Any, base: Any) -> bool:
    """Whether a tensor is meant to lie inside the bytes of another, or is that one."""
    while spec is not base and spec.storage_base is not None:
        spec = spec.storage_base
    return spec is base
