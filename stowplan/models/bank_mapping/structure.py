"""Costs of decisions, construction of plans from decisions, and facts about problems, for models and heuristics.

A *layout* says along which dimension a tensor is spread over the banks of on-chip memory; *unspread* is in a single bank. An
*option* is a way to compute an operator, with a layout for each tensor that it reads or writes. Every tensor has its *own*
layout, in which it is written or, for an input, loaded. It stays on chip during its whole life or is in main memory. Readers
that need another layout of a tensor on chip read a copy. A *view* is a rearranged copy of elements of a tensor, and counts as a
layout of it.

Costs are *weighted bytes*: bytes that are copied between banks times ``copy_weight``, plus bytes that are moved to or from main
memory times ``off_chip_weight``. Nothing here raises an error for a valid problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from stowplan.models.bank_mapping.plan import BankCopy, Plan
from stowplan.models.bank_mapping.problem import UNSPREAD, Problem
from stowplan.models.packing.bounds import live_sets


def off_chip_cost(problem: Problem, tensor: int) -> int:
    """Weighted bytes that a tensor moves if it is in main memory: it is written once and loaded by every access."""
    array = problem.tensors[tensor]
    loads = sum(problem.operators[number].read_bytes[at] for number, at in problem.readers[tensor])
    return problem.off_chip_weight * (loads + (array.bytes if problem.writers[tensor] else 0))


def on_chip_cost(problem: Problem, tensor: int) -> int:
    """Weighted bytes that a tensor moves if it is on chip, without copies: inputs are loaded once, outputs stored once."""
    array = problem.tensors[tensor]
    if problem.writers[tensor]:
        return problem.off_chip_weight * array.bytes if array.is_output else 0
    return problem.off_chip_weight * array.bytes if problem.readers[tensor] else 0


def own_layouts(problem: Problem, options: Sequence[int]) -> list[int]:
    """[tensors] own layout of each tensor for these options of the operators.

    It is the layout in which the first writer writes the tensor. For an input, it is the layout that most of its readers need,
    apart from views; of several such layouts, it is the one with the smallest number. If no reader needs one, it is unspread.
    """
    layouts = []
    for tensor, array in enumerate(problem.tensors):
        writers = problem.writers[tensor]
        if writers:
            operator = problem.operators[writers[0]]
            layouts.append(operator.options[options[writers[0]]][operator.write_place(tensor)])
            continue
        reader_counts: dict[int, int] = {}
        for number, at in problem.readers[tensor]:
            layout = problem.operators[number].options[options[number]][at]
            if layout < array.rank:
                reader_counts[layout] = reader_counts.get(layout, 0) + 1
        layouts.append(max(sorted(reader_counts), key=lambda layout: reader_counts[layout], default=UNSPREAD))
    return layouts


def copies_of(problem: Problem, tensor: int, own: int, options: Sequence[int]) -> dict[int, int]:
    """Returns the copies that a tensor on chip needs: for each layout of a copy, the first operator that reads the tensor in
    it.

    ``own`` is the tensor's own layout, and ``options`` has the index of the option of each operator.
    """
    copies: dict[int, int] = {}
    for number, at in problem.readers[tensor]:
        layout = problem.operators[number].options[options[number]][at]
        if layout != own:
            copies.setdefault(layout, number)
    return copies


def assemble(problem: Problem, options: Sequence[int], on_chip: Sequence[bool]) -> Plan:
    """Build the plan of these decisions, with the copies that follow from them. It may exceed the capacity.

    Parameters
    ----------
    options
        ``[operators]`` index of the option of each operator. Operators that write parts of the same tensor must agree.
    on_chip
        ``[tensors]`` whether each tensor stays on chip.
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
    """Lower bound on the weighted bytes of every plan: each tensor is in main memory or on chip, whichever is cheaper, and
    there are no copies."""
    return sum(min(off_chip_cost(problem, tensor), on_chip_cost(problem, tensor)) for tensor in range(len(problem.tensors)))


