"""From choices to a whole plan: the layouts and copies that follow, and what they cost. Models and heuristics share it."""

from __future__ import annotations

from collections.abc import Sequence

from stowplan.models.bank_mapping.plan import BankCopy, Plan
from stowplan.models.bank_mapping.problem import UNSPREAD, Problem


def off_chip_cost(problem: Problem, tensor: int) -> int:
    """Weighted bytes of a tensor in main memory: written once, loaded by every access."""
    each = problem.tensors[tensor]
    loads = sum(problem.operators[number].read_bytes[at] for number, at in problem.readers[tensor])
    return problem.off_chip_weight * (loads + (each.bytes if problem.writers[tensor] else 0))


def on_chip_cost(problem: Problem, tensor: int) -> int:
    """Weighted bytes of a tensor that stays on chip, copies left out: an input's one load, an output's one store."""
    each = problem.tensors[tensor]
    if problem.writers[tensor]:
        return problem.off_chip_weight * each.bytes if each.is_output else 0
    return problem.off_chip_weight * each.bytes if problem.readers[tensor] else 0


def own_layouts(problem: Problem, options: Sequence[int]) -> list[int]:
    """Layout of every tensor where operators compute by these options: what its writer writes, or for an input the layout that
    most of its readers want, the outermost of equals."""
    layouts = []
    for tensor, each in enumerate(problem.tensors):
        writers = problem.writers[tensor]
        if writers:
            operator = problem.operators[writers[0]]
            layouts.append(operator.options[options[writers[0]]][len(operator.reads) + operator.writes.index(tensor)])
            continue
        wanted: dict[int, int] = {}
        for number, at in problem.readers[tensor]:
            layout = problem.operators[number].options[options[number]][at]
            if layout < each.rank:
                wanted[layout] = wanted.get(layout, 0) + 1
        layouts.append(max(sorted(wanted), key=lambda layout: wanted[layout], default=UNSPREAD))
    return layouts


def copies_of(problem: Problem, tensor: int, own: int, options: Sequence[int]) -> dict[int, int]:
    """Layout to first reader of every copy of a tensor on chip."""
    found: dict[int, int] = {}
    for number, at in problem.readers[tensor]:
        layout = problem.operators[number].options[options[number]][at]
        if layout != own:
            found.setdefault(layout, number)
    return found


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
    return sum(min(off_chip_cost(problem, each), on_chip_cost(problem, each)) for each in range(len(problem.tensors)))
