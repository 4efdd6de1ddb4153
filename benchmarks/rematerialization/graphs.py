"""Moccasin's files."""

from __future__ import annotations

import json
from pathlib import Path

from stowplan.models.rematerialization.problem import Op, Problem, Tensor


def networkx(path: Path) -> Problem:
    """A graph as Moccasin and networkx write it, in the order that Moccasin takes."""
    found = json.loads(path.read_text())
    is_layered = found["graph"].get("name", "").startswith("random_layered")
    names = [node["name" if is_layered else "id"] for node in found["nodes"]]
    index = {name: at for at, name in enumerate(names)}
    ends = ("0", "1") if is_layered else ("source", "target")
    edges = [(index[each[ends[0]]], index[each[ends[1]]]) for each in found["links"]]
    before: dict[int, set[int]] = {at: set() for at in range(len(names))}
    for one, other in edges:
        before[other].add(one)
    given = found["graph"].get("order")
    order = kahn(len(names), edges) if given is None else [index[each] for each in given]
    place = {op: at for at, op in enumerate(order)}
    size, cost = ("out_cost", "duration") if is_layered else ("cost_ram", "cost_cpu")
    assert all(place[one] < place[other] for one, other in edges)
    return Problem(
        name=found["graph"].get("name", path.stem),
        tensors=tuple(Tensor(id=f"{names[op]}", size=found["nodes"][op][size]) for op in order),
        ops=tuple(
            Op(
                id=f"{names[op]}",
                reads=tuple(sorted(place[each] for each in before[op])),
                writes=(at,),
                cost=found["nodes"][op][cost],
            )
            for at, op in enumerate(order)
        ),
    )


def kahn(count: int, edges: list[tuple[int, int]]) -> list[int]:
    """The order of networkx's ``topological_sort``: generation by generation."""
    following: list[list[int]] = [[] for _ in range(count)]
    waits = [0] * count
    for one, other in edges:
        following[one].append(other)
        waits[other] += 1
    order, now = [], [at for at in range(count) if not waits[at]]
    while now:
        after = []
        for op in now:
            order.append(op)
            for each in following[op]:
                waits[each] -= 1
                if not waits[each]:
                    after.append(each)
        now = after
    return order
