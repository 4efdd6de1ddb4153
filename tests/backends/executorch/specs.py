"""Hand-made tensors, and a greedy planner, for tests without executorch."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from stowplan.backends.executorch.control_flow import Graph, read


class Spec:
    """The fields of executorch's ``TensorSpec`` that planners read."""

    def __init__(self, size: int, first: int | None, last: int | None, mem_id: int | None = None, device: str = "CPU"):
        self.bytes = size
        self.lifetime = [first, last]
        self.mem_id = mem_id
        self.mem_obj_id: int | None = None
        self.mem_offset: int | None = None
        self.alignment = 16
        self.storage_base: Spec | None = None
        self.storage_base_offset = 0
        self.device = SimpleNamespace(name=device)
        self.shape = [size]
        self.const = False

    @property
    def allocated_memory(self) -> int:
        return -(-self.bytes // self.alignment) * self.alignment

    def realign(self, new_alignment: int) -> int:
        self.alignment = new_alignment
        return self.allocated_memory


@dataclass
class Placed:
    mem_id: int
    mem_obj_id: int
    mem_offset: int


@dataclass
class Result:
    spec_dict: dict[Spec, Placed]
    bufsizes: list[int] = field(default_factory=list)


def stack(alignment: int, specs: Iterable[Spec], graph: Any, signature: Any = None, extra_padding: int = 0) -> Result:
    """Every tensor at bytes of its own: as wasteful as a planner can be."""
    every = list(specs)
    result = Result({})
    reserved = list(getattr(graph, "input_mem_buffer_sizes", None) or [])
    sizes = [0] * (max((spec.mem_id or 1 for spec in every), default=1) + 1)
    for spec in every:
        spec.realign(alignment)
        mem_id = spec.mem_id or 1
        if spec.storage_base is None:
            if sizes[mem_id] == 0 and mem_id < len(reserved):
                sizes[mem_id] = reserved[mem_id]
            sizes[mem_id] += -sizes[mem_id] % alignment
            result.spec_dict[spec] = Placed(mem_id, len(result.spec_dict), sizes[mem_id])
            sizes[mem_id] += spec.allocated_memory
    for spec in every:
        if spec.storage_base is not None:
            at, base = 0, spec
            while base.storage_base is not None:
                at, base = at + base.storage_base_offset, base.storage_base
            found = result.spec_dict.get(base, Placed(1, 0, 0))
            result.spec_dict[spec] = Placed(found.mem_id, found.mem_obj_id, found.mem_offset + at)
    result.bufsizes = [size + extra_padding if size else 0 for size in sizes]
    return result


def graph(*reserved: int) -> Any:
    nodes = [Node("call_function") for _ in range(32)]
    return SimpleNamespace(input_mem_buffer_sizes=list(reserved), graph=SimpleNamespace(nodes=nodes))


def alone(specs: list[Spec], padding: int = 0) -> Graph:
    """What the check is given for a graph that runs no others."""
    return read(graph(), specs, padding, {})


@dataclass(eq=False)
class Node:
    """The fields of a node of ``torch.fx`` that are read."""

    op: str
    target: Any = None
    args: tuple[Any, ...] = ()
    spec: Any = None
    name: str = ""

    @property
    def meta(self) -> dict[str, Any]:
        return {"spec": self.spec}

    @property
    def all_input_nodes(self) -> list[Node]:
        flat = [each for given in self.args for each in (given if isinstance(given, list) else [given])]
        return list(dict.fromkeys(each for each in flat if isinstance(each, Node)))


def random_specs(seed: int, most: int = 14, arenas: int = 1) -> list[Spec]:
    """Tensors with random sizes and lives; some lie inside others, some are bound for an arena."""
    chance = random.Random(seed)
    specs: list[Spec] = []
    for _ in range(chance.randint(1, most)):
        first = chance.randint(0, 12)
        mem_id = chance.choice([None, *range(1, arenas + 1)])
        specs.append(Spec(chance.choice([0, 1, 16, 40, 64, 100, 256]), first, first + chance.randint(0, 6), mem_id))
        base = specs[chance.randrange(len(specs))]
        if base is not specs[-1] and chance.random() < 0.2 and base.allocated_memory >= 32:
            first = base.lifetime[1]
            inner = Spec(16, first, first + 2)
            inner.storage_base, inner.storage_base_offset = base, chance.choice([0, 16])
            specs.append(inner)
    return specs
