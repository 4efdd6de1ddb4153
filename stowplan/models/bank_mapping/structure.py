"""What both exact models look at first: which tensors surely stay on chip or surely do not, and when space may run out."""

from __future__ import annotations

from dataclasses import dataclass

from stowplan.models.bank_mapping.assemble import off_chip_cost, on_chip_cost
from stowplan.models.bank_mapping.problem import Problem


@dataclass(frozen=True)
class Structure:
    """Facts that hold in some best plan."""

    on_chip: tuple[bool | None, ...]
    """For each tensor, whether it stays on chip; None where that is to be decided."""
    gain: tuple[int, ...]
    """Weighted bytes a tensor saves by staying on chip, copies left out."""
    readable: tuple[tuple[int, ...], ...]
    """For each tensor, the layouts that some option of a reader wants, ascending."""
    writable: tuple[tuple[int, ...], ...]
    """For each tensor, the layouts of its own that its first writer offers; of an input, those of the readable ones that a
    whole tensor can have, or unspread where there are none."""
    crowded: tuple[tuple[int, ...], ...]
    """Sets of tensors that live at one moment and may not all fit with their copies; no set within another."""
    unit: int
    """Bytes of the size that most of the space at crowded moments is wanted in.

    Tensors are so many whole units and a rest. At a moment, ``rests`` units for all rests together, rounded up, and the whole
    units of each must fit into the whole units of the capacity. Rows of capacity let a fraction of a large tensor stand beside
    small ones; rows of units do not, and nearly all their numbers are 1.
    """


def analyse(problem: Problem) -> Structure:
    """The structure of a problem."""
    count = len(problem.tensors)
    readable = tuple(_readable(problem, tensor) for tensor in range(count))
    gain = tuple(off_chip_cost(problem, tensor) - on_chip_cost(problem, tensor) for tensor in range(count))
    most = tuple(_most_copies(problem, tensor, readable[tensor]) for tensor in range(count))
    larger = [problem.tensors[tensor].bytes + most[tensor] for tensor in range(count)]
    # What gains nothing by staying needs neither space nor copies in main memory.
    off = [gain[tensor] <= 0 or problem.tensors[tensor].bytes > problem.capacity for tensor in range(count)]
    crowded = _crowded(problem, larger, off)
    contended = {tensor for each in crowded for tensor in each}
    on_chip: list[bool | None] = []
    for tensor in range(count):
        if off[tensor]:
            on_chip.append(False)
        elif tensor not in contended and gain[tensor] >= problem.copy_weight * most[tensor]:
            on_chip.append(True)
        else:
            on_chip.append(None)
    writable = tuple(_writable(problem, tensor, readable[tensor]) for tensor in range(count))
    return Structure(tuple(on_chip), gain, readable, writable, tuple(crowded), _unit(problem, crowded))


#: A unit is at least the capacity over this: smaller tensors do not keep each other from fitting by much.
_MOST_UNITS = 64


def _unit(problem: Problem, crowded: list[tuple[int, ...]]) -> int:
    """The size, at least a 64th of the capacity, whose tensors take most space over all crowded moments; or the capacity."""
    space: dict[int, int] = {}
    for each in crowded:
        for tensor in each:
            size = problem.tensors[tensor].bytes
            if size * _MOST_UNITS >= problem.capacity:
                space[size] = space.get(size, 0) + size
    return max(space, key=lambda size: (space[size], size), default=max(1, problem.capacity))


def _readable(problem: Problem, tensor: int) -> tuple[int, ...]:
    return tuple(sorted({option[at] for number, at in problem.readers[tensor] for option in problem.operators[number].options}))


def _writable(problem: Problem, tensor: int, readable: tuple[int, ...]) -> tuple[int, ...]:
    if not problem.writers[tensor]:
        return tuple(layout for layout in readable if layout < problem.tensors[tensor].rank) or (-1,)
    operator = problem.operators[problem.writers[tensor][0]]
    at = len(operator.reads) + operator.writes.index(tensor)
    return tuple(sorted({option[at] for option in operator.options}))


def _most_copies(problem: Problem, tensor: int, readable: tuple[int, ...]) -> int:
    """Bytes of copies at most: one for each layout, and no more than there are accesses."""
    sizes = sorted((problem.tensors[tensor].layout_bytes(layout) for layout in readable), reverse=True)
    return sum(sizes[: len(problem.readers[tensor])])


def _crowded(problem: Problem, larger: list[int], off: list[bool]) -> list[tuple[int, ...]]:
    """Sets of tensors, at moments after which one of them dies, whose largest forms together exceed the capacity."""
    begins: list[list[int]] = [[] for _ in problem.operators]
    ends: list[list[int]] = [[] for _ in problem.operators]
    for tensor in range(len(problem.tensors)):
        life = problem.life(tensor)
        if life is not None and not off[tensor]:
            begins[life[0]].append(tensor)
            ends[life[1] - 1].append(tensor)
    found: list[tuple[int, ...]] = []
    live: set[int] = set()
    load = 0
    grown = False
    for number in range(len(problem.operators)):
        live.update(begins[number])
        load += sum(larger[tensor] for tensor in begins[number])
        grown = grown or bool(begins[number])
        # Until one dies the next set holds this one, and after a death nothing new is there until one is born.
        if ends[number]:
            if grown and load > problem.capacity:
                found.append(tuple(sorted(live)))
            grown = False
            live.difference_update(ends[number])
            load -= sum(larger[tensor] for tensor in ends[number])
    return found
