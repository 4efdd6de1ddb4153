"""What a bank mapping looks like in numbers: bytes moved, what is on chip when, and every tensor's copies."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from stowplan.errors import InputError
from stowplan.models.bank_mapping.plan import Plan
from stowplan.models.bank_mapping.problem import Problem
from stowplan.models.bank_mapping.verify import verify
from stowplan.report.colours import PALETTE
from stowplan.report.units import format_bytes
from stowplan.result import format_apart

#: Rules without which a plan cannot be read; one that breaks others is worth looking at.
_UNREADABLE = ("wrong_problem", "wrong_count", "unknown_option", "unknown_layout")


def check_fits(problem: Problem, plan: object) -> Plan:
    """The plan, where it is one for this problem; raises :class:`~stowplan.errors.InputError` where it is not."""
    if not isinstance(plan, Plan):
        raise InputError(f"found a {type(plan).__name__} of another kind, expected a bank mapping")
    if plan.problem != problem.digest:
        raise InputError("the plan is for another problem: expected the same graph and target")
    for violation in verify(problem, plan).violations:
        if violation.code in _UNREADABLE:
            raise InputError(violation.message)
    return plan


def moved(problem: Problem, plan: Plan) -> tuple[int, int]:
    """(bytes copied between banks, bytes moved to and from main memory)."""
    found = verify(problem, plan)
    return found.copied_bytes or 0, found.off_chip_bytes or 0


def bytes_on_chip(problem: Problem, plan: Plan) -> NDArray[np.int64]:
    """Bytes of tensors and of copies on chip at each operator, ``[2, operators]``."""
    change = np.zeros((2, len(problem.operators) + 1), np.int64)
    copied = copied_bytes(problem, plan)
    for tensor, stays in enumerate(plan.on_chip):
        life = problem.life(tensor)
        if not stays or life is None:
            continue
        for row, size in enumerate((problem.tensors[tensor].bytes, copied[tensor])):
            change[row, life[0]] += size
            change[row, life[1]] -= size
    return np.cumsum(change, axis=1)[:, :-1]


def copied_bytes(problem: Problem, plan: Plan) -> list[int]:
    """Bytes of the copies of each tensor."""
    copied = [0] * len(problem.tensors)
    for copy in plan.copies:
        copied[copy.tensor] += problem.tensors[copy.tensor].layout_bytes(copy.layout)
    return copied


def largest(problem: Problem) -> list[int]:
    """Tensors that something touches, the largest first."""
    touched = (number for number in range(len(problem.tensors)) if problem.life(number) is not None)
    return sorted(touched, key=lambda number: (-problem.tensors[number].bytes, number))


def layout_class(problem: Problem, tensor: int, layout: int) -> str:
    """A layout in the words of a legend: ``unspread``, ``dimension 0`` and so on, or ``a view``."""
    return problem.tensors[tensor].layout_name(layout) if layout < problem.tensors[tensor].rank else "a view"


def layout_colours(problem: Problem, plan: Plan) -> dict[str, str]:
    """Colours of the layouts that tensors have of their own, unspread first."""
    found = {layout_class(problem, number, layout) for number, layout in enumerate(plan.layouts)}
    ordered = sorted(found, key=lambda name: (name != "unspread", name))
    return {name: "#9aa7b5" if name == "unspread" else PALETTE[at % len(PALETTE)] for at, name in enumerate(ordered)}


def totals(problem: Problem, plans: Sequence[tuple[str, Plan]]) -> list[tuple[str, int, int, str]]:
    """Of each plan its name, bytes copied between banks, bytes moved off chip, and both together for people.

    Unlike sums look unlike.
    """
    found = [(label, *moved(problem, plan)) for label, plan in plans]
    texts = format_apart((copied + outside for _, copied, outside in found), format_bytes)
    return [(label, copied, outside, texts[copied + outside]) for label, copied, outside in found]
