"""What models and heuristics share: what choices cost and which plans they make, and what is known before any is made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stowplan.models.bank_mapping.plan import BankCopy, Plan
from stowplan.models.bank_mapping.problem import UNSPREAD, Problem
from stowplan.models.packing.bounds import live_sets


def off_chip_cost(problem: Problem, tensor: int) -> int:
    """Weighted bytes of a tensor in main memory: written once, loaded by every access."""
    array = problem.tensors[tensor]
    loads = sum(problem.operators[number].read_bytes[at] for number, at in problem.readers[tensor])
    return problem.off_chip_weight * (loads + (array.bytes if problem.writers[tensor] else 0))


def on_chip_cost(problem: Problem, tensor: int) -> int:
    """Weighted bytes of a tensor that stays on chip, copies left out: an input's one load, an output's one store."""
    array = problem.tensors[tensor]
    if problem.writers[tensor]:
        return problem.off_chip_weight * array.bytes if array.is_output else 0
    return problem.off_chip_weight * array.bytes if problem.readers[tensor] else 0


def own_layouts(problem: Problem, options: Sequence[int]) -> list[int]:
    """Layout of every tensor where operators compute by these options: what its writer writes, or for an input the layout that
    most of its readers want, the outermost of equals."""
    layouts = []
    for tensor, array in enumerate(problem.tensors):
        writers = problem.writers[tensor]
        if writers:
            operator = problem.operators[writers[0]]
            layouts.append(operator.options[options[writers[0]]][operator.write_place(tensor)])
            continue
        wanted: dict[int, int] = {}
        for number, at in problem.readers[tensor]:
            layout = problem.operators[number].options[options[number]][at]
            if layout < array.rank:
                wanted[layout] = wanted.get(layout, 0) + 1
        layouts.append(max(sorted(wanted), key=lambda layout: wanted[layout], default=UNSPREAD))
    return layouts


def copies_of(problem: Problem, tensor: int, own: int, options: Sequence[int]) -> dict[int, int]:
    """Layout to first reader of every copy of a tensor on chip."""
    copies: dict[int, int] = {}
    for number, at in problem.readers[tensor]:
        layout = problem.operators[number].options[options[number]][at]
        if layout != own:
            copies.setdefault(layout, number)
    return copies


def assemble(problem: Problem, options: Sequence[int], on_chip: Sequence[bool]) -> Plan:
    """Plan of a choice for every operator and tensor. Whether it fits is not looked at.

    Parameters
    ----------
    options
        ``[operators]``, which of its options each takes; writers of one tensor must agree.
    on_chip
        ``[tensors]``, whether each stays on chip.

    Returns
    -------
    Plan
        With the copies that follow, and its objective in weighted bytes.
    """
    layouts = own_layouts(problem, options)
    copies = []
    objective = 0
    for number, stays in enumerate(on_chip):
        if not stays:
            objective += off_chip_cost(problem, number)
            continue
        objective += on_chip_cost(problem, number)
        for layout, before in copies_of(problem, number, layouts[number], options).items():
            copies.append(BankCopy(number, layout, before))
            objective += problem.copy_weight * problem.tensors[number].layout_bytes(layout)
    return Plan(
        problem=problem.digest,
        objective=objective,
        options=tuple(options),
        layouts=tuple(layouts),
        on_chip=tuple(on_chip),
        copies=tuple(sorted(copies, key=lambda copy: (copy.before, copy.tensor, copy.layout))),
        name=problem.name,
        target=problem.target,
    )


def objective_bound(problem: Problem) -> int:
    """What every plan moves at least: for each tensor the cheaper of both places, without copies."""
    return sum(min(off_chip_cost(problem, tensor), on_chip_cost(problem, tensor)) for tensor in range(len(problem.tensors)))


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

    def followed(self, on_chip: Sequence[bool]) -> list[bool]:
        """``[tensors]`` whether each stays on chip as a plan says, but for those of which more is known than the plan says."""
        return [chosen if known is None else known for known, chosen in zip(self.on_chip, on_chip, strict=True)]


def rests_at(problem: Problem, structure: Structure, plan: Plan) -> list[int]:
    """Bytes beyond whole units that tensors and copies of a plan have on chip, at each crowded moment."""
    unit = structure.unit
    rest = [tensor.bytes % unit * stays for tensor, stays in zip(problem.tensors, plan.on_chip, strict=True)]
    for copy in plan.copies:
        rest[copy.tensor] += problem.tensors[copy.tensor].layout_bytes(copy.layout) % unit
    return [sum(rest[tensor] for tensor in live) for live in structure.crowded]


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
    contended = {tensor for tensors in crowded for tensor in tensors}
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
    for tensors in crowded:
        for tensor in tensors:
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
    at = operator.write_place(tensor)
    return tuple(sorted({option[at] for option in operator.options}))


def _most_copies(problem: Problem, tensor: int, readable: tuple[int, ...]) -> int:
    """Bytes of copies at most: one for each layout, and no more than there are accesses."""
    sizes = sorted((problem.tensors[tensor].layout_bytes(layout) for layout in readable), reverse=True)
    return sum(sizes[: len(problem.readers[tensor])])


def _crowded(problem: Problem, larger: list[int], off: list[bool]) -> list[tuple[int, ...]]:
    """Sets of tensors, at moments after which one of them dies, whose largest forms together exceed the capacity."""
    lives = ((tensor, *life) for tensor in range(len(off)) if not off[tensor] and (life := problem.life(tensor)) is not None)
    together = (tuple(sorted(live)) for live in live_sets(lives))
    return [tensors for tensors in together if sum(larger[tensor] for tensor in tensors) > problem.capacity]