@dataclass(frozen=True)
class Structure:
    """Facts that are true of at least one best plan of a problem, for models."""

    on_chip: tuple[bool | None, ...]
    """[tensors] whether the tensor stays on chip; None if the model has to decide."""
    gain: tuple[int, ...]
    """[tensors] weighted bytes that the tensor saves by staying on chip, without copies."""
    readable: tuple[tuple[int, ...], ...]
    """[tensors] layouts that some option of a reader needs, ascending."""
    writable: tuple[tuple[int, ...], ...]
    """[tensors] possible own layouts: those in which its first writer can write it. For an input, they are the readable layouts
    without views, or unspread if there are none."""
    crowded: tuple[tuple[int, ...], ...]
    """The *crowded sets*: maximal sets of tensors that are live at the same operator and that may exceed the capacity together
    with their copies."""
    unit: int
    """Number of bytes in a unit of the capacity constraints: among large sizes, the size whose tensors need most space in all
    crowded sets together.

    The size of a tensor is a number of whole units plus a rest. In a crowded set, the whole units of all tensors, plus the sum
    of all rests rounded up to units, must fit into the whole units of the capacity. Constraints in bytes would let the linear
    relaxation place a fraction of a large tensor next to small ones. Constraints in units do not, and nearly all their
    coefficients are 1.
    """

    def followed(self, on_chip: Sequence[bool]) -> list[bool]:
        """[tensors] whether the tensor stays on chip: as :attr:`on_chip` decides, or else as the argument ``on_chip`` says."""
        return [chosen if fixed is None else fixed for fixed, chosen in zip(self.on_chip, on_chip, strict=True)]


def rests_at(problem: Problem, structure: Structure, plan: Plan) -> list[int]:
    """For each crowded set, the sum in bytes of the rests (:attr:`Structure.unit`) of a plan's tensors and copies on chip."""
    unit = structure.unit
    rest = [tensor.bytes % unit * stays for tensor, stays in zip(problem.tensors, plan.on_chip, strict=True)]
    for copy in plan.copies:
        rest[copy.tensor] += problem.tensors[copy.tensor].layout_bytes(copy.layout) % unit
    return [sum(rest[tensor] for tensor in live) for live in structure.crowded]


def analyse(problem: Problem) -> Structure:
    """Determine the facts of :class:`Structure` for a problem: which decisions are fixed in some best plan, which layouts are
    possible, and which sets of tensors are crowded."""
    count = len(problem.tensors)
    readable = tuple(_readable(problem, tensor) for tensor in range(count))
    gain = tuple(off_chip_cost(problem, tensor) - on_chip_cost(problem, tensor) for tensor in range(count))
    most = tuple(_most_copies(problem, tensor, readable[tensor]) for tensor in range(count))
    with_copies = [problem.tensors[tensor].bytes + most[tensor] for tensor in range(count)]
    # A tensor that gains nothing by staying on chip, or does not fit, is in main memory and needs no copies.
    off = [gain[tensor] <= 0 or problem.tensors[tensor].bytes > problem.capacity for tensor in range(count)]
    crowded = _crowded(problem, with_copies, off)
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


#: A unit is at least the capacity divided by this number. Smaller tensors have little influence on what fits.
_MOST_UNITS = 64


def _unit(problem: Problem, crowded: list[tuple[int, ...]]) -> int:
    """The size whose tensors need most bytes in all crowded sets together, among sizes that are large enough.

    If there is no such size, it is the capacity, but at least 1.
    """
    space: dict[int, int] = {}
    for tensors in crowded:
        for tensor in tensors:
            size = problem.tensors[tensor].bytes
            if size * _MOST_UNITS >= problem.capacity:
                space[size] = space.get(size, 0) + size
    return max(space, key=lambda size: (space[size], size), default=max(1, problem.capacity))


def _readable(problem: Problem, tensor: int) -> tuple[int, ...]:
    """The layouts in which some option of a reader needs the tensor, ascending."""
    return tuple(sorted({option[at] for number, at in problem.readers[tensor] for option in problem.operators[number].options}))


def _writable(problem: Problem, tensor: int, readable: tuple[int, ...]) -> tuple[int, ...]:
    """The possible own layouts of a tensor, ascending (:attr:`Structure.writable`)."""
    if not problem.writers[tensor]:
        return tuple(layout for layout in readable if layout < problem.tensors[tensor].rank) or (-1,)
    operator = problem.operators[problem.writers[tensor][0]]
    at = operator.write_place(tensor)
    return tuple(sorted({option[at] for option in operator.options}))


def _most_copies(problem: Problem, tensor: int, readable: tuple[int, ...]) -> int:
    """Upper bound on the bytes of a tensor's copies: at most one for each layout, and no more copies than accesses."""
    sizes = sorted((problem.tensors[tensor].layout_bytes(layout) for layout in readable), reverse=True)
    return sum(sizes[: len(problem.readers[tensor])])


def _crowded(problem: Problem, larger: list[int], off: list[bool]) -> list[tuple[int, ...]]:
    """The maximal sets of tensors, live at the same operator, that may exceed the capacity with their copies.

    ``larger`` has the largest size of each tensor with its copies. Tensors that are ``off`` are in main memory in any case.
    """
    lives = ((tensor, *life) for tensor in range(len(off)) if not off[tensor] and (life := problem.life(tensor)) is not None)
    live_tensors = (tuple(sorted(live)) for live in live_sets(lives))
    return [tensors for tensors in live_tensors if sum(larger[tensor] for tensor in tensors) > problem.capacity]
